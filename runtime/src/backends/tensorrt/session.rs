//! Sessions: runs of an engine, one after the other on a stream.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::ptr;
use std::sync::{Arc, PoisonError};

use edgeopt_models::{DataType, Dim, Tensor};

use super::abi::{Execution, Table, status};
use super::device::{Graph, Memory, Shared, Stream};
use super::engine::{NAME, TensorRtEngine};
use super::failure::TensorRtError;
use crate::memory::Reservation;
use crate::{RuntimeError, Session, TensorSpec};

/// An input or output of a session.
pub(super) struct Io {
    pub(super) name: CString,
    pub(super) dtype: DataType,
    /// The lengths of the last run.
    pub(super) dims: Option<Vec<usize>>,
    pub(super) memory: Option<Shared>,
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

/// One stream of runs of an engine.
pub(super) struct TensorRtSession {
    pub(super) execution: *mut Execution,
    stream: Stream,
    pub(super) inputs: Vec<Io>,
    pub(super) outputs: Vec<Io>,
    pub(super) results: Vec<Tensor>,
    /// The execution's memory.
    pub(super) scratch: Option<Memory>,
    pub(super) reservation: Option<Reservation>,
    graph: Recording,
    // Last: everything above belongs to it.
    pub(super) engine: Arc<TensorRtEngine>,
}

// SAFETY: the execution, the stream and the memory belong to this session alone, and none is bound to a thread: the
// device makes its context the calling thread's before every call.
unsafe impl Send for TensorRtSession {}

impl TensorRtSession {
    /// Opens a session of its own stream and execution.
    ///
    /// # Errors
    /// When the library or the driver refuses.
    pub(super) fn open(engine: Arc<TensorRtEngine>) -> Result<Self, RuntimeError> {
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
        let (inputs, outputs) = (io(&engine.inputs)?, io(&engine.outputs)?);
        engine.device.make_current().map_err(compile)?;
        let stream = engine.device.new_stream().map_err(compile)?;
        match engine.execution(&stream) {
            Ok(execution) => Ok(Self {
                results: outputs.iter().map(|_| Tensor::vector::<u8>(&[])).collect(),
                inputs,
                outputs,
                execution,
                stream,
                scratch: None,
                reservation: None,
                graph: Recording::NotYet,
                engine,
            }),
            Err(error) => {
                engine.device.free_stream(stream);
                Err(error)
            }
        }
    }

    pub(super) fn table(&self) -> &'static Table {
        self.engine.context.table
    }

    pub(super) fn refused(&self, what: &'static str) -> String {
        let messages = self.engine.heard.take_messages();
        TensorRtError::Library { step: what, messages }.to_string()
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

    pub(super) fn forget_graph(&mut self) {
        if let Recording::Recorded(graph) = std::mem::replace(&mut self.graph, Recording::NotYet) {
            self.engine.device.free_graph(graph);
        }
    }
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
