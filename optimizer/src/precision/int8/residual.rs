use std::collections::HashMap;

use edgeopt_models::graph::Uses;
use edgeopt_models::{Graph, ValueName};

/// Layers that TensorRT fuses behind a convolution, one activation in and one out.
const EPILOGUE: [&str; 8] = [
    "BatchNormalization",
    "Relu",
    "Clip",
    "LeakyRelu",
    "HardSwish",
    "Sigmoid",
    "Mish",
    "Dropout",
];

/// Of an Add of a skip connection, the index of the residual input: the one that is *not* computed by the
/// convolution the Add fuses with (TensorRT's rule: quantize only the residual input). `None` when the Add is
/// no skip connection.
pub(super) fn residual_input(graph: &Graph, uses: &Uses, add: usize) -> Option<usize> {
    let inputs = &graph.nodes.get(add)?.inputs;
    let [first, second] = inputs.as_slice() else {
        return None;
    };
    if graph.constant(first).is_some() || graph.constant(second).is_some() || first == second {
        return None;
    }
    let distances = [distances(graph, uses, first), distances(graph, uses, second)];
    // A convolution that the other side depends on is where the branches part, not a branch of its own.
    let convolutions = [backbone(graph, uses, first), backbone(graph, uses, second)];
    let own = |side: usize| {
        convolutions[side].is_some_and(|conv| {
            graph.nodes[conv]
                .outputs
                .iter()
                .all(|output| !distances[1 - side].contains_key(output))
        })
    };
    match (own(0), own(1)) {
        (true, false) => Some(1),
        (false, true) => Some(0),
        (false, false) => None,
        (true, true) => {
            let shared = distances[0]
                .iter()
                .filter_map(|(name, a)| Some((*a, *distances[1].get(name)?)));
            let (a, b) = shared.min_by_key(|(a, b)| a + b)?;
            Some(if a >= b { 1 } else { 0 })
        }
    }
}

/// The convolution that computes `value`, through its epilogue (including `x * sigmoid(x)`).
fn backbone(graph: &Graph, uses: &Uses, value: &ValueName) -> Option<usize> {
    let mut value = value;
    for _ in 0..8 {
        let index = uses.producer(value)?;
        let node = &graph.nodes[index];
        if node.is("Conv") || node.is("ConvTranspose") {
            return Some(index);
        }
        if EPILOGUE.iter().any(|op| node.is(op)) {
            value = node.input(0)?;
        } else if node.is("Mul") || node.is("Add") {
            value = node.inputs.iter().find(|input| {
                let activation = uses
                    .producer(input)
                    .is_some_and(|at| graph.nodes[at].is("Sigmoid"));
                graph.constant(input).is_none() && !activation
            })?;
            if node.is("Add") && node.inputs.iter().all(|input| graph.constant(input).is_none()) {
                return None;
            }
        } else {
            return None;
        }
    }
    None
}

/// The longest way, in nodes, from every value that `value` depends on.
fn distances(graph: &Graph, uses: &Uses, value: &ValueName) -> HashMap<ValueName, usize> {
    let mut longest = HashMap::from([(value.clone(), 0)]);
    let Some(last) = uses.producer(value) else {
        return longest;
    };
    // Nodes are in topological order: going backwards, every reader is settled before what it reads.
    for node in graph.nodes[..=last].iter().rev() {
        let Some(distance) = node
            .outputs
            .iter()
            .filter_map(|name| longest.get(name))
            .max()
            .copied()
        else {
            continue;
        };
        for input in node.inputs.iter().filter(|name| !name.is_omitted()) {
            if graph.initializers.contains_key(input) {
                continue;
            }
            let entry = longest.entry(input.clone()).or_default();
            *entry = (*entry).max(distance + 1);
        }
    }
    longest
}
