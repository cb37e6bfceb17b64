//! `TypeProto` and [`ValueType`].
//!
//! Denotations (`"DATA_BATCH"` on a dimension, `"IMAGE"` on a type) and unknown fields are not part of
//! [`ValueType`]; they stay behind in the value's `extra` and are laid over the type when it is written, as far
//! as its kind and rank are still the same.

use onnx_protobuf::tensor_shape_proto::{Dimension, dimension};
use onnx_protobuf::type_proto::{self, Value as TypeValue};
use onnx_protobuf::{TensorShapeProto, TypeProto, ValueInfoProto};

use super::read::leftover;
use crate::{DataType, Dim, Shape, ValueInfo, ValueType};

pub(super) fn read_value_info(mut proto: ValueInfoProto) -> ValueInfo {
    let name = std::mem::take(&mut proto.name);
    let ty = read_type(proto.type_.as_ref());
    proto.type_ = proto.type_.take().and_then(type_leftover).into();
    ValueInfo {
        name: name.into(),
        ty,
        extra: leftover(proto),
    }
}

pub(super) fn write_value_info(info: &ValueInfo, rest: Option<&ValueInfoProto>) -> ValueInfoProto {
    let mut proto = rest.cloned().unwrap_or_default();
    proto.name = info.name.to_string();
    let mut ty = write_type(&info.ty);
    if let (Some(ty), Some(rest)) = (&mut ty, proto.type_.as_ref()) {
        lay_over(ty, rest);
    }
    proto.type_ = ty.into();
    proto
}

fn read_type(proto: Option<&TypeProto>) -> ValueType {
    let Some(proto) = proto else {
        return ValueType::Other(None);
    };
    match &proto.value {
        Some(TypeValue::TensorType(tensor)) => match DataType::from_onnx(tensor.elem_type) {
            Some(dtype) => ValueType::Tensor {
                dtype,
                shape: tensor.shape.as_ref().map(read_shape),
            },
            None => ValueType::Other(Some(Box::new(proto.clone()))),
        },
        Some(TypeValue::SequenceType(sequence)) => {
            ValueType::Sequence(Box::new(read_type(sequence.elem_type.as_ref())))
        }
        Some(TypeValue::OptionalType(optional)) => {
            ValueType::Optional(Box::new(read_type(optional.elem_type.as_ref())))
        }
        _ => ValueType::Other(Some(Box::new(proto.clone()))),
    }
}

fn read_shape(proto: &TensorShapeProto) -> Shape {
    let dim = |dim: &Dimension| match &dim.value {
        Some(dimension::Value::DimValue(n)) => usize::try_from(*n).map_or(Dim::Unknown, Dim::Known),
        // Some exporters write "?" for every length they do not know; those are not all the same.
        Some(dimension::Value::DimParam(name)) if !name.is_empty() && name != "?" => Dim::from(name.as_str()),
        _ => Dim::Unknown,
    };
    proto.dim.iter().map(dim).collect()
}

fn write_type(ty: &ValueType) -> Option<TypeProto> {
    let mut proto = TypeProto::new();
    proto.value = Some(match ty {
        ValueType::Tensor { dtype, shape } => TypeValue::TensorType(type_proto::Tensor {
            elem_type: dtype.to_onnx(),
            shape: shape.as_ref().map(write_shape).into(),
            ..Default::default()
        }),
        ValueType::Sequence(element) => TypeValue::SequenceType(type_proto::Sequence {
            elem_type: write_type(element).into(),
            ..Default::default()
        }),
        ValueType::Optional(element) => TypeValue::OptionalType(type_proto::Optional {
            elem_type: write_type(element).into(),
            ..Default::default()
        }),
        ValueType::Other(other) => return other.as_deref().cloned(),
    });
    Some(proto)
}

fn write_shape(shape: &Shape) -> TensorShapeProto {
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

/// What [`ValueType`] does not carry, in the shape of the type; `None` if that is nothing.
fn type_leftover(mut proto: TypeProto) -> Option<TypeProto> {
    let value = match proto.value.take() {
        Some(TypeValue::TensorType(mut tensor)) if DataType::from_onnx(tensor.elem_type).is_some() => {
            tensor.elem_type = 0;
            let plain = |shape: &TensorShapeProto| {
                shape.special_fields == Default::default()
                    && shape
                        .dim
                        .iter()
                        .all(|dim| dim.denotation.is_empty() && dim.special_fields == Default::default())
            };
            if tensor.shape.as_ref().is_none_or(plain) {
                tensor.shape = None.into();
            }
            for dim in tensor.shape.as_mut().into_iter().flat_map(|shape| &mut shape.dim) {
                dim.value = None;
            }
            (tensor != type_proto::Tensor::default()).then_some(TypeValue::TensorType(tensor))
        }
        Some(TypeValue::SequenceType(mut sequence)) => {
            sequence.elem_type = sequence.elem_type.take().and_then(type_leftover).into();
            (sequence != type_proto::Sequence::default()).then_some(TypeValue::SequenceType(sequence))
        }
        Some(TypeValue::OptionalType(mut optional)) => {
            optional.elem_type = optional.elem_type.take().and_then(type_leftover).into();
            (optional != type_proto::Optional::default()).then_some(TypeValue::OptionalType(optional))
        }
        // `ValueType::Other` keeps the whole message
        _ => return None,
    };
    proto.value = value;
    (proto != TypeProto::default()).then_some(proto)
}

/// Adds what [`type_leftover`] kept to a type that is about to be written.
fn lay_over(proto: &mut TypeProto, rest: &TypeProto) {
    proto.denotation.clone_from(&rest.denotation);
    proto.special_fields = rest.special_fields.clone();
    match (&mut proto.value, &rest.value) {
        (Some(TypeValue::TensorType(tensor)), Some(TypeValue::TensorType(rest))) => {
            tensor.special_fields = rest.special_fields.clone();
            if let (Some(shape), Some(rest)) = (tensor.shape.as_mut(), rest.shape.as_ref())
                && shape.dim.len() == rest.dim.len()
            {
                shape.special_fields = rest.special_fields.clone();
                for (dim, rest) in shape.dim.iter_mut().zip(&rest.dim) {
                    dim.denotation.clone_from(&rest.denotation);
                    dim.special_fields = rest.special_fields.clone();
                }
            }
        }
        (Some(TypeValue::SequenceType(sequence)), Some(TypeValue::SequenceType(rest))) => {
            sequence.special_fields = rest.special_fields.clone();
            if let (Some(element), Some(rest)) = (sequence.elem_type.as_mut(), rest.elem_type.as_ref()) {
                lay_over(element, rest);
            }
        }
        (Some(TypeValue::OptionalType(optional)), Some(TypeValue::OptionalType(rest))) => {
            optional.special_fields = rest.special_fields.clone();
            if let (Some(element), Some(rest)) = (optional.elem_type.as_mut(), rest.elem_type.as_ref()) {
                lay_over(element, rest);
            }
        }
        _ => {}
    }
}
