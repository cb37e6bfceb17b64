//! The bundle `.edge`: one file that carries a model to a device.

mod manifest;

pub use manifest::*;
