//! Tensors as values of ONNX Runtime.
#![allow(unsafe_code)]

use std::ptr;

use edgeopt_models::{DataType, Tensor};
use ort_sys::{ONNXTensorElementDataType as ElementType, OrtTensorTypeAndShapeInfo, OrtValue};

use super::api::{Owned, Runtime};

/// ONNX Runtime's number for a type. It is ONNX's own, except for the type that came after ONNX Runtime had
/// given that number away.
pub(super) fn element_type(dtype: DataType) -> ElementType {
    use ElementType::*;
    match dtype {
        DataType::Float32 => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        DataType::Uint8 => ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
        DataType::Int8 => ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,
        DataType::Uint16 => ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16,
        DataType::Int16 => ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16,
        DataType::Int32 => ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
        DataType::Int64 => ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
        DataType::String => ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
        DataType::Bool => ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
        DataType::Float16 => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
        DataType::Float64 => ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
        DataType::Uint32 => ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32,
        DataType::Uint64 => ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64,
        DataType::Complex64 => ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64,
        DataType::Complex128 => ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX128,
        DataType::Bfloat16 => ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
        DataType::Float8E4M3FN => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN,
        DataType::Float8E4M3FNUZ => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ,
        DataType::Float8E5M2 => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2,
        DataType::Float8E5M2FNUZ => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ,
        DataType::Uint4 => ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4,
        DataType::Int4 => ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4,
        DataType::Float4E2M1 => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT4E2M1,
        DataType::Float8E8M0 => ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E8M0,
    }
}

/// Lengths as the library takes them.
pub(super) fn lengths(dims: &[usize]) -> Vec<i64> {
    dims.iter().map(|n| *n as i64).collect()
}

/// A value that reads and writes `data`, `len` bytes of numbers.
///
/// # Safety
/// `data` must be valid for `len` bytes, for writing too if the value is an output, whenever the value is used.
pub(super) unsafe fn over_memory(
    runtime: &Runtime,
    dtype: DataType,
    dims: &[usize],
    data: *mut u8,
    len: usize,
) -> Result<Owned<OrtValue>, String> {
    let dims = lengths(dims);
    // SAFETY: the caller answers for `data`; the library copies the lengths.
    runtime.create(runtime.api.ReleaseValue, |out| unsafe {
        (runtime.api.CreateTensorWithDataAsOrtValue)(
            runtime.memory,
            data.cast(),
            len,
            dims.as_ptr(),
            dims.len(),
            element_type(dtype),
            out,
        )
    })
}

/// A copy of strings as a value.
pub(super) fn of_strings(
    runtime: &Runtime,
    dims: &[usize],
    strings: &[Vec<u8>],
) -> Result<Owned<OrtValue>, String> {
    let dims = lengths(dims);
    let api = runtime.api;
    let mut allocator = ptr::null_mut();
    // SAFETY: the default allocator belongs to the library and lives as long as it; every buffer that is asked
    // for has exactly the length that is then written.
    unsafe {
        runtime.check((api.GetAllocatorWithDefaultOptions)(&mut allocator))?;
        let value = runtime.create(api.ReleaseValue, |out| {
            (api.CreateTensorAsOrtValue)(
                allocator,
                dims.as_ptr(),
                dims.len(),
                ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
                out,
            )
        })?;
        for (index, string) in strings.iter().enumerate() {
            let mut buffer = ptr::null_mut();
            let status =
                (api.GetResizedStringTensorElementBuffer)(value.ptr(), index, string.len(), &mut buffer);
            runtime.check(status)?;
            if !string.is_empty() {
                ptr::copy_nonoverlapping(string.as_ptr(), buffer.cast(), string.len());
            }
        }
        Ok(value)
    }
}

