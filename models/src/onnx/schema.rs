//! The ONNX schema as the wire walker needs it: which field of which message holds which message.

use onnx_protobuf::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, SparseTensorProto,
    StringStringEntryProto, TensorAnnotation, TensorProto, TensorShapeProto, TrainingInfoProto, TypeProto,
    ValueInfoProto, tensor_proto, tensor_shape_proto, type_proto,
};

use crate::{Graph, Node, Tensor, ValueInfo};

/// A message of the ONNX schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Segment,
    SparseTensor,
    ValueInfo,
    Type,
    TensorType,
    SequenceType,
    MapType,
    OptionalType,
    SparseTensorType,
    Shape,
    Dimension,
    Annotation,
    Entry,
    Opset,
    Training,
    Function,
}

/// What a length-delimited or scalar field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A nested message.
    Message(Kind),
    /// Text or bytes.
    Bytes,
    /// A number.
    Scalar,
    /// A list of numbers, packed or one by one.
    Numbers,
}

/// `TensorProto.raw_data`.
pub(super) const RAW_DATA: u32 = 9;

/// Name and content of field `number` of `kind`; `None` for a field the schema does not have.
pub(super) fn field(kind: Kind, number: u32) -> Option<(&'static str, Content)> {
    use Content::{Bytes, Message, Numbers, Scalar};
    Some(match (kind, number) {
        (Kind::Model, 1) => ("ir_version", Scalar),
        (Kind::Model, 2) => ("producer_name", Bytes),
        (Kind::Model, 3) => ("producer_version", Bytes),
        (Kind::Model, 4) => ("domain", Bytes),
        (Kind::Model, 5) => ("model_version", Scalar),
        (Kind::Model, 6) => ("doc_string", Bytes),
        (Kind::Model, 7) => ("graph", Message(Kind::Graph)),
        (Kind::Model, 8) => ("opset_import", Message(Kind::Opset)),
        (Kind::Model, 14) => ("metadata_props", Message(Kind::Entry)),
        (Kind::Model, 20) => ("training_info", Message(Kind::Training)),
        (Kind::Model, 25) => ("functions", Message(Kind::Function)),
        (Kind::Graph, 1) => ("node", Message(Kind::Node)),
        (Kind::Graph, 2) => ("name", Bytes),
        (Kind::Graph, 5) => ("initializer", Message(Kind::Tensor)),
        (Kind::Graph, 10) => ("doc_string", Bytes),
        (Kind::Graph, 11) => ("input", Message(Kind::ValueInfo)),
        (Kind::Graph, 12) => ("output", Message(Kind::ValueInfo)),
        (Kind::Graph, 13) => ("value_info", Message(Kind::ValueInfo)),
        (Kind::Graph, 14) => ("quantization_annotation", Message(Kind::Annotation)),
        (Kind::Graph, 15) => ("sparse_initializer", Message(Kind::SparseTensor)),
        (Kind::Graph, 16) => ("metadata_props", Message(Kind::Entry)),
        (Kind::Node, 1) => ("input", Bytes),
        (Kind::Node, 2) => ("output", Bytes),
        (Kind::Node, 3) => ("name", Bytes),
        (Kind::Node, 4) => ("op_type", Bytes),
        (Kind::Node, 5) => ("attribute", Message(Kind::Attribute)),
        (Kind::Node, 6) => ("doc_string", Bytes),
        (Kind::Node, 7) => ("domain", Bytes),
        (Kind::Node, 8) => ("overload", Bytes),
        (Kind::Node, 9) => ("metadata_props", Message(Kind::Entry)),
        (Kind::Attribute, 1) => ("name", Bytes),
        (Kind::Attribute, 2) => ("f", Scalar),
        (Kind::Attribute, 3) => ("i", Scalar),
        (Kind::Attribute, 4) => ("s", Bytes),
        (Kind::Attribute, 5) => ("t", Message(Kind::Tensor)),
        (Kind::Attribute, 6) => ("g", Message(Kind::Graph)),
        (Kind::Attribute, 7) => ("floats", Numbers),
        (Kind::Attribute, 8) => ("ints", Numbers),
        (Kind::Attribute, 9) => ("strings", Bytes),
        (Kind::Attribute, 10) => ("tensors", Message(Kind::Tensor)),
        (Kind::Attribute, 11) => ("graphs", Message(Kind::Graph)),
        (Kind::Attribute, 13) => ("doc_string", Bytes),
        (Kind::Attribute, 14) => ("tp", Message(Kind::Type)),
        (Kind::Attribute, 15) => ("type_protos", Message(Kind::Type)),
        (Kind::Attribute, 20) => ("type", Scalar),
        (Kind::Attribute, 21) => ("ref_attr_name", Bytes),
        (Kind::Attribute, 22) => ("sparse_tensor", Message(Kind::SparseTensor)),
        (Kind::Attribute, 23) => ("sparse_tensors", Message(Kind::SparseTensor)),
        (Kind::Tensor, 1) => ("dims", Numbers),
        (Kind::Tensor, 2) => ("data_type", Scalar),
        (Kind::Tensor, 3) => ("segment", Message(Kind::Segment)),
        (Kind::Tensor, 4) => ("float_data", Numbers),
        (Kind::Tensor, 5) => ("int32_data", Numbers),
        (Kind::Tensor, 6) => ("string_data", Bytes),
        (Kind::Tensor, 7) => ("int64_data", Numbers),
        (Kind::Tensor, 8) => ("name", Bytes),
        (Kind::Tensor, RAW_DATA) => ("raw_data", Bytes),
        (Kind::Tensor, 10) => ("double_data", Numbers),
        (Kind::Tensor, 11) => ("uint64_data", Numbers),
        (Kind::Tensor, 12) => ("doc_string", Bytes),
        (Kind::Tensor, 13) => ("external_data", Message(Kind::Entry)),
        (Kind::Tensor, 14) => ("data_location", Scalar),
        (Kind::Tensor, 16) => ("metadata_props", Message(Kind::Entry)),
        (Kind::Segment, 1) => ("begin", Scalar),
        (Kind::Segment, 2) => ("end", Scalar),
        (Kind::SparseTensor, 1) => ("values", Message(Kind::Tensor)),
        (Kind::SparseTensor, 2) => ("indices", Message(Kind::Tensor)),
        (Kind::SparseTensor, 3) => ("dims", Numbers),
        (Kind::ValueInfo, 1) => ("name", Bytes),
        (Kind::ValueInfo, 2) => ("type", Message(Kind::Type)),
        (Kind::ValueInfo, 3) => ("doc_string", Bytes),
        (Kind::ValueInfo, 4) => ("metadata_props", Message(Kind::Entry)),
        (Kind::Type, 1) => ("tensor_type", Message(Kind::TensorType)),
        (Kind::Type, 4) => ("sequence_type", Message(Kind::SequenceType)),
        (Kind::Type, 5) => ("map_type", Message(Kind::MapType)),
        (Kind::Type, 6) => ("denotation", Bytes),
        (Kind::Type, 8) => ("sparse_tensor_type", Message(Kind::SparseTensorType)),
        (Kind::Type, 9) => ("optional_type", Message(Kind::OptionalType)),
        (Kind::TensorType | Kind::SparseTensorType, 1) => ("elem_type", Scalar),
        (Kind::TensorType | Kind::SparseTensorType, 2) => ("shape", Message(Kind::Shape)),
        (Kind::SequenceType | Kind::OptionalType, 1) => ("elem_type", Message(Kind::Type)),
        (Kind::MapType, 1) => ("key_type", Scalar),
        (Kind::MapType, 2) => ("value_type", Message(Kind::Type)),
        (Kind::Shape, 1) => ("dim", Message(Kind::Dimension)),
        (Kind::Dimension, 1) => ("dim_value", Scalar),
        (Kind::Dimension, 2) => ("dim_param", Bytes),
        (Kind::Dimension, 3) => ("denotation", Bytes),
        (Kind::Annotation, 1) => ("tensor_name", Bytes),
        (Kind::Annotation, 2) => ("quant_parameter_tensor_names", Message(Kind::Entry)),
        (Kind::Entry, 1) => ("key", Bytes),
        (Kind::Entry, 2) => ("value", Bytes),
        (Kind::Opset, 1) => ("domain", Bytes),
        (Kind::Opset, 2) => ("version", Scalar),
        (Kind::Training, 1) => ("initialization", Message(Kind::Graph)),
        (Kind::Training, 2) => ("algorithm", Message(Kind::Graph)),
        (Kind::Training, 3) => ("initialization_binding", Message(Kind::Entry)),
        (Kind::Training, 4) => ("update_binding", Message(Kind::Entry)),
        (Kind::Function, 1) => ("name", Bytes),
        (Kind::Function, 4) => ("input", Bytes),
        (Kind::Function, 5) => ("output", Bytes),
        (Kind::Function, 6) => ("attribute", Bytes),
        (Kind::Function, 7) => ("node", Message(Kind::Node)),
        (Kind::Function, 8) => ("doc_string", Bytes),
        (Kind::Function, 9) => ("opset_import", Message(Kind::Opset)),
        (Kind::Function, 10) => ("domain", Bytes),
        (Kind::Function, 11) => ("attribute_proto", Message(Kind::Attribute)),
        (Kind::Function, 12) => ("value_info", Message(Kind::ValueInfo)),
        (Kind::Function, 13) => ("overload", Bytes),
        (Kind::Function, 14) => ("metadata_props", Message(Kind::Entry)),
        _ => return None,
    })
}

