//! Which nodes compute in half.

use std::collections::{HashMap, HashSet};

use edgeopt_models::graph::Uses;
use edgeopt_models::{DataType, Graph, Model, Node, Tensor, ValueName};

use super::{Fp16Options, LARGEST};
use crate::calibrate::CalibrationTable;
use crate::precision::pattern;

/// What becomes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// It computes in half.
    Half,
    /// It stays in float32, for this reason.
    Float(&'static str),
    /// It has nothing to do with float32.
    NotFloat,
}

/// Operators that compute well in half (accumulating in float32 where they sum, as TensorRT and cuDNN do).
const COMPUTE: [&str; 39] = [
    "Abs",
    "Add",
    "AveragePool",
    "Clip",
    "Conv",
    "ConvTranspose",
    "Div",
    "Elu",
    "Erf",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "HardSigmoid",
    "HardSwish",
    "InstanceNormalization",
    "LayerNormalization",
    "LeakyRelu",
    "MatMul",
    "Max",
    "MaxPool",
    "Min",
    "Mish",
    "Mul",
    "Neg",
    "PRelu",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceSum",
    "Relu",
    "Resize",
    "Selu",
    "Sigmoid",
    "Softmax",
    "Softsign",
    "Sub",
    "Tanh",
    "Where",
];

/// Operators that only move data: in half when their data already is.
const MOVES: [&str; 17] = [
    "Concat",
    "DepthToSpace",
    "Dropout",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "Identity",
    "Pad",
    "Reshape",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
];

/// Most elements a half reduction may add up: beyond it, sums overflow or lose their small terms.
const LONGEST_SUM: usize = 1024;

/// Inputs that must stay float32 although their node computes in half: Resize's regions and scales.
pub(super) fn stays_float(node: &Node, input: usize) -> bool {
    node.is("Resize") && (input == 1 || input == 2)
}

/// Decides for every node of the main graph. Types must have been inferred.
pub(super) fn choose(model: &Model, options: &Fp16Options, ranges: Option<&CalibrationTable>) -> Vec<Choice> {
    let graph = &model.graph;
    let uses = Uses::new(graph);
    let mut dtypes: HashMap<&ValueName, DataType> = HashMap::new();
    for name in graph
        .nodes
        .iter()
        .flat_map(|node| node.inputs.iter().chain(&node.outputs))
    {
        if let Some(dtype) = graph.type_of(name).and_then(|ty| ty.dtype()) {
            dtypes.insert(name, dtype);
        }
    }
    let is_float = |name: &ValueName| dtypes.get(name) == Some(&DataType::Float32);
    let mut halves: HashSet<&ValueName> = HashSet::new();
    let mut choices = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let floats = || node.inputs.iter().chain(&node.outputs).any(is_float);
        let unknown = || {
            node.outputs
                .iter()
                .any(|name| !name.is_omitted() && !dtypes.contains_key(name))
        };
        let choice = if !floats() && !unknown() {
            Choice::NotFloat
        } else if unknown() {
            Choice::Float("the types of its outputs do not follow from the graph")
        } else {
            decide(node, graph, &uses, options, ranges, &halves)
        };
        if choice == Choice::Half {
            halves.extend(node.outputs.iter().filter(|name| is_float(name)));
        }
        choices.push(choice);
    }
    choices
}

