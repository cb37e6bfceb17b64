//! Precision of the numbers a model computes with.

pub mod int8;
