//! NumPy's `.npy` and `.npz` files.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use edgeopt_models::{DataType, Tensor};
use npyz::{DType, NpyHeader, Order};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

use super::{DatasetError, fits};
use crate::TensorSpec;

/// Element type and lengths an array's header declares.
struct Declared {
    dtype: DataType,
    dims: Vec<usize>,
}

fn declared(path: &Path, header: &NpyHeader) -> Result<Declared, DatasetError> {
    let DType::Plain(kind) = header.dtype() else {
        return Err(DatasetError::array(path, "structured arrays are not supported"));
    };
    let text = kind.to_string();
    let dtype = match text.trim_start_matches(['<', '|', '=']) {
        "f2" => DataType::Float16,
        "f4" => DataType::Float32,
        "f8" => DataType::Float64,
        "i1" => DataType::Int8,
        "i2" => DataType::Int16,
        "i4" => DataType::Int32,
        "i8" => DataType::Int64,
        "u1" => DataType::Uint8,
        "u2" => DataType::Uint16,
        "u4" => DataType::Uint32,
        "u8" => DataType::Uint64,
        "b1" => DataType::Bool,
        _ => {
            return Err(DatasetError::array(
                path,
                format!("arrays of type {text} are not supported"),
            ));
        }
    };
    if header.order() != Order::C {
        return Err(DatasetError::array(
            path,
            "Fortran order is not supported; save it with np.ascontiguousarray",
        ));
    }
    let dims = header
        .shape()
        .iter()
        .map(|length| usize::try_from(*length))
        .collect::<Result<_, _>>()
        .map_err(|_| DatasetError::array(path, "its shape is too large"))?;
    Ok(Declared { dtype, dims })
}

/// The most that one array from outside may take.
const LARGEST: u64 = 256 << 20;

/// Reads a whole array of at most `limit` bytes. However much a compressed one would give, no more than its header says
/// is read.
pub(super) fn read_npy(path: &Path, mut reader: impl Read, limit: u64) -> Result<Tensor, DatasetError> {
    let header = NpyHeader::from_reader(&mut reader).map_err(|error| DatasetError::array(path, error))?;
    let Declared { dtype, dims } = declared(path, &header)?;
    let size = dims
        .iter()
        .try_fold(1usize, |product, length| product.checked_mul(*length))
        .and_then(|elements| dtype.size_of(elements))
        .map(|size| size as u64)
        .filter(|size| *size <= limit);
    let Some(size) = size else {
        let problem = format!("its shape {dims:?} takes more than {limit} bytes");
        return Err(DatasetError::array(path, problem));
    };
    let mut bytes = Vec::new();
    reader
        .take(size + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| DatasetError::io(path, source))?;
    Tensor::from_bytes(dtype, &dims, &bytes).map_err(|error| DatasetError::array(path, error))
}

/// Number of samples along the first axis of an `.npy` file; only its header is read.
pub(super) fn stacked_len(path: &Path, spec: &TensorSpec) -> Result<usize, DatasetError> {
    let file = File::open(path).map_err(|source| DatasetError::io(path, source))?;
    let header = NpyHeader::from_reader(file).map_err(|error| DatasetError::array(path, error))?;
    let Declared { dims, .. } = declared(path, &header)?;
    match dims.split_first() {
        Some((count, row)) if row.len() + 1 == spec.shape.len() => Ok(*count),
        _ => Err(wrong(
            path,
            spec,
            format!("the array has shape {dims:?}, the input takes {}", spec.shape),
        )),
    }
}

/// Reads one sample of a stacked `.npy` without reading the others.
pub(super) fn read_row(path: &Path, spec: &TensorSpec, place: usize) -> Result<Tensor, DatasetError> {
    let io = |source| DatasetError::io(path, source);
    let mut file = File::open(path).map_err(io)?;
    let header = NpyHeader::from_reader(&mut file).map_err(|error| DatasetError::array(path, error))?;
    let Declared { dtype, mut dims } = declared(path, &header)?;
    let Some(count) = dims.first_mut() else {
        return Err(DatasetError::array(path, "it is a scalar"));
    };
    *count = 1;
    let elements = dims
        .iter()
        .try_fold(1usize, |product, length| product.checked_mul(*length));
    let size = elements.and_then(|elements| dtype.size_of(elements));
    let size = size.ok_or_else(|| DatasetError::array(path, "its shape is too large"))?;
    let offset = i64::try_from(size as u128 * place as u128)
        .map_err(|_| DatasetError::array(path, "its shape is too large"))?;
    file.seek(SeekFrom::Current(offset)).map_err(io)?;
    let mut bytes = Vec::new();
    file.take(size as u64).read_to_end(&mut bytes).map_err(io)?;
    let tensor =
        Tensor::from_bytes(dtype, &dims, &bytes).map_err(|error| DatasetError::array(path, error))?;
    check(path, spec, &tensor)?;
    Ok(tensor)
}