/// Bytes one message costs at most while it is read, apart from its fields: the parsed message in a vector
/// that doubles (old and new storage together: three times), what it becomes in the graph likewise, and
/// its share of the name tables.
pub(super) fn cost(kind: Kind) -> usize {
    const TABLES: usize = 512;
    let (message, ours) = match kind {
        Kind::Model => (size_of::<ModelProto>(), 0),
        Kind::Graph => (size_of::<GraphProto>(), size_of::<Graph>() + TABLES),
        Kind::Node => (size_of::<NodeProto>(), size_of::<Node>() + TABLES),
        // a BTreeMap's leaf has eleven places
        Kind::Attribute => (
            size_of::<AttributeProto>(),
            4 * size_of::<crate::Attribute>() + TABLES,
        ),
        Kind::Tensor => (size_of::<TensorProto>(), size_of::<Tensor>() + TABLES),
        Kind::Segment => (size_of::<tensor_proto::Segment>(), 0),
        Kind::SparseTensor => (size_of::<SparseTensorProto>(), 0),
        Kind::ValueInfo => (size_of::<ValueInfoProto>(), size_of::<ValueInfo>() + TABLES),
        Kind::Type => (2 * size_of::<TypeProto>(), 0),
        Kind::TensorType => (2 * size_of::<type_proto::Tensor>(), 0),
        Kind::SequenceType => (2 * size_of::<type_proto::Sequence>(), 0),
        Kind::MapType => (2 * size_of::<type_proto::Map>(), 0),
        Kind::OptionalType => (2 * size_of::<type_proto::Optional>(), 0),
        Kind::SparseTensorType => (2 * size_of::<type_proto::SparseTensor>(), 0),
        Kind::Shape => (2 * size_of::<TensorShapeProto>(), 0),
        Kind::Dimension => (
            2 * size_of::<tensor_shape_proto::Dimension>(),
            size_of::<crate::Dim>(),
        ),
        Kind::Annotation => (size_of::<TensorAnnotation>(), 0),
        Kind::Entry => (size_of::<StringStringEntryProto>(), 128),
        Kind::Opset => (size_of::<OperatorSetIdProto>(), 128),
        Kind::Training => (size_of::<TrainingInfoProto>(), 0),
        Kind::Function => (size_of::<FunctionProto>(), TABLES),
    };
    3 * (message + ours)
}
