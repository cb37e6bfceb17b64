//! End-to-end tests, conformance suites and benchmarks.
//!
//! [`bare_ort`] is the peer of the CPU backend: ONNX Runtime through its C API and nothing else. [`nets`] builds
//! well-known networks with seeded random weights. [`text_images`] writes lines and pages of
//! text as images, [`quadrangle`] tells how well they are found; [`sentences`] makes a sentence encoder and its input from trained weights; [`voice`]
//! records speech and noise.

pub mod bare_ort;
pub mod nets;
pub mod quadrangle;
mod random;
pub mod sentences;
pub mod text_images;
pub mod voice;