/// Reads the arrays named after the inputs.
pub(super) fn read_npz(path: &Path, inputs: &[TensorSpec]) -> Result<Vec<Tensor>, DatasetError> {
    let file = File::open(path).map_err(|source| DatasetError::io(path, source))?;
    npz_from(path, std::io::BufReader::new(file), inputs, u64::MAX)
}

/// One sample from the bytes of an `.npy` (models with one input) or `.npz`; `name` is for messages. A sample without
/// its batch axis gets one.
///
/// # Errors
/// When it is neither, or does not fit the inputs.
pub fn decode_arrays(name: &str, bytes: &[u8], inputs: &[TensorSpec]) -> Result<Vec<Tensor>, DatasetError> {
    let path = Path::new(name);
    let arrays = if bytes.starts_with(b"PK") {
        npz_from(path, std::io::Cursor::new(bytes), inputs, LARGEST)?
    } else if inputs.len() == 1 {
        vec![read_npy(path, bytes, LARGEST)?]
    } else {
        return Err(DatasetError::array(
            path,
            format!(
                "the model has {} inputs: give an .npz with an array for each",
                inputs.len()
            ),
        ));
    };
    inputs
        .iter()
        .zip(arrays)
        .map(|(spec, tensor)| with_batch(path, spec, tensor))
        .collect()
}

fn npz_from(
    path: &Path,
    reader: impl Read + Seek,
    inputs: &[TensorSpec],
    limit: u64,
) -> Result<Vec<Tensor>, DatasetError> {
    let mut archive = ZipArchive::new(reader).map_err(|error| DatasetError::array(path, error))?;
    let mut arrays = Vec::with_capacity(inputs.len());
    let mut names: Vec<String> = archive
        .file_names()
        .map(|name| name.map(|name| name.strip_suffix(".npy").unwrap_or(&name).to_owned()))
        .collect::<Result<_, _>>()
        .map_err(|error| DatasetError::array(path, error))?;
    names.sort();
    for spec in inputs {
        if names.iter().all(|name| spec.name != **name) {
            let problem = format!("there is no array of this name; there are: {}", names.join(", "));
            return Err(wrong(path, spec, problem));
        }
        let member = archive
            .by_name(&format!("{}.npy", spec.name))
            .map_err(|error| DatasetError::array(path, error))?;
        arrays.push(read_npy(path, member, limit)?);
    }
    Ok(arrays)
}

/// One sample of a stacked array.
pub(super) fn row(
    path: &Path,
    spec: &TensorSpec,
    array: &Tensor,
    place: usize,
) -> Result<Tensor, DatasetError> {
    let mut dims = array.dims().to_vec();
    let Some(count) = dims.first_mut() else {
        return Err(DatasetError::array(path, "it is a scalar"));
    };
    let size = array.as_bytes().len() / (*count).max(1);
    *count = 1;
    let bytes = array
        .as_bytes()
        .get(place * size..(place + 1) * size)
        .unwrap_or_default();
    let tensor =
        Tensor::from_bytes(array.dtype(), &dims, bytes).map_err(|error| DatasetError::array(path, error))?;
    check(path, spec, &tensor)?;
    Ok(tensor)
}

/// A sample saved without its batch axis gets one.
pub(super) fn with_batch(path: &Path, spec: &TensorSpec, tensor: Tensor) -> Result<Tensor, DatasetError> {
    let tensor = if tensor.dims().len() + 1 == spec.shape.len() {
        let dims: Vec<usize> = std::iter::once(1).chain(tensor.dims().iter().copied()).collect();
        tensor
            .reshaped(&dims)
            .map_err(|error| DatasetError::array(path, error))?
    } else {
        tensor
    };
    check(path, spec, &tensor)?;
    Ok(tensor)
}

