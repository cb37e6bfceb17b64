//! The ways to execute a model.

pub mod cpu;
pub mod tensorrt;
