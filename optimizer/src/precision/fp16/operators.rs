//! What is known of operators: which compute in half, which only move data, which bound what comes out of them.

use edgeopt_models::{DataType, Graph, Node, Tensor};

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

/// Operators whose results are small numbers whatever goes in.
const BOUNDED: [&str; 12] = [
    "Atan",
    "Cos",
    "Erf",
    "HardSigmoid",
    "InstanceNormalization",
    "LayerNormalization",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softmax",
    "Softsign",
    "Tanh",
];

pub(super) fn computes(node: &Node) -> bool {
    standard(node, &COMPUTE)
}

pub(super) fn moves(node: &Node) -> bool {
    standard(node, &MOVES)
}

pub(super) fn quantizes(node: &Node) -> bool {
    node.is("QuantizeLinear") || node.is("DequantizeLinear")
}

/// Whether the node looks only at the shape of what it reads, so that either type serves it.
pub(super) fn reads_shape_only(node: &Node) -> bool {
    node.is("Shape") || node.is("Size")
}

/// Whether the results are small numbers whatever goes in: also a Clip to constants within half's range.
pub(super) fn bounds(node: &Node, graph: &Graph) -> bool {
    let fits = |index: usize| {
        node.input(index)
            .and_then(|name| graph.constant(name))
            .and_then(|bound| bound.to_f32().ok()?.first().copied())
            .is_some_and(|bound| bound.abs() <= super::LARGEST)
    };
    standard(node, &BOUNDED) || (node.is("Clip") && fits(1) && fits(2))
}

fn standard(node: &Node, operators: &[&str]) -> bool {
    node.domain.is_empty() && operators.contains(&node.op_type.as_str())
}

/// Inputs that must stay float32 although their node computes in half: Resize's regions and scales.
pub(super) fn stays_float(node: &Node, input: usize) -> bool {
    node.is("Resize") && (input == 1 || input == 2)
}

/// Outputs that stay float32 although their node computes in half: the statistics of LayerNormalization, which it
/// gives in the type that it computes them in.
pub(super) fn gives_float(node: &Node, output: usize) -> bool {
    node.is("LayerNormalization") && output > 0
}

/// Whether a float32 constant has a finite value that half cannot hold.
pub(super) fn too_large(tensor: &Tensor) -> bool {
    tensor.dtype() == DataType::Float32
        && tensor.view::<f32>().is_ok_and(|values| {
            values
                .iter()
                .any(|value| value.is_finite() && value.abs() > super::LARGEST)
        })
}