/// Checks type and shape against the model's input.
pub(super) fn check(path: &Path, spec: &TensorSpec, tensor: &Tensor) -> Result<(), DatasetError> {
    if tensor.dtype() != spec.dtype {
        return Err(wrong(
            path,
            spec,
            format!("the data is {}, the input takes {}", tensor.dtype(), spec.dtype),
        ));
    }
    if !fits(tensor.dims(), spec) {
        let problem = format!(
            "the data has shape {:?}, the input takes {}",
            tensor.dims(),
            spec.shape
        );
        return Err(wrong(path, spec, problem));
    }
    Ok(())
}

fn wrong(path: &Path, spec: &TensorSpec, problem: String) -> DatasetError {
    DatasetError::Shape {
        path: path.into(),
        input: spec.name.to_string(),
        problem,
    }
}

/// Writes tensors under their names as an uncompressed `.npz`.
///
/// # Errors
/// When a tensor's type does not exist in NumPy (bfloat16, four-bit, strings), or writing fails.
pub fn write_npz(out: impl Write + Seek, tensors: &[(&str, &Tensor)]) -> std::io::Result<()> {
    let mut archive = ZipWriter::new(out);
    for (name, tensor) in tensors {
        let kind = match tensor.dtype() {
            DataType::Float16 => "<f2",
            DataType::Float32 => "<f4",
            DataType::Float64 => "<f8",
            DataType::Int8 => "|i1",
            DataType::Int16 => "<i2",
            DataType::Int32 => "<i4",
            DataType::Int64 => "<i8",
            DataType::Uint8 => "|u1",
            DataType::Uint16 => "<u2",
            DataType::Uint32 => "<u4",
            DataType::Uint64 => "<u8",
            DataType::Bool => "|b1",
            other => {
                return Err(std::io::Error::other(format!(
                    "{name}: NumPy has no type for {other}"
                )));
            }
        };
        // The header as NumPy's format document describes version 1.0: padded so that data starts at a multiple of 64.
        let lengths: Vec<String> = tensor.dims().iter().map(|length| format!("{length},")).collect();
        let mut header = format!(
            "{{'descr': '{kind}', 'fortran_order': False, 'shape': ({}), }}",
            lengths.join(" ")
        );
        let padding = 63 - (10 + header.len()) % 64;
        header.push_str(&" ".repeat(padding));
        header.push('\n');
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .large_file(tensor.as_bytes().len() > u32::MAX as usize);
        archive.start_file(format!("{name}.npy"), options)?;
        archive.write_all(b"\x93NUMPY\x01\x00")?;
        archive.write_all(&(header.len() as u16).to_le_bytes())?;
        archive.write_all(header.as_bytes())?;
        archive.write_all(tensor.as_bytes())?;
    }
    archive.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use edgeopt_models::{DataType, Dim};
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    fn npy(shape: &str, content: &[u8]) -> Vec<u8> {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
        let header = format!("{header:117}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(content);
        bytes
    }

    fn input() -> TensorSpec {
        TensorSpec {
            name: "x".into(),
            dtype: DataType::Float32,
            shape: [Dim::Known(1), Dim::Known(4)].into_iter().collect(),
            ranked: true,
        }
    }

    #[test]
    fn arrays_from_outside_take_no_more_than_they_say_and_may() {
        let specs = [input()];
        let error = decode_arrays("huge", &npy("1, 1099511627776", b""), &specs).unwrap_err();
        assert!(
            error.to_string().contains("takes more than 268435456 bytes"),
            "{error}"
        );
        let error = decode_arrays(
            "overflow",
            &npy("4294967296, 4294967296, 4294967296", b""),
            &specs,
        );
        assert!(error.is_err());
        // A compressed member that gives far more than its header says.
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        archive.start_file("x.npy", SimpleFileOptions::default()).unwrap();
        archive.write_all(&npy("1, 4", &vec![0; 64 << 20])).unwrap();
        let bytes = archive.finish().unwrap().into_inner();
        assert!(bytes.len() < 1 << 20, "compressed");
        let error = decode_arrays("bomb", &bytes, &specs).unwrap_err();
        assert!(error.to_string().contains("bomb"), "{error}");
        assert!(decode_arrays("good", &npy("1, 4", &[0; 16]), &specs).is_ok());
    }
}
