use super::Graph;
use crate::Tensor;

/// The value of a node's attribute.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the names are ONNX's own
pub enum Attribute {
    Int(i64),
    Float(f32),
    String(Vec<u8>),
    Tensor(Tensor),
    Graph(Box<Graph>),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Strings(Vec<Vec<u8>>),
    Tensors(Vec<Tensor>),
    Graphs(Vec<Graph>),
    /// Sparse tensors, types, and references to a function's attributes: kept for writing.
    Other(Box<onnx_protobuf::AttributeProto>),
}

impl From<i64> for Attribute {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f32> for Attribute {
    fn from(value: f32) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Attribute {
    fn from(value: &str) -> Self {
        Self::String(value.into())
    }
}

impl From<Tensor> for Attribute {
    fn from(value: Tensor) -> Self {
        Self::Tensor(value)
    }
}

impl From<Graph> for Attribute {
    fn from(value: Graph) -> Self {
        Self::Graph(Box::new(value))
    }
}

impl From<&[i64]> for Attribute {
    fn from(value: &[i64]) -> Self {
        Self::Ints(value.into())
    }
}

impl<const N: usize> From<[i64; N]> for Attribute {
    fn from(value: [i64; N]) -> Self {
        Self::Ints(value.into())
    }
}

impl From<&[f32]> for Attribute {
    fn from(value: &[f32]) -> Self {
        Self::Floats(value.into())
    }
}
