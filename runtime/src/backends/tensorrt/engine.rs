//! Loaded engines and their sessions.
//!
//! Not yet run with TensorRT: no GPU that its libraries at hand accept was there. The order of calls, lifetimes and error
//! paths are tested against a table of functions that only pretends (`engine_tests.rs`), and everything that is CUDA's
//! with kernels of our own in the place of TensorRT's, on a GPU (`gpu_tests/`).
#![allow(unsafe_code)]

use std::ffi::CString;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use edgeopt_models::{Bytes, DataType, Dim, Shape, Tensor};

use super::abi::{self, EntryPoints, Execution, PluginEngine, Table, status};
use super::context::{Context, Heard};
use super::device::{Device, Graph, Memory, Shared, Stream};
use super::failure::TensorRtError;
use crate::memory::{Budget, Reservation};
use crate::{Engine, MemoryUse, RuntimeError, Session, TensorSpec};

/// Name of the backend in errors.
pub(super) const NAME: &str = "tensorrt";

/// An engine on the GPU, shared by its sessions.
pub(super) struct TensorRtEngine {
    // Fields drop in this order: the engine, then the context it came from, then what was reserved for it.
    raw: Mutex<RawEngine>,
    context: Context<'static>,
    heard: Arc<Heard>,
    device: Arc<dyn Device>,
    budget: Option<Budget>,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    memory: MemoryUse,
    _reservation: Option<Reservation>,
}

/// The plugin's engine; unloaded when dropped.
struct RawEngine {
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
        let compile = |message: String| RuntimeError::Compile {
            backend: NAME,
            message,
        };
        let io = |specs: &[TensorSpec]| -> Result<Vec<Io>, RuntimeError> {
            specs
                .iter()
                .map(|spec| {
                    let name = CString::new(spec.name.as_str())
                        .map_err(|_| compile(format!("the name {:?} contains a zero byte", spec.name)))?;
                    Ok(Io {
                        name,
                        dtype: spec.dtype,
                        dims: None,
                        memory: None,
                    })
                })
                .collect()
        };
        let (inputs, outputs) = (io(&self.inputs)?, io(&self.outputs)?);
        self.device.make_current().map_err(compile)?;
        let stream = self.device.new_stream().map_err(compile)?;
        match self.execution(&stream) {
            Ok(execution) => Ok(Box::new(TensorRtSession {
                results: outputs.iter().map(|_| Tensor::vector::<u8>(&[])).collect(),
                inputs,
                outputs,
                execution,
                stream,
                scratch: None,
                reservation: None,
                graph: Recording::NotYet,
                engine: self,
            })),
            Err(error) => {
                self.device.free_stream(stream);
                Err(error)
            }
        }
    }
}

