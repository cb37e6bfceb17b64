use std::collections::HashSet;

use edgeopt_models::graph::Uses;
use edgeopt_models::{Graph, Model, Node, ValueName};

use super::integers::{axes, integers};
use super::{Changes, Context, every_graph};

/// Removes nodes whose result is a value that is there already: `Identity`, inference-time `Dropout`, `Cast` to
/// the type a value has, `Transpose` in the order there is, `Pad` by nothing, `Concat` of one, `Slice` of
/// everything, `Expand` to ones, and pairs that undo each other. What a subgraph captures stays: it may use the
/// source's name for something else. So does a graph output, unless its producer can take its name.
pub(super) fn remove(model: &mut Model, _: &Context) -> Changes {
    let opset = model.opset();
    Changes(every_graph(&mut model.graph, &mut |graph| in_graph(graph, opset)))
}

fn in_graph(graph: &mut Graph, opset: i64) -> usize {
    let uses = Uses::new(graph);
    let mut gone = HashSet::new();
    // Names that no longer mean what `uses` says.
    let mut renamed: HashSet<ValueName> = HashSet::new();
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let Some(from) = node.output(0).cloned() else {
            continue;
        };
        let Some(to) = equal_value(graph, node, &uses, opset) else {
            continue;
        };
        let direct = |name: &str| uses.readers(name).iter().all(|reader| reader.input.is_some());
        if renamed.contains(&to) || renamed.contains(&from) || !direct(&from) {
            continue;
        }
        if !graph.is_output(&from) {
            graph.replace_reads(&from, &to);
            gone.insert(index);
        } else if let Some(producer) = uses.producer(&to)
            && !gone.contains(&producer)
            && !graph.is_output(&to)
            && direct(&to)
        {
            graph.replace_reads(&to, &from);
            for output in graph.nodes[producer]
                .outputs
                .iter_mut()
                .filter(|output| **output == to)
            {
                *output = from.clone();
            }
            gone.insert(index);
            renamed.extend([from, to]);
        }
    }
    graph.remove_nodes(|index| gone.contains(&index));
    gone.len()
}

/// The value that the node's first output is always equal to.
fn equal_value(graph: &Graph, node: &Node, uses: &Uses, opset: i64) -> Option<ValueName> {
    if !node.domain.is_empty() {
        return None;
    }
    let input = node.input(0)?;
    // The node before, if it is the operator `op`.
    let before = |op: &str| {
        let producer = &graph.nodes[uses.producer(input)?];
        (producer.is(op) && producer.output(0) == Some(input)).then_some(producer)
    };
    let same = match node.op_type.as_str() {
        "Identity" => true,
        // From operator set 12 on, a third input can switch training on.
        "Dropout" => {
            (opset < 12 || node.input(2).is_none()) && node.output(1).is_none_or(|mask| uses.is_dead(mask))
        }
        "Cast" => {
            let held = graph.type_of(input).and_then(|ty| ty.dtype());
            held.is_some_and(|dtype| node.int("to") == Some(i64::from(dtype.to_onnx())))
        }
        "Transpose" => node
            .ints("perm")
            .is_some_and(|perm| perm.iter().copied().eq(0..perm.len() as i64)),
        "Concat" => node.inputs.len() == 1,
        "Pad" => {
            let pads = match node.ints("pads") {
                Some(pads) => Some(pads.to_vec()),
                None => node.input(1).and_then(|name| integers(graph, name)),
            };
            pads.is_some_and(|pads| pads.iter().all(|pad| *pad == 0))
        }
        "Expand" => {
            // A shape longer than the value's would add dimensions.
            node.input(1)
                .and_then(|name| integers(graph, name))
                .is_some_and(|shape| shape.len() <= 1 && shape.iter().all(|length| *length == 1))
                && graph
                    .type_of(input)
                    .is_some_and(|ty| ty.shape().is_some_and(|shape| !shape.is_empty()))
        }
        "Slice" => whole(graph, node).unwrap_or(false),
        "Squeeze" | "Unsqueeze" => {
            let inverse = if node.op_type == "Squeeze" {
                "Unsqueeze"
            } else {
                "Squeeze"
            };
            let first = before(inverse)?;
            let [mut own, mut others] = [axes(graph, node, 1)?, axes(graph, first, 1)?];
            own.sort_unstable();
            others.sort_unstable();
            return (own == others).then(|| first.input(0).cloned())?;
        }
        _ => false,
    };
    same.then(|| input.clone())
}

/// Whether a `Slice` takes everything, whatever the lengths are.
fn whole(graph: &Graph, node: &Node) -> Option<bool> {
    let starts = integers(graph, node.input(1)?)?;
    let ends = integers(graph, node.input(2)?)?;
    let steps = match node.input(4) {
        Some(name) => integers(graph, name)?,
        None => vec![1],
    };
    // No axis is as long as that.
    Some(
        starts.iter().all(|start| *start == 0)
            && ends.iter().all(|end| *end >= i64::from(i32::MAX))
            && steps.iter().all(|step| *step == 1),
    )
}
