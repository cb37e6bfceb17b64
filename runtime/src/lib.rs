//! Executes models: backends, the memory budget, sessions, pre- and post-processing.
//!
//! A [`Backend`] compiles a model into an [`Engine`]; an engine opens [`Session`]s; a session runs.
//! Which library does the work stays behind these three traits.

mod at_hand;
pub mod backends;
pub mod dataset;
mod declared;
mod engine;
pub mod memory;
pub mod pipeline;

pub use at_hand::{AtHand, Cancel};
pub use declared::{compile_declared, declared_options};
pub use engine::{
    Backend, BundleEngines, CompileOptions, Engine, MemoryUse, ModelSource, OnStep, RuntimeError, Session,
    TensorSpec,
};
