use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use onnx_protobuf::attribute_proto::AttributeType;
use onnx_protobuf::tensor_shape_proto::dimension;
use onnx_protobuf::type_proto::Value as TypeValue;
use onnx_protobuf::{
    AttributeProto, GraphProto, Message, ModelProto, NodeProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto,
};

use crate::graph::DEFAULT_DOMAIN;
use crate::{Attribute, DataType, Dim, Graph, Model, Node, Shape, Tensor, TensorError, ValueInfo, ValueType};

/// Why a file is not a model we can work on.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be opened or read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The bytes are not a protobuf message.
    #[error("not an ONNX model: {0}")]
    Decode(protobuf::Error),
    /// A required part is missing or contradicts another.
    #[error("{place}: {problem}")]
    Invalid {
        /// The node, tensor or field.
        place: String,
        /// What is wrong and what to do.
        problem: String,
    },
}

fn invalid(place: impl Into<String>, problem: impl Into<String>) -> ReadError {
    ReadError::Invalid {
        place: place.into(),
        problem: problem.into(),
    }
}

/// Reads a model from a file.
///
/// # Errors
/// When the file cannot be read or is not a well-formed ONNX model.
pub fn read_file(path: &Path) -> Result<Model, ReadError> {
    let bytes = std::fs::read(path).map_err(|source| ReadError::Io {
        path: path.into(),
        source,
    })?;
    read_bytes(&bytes)
}

/// Reads a model from memory.
///
/// # Errors
/// When the bytes are not a well-formed ONNX model.
pub fn read_bytes(bytes: &[u8]) -> Result<Model, ReadError> {
    let mut proto = ModelProto::parse_from_bytes(bytes).map_err(ReadError::Decode)?;
    let graph = proto
        .graph
        .take()
        .ok_or_else(|| invalid("model", "it has no graph"))?;
    let mut opsets = std::collections::BTreeMap::new();
    for import in std::mem::take(&mut proto.opset_import) {
        opsets.insert(domain(import.domain), import.version);
    }
    let metadata = std::mem::take(&mut proto.metadata_props)
        .into_iter()
        .map(|entry| (entry.key, entry.value))
        .collect();
    let ir_version = std::mem::take(&mut proto.ir_version);
    let producer = std::mem::take(&mut proto.producer_name);
    let graph = read_graph(graph)?;
    Ok(Model {
        ir_version,
        opsets,
        producer,
        metadata,
        graph,
        extra: leftover(proto),
    })
}

/// What remains of a message after everything modelled was taken out of it.
fn leftover<M: Message + PartialEq>(message: M) -> Option<Box<M>> {
    (message != M::default()).then(|| Box::new(message))
}

fn domain(text: String) -> String {
    if text == "ai.onnx" {
        DEFAULT_DOMAIN.to_owned()
    } else {
        text
    }
}

fn read_graph(mut proto: GraphProto) -> Result<Graph, ReadError> {
    let mut initializers = IndexMap::new();
    for mut tensor in std::mem::take(&mut proto.initializer) {
        let name = std::mem::take(&mut tensor.name);
        let value = read_tensor(tensor, &name)?;
        if initializers.insert(name.as_str().into(), value).is_some() {
            return Err(invalid(format!("initializer {name:?}"), "it is defined twice"));
        }
    }
    let mut names = HashSet::new();
    let mut nodes = Vec::with_capacity(proto.node.len());
    for node in std::mem::take(&mut proto.node) {
        nodes.push(read_node(node, &mut names)?);
    }
    let mut value_types = HashMap::new();
    for info in std::mem::take(&mut proto.value_info) {
        let info = read_value_info(info)?;
        value_types.insert(info.name, info.ty);
    }
    let inputs = std::mem::take(&mut proto.input)
        .into_iter()
        .map(read_value_info)
        .collect::<Result<_, _>>()?;
    let outputs = std::mem::take(&mut proto.output)
        .into_iter()
        .map(read_value_info)
        .collect::<Result<_, _>>()?;
    let name = std::mem::take(&mut proto.name);
    Ok(Graph {
        name,
        nodes,
        inputs,
        outputs,
        initializers,
        value_types,
        extra: leftover(proto),
    })
}

fn read_node(mut proto: NodeProto, names: &mut HashSet<String>) -> Result<Node, ReadError> {
    let op_type = std::mem::take(&mut proto.op_type);
    let base = match std::mem::take(&mut proto.name) {
        name if name.is_empty() => op_type.clone(),
        name => name,
    };
    let mut name = base.clone();
    let mut count = 0usize;
    while !names.insert(name.clone()) {
        count += 1;
        name = format!("{base}_{count}");
    }
    let mut attributes = std::collections::BTreeMap::new();
    for mut attribute in std::mem::take(&mut proto.attribute) {
        let key = std::mem::take(&mut attribute.name);
        let place = format!("node {name:?}, attribute {key:?}");
        if attributes
            .insert(key, read_attribute(attribute, &place)?)
            .is_some()
        {
            return Err(invalid(place, "it is given twice"));
        }
    }
    Ok(Node {
        op_type,
        domain: domain(std::mem::take(&mut proto.domain)),
        name,
        inputs: std::mem::take(&mut proto.input)
            .into_iter()
            .map(Into::into)
            .collect(),
        outputs: std::mem::take(&mut proto.output)
            .into_iter()
            .map(Into::into)
            .collect(),
        attributes,
        extra: leftover(proto),
    })
}

