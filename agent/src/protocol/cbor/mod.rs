//! CBOR (RFC 8949) for results: the same fields as in JSON, and raw outputs as typed arrays of numbers (RFC 8746) in the
//! type that the model gives.

mod read;
#[cfg(test)]
mod tests;
mod write;

use std::convert::Infallible;

use edgeopt_models::DataType;
use minicbor::{decode, encode};

pub(super) use read::to_json;
pub(super) use write::write;

/// Why bytes are no CBOR that a result may hold.
#[derive(Debug, thiserror::Error)]
pub enum CborError {
    /// They are no CBOR.
    #[error("not CBOR: {0}")]
    Malformed(#[from] decode::Error),
    /// An item has no place in a result.
    #[error("byte {at}: {problem}")]
    Foreign {
        /// Where it begins.
        at: usize,
        /// What is wrong with it.
        problem: String,
    },
}

/// Why a result has no CBOR form.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unwritten {
    #[error(transparent)]
    Cbor(#[from] encode::Error<Infallible>),
    #[error(transparent)]
    Value(#[from] serde_json::Error),
}

/// Typed arrays, little-endian, by their tags: RFC 8746, section 2.1.
const TYPED_ARRAYS: [(DataType, u64); 11] = [
    (DataType::Uint8, 64),
    (DataType::Uint16, 69),
    (DataType::Uint32, 70),
    (DataType::Uint64, 71),
    (DataType::Int8, 72),
    (DataType::Int16, 77),
    (DataType::Int32, 78),
    (DataType::Int64, 79),
    (DataType::Float16, 84),
    (DataType::Float32, FLOATS),
    (DataType::Float64, 86),
];

/// Tag of 32-bit floats.
const FLOATS: u64 = 85;