/// Brings a value that the library made into `tensor`, whose storage is kept when type and shape are the same.
pub(super) fn copy_into(
    runtime: &Runtime,
    value: &Owned<OrtValue>,
    tensor: &mut Tensor,
) -> Result<(), String> {
    let (dtype, dims) = type_and_dims(runtime, value)?;
    if dtype == DataType::String {
        *tensor = strings_of(runtime, value, &dims)?;
        return Ok(());
    }
    if tensor.dtype() != dtype || tensor.dims() != dims {
        *tensor = Tensor::zeros(dtype, &dims).map_err(|error| error.to_string())?;
    }
    let bytes = tensor.as_bytes_mut();
    if bytes.is_empty() {
        return Ok(());
    }
    // SAFETY: the value is a tensor of numbers of this type and shape, so its data has the tensor's size.
    unsafe {
        let mut data = ptr::null_mut();
        runtime.check((runtime.api.GetTensorMutableData)(value.ptr(), &mut data))?;
        ptr::copy_nonoverlapping(data.cast::<u8>().cast_const(), bytes.as_mut_ptr(), bytes.len());
    }
    Ok(())
}

fn type_and_dims(runtime: &Runtime, value: &Owned<OrtValue>) -> Result<(DataType, Vec<usize>), String> {
    let api = runtime.api;
    // SAFETY: the library writes into live places; the lengths' array has the size it was told.
    unsafe {
        let mut is_tensor = 0;
        runtime.check((api.IsTensor)(value.ptr(), &mut is_tensor))?;
        if is_tensor == 0 {
            return Err("an output is not a tensor".into());
        }
        let info = runtime.create(api.ReleaseTensorTypeAndShapeInfo, |out| {
            (api.GetTensorTypeAndShape)(value.ptr(), out)
        })?;
        let (dtype, dims) = read_info(runtime, info.ptr())?;
        let dims = dims
            .into_iter()
            .map(|n| usize::try_from(n).map_err(|_| format!("an output has the negative length {n}")))
            .collect::<Result<_, _>>()?;
        Ok((dtype, dims))
    }
}

/// Element type and lengths; an unknown length is negative.
///
/// # Safety
/// `info` must be a description that the library made.
pub(super) unsafe fn read_info(
    runtime: &Runtime,
    info: *const OrtTensorTypeAndShapeInfo,
) -> Result<(DataType, Vec<i64>), String> {
    let api = runtime.api;
    // SAFETY: the type is read as a plain number, since a later library may know more types than the enumeration.
    unsafe {
        let mut number = 0i32;
        runtime.check((api.GetTensorElementType)(info, (&raw mut number).cast()))?;
        let dtype = DataType::ALL
            .into_iter()
            .find(|dtype| element_type(*dtype) as i32 == number)
            .ok_or_else(|| format!("ONNX Runtime's element type {number} is not known"))?;
        let mut rank = 0;
        runtime.check((api.GetDimensionsCount)(info, &mut rank))?;
        let mut dims = vec![0i64; rank];
        runtime.check((api.GetDimensions)(info, dims.as_mut_ptr(), rank))?;
        Ok((dtype, dims))
    }
}

fn strings_of(runtime: &Runtime, value: &Owned<OrtValue>, dims: &[usize]) -> Result<Tensor, String> {
    let api = runtime.api;
    let count = dims.iter().product();
    let mut offsets = vec![0usize; count];
    // SAFETY: the buffers have the sizes that the library is told.
    let bytes = unsafe {
        let mut len = 0;
        runtime.check((api.GetStringTensorDataLength)(value.ptr(), &mut len))?;
        let mut bytes = vec![0u8; len];
        if count > 0 {
            let data = bytes.as_mut_ptr().cast();
            let status = (api.GetStringTensorContent)(value.ptr(), data, len, offsets.as_mut_ptr(), count);
            runtime.check(status)?;
        }
        bytes
    };
    let ends = offsets.iter().skip(1).copied().chain([bytes.len()]);
    let strings = offsets
        .iter()
        .zip(ends)
        .map(|(start, end)| bytes.get(*start..end).map(<[u8]>::to_vec))
        .collect::<Option<Vec<_>>>()
        .ok_or("ONNX Runtime returned strings outside of its own buffer")?;
    Tensor::strings(dims, strings).map_err(|error| error.to_string())
}