fn read_attribute(mut proto: AttributeProto, place: &str) -> Result<Attribute, ReadError> {
    let Ok(kind) = proto.type_.enum_value() else {
        return Ok(Attribute::Other(Box::new(proto)));
    };
    if !proto.ref_attr_name.is_empty() {
        return Ok(Attribute::Other(Box::new(proto)));
    }
    let missing = || invalid(place, "its value is missing");
    Ok(match kind {
        AttributeType::INT => Attribute::Int(proto.i),
        AttributeType::FLOAT => Attribute::Float(proto.f),
        AttributeType::STRING => Attribute::String(proto.s),
        AttributeType::TENSOR => Attribute::Tensor(read_tensor(proto.t.take().ok_or_else(missing)?, place)?),
        AttributeType::GRAPH => Attribute::Graph(Box::new(read_graph(proto.g.take().ok_or_else(missing)?)?)),
        AttributeType::INTS => Attribute::Ints(proto.ints),
        AttributeType::FLOATS => Attribute::Floats(proto.floats),
        AttributeType::STRINGS => Attribute::Strings(proto.strings),
        AttributeType::TENSORS => Attribute::Tensors(
            proto
                .tensors
                .into_iter()
                .map(|tensor| read_tensor(tensor, place))
                .collect::<Result<_, _>>()?,
        ),
        AttributeType::GRAPHS => Attribute::Graphs(
            proto
                .graphs
                .into_iter()
                .map(read_graph)
                .collect::<Result<_, _>>()?,
        ),
        _ => Attribute::Other(Box::new(proto)),
    })
}

fn read_value_info(mut proto: ValueInfoProto) -> Result<ValueInfo, ReadError> {
    let name = std::mem::take(&mut proto.name);
    let ty = read_type(proto.type_.take());
    Ok(ValueInfo {
        name: name.into(),
        ty,
        extra: leftover(proto),
    })
}

fn read_type(proto: Option<TypeProto>) -> ValueType {
    let Some(proto) = proto else {
        return ValueType::Other(None);
    };
    match &proto.value {
        Some(TypeValue::TensorType(tensor)) => match DataType::from_onnx(tensor.elem_type) {
            Some(dtype) => ValueType::Tensor {
                dtype,
                shape: tensor.shape.as_ref().map(read_shape),
            },
            None => ValueType::Other(Some(Box::new(proto))),
        },
        Some(TypeValue::SequenceType(sequence)) => {
            ValueType::Sequence(Box::new(read_type(sequence.elem_type.as_ref().cloned())))
        }
        Some(TypeValue::OptionalType(optional)) => {
            ValueType::Optional(Box::new(read_type(optional.elem_type.as_ref().cloned())))
        }
        _ => ValueType::Other(Some(Box::new(proto))),
    }
}

fn read_shape(proto: &TensorShapeProto) -> Shape {
    proto
        .dim
        .iter()
        .map(|dim| match &dim.value {
            Some(dimension::Value::DimValue(n)) => usize::try_from(*n).map_or(Dim::Unknown, Dim::Known),
            Some(dimension::Value::DimParam(name)) if !name.is_empty() => Dim::from(name.as_str()),
            _ => Dim::Unknown,
        })
        .collect()
}

fn read_tensor(proto: TensorProto, place: &str) -> Result<Tensor, ReadError> {
    let wrong = |error: TensorError| invalid(format!("tensor {place:?}"), error.to_string());
    let dtype = DataType::from_onnx(proto.data_type).ok_or_else(|| {
        invalid(
            format!("tensor {place:?}"),
            format!("its data type {} is not known", proto.data_type),
        )
    })?;
    let dims: Vec<usize> = proto
        .dims
        .iter()
        .map(|dim| usize::try_from(*dim))
        .collect::<Result<_, _>>()
        .map_err(|_| {
            invalid(
                format!("tensor {place:?}"),
                format!("negative length in {:?}", proto.dims),
            )
        })?;
    if dtype == DataType::String {
        return Tensor::strings(&dims, proto.string_data).map_err(wrong);
    }
    if !proto.raw_data.is_empty() {
        return Tensor::from_bytes(dtype, &dims, &proto.raw_data).map_err(wrong);
    }
    let bytes: Vec<u8> = match dtype {
        DataType::Float32 | DataType::Complex64 => bytemuck::cast_slice(&proto.float_data).to_vec(),
        DataType::Float64 | DataType::Complex128 => bytemuck::cast_slice(&proto.double_data).to_vec(),
        DataType::Int64 => bytemuck::cast_slice(&proto.int64_data).to_vec(),
        DataType::Int32 => bytemuck::cast_slice(&proto.int32_data).to_vec(),
        DataType::Uint64 => bytemuck::cast_slice(&proto.uint64_data).to_vec(),
        DataType::Uint32 => proto
            .uint64_data
            .iter()
            .flat_map(|x| (*x as u32).to_le_bytes())
            .collect(),
        _ if dtype.bits() == Some(16) => proto
            .int32_data
            .iter()
            .flat_map(|x| (*x as u16).to_le_bytes())
            .collect(),
        _ => proto.int32_data.iter().map(|x| *x as u8).collect(),
    };
    Tensor::from_bytes(dtype, &dims, &bytes).map_err(wrong)
}
