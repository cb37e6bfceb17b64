//! `TensorProto` and [`Tensor`].

use onnx_protobuf::TensorProto;
use onnx_protobuf::tensor_proto::DataLocation;

use super::read::{ReadError, invalid, leftover};
use super::source::Source;
use crate::{DataType, Tensor};

/// The tensor, and what of the message the tensor does not carry (documentation, metadata, unknown fields).
pub(super) fn read_tensor(
    mut proto: TensorProto,
    place: &str,
    source: &mut Source<'_>,
) -> Result<(Tensor, Option<Box<TensorProto>>), ReadError> {
    let place = || format!("tensor {place:?}");
    let dtype = DataType::from_onnx(proto.data_type)
        .ok_or_else(|| invalid(place(), format!("its data type {} is not known", proto.data_type)))?;
    let dims: Vec<usize> = proto
        .dims
        .iter()
        .map(|dim| usize::try_from(*dim))
        .collect::<Result<_, _>>()
        .map_err(|_| invalid(place(), format!("negative length in {:?}", proto.dims)))?;
    if proto.segment.is_some() {
        return Err(invalid(
            place(),
            "it is a segment of a tensor, which no tool reads; store it whole",
        ));
    }
    let tensor = match proto.data_location.enum_value() {
        Ok(DataLocation::EXTERNAL) => source.external(&proto, dtype, &dims),
        Ok(DataLocation::DEFAULT) if !proto.raw_data.is_empty() => source.raw(&proto.raw_data, dtype, &dims),
        Ok(DataLocation::DEFAULT) => {
            if dtype == DataType::String {
                Tensor::strings(&dims, std::mem::take(&mut proto.string_data))
                    .map_err(|error| error.to_string())
            } else {
                Tensor::from_bytes(dtype, &dims, &typed_data(&proto, dtype))
                    .map_err(|error| error.to_string())
            }
        }
        Err(code) => Err(format!("its data location {code} is not known")),
    };
    let tensor = tensor.map_err(|problem| invalid(place(), problem))?;
    let rest = TensorProto {
        doc_string: proto.doc_string,
        metadata_props: proto.metadata_props,
        special_fields: proto.special_fields,
        ..Default::default()
    };
    Ok((tensor, leftover(rest)))
}

fn typed_data(proto: &TensorProto, dtype: DataType) -> Vec<u8> {
    match dtype {
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
    }
}

/// A message for `tensor` without its data, on top of what was left over when it was read.
pub(super) fn tensor_header(tensor: &Tensor, name: &str, rest: Option<&TensorProto>) -> TensorProto {
    let mut proto = rest.cloned().unwrap_or_default();
    proto.name = name.to_owned();
    proto.dims = tensor.dims().iter().map(|n| *n as i64).collect();
    proto.data_type = tensor.dtype().to_onnx();
    if let Some(strings) = tensor.as_strings() {
        proto.string_data = strings.to_vec();
    }
    proto
}
