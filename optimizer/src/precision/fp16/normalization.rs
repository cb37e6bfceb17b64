use std::collections::HashSet;

use edgeopt_models::graph::Uses;
use edgeopt_models::{Graph, Node, ValueName};

/// How many nodes may stand between a root and the squares it is taken of.
const DEEPEST: usize = 8;

/// The nodes of normalizations that are written out (`(x - mean) / sqrt(mean((x - mean)²) + epsilon)` and its relatives
/// without a mean, or with a reciprocal): squares overflow from 256 on, and the epsilon vanishes in half.
pub(super) fn normalizations(graph: &Graph, uses: &Uses) -> HashSet<usize> {
    let mut found = HashSet::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if !is_root(node, graph) {
            continue;
        }
        let mut above = HashSet::new();
        if node
            .input(0)
            .is_some_and(|name| leads_to_square(name, graph, uses, DEEPEST, &mut above))
        {
            found.insert(index);
            found.extend(above);
            divisions(index, graph, uses, DEEPEST, &mut found);
        }
    }
    found
}

/// Whether the divisor is a square root, at most an addition or cast away.
pub(super) fn divides_by_root(node: &Node, graph: &Graph, uses: &Uses) -> bool {
    let Some(divisor) = node.input(1).and_then(|name| uses.producer(name)) else {
        return false;
    };
    let producer = &graph.nodes[divisor];
    if is_root(producer, graph) {
        return true;
    }
    (producer.is("Add") || producer.is("Cast"))
        && producer
            .inputs
            .iter()
            .filter_map(|name| uses.producer(name))
            .any(|index| is_root(&graph.nodes[index], graph))
}

fn is_root(node: &Node, graph: &Graph) -> bool {
    node.is("Sqrt") || exponent(node, graph).is_some_and(|power| power.abs() == 0.5)
}

fn is_square(node: &Node, graph: &Graph) -> bool {
    exponent(node, graph) == Some(2.0) || (node.is("Mul") && node.inputs.first() == node.inputs.get(1))
}

/// The constant exponent of a Pow.
fn exponent(node: &Node, graph: &Graph) -> Option<f32> {
    if !node.is("Pow") {
        return None;
    }
    let exponent = graph.constant(node.input(1)?)?;
    match exponent.to_f32().ok()?[..] {
        [power] => Some(power),
        _ => None,
    }
}

/// Whether `value` is computed from squares by adding, scaling and averaging; if so, the nodes on the way, the square,
/// and what it squares (a difference from a mean) are added to `path`.
fn leads_to_square(
    value: &ValueName,
    graph: &Graph,
    uses: &Uses,
    depth: usize,
    path: &mut HashSet<usize>,
) -> bool {
    const WAY: [&str; 14] = [
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Max",
        "Clip",
        "Cast",
        "ReduceMean",
        "ReduceSum",
        "GlobalAveragePool",
        "Reshape",
        "Unsqueeze",
        "Squeeze",
        "Expand",
    ];
    let Some(index) = uses.producer(value).filter(|_| depth > 0) else {
        return false;
    };
    let node = &graph.nodes[index];
    if is_square(node, graph) {
        path.insert(index);
        path.extend(
            node.input(0)
                .into_iter()
                .flat_map(|name| centring(name, graph, uses)),
        );
        return true;
    }
    if !WAY.iter().any(|op| node.is(op)) {
        return false;
    }
    let mut reached = false;
    for input in &node.inputs {
        reached |= leads_to_square(input, graph, uses, depth - 1, path);
    }
    if reached {
        path.insert(index);
    }
    reached
}

/// The subtraction of a mean that computes `value`, with the mean.
fn centring(value: &ValueName, graph: &Graph, uses: &Uses) -> Vec<usize> {
    let Some(difference) = uses.producer(value).filter(|at| graph.nodes[*at].is("Sub")) else {
        return Vec::new();
    };
    let means = graph.nodes[difference]
        .inputs
        .iter()
        .filter_map(|name| uses.producer(name))
        .filter(|at| graph.nodes[*at].is("ReduceMean") || graph.nodes[*at].is("GlobalAveragePool"));
    means.chain([difference]).collect()
}

/// Adds what divides by the result of node `root`, also by its reciprocal, with the nodes in between.
fn divisions(root: usize, graph: &Graph, uses: &Uses, depth: usize, found: &mut HashSet<usize>) {
    const WAY: [&str; 8] = [
        "Add",
        "Max",
        "Clip",
        "Cast",
        "Expand",
        "Reshape",
        "Unsqueeze",
        "Reciprocal",
    ];
    if depth == 0 {
        return;
    }
    for reader in graph.nodes[root]
        .outputs
        .iter()
        .flat_map(|name| uses.readers(name))
    {
        let node = &graph.nodes[reader.node];
        let scales = (node.is("Mul") || node.is("Div"))
            && node.inputs.iter().any(|name| graph.constant(name).is_some());
        if scales || WAY.iter().any(|op| node.is(op)) {
            if found.insert(reader.node) {
                divisions(reader.node, graph, uses, depth - 1, found);
            }
        } else if node.is("Mul") || (node.is("Div") && reader.input == Some(1)) {
            found.insert(reader.node);
        }
    }
}
