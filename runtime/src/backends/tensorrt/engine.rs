//! Loaded engines.
//!
//! Not yet run with TensorRT: no GPU that its libraries at hand accept was there. The order of calls, lifetimes and error
//! paths are tested against a table of functions that only pretends (`engine_tests.rs`), and everything that is CUDA's
//! with kernels of our own in the place of TensorRT's, on a GPU (`gpu_tests/`).
#![allow(unsafe_code)]

use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use edgeopt_models::{Bytes, DataType, Dim, Shape};

use super::abi::{EntryPoints, Execution, PluginEngine, Table, status};
use super::context::{Context, Heard};
use super::device::{Device, Stream};
use super::failure::TensorRtError;
use super::session::TensorRtSession;
use crate::memory::{Budget, Reservation};
use crate::{Engine, MemoryUse, RuntimeError, Session, TensorSpec};

/// Name of the backend in errors.
pub(super) const NAME: &str = "tensorrt";

/// An engine on the GPU, shared by its sessions.
pub(super) struct TensorRtEngine {
    // Fields drop in this order: the engine, then the context it came from, then what was reserved for it.
    pub(super) raw: Mutex<RawEngine>,
    pub(super) context: Context<'static>,
    pub(super) heard: Arc<Heard>,
    pub(super) device: Arc<dyn Device>,
    pub(super) budget: Option<Budget>,
    pub(super) inputs: Vec<TensorSpec>,
    pub(super) outputs: Vec<TensorSpec>,
    memory: MemoryUse,
    _reservation: Option<Reservation>,
}

/// The plugin's engine; unloaded when dropped.
pub(super) struct RawEngine {
    table: &'static Table,
    engine: *mut PluginEngine,
}

impl Drop for TensorRtEngine {
    fn drop(&mut self) {
        // Unloading frees device memory on whatever thread the last session ends.
        let _ = self.device.make_current();
    }
}

impl Drop for RawEngine {
    fn drop(&mut self) {
        // SAFETY: loaded by this table and not unloaded before; no execution is left, since sessions hold the engine.
        unsafe { (self.table.unload)(self.engine) }
    }
}

// SAFETY: TensorRT's engines may be used from any thread; the calls that change the engine, making and freeing an
// execution, are behind the mutex. What the context's callbacks touch is behind mutexes or atomic.
unsafe impl Send for TensorRtEngine {}
// SAFETY: as above.
unsafe impl Sync for TensorRtEngine {}

/// What to load an engine with.
pub(super) struct Loading {
    pub(super) table: &'static Table,
    pub(super) entries: EntryPoints,
    pub(super) device: Arc<dyn Device>,
    pub(super) budget: Option<Budget>,
    /// For messages.
    pub(super) name: String,
}

impl TensorRtEngine {
    /// Loads the bytes of an engine.
    ///
    /// # Errors
    /// When it does not fit into the budget, or the library refuses it.
    pub(super) fn load(plan: &[u8], loading: Loading) -> Result<Self, RuntimeError> {
        let Loading {
            table,
            entries,
            device,
            budget,
            name,
        } = loading;
        let memory = MemoryUse {
            weights: Bytes::from(plan.len()),
            ..MemoryUse::default()
        };
        let reservation = budget
            .as_ref()
            .map(|budget| budget.reserve(&name, memory))
            .transpose()?;
        device.make_current().map_err(|message| RuntimeError::Compile {
            backend: NAME,
            message,
        })?;
        let heard = Arc::new(Heard::default());
        let context = Context::open(table, &entries, Arc::clone(&heard), None, None)
            .ok_or_else(|| failed(&heard, "was not opened by its plugin"))?;
        let mut engine = ptr::null_mut();
        // SAFETY: the plan lives for the call; the library copies what it keeps.
        let result = unsafe {
            (table.load)(
                context.raw(),
                plan.as_ptr().cast(),
                plan.len() as u64,
                &mut engine,
            )
        };
        if result != status::OK || engine.is_null() {
            return Err(failed(&heard, "refused the engine"));
        }
        let raw = RawEngine { table, engine };
        // SAFETY: a live engine.
        if unsafe { (table.describe)(engine) } != status::OK {
            return Err(failed(&heard, "does not describe the engine"));
        }
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for tensor in heard.take_tensors() {
            let dtype = dtype(tensor.dtype).ok_or_else(|| RuntimeError::Compile {
                backend: NAME,
                message: format!(
                    "{:?} has an element type ({}) that is not known",
                    tensor.name, tensor.dtype
                ),
            })?;
            let dims = tensor
                .lengths
                .iter()
                .map(|length| match usize::try_from(*length) {
                    Ok(length) => Dim::Known(length),
                    Err(_) => Dim::Unknown,
                });
            let spec = TensorSpec {
                name: tensor.name.as_str().into(),
                dtype,
                shape: dims.collect::<Shape>(),
                ranked: true,
            };
            if tensor.is_input {
                inputs.push(spec)
            } else {
                outputs.push(spec)
            }
        }
        Ok(Self {
            raw: Mutex::new(raw),
            context,
            heard,
            device,
            budget,
            inputs,
            outputs,
            memory,
            _reservation: reservation,
        })
    }
}

fn failed(heard: &Heard, step: &'static str) -> RuntimeError {
    RuntimeError::Compile {
        backend: NAME,
        message: TensorRtError::Library {
            step,
            messages: heard.take_messages(),
        }
        .to_string(),
    }
}

/// The element type of a number of `nvinfer1::DataType`.
fn dtype(number: i32) -> Option<DataType> {
    Some(match number {
        0 => DataType::Float32,
        1 => DataType::Float16,
        2 => DataType::Int8,
        3 => DataType::Int32,
        4 => DataType::Bool,
        5 => DataType::Uint8,
        7 => DataType::Bfloat16,
        8 => DataType::Int64,
        _ => return None,
    })
}

impl Engine for TensorRtEngine {
    fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    fn memory(&self) -> MemoryUse {
        self.memory
    }

    fn session(self: Arc<Self>) -> Result<Box<dyn Session>, RuntimeError> {
        Ok(Box::new(TensorRtSession::open(self)?))
    }
}

impl TensorRtEngine {
    /// A new execution, ready for shapes.
    pub(super) fn execution(&self, stream: &Stream) -> Result<*mut Execution, RuntimeError> {
        let table = self.context.table;
        let raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        let mut execution = ptr::null_mut();
        // SAFETY: a live engine, which the session keeps.
        let result = unsafe { (table.new_execution)(raw.engine, &mut execution) };
        if result != status::OK || execution.is_null() {
            return Err(failed(&self.heard, "made no execution context"));
        }
        let open = |spec: &TensorSpec| spec.shape.iter().any(|dim| dim.known().is_none());
        // TensorRT 8.5 gives the one profile to the first execution only, and says here if it cannot be shared.
        // SAFETY: a live execution and stream; what it enqueues goes before the first run.
        if self.inputs.iter().any(open)
            && unsafe { (table.select_profile)(execution, 0, stream.raw()) } != status::OK
        {
            // SAFETY: made above and used by nobody.
            unsafe { (table.free_execution)(execution) };
            return Err(failed(
                &self.heard,
                "cannot run the engine's range of shapes in another session",
            ));
        }
        Ok(execution)
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
pub(super) mod tests;
