use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use aligned_vec::{AVec, ConstAlign};
use bytemuck::Pod;
use half::{bf16, f16};

use crate::{DataType, MappedPart};

/// 64-byte aligned storage: what vector units and runtimes want.
type Aligned = AVec<u8, ConstAlign<64>>;

/// A constant or run-time tensor: an element type, fixed lengths, and little-endian elements in row-major
/// order (four-bit types packed two to a byte, low half first). Cloning shares the data.
#[derive(Clone)]
pub struct Tensor {
    dtype: DataType,
    dims: Vec<usize>,
    data: Data,
}

#[derive(Clone)]
enum Data {
    Owned(Arc<Aligned>),
    /// A part of a memory-mapped file (a model, ONNX external data).
    Mapped(MappedPart),
    Strings(Arc<Vec<Vec<u8>>>),
}

/// Why a tensor cannot be made or read as asked.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TensorError {
    /// The data does not have the size that type and shape ask for.
    #[error("a {dtype} tensor of shape {dims:?} takes {expected} bytes, but its data has {actual}")]
    Size {
        /// Element type.
        dtype: DataType,
        /// Lengths.
        dims: Vec<usize>,
        /// Bytes that type and shape ask for.
        expected: usize,
        /// Bytes given.
        actual: usize,
    },
    /// Lengths whose product overflows.
    #[error("the shape {dims:?} has more elements than can be addressed")]
    Overflow {
        /// Lengths.
        dims: Vec<usize>,
    },
    /// Another element type was asked for.
    #[error("the tensor holds {actual}, not {wanted}")]
    Type {
        /// What the tensor holds.
        actual: DataType,
        /// What was asked for.
        wanted: &'static str,
    },
}

/// A Rust number that is a tensor element.
pub trait Element: Pod + PartialEq + fmt::Debug + Send + Sync {
    /// The element type it stands for.
    const DTYPE: DataType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => { $(impl Element for $rust { const DTYPE: DataType = DataType::$dtype; })* };
}
elements! { f32 => Float32, f64 => Float64, f16 => Float16, bf16 => Bfloat16, u8 => Uint8, i8 => Int8, u16 => Uint16,
i16 => Int16, u32 => Uint32, i32 => Int32, u64 => Uint64, i64 => Int64 }

impl Tensor {
    /// A tensor from elements in row-major order.
    ///
    /// # Errors
    /// When the number of elements is not the product of `dims`.
    pub fn new<T: Element>(dims: &[usize], elements: &[T]) -> Result<Self, TensorError> {
        Self::from_bytes(T::DTYPE, dims, bytemuck::cast_slice(elements))
    }

    /// A scalar (rank 0).
    pub fn scalar<T: Element>(value: T) -> Self {
        Self {
            dtype: T::DTYPE,
            dims: Vec::new(),
            data: Data::owned(bytemuck::bytes_of(&value)),
        }
    }

    /// A rank-1 tensor.
    pub fn vector<T: Element>(elements: &[T]) -> Self {
        Self {
            dtype: T::DTYPE,
            dims: vec![elements.len()],
            data: Data::owned(bytemuck::cast_slice(elements)),
        }
    }

    /// A tensor of booleans.
    ///
    /// # Errors
    /// When the number of elements is not the product of `dims`.
    pub fn bools(dims: &[usize], elements: &[bool]) -> Result<Self, TensorError> {
        let bytes: Vec<u8> = elements.iter().map(|b| u8::from(*b)).collect();
        Self::from_bytes(DataType::Bool, dims, &bytes)
    }

    /// A tensor of strings (arbitrary bytes, as in ONNX).
    ///
    /// # Errors
    /// When the number of strings is not the product of `dims`.
    pub fn strings(dims: &[usize], elements: Vec<Vec<u8>>) -> Result<Self, TensorError> {
        let expected = element_count(dims)?;
        if expected != elements.len() {
            let actual = elements.len();
            return Err(TensorError::Size {
                dtype: DataType::String,
                dims: dims.into(),
                expected,
                actual,
            });
        }
        Ok(Self {
            dtype: DataType::String,
            dims: dims.into(),
            data: Data::Strings(Arc::new(elements)),
        })
    }

