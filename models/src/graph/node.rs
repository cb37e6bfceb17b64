use std::collections::BTreeMap;
use std::fmt;

use super::{Attribute, Graph};
use crate::ValueName;

/// The domain of ONNX's standard operators. `ai.onnx` in a file is read as this.
pub const DEFAULT_DOMAIN: &str = "";

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Operator, such as `Conv`.
    pub op_type: String,
    /// The operator's domain; `""` is the standard one.
    pub domain: String,
    /// Name of the node: unique in its graph after reading.
    pub name: String,
    /// Names of the inputs; an omitted optional input has the empty name.
    pub inputs: Vec<ValueName>,
    /// Names of the outputs; an omitted optional output has the empty name.
    pub outputs: Vec<ValueName>,
    /// Attributes by name.
    pub attributes: BTreeMap<String, Attribute>,
    /// Fields of the file this crate does not model, kept for writing.
    pub extra: Option<Box<onnx_protobuf::NodeProto>>,
}

impl Node {
    /// A standard operation named `name`, with no attributes.
    pub fn new<I, O>(op_type: &str, name: &str, inputs: I, outputs: O) -> Self
    where
        I: IntoIterator<Item: Into<ValueName>>,
        O: IntoIterator<Item: Into<ValueName>>,
    {
        Self {
            op_type: op_type.into(),
            domain: DEFAULT_DOMAIN.into(),
            name: name.into(),
            inputs: inputs.into_iter().map(Into::into).collect(),
            outputs: outputs.into_iter().map(Into::into).collect(),
            attributes: BTreeMap::new(),
            extra: None,
        }
    }

    /// The same node with one more attribute.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Attribute>) -> Self {
        self.attributes.insert(name.into(), value.into());
        self
    }

    /// Whether this is the standard operator `op_type`.
    pub fn is(&self, op_type: &str) -> bool {
        self.op_type == op_type && self.domain == DEFAULT_DOMAIN
    }

    /// The input at `index`, unless it is omitted.
    pub fn input(&self, index: usize) -> Option<&ValueName> {
        self.inputs.get(index).filter(|name| !name.is_omitted())
    }

    /// The output at `index`, unless it is omitted.
    pub fn output(&self, index: usize) -> Option<&ValueName> {
        self.outputs.get(index).filter(|name| !name.is_omitted())
    }

    /// An integer attribute.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.attributes.get(name) {
            Some(Attribute::Int(value)) => Some(*value),
            _ => None,
        }
    }

    /// A float attribute.
    pub fn float(&self, name: &str) -> Option<f32> {
        match self.attributes.get(name) {
            Some(Attribute::Float(value)) => Some(*value),
            _ => None,
        }
    }

    /// A list of integers.
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attributes.get(name) {
            Some(Attribute::Ints(values)) => Some(values),
            _ => None,
        }
    }

    /// A string attribute that is valid UTF-8.
    pub fn string(&self, name: &str) -> Option<&str> {
        match self.attributes.get(name) {
            Some(Attribute::String(bytes)) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The subgraphs of this node (branches of `If`, bodies of `Loop` and `Scan`).
    pub fn subgraphs(&self) -> impl Iterator<Item = &Graph> {
        self.attributes.values().flat_map(|attribute| match attribute {
            Attribute::Graph(graph) => std::slice::from_ref(&**graph),
            Attribute::Graphs(graphs) => graphs.as_slice(),
            _ => &[],
        })
    }

    /// The subgraphs of this node, for editing.
    pub fn subgraphs_mut(&mut self) -> impl Iterator<Item = &mut Graph> {
        self.attributes
            .values_mut()
            .flat_map(|attribute| match attribute {
                Attribute::Graph(graph) => std::slice::from_mut(&mut **graph),
                Attribute::Graphs(graphs) => graphs.as_mut_slice(),
                _ => &mut [],
            })
    }
}

impl fmt::Display for Node {
    /// `Conv node "conv1"`, for messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.domain.is_empty() {
            write!(f, "{}::", self.domain)?;
        }
        write!(f, "{} node {:?}", self.op_type, self.name)
    }
}
