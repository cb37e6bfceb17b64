//! The editable graph: nodes joined by value names, as in ONNX, with what passes need to change it safely.
//!
//! A [`Graph`] is plain data: passes may edit its fields directly. What must hold in between is written at
//! [`validate`]; [`Uses`] answers "who reads this value" and [`NameGenerator`] makes names that are unique
//! across all scopes of the model.

mod attribute;
mod edit;
mod known_attributes;
mod names;
mod node;
mod order;
mod spill;
mod uses;
pub mod validate;

use std::collections::{BTreeMap, HashMap};

use indexmap::IndexMap;

pub use attribute::Attribute;
pub use names::NameGenerator;
pub use node::{DEFAULT_DOMAIN, Node};
pub use order::CycleError;
pub use uses::{Use, Uses, captured_values};

use crate::{DataType, Shape, Tensor, ValueName};

/// A whole model: the main graph and what surrounds it in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// ONNX IR version of the file.
    pub ir_version: i64,
    /// Version of each operator set in use; the standard one has the domain `""`.
    pub opsets: BTreeMap<String, i64>,
    /// Who wrote the file.
    pub producer: String,
    /// Free text pairs kept with the model.
    pub metadata: BTreeMap<String, String>,
    /// The main graph.
    pub graph: Graph,
    /// Fields of the file this crate does not model (functions, training, unknown fields), kept for writing.
    pub extra: Option<Box<onnx_protobuf::ModelProto>>,
}

/// A graph or subgraph. Nodes stand in topological order; a subgraph may use values of the scopes around it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// Name of the graph.
    pub name: String,
    /// Operations in topological order.
    pub nodes: Vec<Node>,
    /// Inputs. From IR 4 on, an input that is also an initializer has it as its default.
    pub inputs: Vec<ValueInfo>,
    /// Outputs.
    pub outputs: Vec<ValueInfo>,
    /// Constants by name.
    pub initializers: IndexMap<ValueName, Tensor>,
    /// What is known about intermediate values (from the file or from shape inference).
    pub value_types: HashMap<ValueName, ValueType>,
    /// Fields of the file this crate does not model, kept for writing.
    pub extra: Option<Box<onnx_protobuf::GraphProto>>,
}

/// The name and type of a graph input or output.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueInfo {
    /// Name of the value.
    pub name: ValueName,
    /// Its type.
    pub ty: ValueType,
    /// Fields of the file this crate does not model, kept for writing.
    pub extra: Option<Box<onnx_protobuf::ValueInfoProto>>,
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueType {
    /// A tensor; `shape` is `None` when not even its rank is known.
    Tensor {
        /// Element type.
        dtype: DataType,
        /// Lengths, as far as known.
        shape: Option<Shape>,
    },
    /// A sequence of values of one type.
    Sequence(Box<ValueType>),
    /// A value that may be absent.
    Optional(Box<ValueType>),
    /// A type this crate does not model (maps, sparse tensors), or none given; kept for writing.
    Other(Option<Box<onnx_protobuf::TypeProto>>),
}

impl ValueType {
    /// A tensor type of known rank.
    pub fn tensor(dtype: DataType, shape: Shape) -> Self {
        Self::Tensor {
            dtype,
            shape: Some(shape),
        }
    }

    /// Element type, if this is a tensor.
    pub fn dtype(&self) -> Option<DataType> {
        match self {
            Self::Tensor { dtype, .. } => Some(*dtype),
            _ => None,
        }
    }

    /// Shape, if this is a tensor of known rank.
    pub fn shape(&self) -> Option<&Shape> {
        match self {
            Self::Tensor { shape, .. } => shape.as_ref(),
            _ => None,
        }
    }
}

impl ValueInfo {
    /// A tensor input or output.
    pub fn tensor(name: impl Into<ValueName>, dtype: DataType, shape: Shape) -> Self {
        Self {
            name: name.into(),
            ty: ValueType::tensor(dtype, shape),
            extra: None,
        }
    }
}

impl Model {
    /// A new model around `graph` for the standard operator set `opset`, at the IR version that came with it.
    pub fn new(graph: Graph, opset: i64) -> Self {
        Self {
            ir_version: ir_version_for(opset),
            opsets: BTreeMap::from([(DEFAULT_DOMAIN.to_owned(), opset)]),
            producer: "edgeopt".to_owned(),
            metadata: BTreeMap::new(),
            graph,
            extra: None,
        }
    }

    /// Version of the standard operator set (`""`, also spelled `ai.onnx`), 1 if the file does not say.
    pub fn opset(&self) -> i64 {
        self.opsets.get(DEFAULT_DOMAIN).copied().unwrap_or(1)
    }
}

/// The oldest IR version that may carry the standard operator set `opset` (ONNX's versioning table).
pub fn ir_version_for(opset: i64) -> i64 {
    match opset {
        ..=8 => 3,
        9 => 4,
        10 => 5,
        11 => 6,
        12..=14 => 7,
        15..=18 => 8,
        19..=20 => 9,
        21..=22 => 10,
        _ => 11,
    }
}

impl Graph {
    /// Whether `name` is an input of this graph.
    pub fn is_input(&self, name: &str) -> bool {
        self.inputs.iter().any(|input| input.name == *name)
    }

    /// Whether `name` is an output of this graph.
    pub fn is_output(&self, name: &str) -> bool {
        self.outputs.iter().any(|output| output.name == *name)
    }

    /// The constant behind `name`, unless a caller may override it (an initializer that is also an input).
    pub fn constant(&self, name: &str) -> Option<&Tensor> {
        if self.is_input(name) {
            None
        } else {
            self.initializers.get(name)
        }
    }

    /// The inputs a caller must give: those without a default.
    pub fn required_inputs(&self) -> impl Iterator<Item = &ValueInfo> {
        self.inputs
            .iter()
            .filter(|input| !self.initializers.contains_key(&*input.name))
    }

    /// What is known about a value: input, initializer, output or inferred intermediate.
    pub fn type_of(&self, name: &str) -> Option<ValueType> {
        if let Some(tensor) = self.initializers.get(name) {
            return Some(ValueType::tensor(tensor.dtype(), Shape::known(tensor.dims())));
        }
        self.inputs
            .iter()
            .find(|input| input.name == *name)
            .map(|input| &input.ty)
            .or_else(|| self.value_types.get(name))
            .or_else(|| {
                self.outputs
                    .iter()
                    .find(|output| output.name == *name)
                    .map(|output| &output.ty)
            })
            .cloned()
    }

    /// Index of the node that produces `name`.
    pub fn producer(&self, name: &str) -> Option<usize> {
        self.nodes
            .iter()
            .position(|node| node.outputs.iter().any(|output| *output == *name))
    }
}
