//! What a model *is*: ONNX in and out, the editable [`Graph`], and the bundle that is shipped to devices.
//!
//! ```text
//! model.onnx ──onnx::read──▶ Model { Graph … } ──onnx::write──▶ model.onnx
//!                               │
//!                               └─ bundle::pack ──▶ model.edge ──bundle::read──▶ Manifest + members
//! ```
//!
//! Nothing here executes a model or knows about any other crate of the project.

pub mod bundle;
mod bytes;
pub mod cost;
mod dtype;
pub mod graph;
mod mapped_file;
pub mod onnx;
pub mod opset;
mod shape;
pub mod shape_inference;
mod tensor;
mod value_name;

pub use bytes::{Bytes, ParseBytesError};
pub use dtype::DataType;
pub use graph::{Attribute, Graph, Model, Node, ValueInfo, ValueType};
pub use mapped_file::{MappedFile, MappedPart};
pub use shape::{Dim, Shape};
pub use tensor::{Element, Tensor, TensorError};
pub use value_name::ValueName;
