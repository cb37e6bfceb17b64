//! Reading and writing ONNX files.

mod read;
mod write;

pub use read::{ReadError, read_bytes, read_file};
pub use write::{WriteError, write_bytes, write_file};
