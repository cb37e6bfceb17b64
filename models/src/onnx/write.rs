use std::io::Write;
use std::path::{Path, PathBuf};

use onnx_protobuf::attribute_proto::AttributeType;
use onnx_protobuf::tensor_shape_proto::{Dimension, dimension};
use onnx_protobuf::type_proto::{self, Value as TypeValue};
use onnx_protobuf::{
    AttributeProto, GraphProto, Message, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, TensorShapeProto, TypeProto, ValueInfoProto,
};

use crate::{Attribute, Dim, Graph, Model, Node, Shape, Tensor, ValueInfo, ValueName, ValueType};

/// Why a model cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file cannot be written.
    #[error("cannot write {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The message cannot be encoded (it is larger than protobuf's 2 GiB).
    #[error("cannot encode the model: {0}")]
    Encode(protobuf::Error),
}

/// Writes a model to a file: beside it first, then renamed into place, so that it is never half-written.
///
/// # Errors
/// When the file cannot be written or the model exceeds protobuf's 2 GiB.
pub fn write_file(model: &Model, path: &Path) -> Result<(), WriteError> {
    let io = |source| WriteError::Io {
        path: path.into(),
        source,
    };
    let bytes = write_bytes(model)?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(io)?;
    file.write_all(&bytes)
        .and_then(|()| file.as_file().sync_all())
        .map_err(io)?;
    file.persist(path).map_err(|error| io(error.error))?;
    Ok(())
}

/// Encodes a model.
///
/// # Errors
/// When the model exceeds protobuf's 2 GiB.
pub fn write_bytes(model: &Model) -> Result<Vec<u8>, WriteError> {
    let mut proto: ModelProto = start_from(&model.extra);
    proto.ir_version = model.ir_version;
    proto.producer_name.clone_from(&model.producer);
    proto.opset_import = model
        .opsets
        .iter()
        .map(|(domain, version)| OperatorSetIdProto {
            domain: domain.clone(),
            version: *version,
            ..Default::default()
        })
        .collect();
    proto.metadata_props = model
        .metadata
        .iter()
        .map(|(key, value)| StringStringEntryProto {
            key: key.clone(),
            value: value.clone(),
            ..Default::default()
        })
        .collect();
    proto.graph = Some(graph_proto(&model.graph)).into();
    proto.write_to_bytes().map_err(WriteError::Encode)
}

fn start_from<M: Message + Default + Clone>(extra: &Option<Box<M>>) -> M {
    extra.as_deref().cloned().unwrap_or_default()
}

fn graph_proto(graph: &Graph) -> GraphProto {
    let mut proto: GraphProto = start_from(&graph.extra);
    proto.name.clone_from(&graph.name);
    proto.node = graph.nodes.iter().map(node_proto).collect();
    proto.input = graph.inputs.iter().map(value_info_proto).collect();
    proto.output = graph.outputs.iter().map(value_info_proto).collect();
    proto.initializer = graph
        .initializers
        .iter()
        .map(|(name, tensor)| tensor_proto(tensor, name))
        .collect();
    let mut types: Vec<(&ValueName, &ValueType)> = graph.value_types.iter().collect();
    types.sort_by_key(|(name, _)| *name);
    proto.value_info = types
        .into_iter()
        .map(|(name, ty)| {
            value_info_proto(&ValueInfo {
                name: name.clone(),
                ty: ty.clone(),
                extra: None,
            })
        })
        .collect();
    proto
}

fn node_proto(node: &Node) -> NodeProto {
    let mut proto: NodeProto = start_from(&node.extra);
    proto.op_type.clone_from(&node.op_type);
    proto.domain.clone_from(&node.domain);
    proto.name.clone_from(&node.name);
    proto.input = node.inputs.iter().map(ToString::to_string).collect();
    proto.output = node.outputs.iter().map(ToString::to_string).collect();
    proto.attribute = node
        .attributes
        .iter()
        .map(|(name, value)| attribute_proto(name, value))
        .collect();
    proto
}

fn attribute_proto(name: &str, value: &Attribute) -> AttributeProto {
    let mut proto = AttributeProto::new();
    let kind = match value {
        Attribute::Int(value) => {
            proto.i = *value;
            AttributeType::INT
        }
        Attribute::Float(value) => {
            proto.f = *value;
            AttributeType::FLOAT
        }
        Attribute::String(value) => {
            proto.s.clone_from(value);
            AttributeType::STRING
        }
        Attribute::Tensor(value) => {
            proto.t = Some(tensor_proto(value, "")).into();
            AttributeType::TENSOR
        }
        Attribute::Graph(value) => {
            proto.g = Some(graph_proto(value)).into();
            AttributeType::GRAPH
        }
        Attribute::Ints(values) => {
            proto.ints.clone_from(values);
            AttributeType::INTS
        }
        Attribute::Floats(values) => {
            proto.floats.clone_from(values);
            AttributeType::FLOATS
        }
        Attribute::Strings(values) => {
            proto.strings.clone_from(values);
            AttributeType::STRINGS
        }
        Attribute::Tensors(values) => {
            proto.tensors = values.iter().map(|tensor| tensor_proto(tensor, "")).collect();
            AttributeType::TENSORS
        }
        Attribute::Graphs(values) => {
            proto.graphs = values.iter().map(graph_proto).collect();
            AttributeType::GRAPHS
        }
        Attribute::Other(other) => {
            proto = (**other).clone();
            proto.name = name.to_owned();
            return proto;
        }
    };
    proto.name = name.to_owned();
    proto.type_ = kind.into();
    proto
}

fn value_info_proto(info: &ValueInfo) -> ValueInfoProto {
    let mut proto: ValueInfoProto = start_from(&info.extra);
    proto.name = info.name.to_string();
    proto.type_ = type_proto(&info.ty).into();
    proto
}

fn type_proto(ty: &ValueType) -> Option<TypeProto> {
    let mut proto = TypeProto::new();
    proto.value = Some(match ty {
        ValueType::Tensor { dtype, shape } => TypeValue::TensorType(type_proto::Tensor {
            elem_type: dtype.to_onnx(),
            shape: shape.as_ref().map(shape_proto).into(),
            ..Default::default()
        }),
        ValueType::Sequence(element) => TypeValue::SequenceType(type_proto::Sequence {
            elem_type: type_proto(element).into(),
            ..Default::default()
        }),
        ValueType::Optional(element) => TypeValue::OptionalType(type_proto::Optional {
            elem_type: type_proto(element).into(),
            ..Default::default()
        }),
        ValueType::Other(other) => return other.as_deref().cloned(),
    });
    Some(proto)
}

fn shape_proto(shape: &Shape) -> TensorShapeProto {
    let dim = |dim: &Dim| Dimension {
        value: match dim {
            Dim::Known(n) => Some(dimension::Value::DimValue(*n as i64)),
            Dim::Symbol(name) => Some(dimension::Value::DimParam(name.to_string())),
            Dim::Unknown => None,
        },
        ..Default::default()
    };
    TensorShapeProto {
        dim: shape.iter().map(dim).collect(),
        ..Default::default()
    }
}

fn tensor_proto(tensor: &Tensor, name: &str) -> TensorProto {
    let mut proto = TensorProto::new();
    proto.name = name.to_owned();
    proto.dims = tensor.dims().iter().map(|n| *n as i64).collect();
    proto.data_type = tensor.dtype().to_onnx();
    match tensor.as_strings() {
        Some(strings) => proto.string_data = strings.to_vec(),
        None => proto.raw_data = tensor.as_bytes().to_vec(),
    }
    proto
}
