//! Precision of the numbers a model computes with.

pub mod fp16;
pub mod int8;
mod pattern;
