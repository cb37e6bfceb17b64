//! Execution on the CPU by ONNX Runtime: the default where there is no GPU, the calibrator, and the reference for
//! accuracy.
//!
//! The library is loaded at run time (see [`LIBRARY_VARIABLE`] for where it is looked for), telemetry is off, and
//! its messages go to `tracing` under the target `onnxruntime`. Weights are handed over by reference, outputs are
//! written into the session's own tensors.

mod api;
mod engine;
mod half_quantizers;
mod library;
mod session;
mod tensor_value;
mod unsigned_activations;
mod weights;

use std::path::Path;
use std::sync::Arc;

pub use library::LIBRARY_VARIABLE;

use crate::{Backend, CompileOptions, Engine, ModelSource, RuntimeError};

/// The name on the command line and in errors.
const NAME: &str = "cpu";

/// ONNX Runtime on the CPU.
pub struct CpuBackend {
    runtime: &'static api::Runtime,
}

impl CpuBackend {
    /// Finds and loads ONNX Runtime, once per process.
    ///
    /// # Errors
    /// [`RuntimeError::LibraryNotFound`], with every place that was tried and what was wrong there.
    pub fn new() -> Result<Self, RuntimeError> {
        Ok(Self {
            runtime: api::Runtime::get()?,
        })
    }

    /// The library that was loaded.
    pub fn loaded_from(&self) -> &Path {
        &self.runtime.path
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> String {
        format!(
            "ONNX Runtime {} ({})",
            self.runtime.version,
            self.runtime.path.display()
        )
    }

    fn compile(
        &self,
        model: ModelSource<'_>,
        options: &CompileOptions,
    ) -> Result<Arc<dyn Engine>, RuntimeError> {
        Ok(Arc::new(engine::CpuEngine::compile(
            self.runtime,
            model,
            options,
        )?))
    }
}
