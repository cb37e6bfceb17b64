//! Reading and writing ONNX files.
//!
//! Reading takes three steps: [`wire`] checks the bytes and takes the weights out of them, the protobuf parser
//! reads what is left, and the messages become a [`Model`](crate::Model). Weights of a file stay in the file, which
//! is mapped: see [`read_file`]. Whatever a model carries that [`Model`](crate::Model) has no field for (fields of
//! newer schemas, documentation, denotations, training information) is kept in the `extra` of the nearest
//! part and written back.

mod attributes;
mod external;
mod files;
mod functions;
mod read;
mod schema;
mod scopes;
mod source;
mod tensor_proto;
mod types;
mod wire;
mod write;

pub use files::{ExternalData, WriteOptions, write_file, write_file_with};
pub use read::{IR_VERSIONS, ReadError, read_bytes, read_file, read_mapped, read_tensor_bytes};
pub use wire::{WireError, memory_bound};
pub use write::{Elsewhere, WriteError, write_bytes, write_bytes_without};