    /// A tensor from little-endian bytes.
    ///
    /// # Errors
    /// When `bytes` does not have the size that type and shape ask for, or for strings.
    pub fn from_bytes(dtype: DataType, dims: &[usize], bytes: &[u8]) -> Result<Self, TensorError> {
        check_size(dtype, dims, bytes.len())?;
        Ok(Self {
            dtype,
            dims: dims.into(),
            data: Data::owned(bytes),
        })
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// When the shape overflows, or for strings.
    pub fn zeros(dtype: DataType, dims: &[usize]) -> Result<Self, TensorError> {
        let overflow = || TensorError::Overflow { dims: dims.into() };
        let size = dtype.size_of(element_count(dims)?).ok_or_else(overflow)?;
        let mut bytes = Aligned::with_capacity(64, size);
        bytes.resize(size, 0);
        Ok(Self {
            dtype,
            dims: dims.into(),
            data: Data::Owned(Arc::new(bytes)),
        })
    }

    /// A tensor backed by a part of a mapped file.
    ///
    /// # Errors
    /// When the part lies outside the file or has the wrong size.
    pub fn from_mapped(dtype: DataType, dims: &[usize], part: MappedPart) -> Result<Self, TensorError> {
        check_size(dtype, dims, part.bytes().len())?;
        Ok(Self {
            dtype,
            dims: dims.into(),
            data: Data::Mapped(part),
        })
    }

    /// The part of a file that holds the elements, if they were not read into memory.
    pub fn mapped(&self) -> Option<&MappedPart> {
        match &self.data {
            Data::Mapped(part) => Some(part),
            _ => None,
        }
    }

    /// The element type.
    pub fn dtype(&self) -> DataType {
        self.dtype
    }

    /// The lengths; empty for a scalar.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// The elements as little-endian bytes; empty for strings.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.data {
            Data::Owned(bytes) => bytes,
            Data::Mapped(part) => part.bytes(),
            Data::Strings(_) => &[],
        }
    }

    /// Lets the system take back the memory that a mapped file's pages occupy; they are read from the file again when
    /// they are next used. Does nothing for tensors that are not mapped.
    pub fn release_pages(&self) {
        if let Data::Mapped(part) = &self.data {
            part.file.release(part.range.clone());
        }
    }

    /// The bytes for writing; copies them first when they are shared or mapped. Empty for strings.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        if let Data::Mapped(_) = self.data {
            self.data = Data::owned(self.as_bytes());
        }
        match &mut self.data {
            Data::Owned(bytes) => Arc::<Aligned>::make_mut(bytes).as_mut_slice(),
            _ => &mut [],
        }
    }

    /// The strings, if this is a tensor of strings.
    pub fn as_strings(&self) -> Option<&[Vec<u8>]> {
        match &self.data {
            Data::Strings(strings) => Some(strings),
            _ => None,
        }
    }

    /// The elements without conversion: borrowed where the storage is aligned (always, unless it is mapped).
    ///
    /// # Errors
    /// When the tensor holds another type than `T`.
    pub fn view<T: Element>(&self) -> Result<Cow<'_, [T]>, TensorError> {
        if self.dtype != T::DTYPE {
            return Err(TensorError::Type {
                actual: self.dtype,
                wanted: T::DTYPE.name(),
            });
        }
        let bytes = self.as_bytes();
        Ok(match bytemuck::try_cast_slice(bytes) {
            Ok(slice) => Cow::Borrowed(slice),
            Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
        })
    }

    /// The elements for writing; copies first when shared or mapped.
    ///
    /// # Errors
    /// When the tensor holds another type than `T`.
    pub fn view_mut<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        if self.dtype != T::DTYPE {
            return Err(TensorError::Type {
                actual: self.dtype,
                wanted: T::DTYPE.name(),
            });
        }
        Ok(bytemuck::cast_slice_mut(self.as_bytes_mut()))
    }

    /// Any real numeric or boolean tensor as `f32` (borrowed if it is `f32` already).
    ///
    /// # Errors
    /// For strings, complex and 8-bit-and-smaller float types.
    pub fn to_f32(&self) -> Result<Cow<'_, [f32]>, TensorError> {
        fn convert<T: Element>(tensor: &Tensor, f: impl Fn(T) -> f32) -> Result<Cow<'_, [f32]>, TensorError> {
            Ok(Cow::Owned(tensor.view::<T>()?.iter().map(|x| f(*x)).collect()))
        }
        match self.dtype {
            DataType::Float32 => self.view::<f32>(),
            DataType::Float64 => convert(self, |x: f64| x as f32),
            DataType::Float16 => convert(self, f16::to_f32),
            DataType::Bfloat16 => convert(self, bf16::to_f32),
            DataType::String
            | DataType::Complex64
            | DataType::Complex128
            | DataType::Float8E4M3FN
            | DataType::Float8E4M3FNUZ
            | DataType::Float8E5M2
            | DataType::Float8E5M2FNUZ
            | DataType::Float8E8M0
            | DataType::Float4E2M1 => Err(TensorError::Type {
                actual: self.dtype,
                wanted: "a real number",
            }),
            _ => Ok(Cow::Owned(self.to_i64()?.iter().map(|x| *x as f32).collect())),
        }
    }

    /// Any integer or boolean tensor as `i64` (`uint64` wraps beyond `i64::MAX`).
    ///
    /// # Errors
    /// For every other type.
    pub fn to_i64(&self) -> Result<Cow<'_, [i64]>, TensorError> {
        fn convert<T: Element>(tensor: &Tensor, f: impl Fn(T) -> i64) -> Result<Cow<'_, [i64]>, TensorError> {
            Ok(Cow::Owned(tensor.view::<T>()?.iter().map(|x| f(*x)).collect()))
        }
        match self.dtype {
            DataType::Int64 => self.view::<i64>(),
            DataType::Int32 => convert(self, |x: i32| x.into()),
            DataType::Int16 => convert(self, |x: i16| x.into()),
            DataType::Int8 => convert(self, |x: i8| x.into()),
            DataType::Uint64 => convert(self, |x: u64| x as i64),
            DataType::Uint32 => convert(self, |x: u32| x.into()),
            DataType::Uint16 => convert(self, |x: u16| x.into()),
            DataType::Uint8 => convert(self, |x: u8| x.into()),
            DataType::Bool => Ok(Cow::Owned(
                self.as_bytes().iter().map(|x| i64::from(*x != 0)).collect(),
            )),
            DataType::Uint4 => Ok(Cow::Owned(self.nibbles().map(i64::from).collect())),
            DataType::Int4 => Ok(Cow::Owned(
                self.nibbles().map(|n| i64::from((n << 4) as i8 >> 4)).collect(),
            )),
            actual => Err(TensorError::Type {
                actual,
                wanted: "an integer",
            }),
        }
    }

    fn nibbles(&self) -> impl Iterator<Item = u8> + '_ {
        self.as_bytes()
            .iter()
            .flat_map(|byte| [byte & 15, byte >> 4])
            .take(self.elements())
    }

    /// The same data under other lengths.
    ///
    /// # Errors
    /// When the number of elements differs.
    pub fn reshaped(&self, dims: &[usize]) -> Result<Self, TensorError> {
        let (expected, actual) = (element_count(dims)?, self.elements());
        if expected != actual {
            return Err(TensorError::Size {
                dtype: self.dtype,
                dims: dims.into(),
                expected,
                actual,
            });
        }
        Ok(Self {
            dtype: self.dtype,
            dims: dims.into(),
            data: self.data.clone(),
        })
    }
}

