//! Engines that take minutes to build: whether one is at hand, and how a build is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a backend finds when it looks for the engine of a model, without building any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AtHand {
    /// Names what the engine depends on: the model, the library and its version, the GPU, the ranges of lengths. What was
    /// learnt of an engine holds as long as its key is the same. Empty for backends that build none.
    pub key: String,
    /// Why none is at hand, in words; `None` = one is, or the backend needs none.
    pub missing: Option<String>,
}

/// A request to stop a compilation, shared between who asks and who compiles. It cannot be taken back.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Asks for it. The compilation ends with [`crate::RuntimeError::Cancelled`] at its next step, and leaves nothing.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody asked.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