fn decide(
    node: &Node,
    graph: &Graph,
    uses: &Uses,
    options: &Fp16Options,
    ranges: Option<&CalibrationTable>,
    halves: &HashSet<&ValueName>,
) -> Choice {
    if options
        .exclude
        .iter()
        .any(|wanted| pattern::matches(wanted, &node.name))
    {
        return Choice::Float("excluded by name");
    }
    if !node.domain.is_empty() {
        return Choice::Float("an operator of another domain");
    }
    let op = node.op_type.as_str();
    if MOVES.contains(&op) {
        // Gather takes constants (tables of embeddings) into half, too.
        let data = node.input(0);
        let half = data
            .is_some_and(|name| halves.contains(name) || (op == "Gather" && graph.constant(name).is_some()));
        if !half && op != "Concat" {
            return Choice::Float("moves float32 data");
        }
        if op == "Concat" && !node.inputs.iter().any(|name| halves.contains(name)) {
            return Choice::Float("moves float32 data");
        }
    } else if !COMPUTE.contains(&op) {
        return Choice::Float("the operator is not safe, or does not exist, in half");
    }
    if op.starts_with("Reduce") && matches!(op, "ReduceSum" | "ReduceMean") && !short_sum(node, graph) {
        return Choice::Float("adds up too many elements, or nobody knows how many");
    }
    if op == "Mul" && node.inputs.first() == node.inputs.get(1) {
        return Choice::Float("squares: overflows from 256 on");
    }
    if op == "Div" && divides_by_root(node, graph, uses) {
        return Choice::Float("normalizes by a root of a variance");
    }
    for (index, input) in node.inputs.iter().enumerate() {
        if stays_float(node, index) {
            continue;
        }
        if let Some(tensor) = graph.constant(input)
            && tensor.dtype() == DataType::Float32
            && !representable(tensor, masks(node, uses, graph))
        {
            return Choice::Float("a constant is beyond 65504");
        }
    }
    let large = |name: &ValueName| {
        ranges
            .and_then(|table| table.get(name))
            .is_some_and(|range| range.max.max(-range.min) > options.range_limit)
    };
    if node.outputs.iter().any(large) {
        return Choice::Float("its output was seen to come near half's largest number");
    }
    Choice::Half
}

/// Whether the reduction adds up few enough elements.
fn short_sum(node: &Node, graph: &Graph) -> bool {
    let (Some(input), Some(output)) = (node.input(0), node.output(0)) else {
        return false;
    };
    let elements = |name: &str| graph.type_of(name)?.shape()?.elements();
    // The batch may be open: compare the lengths that are known on both sides.
    let known = || {
        let (before, after) = (graph.type_of(input)?, graph.type_of(output)?);
        let (before, after) = (before.shape()?, after.shape()?);
        if before.len() != after.len() {
            return None;
        }
        before
            .iter()
            .zip(after.iter())
            .try_fold(1usize, |product, (a, b)| {
                if a == b {
                    Some(product)
                } else {
                    product.checked_mul(a.known()?)
                }
            })
    };
    let count = match (elements(input), elements(output)) {
        (Some(before), Some(after)) if after > 0 => Some(before / after),
        _ => known(),
    };
    count.is_some_and(|count| count <= LONGEST_SUM)
}

/// Whether the divisor is a square root, at most an addition or cast away: a decomposed normalization.
fn divides_by_root(node: &Node, graph: &Graph, uses: &Uses) -> bool {
    let Some(divisor) = node.input(1).and_then(|name| uses.producer(name)) else {
        return false;
    };
    let producer = &graph.nodes[divisor];
    if producer.is("Sqrt") {
        return true;
    }
    (producer.is("Add") || producer.is("Cast"))
        && producer
            .inputs
            .iter()
            .filter_map(|name| uses.producer(name))
            .any(|index| graph.nodes[index].is("Sqrt"))
}

/// Whether very negative constants of this node are masks: they only push scores below the others before a softmax.
fn masks(node: &Node, uses: &Uses, graph: &Graph) -> bool {
    (node.is("Add") || node.is("Where"))
        && node.output(0).is_some_and(|output| {
            let readers = uses.readers(output);
            !readers.is_empty()
                && readers
                    .iter()
                    .all(|reader| graph.nodes[reader.node].is("Softmax"))
        })
}

fn representable(tensor: &Tensor, mask: bool) -> bool {
    let Ok(values) = tensor.view::<f32>() else {
        return true;
    };
    values.iter().all(|value| {
        value.abs() <= LARGEST || value.is_nan() || (mask && *value < 0.0) || value.is_infinite()
    })
}