impl Data {
    fn owned(bytes: &[u8]) -> Self {
        Self::Owned(Arc::new(Aligned::from_slice(64, bytes)))
    }
}

fn element_count(dims: &[usize]) -> Result<usize, TensorError> {
    dims.iter()
        .try_fold(1usize, |product, dim| product.checked_mul(*dim))
        .ok_or_else(|| TensorError::Overflow { dims: dims.into() })
}

fn check_size(dtype: DataType, dims: &[usize], actual: usize) -> Result<(), TensorError> {
    let elements = element_count(dims)?;
    if dtype == DataType::String {
        return Err(TensorError::Type {
            actual: dtype,
            wanted: "a type of fixed size",
        });
    }
    let expected = dtype
        .size_of(elements)
        .ok_or_else(|| TensorError::Overflow { dims: dims.into() })?;
    if expected != actual {
        return Err(TensorError::Size {
            dtype,
            dims: dims.into(),
            expected,
            actual,
        });
    }
    Ok(())
}

impl PartialEq for Tensor {
    /// Bitwise equality of type, shape and data.
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype
            && self.dims == other.dims
            && match (self.as_strings(), other.as_strings()) {
                (Some(a), Some(b)) => a == b,
                _ => self.as_bytes() == other.as_bytes(),
            }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.dims)?;
        if self.elements() <= 16 {
            if let Ok(numbers) = self.to_i64() {
                write!(f, " {numbers:?}")?;
            } else if let Ok(numbers) = self.to_f32() {
                write!(f, " {numbers:?}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bit_integers_unpack_low_half_first_with_sign() {
        let tensor = Tensor::from_bytes(DataType::Int4, &[3], &[0xF1, 0x08]).unwrap();
        assert_eq!(tensor.to_i64().unwrap(), [1, -1, -8].as_slice());
        let tensor = Tensor::from_bytes(DataType::Uint4, &[3], &[0xF1, 0x08]).unwrap();
        assert_eq!(tensor.to_i64().unwrap(), [1, 15, 8].as_slice());
    }

    #[test]
    fn sizes_are_checked_and_overflow_is_an_error() {
        assert!(matches!(
            Tensor::new(&[2, 2], &[1f32, 2.0]),
            Err(TensorError::Size {
                expected: 16,
                actual: 8,
                ..
            })
        ));
        assert!(matches!(
            Tensor::zeros(DataType::Float32, &[usize::MAX, 2]),
            Err(TensorError::Overflow { .. })
        ));
    }

    #[test]
    fn writing_does_not_change_a_clone() {
        let first = Tensor::vector(&[1f32, 2.0]);
        let mut second = first.clone();
        second.view_mut::<f32>().unwrap()[0] = 9.0;
        assert_eq!(first.view::<f32>().unwrap()[0], 1.0);
        assert_eq!(second.view::<f32>().unwrap()[0], 9.0);
    }
}
