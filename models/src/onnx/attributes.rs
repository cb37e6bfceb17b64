//! `AttributeProto` and [`Attribute`].

use onnx_protobuf::attribute_proto::AttributeType;
use onnx_protobuf::{AttributeProto, TensorProto};

use super::read::{ReadError, invalid, leftover, read_graph};
use super::source::Source;
use super::tensor_proto::read_tensor;
use super::write::{Payload, write_graph};
use crate::{Attribute, Tensor};

/// The attribute, and what of the message it does not carry (documentation, unknown fields). Value fields
/// other than the one its type names are dropped.
pub(super) fn read_attribute(
    mut proto: AttributeProto,
    place: &str,
    source: &mut Source<'_>,
) -> Result<(Attribute, Option<Box<AttributeProto>>), ReadError> {
    let kind = match proto.type_.enum_value() {
        Ok(kind) if proto.ref_attr_name.is_empty() => kind,
        _ => AttributeType::UNDEFINED,
    };
    let missing = || invalid(place, "its value is missing");
    let mut rest = AttributeProto::default();
    let attribute = match kind {
        AttributeType::INT => Attribute::Int(proto.i),
        AttributeType::FLOAT => Attribute::Float(proto.f),
        AttributeType::STRING => Attribute::String(proto.s),
        AttributeType::TENSOR => {
            let proto = proto.t.take().ok_or_else(missing)?;
            let (tensor, left) = read_named_tensor(proto, place, source)?;
            rest.t.0 = leftover(left);
            Attribute::Tensor(tensor)
        }
        AttributeType::GRAPH => {
            let graph = proto.g.take().ok_or_else(missing)?;
            Attribute::Graph(Box::new(read_graph(graph, source)?))
        }
        AttributeType::INTS => Attribute::Ints(proto.ints),
        AttributeType::FLOATS => Attribute::Floats(proto.floats),
        AttributeType::STRINGS => Attribute::Strings(proto.strings),
        AttributeType::TENSORS => {
            let read = |tensor| read_named_tensor(tensor, place, source);
            let read: Result<Vec<_>, _> = proto.tensors.into_iter().map(read).collect();
            let (tensors, left): (Vec<Tensor>, Vec<TensorProto>) = read?.into_iter().unzip();
            if left.iter().any(|left| *left != TensorProto::default()) {
                rest.tensors = left;
            }
            Attribute::Tensors(tensors)
        }
        AttributeType::GRAPHS => Attribute::Graphs(
            proto
                .graphs
                .into_iter()
                .map(|graph| read_graph(graph, source))
                .collect::<Result<_, _>>()?,
        ),
        _ => {
            source
                .restore(&mut proto)
                .map_err(|problem| invalid(place, problem))?;
            return Ok((Attribute::Other(Box::new(proto)), None));
        }
    };
    rest.doc_string = proto.doc_string;
    rest.special_fields = proto.special_fields;
    Ok((attribute, leftover(rest)))
}

/// A tensor, and what it does not carry, its name included.
fn read_named_tensor(
    proto: TensorProto,
    place: &str,
    source: &mut Source<'_>,
) -> Result<(Tensor, TensorProto), ReadError> {
    let name = proto.name.clone();
    let (tensor, left) = read_tensor(proto, place, source)?;
    let mut left = left.map_or_else(TensorProto::default, |left| *left);
    left.name = name;
    Ok((tensor, left))
}

/// Numbers of `AttributeProto.i`, `.f` and `.s`.
const INT_FIELD: u32 = 3;
const FLOAT_FIELD: u32 = 2;
const STRING_FIELD: u32 = 4;

/// Where fields go that must be written though they hold their default. The generated code leaves those out; ONNX's
/// schema tells "zero" from "absent", and its shape inference takes an absent attribute's own default (`axis` = 0
/// of Flatten would become 1).
fn present(proto: &mut AttributeProto) -> &mut protobuf::UnknownFields {
    proto.special_fields.mut_unknown_fields()
}

pub(super) fn write_attribute(
    name: &str,
    value: &Attribute,
    rest: Option<&AttributeProto>,
    payload: &mut Payload<'_>,
) -> AttributeProto {
    let mut proto = rest.cloned().unwrap_or_default();
    let tensor_rest = proto.t.take();
    let tensors_rest = std::mem::take(&mut proto.tensors);
    let kind = match value {
        Attribute::Int(value) => {
            proto.i = *value;
            if *value == 0 {
                present(&mut proto).add_varint(INT_FIELD, 0);
            }
            AttributeType::INT
        }
        Attribute::Float(value) => {
            proto.f = *value;
            if *value == 0.0 {
                present(&mut proto).add_fixed32(FLOAT_FIELD, value.to_bits());
            }
            AttributeType::FLOAT
        }
        Attribute::String(value) => {
            proto.s.clone_from(value);
            if value.is_empty() {
                present(&mut proto).add_length_delimited(STRING_FIELD, Vec::new());
            }
            AttributeType::STRING
        }
        Attribute::Tensor(value) => {
            let name = tensor_rest.as_ref().map_or("", |rest| &rest.name);
            // runtimes read shapes and constants from attributes while loading: these stay in the model
            proto.t = Some(payload.inline(value, name, tensor_rest.as_ref())).into();
            AttributeType::TENSOR
        }
        Attribute::Graph(value) => {
            proto.g = Some(write_graph(value, payload)).into();
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
            let write = |(index, tensor)| {
                let rest: Option<&TensorProto> = tensors_rest.get(index);
                payload.inline(tensor, rest.map_or("", |rest| &rest.name), rest)
            };
            proto.tensors = values.iter().enumerate().map(write).collect();
            AttributeType::TENSORS
        }
        Attribute::Graphs(values) => {
            proto.graphs = values.iter().map(|graph| write_graph(graph, payload)).collect();
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
