use edgeopt_models::graph::Uses;
use edgeopt_models::{DataType, Graph};

/// Operators whose (first) result has the rank and type of their first input.
const KEEP_RANK: [&str; 24] = [
    "AveragePool",
    "BatchNormalization",
    "Clip",
    "Elu",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "InstanceNormalization",
    "LRN",
    "LayerNormalization",
    "LeakyRelu",
    "MaxPool",
    "Mish",
    "Neg",
    "Pad",
    "Relu",
    "Resize",
    "Sigmoid",
    "Slice",
    "Softmax",
    "Tanh",
    "Transpose",
];

/// Nodes looked at before giving up.
const REACH: usize = 256;

/// Rank and type of a value: declared, or told by the convolution or the like that it comes from.
pub(super) fn known_rank(graph: &Graph, uses: &Uses, name: &str) -> Option<(usize, DataType)> {
    let mut name = name.to_owned();
    // What constants of a higher rank on the way have made of it.
    let mut least = 0;
    for _ in 0..REACH {
        if let Some(ty) = graph.type_of(&name)
            && let (Some(shape), Some(dtype)) = (ty.shape(), ty.dtype())
        {
            return Some((shape.len().max(least), dtype));
        }
        let node = &graph.nodes[uses.producer(&name)?];
        if !node.domain.is_empty() {
            return None;
        }
        let op = node.op_type.as_str();
        match op {
            "Conv" | "ConvTranspose" | "Gemm" => {
                let weight = graph.type_of(node.input(1)?)?;
                return Some((weight.shape()?.len().max(least), weight.dtype()?));
            }
            "Add" | "Mul" | "Sub" | "Div" => {
                let side = [0, 1].into_iter().find(|side| {
                    node.input(1 - side)
                        .is_some_and(|other| graph.constant(other).is_some())
                })?;
                least = least.max(graph.constant(node.input(1 - side)?)?.dims().len());
                name = node.input(side)?.to_string();
            }
            _ if KEEP_RANK.contains(&op) => name = node.input(0)?.to_string(),
            _ => return None,
        }
    }
    None
}
