use edgeopt_models::graph::Uses;
use edgeopt_models::{Graph, Model, Node, ValueName};

use super::integers::axes;
use super::known_rank::known_rank;
use super::{Changes, Context, every_graph};

/// Writes layer normalization spelled out, `d / sqrt(mean(d²) + epsilon) · gamma + beta` with `d = x - mean(x)`
/// over the last axes, as `LayerNormalization` (operator set 17 and later). Runtimes compute that in one kernel
/// and sum in float32 even where the model is float16.
pub(super) fn fuse(model: &mut Model, _: &Context) -> Changes {
    if model.opset() < 17 {
        return Changes(0);
    }
    Changes(every_graph(&mut model.graph, &mut in_graph))
}

fn in_graph(graph: &mut Graph) -> usize {
    let uses = Uses::new(graph);
    let mut gone = vec![false; graph.nodes.len()];
    let mut count = 0;
    for index in 0..graph.nodes.len() {
        let Some(found) = Found::at(graph, &uses, index) else {
            continue;
        };
        for part in &found.parts {
            gone[*part] = true;
        }
        let name = graph.nodes[found.last].name.clone();
        let inputs = [Some(found.input), Some(found.gamma), found.beta];
        let mut node = Node::new(
            "LayerNormalization",
            &name,
            inputs.into_iter().flatten(),
            [graph.nodes[found.last].outputs[0].clone()],
        )
        .with("axis", found.axis);
        node = node.with("epsilon", found.epsilon);
        graph.nodes[found.last] = node;
        count += 1;
    }
    graph.remove_nodes(|index| gone[index]);
    count
}

struct Found {
    /// The nodes that go, without the last.
    parts: Vec<usize>,
    /// The node that makes the result.
    last: usize,
    input: ValueName,
    gamma: ValueName,
    beta: Option<ValueName>,
    /// The first normalized axis, counted from the end.
    axis: i64,
    epsilon: f32,
}

impl Found {
    /// The normalization whose `Sub` is node `subtract`, with every value in between read by it alone.
    fn at(graph: &Graph, uses: &Uses, subtract: usize) -> Option<Self> {
        let node = |index: usize| &graph.nodes[index];
        let result = |index: usize| node(index).output(0);
        // The only reader of a node's result, if it is the operator `op`.
        let next = |index: usize, op: &str| {
            let reader = uses.sole_reader(result(index)?)?;
            node(reader.node).is(op).then_some(reader)
        };
        if !node(subtract).is("Sub") {
            return None;
        }
        let input = node(subtract).input(0)?.clone();
        let mean = uses.producer(node(subtract).input(1)?)?;
        if node(mean).input(0) != Some(&input) || next(mean, "Sub")?.node != subtract {
            return None;
        }
        let axis = last_axes(graph, uses, node(mean))?;

        let difference = result(subtract)?;
        if graph.is_output(difference) {
            return None;
        }
        let (mut square, mut divide) = (None, None);
        let readers = uses.readers(difference);
        for reader in readers {
            let side = reader.input?;
            let by = node(reader.node);
            match by.op_type.as_str() {
                "Pow" if by.is("Pow") && side == 0 && scalar(graph, by.input(1)?)? == 2.0 => {
                    square = Some(reader.node);
                }
                "Mul" if by.is("Mul") && by.input(0) == by.input(1) => square = Some(reader.node),
                "Div" if by.is("Div") && side == 0 => divide = Some(reader.node),
                _ => return None,
            }
        }
        let (square, divide) = (square?, divide?);
        let expected = if node(square).is("Mul") { 3 } else { 2 };
        if readers.len() != expected {
            return None;
        }
        let variance = next(square, "ReduceMean")?.node;
        if last_axes(graph, uses, node(variance))? != axis {
            return None;
        }
        let shifted = next(variance, "Add")?;
        let epsilon = scalar(graph, node(shifted.node).input(1 - shifted.input?)?)?;
        let root = next(shifted.node, "Sqrt")?.node;
        if next(root, "Div")?.node != divide || node(divide).input(1) != result(root) {
            return None;
        }
        let scaled = next(divide, "Mul")?;
        let gamma = node(scaled.node).input(1 - scaled.input?)?.clone();
        let dims = parameter_dims(graph, &gamma, axis)?;
        // The parameters have the normalized lengths; where the input's are known, they say so too.
        if let Some(shape) = graph.type_of(&input).and_then(|ty| ty.shape().cloned()) {
            let lengths = shape.get(shape.len().checked_sub(dims.len())?..)?;
            if lengths
                .iter()
                .zip(dims)
                .any(|(length, dim)| length.known().is_some_and(|n| n != *dim))
            {
                return None;
            }
        }
        let mut parts = vec![mean, subtract, square, variance, shifted.node, root, divide];
        let added = next(scaled.node, "Add").and_then(|added| {
            let beta = node(added.node).input(1 - added.input?)?;
            (parameter_dims(graph, beta, axis)? == dims).then(|| (added.node, beta.clone()))
        });
        let (last, beta) = match added {
            Some((last, beta)) => {
                parts.push(scaled.node);
                (last, Some(beta))
            }
            None => (scaled.node, None),
        };
        Some(Self {
            parts,
            last,
            input,
            gamma,
            beta,
            axis,
            epsilon,
        })
    }
}

/// The first axis, counted from the end, if the node takes the mean over all axes from there and keeps them.
fn last_axes(graph: &Graph, uses: &Uses, mean: &Node) -> Option<i64> {
    if !mean.is("ReduceMean") || mean.int("keepdims").unwrap_or(1) != 1 {
        return None;
    }
    let mut axes = axes(graph, mean, 1)?;
    if axes.iter().any(|axis| *axis >= 0) {
        let rank = known_rank(graph, uses, mean.input(0)?)?.0 as i64;
        for axis in axes.iter_mut().filter(|axis| **axis >= 0) {
            *axis -= rank;
        }
    }
    axes.sort_unstable();
    let first = -i64::try_from(axes.len()).ok()?;
    (!axes.is_empty() && axes.iter().copied().eq(first..0)).then_some(first)
}

/// Lengths of a constant float32 parameter with as many axes as are normalized.
fn parameter_dims<'a>(graph: &'a Graph, name: &str, axis: i64) -> Option<&'a [usize]> {
    let tensor = graph.constant(name)?;
    // A single element could be a factor for a longer axis.
    let fits = tensor.dims().len() as i64 == -axis && tensor.elements() > 1;
    (fits && tensor.view::<f32>().is_ok()).then_some(tensor.dims())
}

/// A float32 constant of one element that does not change the rank of what it is combined with.
fn scalar(graph: &Graph, name: &str) -> Option<f32> {
    let tensor = graph.constant(name)?;
    match (tensor.dims(), &*tensor.view::<f32>().ok()?) {
        ([] | [1], [one]) => Some(*one),
        _ => None,
    }
}
