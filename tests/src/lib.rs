//! End-to-end tests, conformance suites and benchmarks.
//!
//! [`bare_ort`] is the peer of the CPU backend: ONNX Runtime through its C API and nothing else. [`nets`] builds
//! well-known networks with seeded random weights. [`text_images`] writes lines of text as images.

pub mod bare_ort;
pub mod nets;
pub mod text_images;
