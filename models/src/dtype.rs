use std::fmt;

use serde::{Deserialize, Serialize};

/// The element type of a tensor, with ONNX's numbering and lower-case names (`TensorProto.DataType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(i32)]
#[allow(missing_docs)] // the names are the documentation
pub enum DataType {
    Float32 = 1,
    Uint8 = 2,
    Int8 = 3,
    Uint16 = 4,
    Int16 = 5,
    Int32 = 6,
    Int64 = 7,
    String = 8,
    Bool = 9,
    Float16 = 10,
    Float64 = 11,
    Uint32 = 12,
    Uint64 = 13,
    Complex64 = 14,
    Complex128 = 15,
    Bfloat16 = 16,
    Float8E4M3FN = 17,
    Float8E4M3FNUZ = 18,
    Float8E5M2 = 19,
    Float8E5M2FNUZ = 20,
    Uint4 = 21,
    Int4 = 22,
    Float4E2M1 = 23,
    Float8E8M0 = 24,
}

impl DataType {
    /// Every type, in ONNX's numbering.
    pub const ALL: [Self; 24] = [
        Self::Float32,
        Self::Uint8,
        Self::Int8,
        Self::Uint16,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::String,
        Self::Bool,
        Self::Float16,
        Self::Float64,
        Self::Uint32,
        Self::Uint64,
        Self::Complex64,
        Self::Complex128,
        Self::Bfloat16,
        Self::Float8E4M3FN,
        Self::Float8E4M3FNUZ,
        Self::Float8E5M2,
        Self::Float8E5M2FNUZ,
        Self::Uint4,
        Self::Int4,
        Self::Float4E2M1,
        Self::Float8E8M0,
    ];

    /// The type with ONNX's number `code`, if there is one.
    pub fn from_onnx(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| *t as i32 == code)
    }

    /// ONNX's number of this type.
    pub fn to_onnx(self) -> i32 {
        self as i32
    }

    /// Bits one element takes, or `None` for strings.
    pub fn bits(self) -> Option<usize> {
        Some(match self {
            Self::String => return None,
            Self::Uint4 | Self::Int4 | Self::Float4E2M1 => 4,
            Self::Uint8 | Self::Int8 | Self::Bool => 8,
            Self::Float8E4M3FN
            | Self::Float8E4M3FNUZ
            | Self::Float8E5M2
            | Self::Float8E5M2FNUZ
            | Self::Float8E8M0 => 8,
            Self::Uint16 | Self::Int16 | Self::Float16 | Self::Bfloat16 => 16,
            Self::Float32 | Self::Int32 | Self::Uint32 => 32,
            Self::Float64 | Self::Int64 | Self::Uint64 | Self::Complex64 => 64,
            Self::Complex128 => 128,
        })
    }

    /// Bytes that `elements` elements take, four-bit types packed two to a byte.
    /// `None` for strings and when the size overflows.
    pub fn size_of(self, elements: usize) -> Option<usize> {
        Some(elements.checked_mul(self.bits()?)?.div_ceil(8))
    }

    /// Whether this is a floating-point type a network computes in (f16, bf16, f32, f64).
    pub fn is_float(self) -> bool {
        matches!(
            self,
            Self::Float16 | Self::Bfloat16 | Self::Float32 | Self::Float64
        )
    }

    /// Whether this is a signed or unsigned integer type (not bool).
    pub fn is_integer(self) -> bool {
        matches!(
            self,
            Self::Uint8
                | Self::Int8
                | Self::Uint16
                | Self::Int16
                | Self::Int32
                | Self::Int64
                | Self::Uint32
                | Self::Uint64
                | Self::Uint4
                | Self::Int4
        )
    }

    /// The lower-case name, as in ONNX's type strings (`float32`, `int8`, …).
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Uint8 => "uint8",
            Self::Int8 => "int8",
            Self::Uint16 => "uint16",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::String => "string",
            Self::Bool => "bool",
            Self::Float16 => "float16",
            Self::Float64 => "float64",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Complex64 => "complex64",
            Self::Complex128 => "complex128",
            Self::Bfloat16 => "bfloat16",
            Self::Float8E4M3FN => "float8e4m3fn",
            Self::Float8E4M3FNUZ => "float8e4m3fnuz",
            Self::Float8E5M2 => "float8e5m2",
            Self::Float8E5M2FNUZ => "float8e5m2fnuz",
            Self::Uint4 => "uint4",
            Self::Int4 => "int4",
            Self::Float4E2M1 => "float4e2m1",
            Self::Float8E8M0 => "float8e8m0",
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