impl TensorRtEngine {
    /// A new execution, ready for shapes.
    fn execution(&self, stream: &Stream) -> Result<*mut Execution, RuntimeError> {
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

/// An input or output of a session.
struct Io {
    name: CString,
    dtype: DataType,
    /// The lengths of the last run.
    dims: Option<Vec<usize>>,
    memory: Option<Shared>,
}

/// Recording a run as a CUDA graph: launched in one call while shapes repeat.
#[derive(Debug)]
enum Recording {
    /// No run with these shapes yet: the first one lets the library initialize what cannot be recorded.
    NotYet,
    /// One run was made; the next is recorded.
    Ready,
    Recorded(Graph),
    /// The engine does what graphs cannot hold.
    Impossible,
}

struct TensorRtSession {
    execution: *mut Execution,
    stream: Stream,
    inputs: Vec<Io>,
    outputs: Vec<Io>,
    results: Vec<Tensor>,
    /// The execution's memory.
    scratch: Option<Memory>,
    reservation: Option<Reservation>,
    graph: Recording,
    // Last: everything above belongs to it.
    engine: Arc<TensorRtEngine>,
}

// SAFETY: the execution, the stream and the memory belong to this session alone, and none is bound to a thread: the
// device makes its context the calling thread's before every call.
unsafe impl Send for TensorRtSession {}

impl TensorRtSession {
    fn table(&self) -> &'static Table {
        self.engine.context.table
    }

    fn refused(&self, what: &'static str) -> String {
        let messages = self.engine.heard.take_messages();
        TensorRtError::Library { step: what, messages }.to_string()
    }

    /// Tells the library the inputs' shapes, and gives it memory for everything.
    fn prepare(&mut self, inputs: &[Tensor]) -> Result<(), RuntimeError> {
        let run = |message: String| RuntimeError::Run {
            backend: NAME,
            message,
        };
        self.forget_graph();
        // Until everything below has worked, the next run must come here again.
        for io in &mut self.inputs {
            io.dims = None;
        }
        for (io, tensor) in self.inputs.iter().zip(inputs) {
            let lengths: Vec<i64> = tensor
                .dims()
                .iter()
                .map(|length| i64::try_from(*length).unwrap_or(i64::MAX))
                .collect();
            // SAFETY: a live execution; name and lengths live for the call.
            let result = unsafe {
                (self.table().set_shape)(
                    self.execution,
                    io.name.as_ptr(),
                    lengths.len() as i32,
                    lengths.as_ptr(),
                )
            };
            if result != status::OK {
                return Err(RuntimeError::Input {
                    name: io.name.to_string_lossy().into_owned(),
                    problem: format!(
                        "{:?} is outside of what the engine was built for: {}",
                        tensor.dims(),
                        self.refused("refused the shape")
                    ),
                });
            }
        }
        // SAFETY: a live execution.
        let scratch = unsafe { (self.table().needed_memory)(self.execution) };
        let scratch = usize::try_from(scratch)
            .map_err(|_| run(self.refused("does not tell how much memory the run needs")))?;
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for index in 0..self.outputs.len() {
            let dims = self.output_dims(index).map_err(run)?;
            let elements = dims.iter().try_fold(1usize, |n, length| n.checked_mul(*length));
            let bytes = elements.and_then(|elements| self.outputs[index].dtype.size_of(elements));
            let bytes =
                bytes.ok_or_else(|| run(format!("output {:?} is too large", self.outputs[index].name)))?;
            outputs.push((dims, bytes));
        }
        let sizes = inputs.iter().map(|tensor| tensor.as_bytes().len());
        let io = sizes.chain(outputs.iter().map(|(_, bytes)| *bytes));
        self.reserve(scratch, io.fold(0, usize::saturating_add))?;
        self.give_scratch(scratch).map_err(run)?;
        for (index, tensor) in inputs.iter().enumerate() {
            self.give_memory(Side::Input, index, tensor.as_bytes().len())
                .map_err(run)?;
        }
        for (index, (dims, bytes)) in outputs.into_iter().enumerate() {
            self.give_memory(Side::Output, index, bytes).map_err(run)?;
            let dtype = self.outputs[index].dtype;
            self.results[index] = Tensor::zeros(dtype, &dims).map_err(|error| run(error.to_string()))?;
        }
        for (io, tensor) in self.inputs.iter_mut().zip(inputs) {
            io.dims = Some(tensor.dims().to_vec());
        }
        Ok(())
    }

    /// Reserves what a run needs, in bytes, before any of it is taken. Scratch memory that is there and large enough is
    /// kept, unless the budget only allows less.
    fn reserve(&mut self, scratch: usize, io: usize) -> Result<(), RuntimeError> {
        let Some(budget) = self.engine.budget.clone() else {
            return Ok(());
        };
        let needs = |workspace: usize| MemoryUse {
            workspace: Bytes::from(workspace),
            io: Bytes::from(io),
            ..MemoryUse::default()
        };
        let name = "a session's intermediate values, inputs and outputs";
        self.reservation = None;
        let held = self.scratch.as_ref().map_or(0, |memory| memory.bytes);
        if held > scratch
            && let Ok(kept) = budget.reserve(name, needs(held))
        {
            self.reservation = Some(kept);
            return Ok(());
        }
        if held > scratch {
            self.free_memory();
        }
        match budget.reserve(name, needs(scratch)) {
            Ok(reservation) => self.reservation = Some(reservation),
            Err(error) => {
                self.free_memory();
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Frees everything a run needs; the next one must prepare again.
    fn free_memory(&mut self) {
        let device = &self.engine.device;
        let io = self.inputs.iter_mut().chain(&mut self.outputs);
        for memory in io.filter_map(|io| io.memory.take()) {
            device.free_shared(memory);
        }
        if let Some(memory) = self.scratch.take() {
            device.free(memory);
        }
    }

    /// Memory for intermediate values, as much as the shapes now set need.
    fn give_scratch(&mut self, needed: usize) -> Result<(), String> {
        let device = &self.engine.device;
        if self.scratch.as_ref().is_none_or(|memory| memory.bytes < needed) {
            if let Some(memory) = self.scratch.take() {
                device.free(memory);
            }
            self.scratch = Some(device.allocate(needed)?);
        }
        let Some(memory) = &self.scratch else {
            return Ok(());
        };
        // SAFETY: the memory is this session's, and lives until it is replaced here or the execution is gone.
        let result = unsafe {
            (self.table().set_memory)(
                self.execution,
                ptr::with_exposed_provenance_mut(memory.address as usize),
                memory.bytes as i64,
            )
        };
        if result == status::OK {
            Ok(())
        } else {
            Err(self.refused("refused memory for the run"))
        }
    }

    fn give_memory(&mut self, side: Side, index: usize, bytes: usize) -> Result<(), String> {
        let table = self.table();
        let list = match side {
            Side::Input => &mut self.inputs,
            Side::Output => &mut self.outputs,
        };
        let Some(io) = list.get_mut(index) else {
            return Ok(());
        };
        if io.memory.as_ref().is_none_or(|memory| memory.bytes != bytes) {
            if let Some(memory) = io.memory.take() {
                self.engine.device.free_shared(memory);
            }
            io.memory = Some(self.engine.device.allocate_shared(bytes)?);
        }
        let address = io.memory.as_ref().map_or(0, |memory| memory.device);
        // SAFETY: the memory is this session's, and lives until it is replaced here or the execution is gone.
        let result = unsafe {
            (table.set_address)(
                self.execution,
                io.name.as_ptr(),
                ptr::with_exposed_provenance_mut(address as usize),
            )
        };
        if result == status::OK {
            Ok(())
        } else {
            Err(self.refused("refused the memory of an input or output"))
        }
    }

    fn output_dims(&self, index: usize) -> Result<Vec<usize>, String> {
        let (mut rank, mut lengths) = (0i32, [0i64; abi::MAX_RANK]);
        // SAFETY: a live execution; there is room for the largest rank.
        let result = unsafe {
            (self.table().shape)(
                self.execution,
                self.outputs[index].name.as_ptr(),
                &mut rank,
                lengths.as_mut_ptr(),
            )
        };
        if result != status::OK {
            return Err(self.refused("does not tell the shape of an output"));
        }
        let rank = usize::try_from(rank).unwrap_or(0).min(abi::MAX_RANK);
        lengths[..rank]
            .iter()
            .map(|length| {
                usize::try_from(*length).map_err(|_| {
                    format!(
                        "the shape of output {:?} depends on the data, which is not supported",
                        self.outputs[index].name
                    )
                })
            })
            .collect()
    }

    /// Enqueues copies and the run.
    fn enqueue(&self) -> Result<(), String> {
        let device = &self.engine.device;
        for memory in self.inputs.iter().filter_map(|io| io.memory.as_ref()) {
            device.to_device(memory, &self.stream)?;
        }
        // SAFETY: a live execution with shapes, memory and addresses set; a live stream.
        if unsafe { (self.table().enqueue)(self.execution, self.stream.raw()) } != status::OK {
            return Err(self.refused("did not run"));
        }
        for memory in self.outputs.iter().filter_map(|io| io.memory.as_ref()) {
            device.to_host(memory, &self.stream)?;
        }
        Ok(())
    }

    fn record(&self) -> Result<Graph, String> {
        self.engine.device.begin_capture(&self.stream)?;
        let enqueued = self.enqueue();
        // The capture must end in any case, or the stream stays unusable.
        let graph = self.engine.device.end_capture(&self.stream);
        match (enqueued, graph) {
            (Ok(()), graph) => graph,
            (Err(error), Ok(graph)) => {
                self.engine.device.free_graph(graph);
                Err(error)
            }
            (Err(error), Err(_)) => Err(error),
        }
    }

    fn launch(&mut self) -> Result<(), String> {
        if matches!(self.graph, Recording::Ready) {
            self.graph = match self.record() {
                Ok(graph) => Recording::Recorded(graph),
                Err(reason) => {
                    tracing::info!(target: "tensorrt", "runs are not recorded as a CUDA graph: {reason}");
                    // What the library has against recording is no part of later errors.
                    drop(self.engine.heard.take_messages());
                    Recording::Impossible
                }
            };
        }
        let device = &self.engine.device;
        let launched = match &self.graph {
            Recording::Recorded(graph) => device.launch(graph, &self.stream),
            _ => self.enqueue(),
        };
        // After an error too: what was enqueued before it still uses the memory.
        let finished = device.synchronize(&self.stream);
        launched.and(finished)?;
        if matches!(self.graph, Recording::NotYet) {
            self.graph = Recording::Ready;
        }
        Ok(())
    }

    fn forget_graph(&mut self) {
        if let Recording::Recorded(graph) = std::mem::replace(&mut self.graph, Recording::NotYet) {
            self.engine.device.free_graph(graph);
        }
    }
}

#[derive(Clone, Copy)]
enum Side {
    Input,
    Output,
}

impl Session for TensorRtSession {
    fn run(&mut self, inputs: &[Tensor]) -> Result<&[Tensor], RuntimeError> {
        check(&self.engine.inputs, inputs)?;
        let failed = |message: String| RuntimeError::Run {
            backend: NAME,
            message,
        };
        // Sessions may be moved to other threads between runs.
        self.engine.device.make_current().map_err(failed)?;
        let repeated = self
            .inputs
            .iter()
            .zip(inputs)
            .all(|(io, tensor)| io.dims.as_deref() == Some(tensor.dims()));
        if !repeated || self.inputs.is_empty() {
            self.prepare(inputs)?;
        }
        for (io, tensor) in self.inputs.iter().zip(inputs) {
            if let Some(memory) = &io.memory {
                let bytes = tensor.as_bytes();
                // SAFETY: the memory has the tensor's size, and no run is in progress.
                unsafe {
                    ptr::copy_nonoverlapping(bytes.as_ptr(), memory.host, bytes.len().min(memory.bytes))
                };
            }
        }
        self.launch().map_err(failed)?;
        for (io, result) in self.outputs.iter().zip(&mut self.results) {
            if let Some(memory) = &io.memory {
                let bytes = result.as_bytes_mut();
                // SAFETY: the memory has the tensor's size, and the run is over.
                unsafe {
                    ptr::copy_nonoverlapping(memory.host, bytes.as_mut_ptr(), bytes.len().min(memory.bytes))
                };
            }
        }
        Ok(&self.results)
    }
}

impl Drop for TensorRtSession {
    fn drop(&mut self) {
        let _ = self.engine.device.make_current();
        // A failed run may still be in progress on the stream.
        let _ = self.engine.device.synchronize(&self.stream);
        self.forget_graph();
        {
            let _engine = self.engine.raw.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: made by this table and freed once; its engine is still there.
            unsafe { (self.table().free_execution)(self.execution) };
        }
        self.free_memory();
        let stream = std::mem::replace(&mut self.stream, Stream::taken());
        self.engine.device.free_stream(stream);
    }
}

fn check(specs: &[TensorSpec], inputs: &[Tensor]) -> Result<(), RuntimeError> {
    if specs.len() != inputs.len() {
        return Err(RuntimeError::Input {
            name: specs
                .get(inputs.len())
                .map_or_else(String::new, |spec| spec.name.to_string()),
            problem: format!("{} inputs expected, {} given", specs.len(), inputs.len()),
        });
    }
    for (spec, tensor) in specs.iter().zip(inputs) {
        let problem = |problem: String| RuntimeError::Input {
            name: spec.name.to_string(),
            problem,
        };
        if spec.dtype != tensor.dtype() {
            return Err(problem(format!(
                "expected {}, given {}",
                spec.dtype,
                tensor.dtype()
            )));
        }
        let fits = |(dim, length): (&Dim, &usize)| dim.known().is_none_or(|known| known == *length);
        if spec.shape.len() != tensor.dims().len() || !spec.shape.iter().zip(tensor.dims()).all(fits) {
            return Err(problem(format!(
                "expected shape {}, given {:?}",
                spec.shape,
                tensor.dims()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
