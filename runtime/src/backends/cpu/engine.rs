//! Compiling a model into an ONNX Runtime session.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ffi::{CStr, CString};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use edgeopt_models::bundle::MemoryPlan;
use edgeopt_models::{Bytes, Dim, Graph, Model, Shape, ValueInfo, ValueType, onnx};
use ort_sys::{GraphOptimizationLevel, OrtSession, OrtSessionOptions, OrtStatusPtr, OrtTypeInfo};

use super::NAME;
use super::api::{Owned, Runtime};
use super::half_quantizers;
use super::session::CpuSession;
use super::tensor_value::read_info;
use super::unsigned_activations;
use super::weights::{Weights, held};
use crate::memory::{self, Reservation};
use crate::{CompileOptions, Engine, MemoryUse, ModelSource, RuntimeError, Session, TensorSpec};

/// A model loaded into ONNX Runtime, whose `Run` may be called from several threads at once.
pub(super) struct CpuEngine {
    pub(super) runtime: &'static Runtime,
    // Fields drop in this order: the session before the weights it reads, and the reservation last.
    pub(super) session: Owned<OrtSession>,
    _weights: Weights,
    pub(super) inputs: Vec<TensorSpec>,
    pub(super) outputs: Vec<TensorSpec>,
    pub(super) input_names: Vec<CString>,
    pub(super) output_names: Vec<CString>,
    memory: MemoryUse,
    _blocks: Option<KeptBlocks>,
    _reservation: Option<Reservation>,
}

/// While it lives, the C allocator keeps what is freed.
struct KeptBlocks;

impl KeptBlocks {
    fn new() -> Self {
        memory::free::keep_blocks();
        Self
    }
}

impl Drop for KeptBlocks {
    fn drop(&mut self) {
        memory::free::return_large_blocks();
        memory::free::return_holes();
    }
}

// SAFETY: `OrtSession::Run` is documented as thread-safe, and nothing else is called on the session after
// compilation; the strings that the raw pointers refer to live in the engine.
unsafe impl Send for CpuEngine {}
// SAFETY: as above.
unsafe impl Sync for CpuEngine {}

fn refused(message: impl Into<String>) -> RuntimeError {
    RuntimeError::Compile {
        backend: NAME,
        message: message.into(),
    }
}

impl CpuEngine {
    pub(super) fn compile(
        runtime: &'static Runtime,
        source: ModelSource<'_>,
        options: &CompileOptions,
    ) -> Result<Self, RuntimeError> {
        let mut model = match source {
            ModelSource::Model(model) => Cow::Borrowed(model),
            ModelSource::Bytes(bytes) => Cow::Owned(onnx::read_bytes(bytes)?),
            ModelSource::Mapped(part) => Cow::Owned(onnx::read_mapped(part)?),
            ModelSource::File(path) => Cow::Owned(onnx::read_file(path)?),
        };
        if half_quantizers::applies(&model.graph) {
            half_quantizers::rewrite(&mut model.to_mut().graph);
        }
        if cfg!(target_arch = "x86_64") && unsigned_activations::applies(&model.graph) {
            unsigned_activations::rewrite(&mut model.to_mut().graph);
        }
        let graph = &model.graph;
        check_tensors_only("input", graph.required_inputs())?;
        check_tensors_only("output", graph.outputs.iter())?;

        let needs = needs(graph, options.plan.as_ref());
        let reservation = match &options.budget {
            Some(budget) => Some(budget.reserve(&name_of(&model), needs)?),
            None => None,
        };

        memory::free::return_large_blocks();
        let weights = Weights::of(graph, true);
        // As the fields do, the session goes before the weights it reads: what is bound last drops first.
        let (mut weights, session) = match create(runtime, &model, &weights, options) {
            Err(CreateError::Refused(message)) if weights.folder().is_some() => {
                // Some versions of the library have rules of their own about files.
                tracing::debug!("weights are given from memory, not from their file: {message}");
                let weights = Weights::of(graph, false);
                let session = create(runtime, &model, &weights, options)?;
                (weights, session)
            }
            created => {
                let session = created?;
                (weights, session)
            }
        };
        weights.release();
        memory::free::return_holes();
        let inputs =
            specs(runtime, &session, graph.required_inputs(), &Side::inputs(runtime)).map_err(refused)?;
        let outputs =
            specs(runtime, &session, graph.outputs.iter(), &Side::outputs(runtime)).map_err(refused)?;
        Ok(Self {
            runtime,
            session,
            _weights: weights,
            input_names: c_names(&inputs).map_err(refused)?,
            output_names: c_names(&outputs).map_err(refused)?,
            inputs,
            outputs,
            memory: needs,
            _blocks: (options.frugal && options.many_runs).then(KeptBlocks::new),
            _reservation: reservation,
        })
    }
}

/// Why no session was made.
enum CreateError {
    Refused(String),
    Encode(onnx::WriteError),
}

impl From<CreateError> for RuntimeError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Refused(message) => refused(message),
            CreateError::Encode(error) => error.into(),
        }
    }
}

fn create(
    runtime: &'static Runtime,
    model: &Model,
    weights: &Weights,
    options: &CompileOptions,
) -> Result<Owned<OrtSession>, CreateError> {
    let made = session_options(runtime, options, weights.folder()).map_err(CreateError::Refused)?;
    weights.add_to(runtime, &made).map_err(CreateError::Refused)?;
    let encoded = onnx::write_bytes_without(model, weights.elsewhere()).map_err(CreateError::Encode)?;
    // SAFETY: the bytes live for the call and the library keeps none of them.
    let session = runtime.create(runtime.api.ReleaseSession, |out| unsafe {
        (runtime.api.CreateSessionFromArray)(
            runtime.env,
            encoded.as_ptr().cast(),
            encoded.len(),
            made.ptr(),
            out,
        )
    });
    let session = session.map_err(CreateError::Refused)?;
    if !weights.files_are_the_same() {
        let message = "a file of its weights was replaced while it was loaded".to_owned();
        return Err(CreateError::Refused(message));
    }
    Ok(session)
}

impl Engine for CpuEngine {
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
        Ok(Box::new(CpuSession::new(self)))
    }
}

fn name_of(model: &Model) -> String {
    if model.graph.name.is_empty() {
        "model".to_owned()
    } else {
        model.graph.name.clone()
    }
}

fn check_tensors_only<'a>(
    side: &str,
    values: impl Iterator<Item = &'a ValueInfo>,
) -> Result<(), RuntimeError> {
    for value in values {
        let kind = match &value.ty {
            ValueType::Sequence(_) => "a sequence",
            ValueType::Optional(_) => "an optional value",
            ValueType::Tensor { .. } | ValueType::Other(None) => continue,
            ValueType::Other(Some(_)) => "neither a tensor nor a sequence",
        };
        return Err(refused(format!(
            "{side} {:?} is {kind}; only tensors can go in and out of an engine",
            value.name
        )));
    }
    Ok(())
}

/// Resident memory of a process that has loaded the library (1.24.4, x86-64) and a model of 20 kB, above that of the
/// same process before.
const OVERHEAD: Bytes = Bytes::mib(24);

/// What ONNX Runtime takes for a model.
fn needs(graph: &Graph, plan: Option<&MemoryPlan>) -> MemoryUse {
    MemoryUse {
        weights: held(graph),
        activations: plan.map_or(Bytes::ZERO, |plan| plan.activations),
        io: plan.map_or(Bytes::ZERO, |plan| plan.io),
        overhead: OVERHEAD,
        ..MemoryUse::default()
    }
}

fn session_options(
    runtime: &Runtime,
    options: &CompileOptions,
    weights: Option<&Path>,
) -> Result<Owned<OrtSessionOptions>, String> {
    let api = runtime.api;
    // SAFETY: every call gets the live options and C strings that the library copies.
    unsafe {
        let made = runtime.create(api.ReleaseSessionOptions, |out| (api.CreateSessionOptions)(out))?;
        // The last level changes the layout of activations and weights to blocks of channels.
        let level = match (options.optimize, options.frugal && !options.many_runs) {
            (true, false) => GraphOptimizationLevel::ORT_ENABLE_ALL,
            (true, true) => GraphOptimizationLevel::ORT_ENABLE_EXTENDED,
            (false, _) => GraphOptimizationLevel::ORT_DISABLE_ALL,
        };
        runtime.check((api.SetSessionGraphOptimizationLevel)(made.ptr(), level))?;
        let threads = if options.threads == 0 {
            std::thread::available_parallelism().map_or(1, usize::from)
        } else {
            options.threads
        };
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        runtime.check((api.SetIntraOpNumThreads)(made.ptr(), threads))?;
        let set = |key: &CStr, value: &CStr| {
            runtime.check((api.AddSessionConfigEntry)(
                made.ptr(),
                key.as_ptr(),
                value.as_ptr(),
            ))
        };
        // Constants that the library copies go past its arena, which grows in powers of two.
        set(c"session.use_device_allocator_for_initializers", c"1")?;
        if options.frugal {
            set(c"session.disable_prepacking", c"1")?;
            runtime.check((api.DisableCpuMemArena)(made.ptr()))?;
            runtime.check((api.DisableMemPattern)(made.ptr()))?;
        }
        if let Some(folder) = weights.and_then(Path::to_str) {
            let folder = CString::new(folder).map_err(|error| error.to_string())?;
            set(c"session.model_external_initializers_file_folder_path", &folder)?;
        }
        if options.exact_quantization {
            set(c"session.disable_quant_qdq", c"1")?;
        }
        if saturates_in_pairs() {
            // Weights that could overflow are made unsigned while loading, for exact kernels.
            set(c"session.x64quantprecision", c"1")?;
        }
        Ok(made)
    }
}

/// Whether the processor multiplies bytes only by `vpmaddubsw`, which adds two products u8 × s8 into 16 bits and
/// saturates (255·127·2 > 32767): x86 before VNNI.
fn saturates_in_pairs() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        !std::arch::is_x86_feature_detected!("avx512vnni") && !std::arch::is_x86_feature_detected!("avxvnni")
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The functions that describe one side of a session.
struct Side {
    count: unsafe extern "system" fn(*const OrtSession, *mut usize) -> OrtStatusPtr,
    describe: unsafe extern "system" fn(*const OrtSession, usize, *mut *mut OrtTypeInfo) -> OrtStatusPtr,
}

impl Side {
    fn inputs(runtime: &Runtime) -> Self {
        Self {
            count: runtime.api.SessionGetInputCount,
            describe: runtime.api.SessionGetInputTypeInfo,
        }
    }

    fn outputs(runtime: &Runtime) -> Self {
        Self {
            count: runtime.api.SessionGetOutputCount,
            describe: runtime.api.SessionGetOutputTypeInfo,
        }
    }
}

/// Names from the graph, types and shapes as the library inferred them.
fn specs<'a>(
    runtime: &Runtime,
    session: &Owned<OrtSession>,
    values: impl Iterator<Item = &'a ValueInfo>,
    side: &Side,
) -> Result<Vec<TensorSpec>, String> {
    let values: Vec<&ValueInfo> = values.collect();
    let mut count = 0;
    // SAFETY: the count is written into a live place.
    runtime.check(unsafe { (side.count)(session.ptr(), &mut count) })?;
    if count != values.len() {
        return Err(format!(
            "the graph declares {} values where ONNX Runtime sees {count}",
            values.len()
        ));
    }
    let mut specs = Vec::with_capacity(count);
    for (index, value) in values.into_iter().enumerate() {
        // SAFETY: the index is below the count; everything read belongs to `info`, which lives to the end of the
        // block.
        unsafe {
            let info = runtime.create(runtime.api.ReleaseTypeInfo, |out| {
                (side.describe)(session.ptr(), index, out)
            })?;
            let mut tensor = ptr::null();
            runtime.check((runtime.api.CastTypeInfoToTensorInfo)(info.ptr(), &mut tensor))?;
            if tensor.is_null() {
                return Err(format!(
                    "{:?} is not a tensor; only tensors can go in and out of an engine",
                    value.name
                ));
            }
            let (dtype, lengths) = read_info(runtime, tensor)?;
            let mut symbols = vec![ptr::null(); lengths.len()];
            let status = (runtime.api.GetSymbolicDimensions)(tensor, symbols.as_mut_ptr(), symbols.len());
            runtime.check(status)?;
            let dim = |(length, symbol): (i64, *const std::ffi::c_char)| {
                if let Ok(length) = usize::try_from(length) {
                    return Dim::Known(length);
                }
                let symbol = if symbol.is_null() {
                    Cow::Borrowed("")
                } else {
                    CStr::from_ptr(symbol).to_string_lossy()
                };
                if symbol.is_empty() {
                    Dim::Unknown
                } else {
                    Dim::from(&*symbol)
                }
            };
            specs.push(TensorSpec {
                name: value.name.clone(),
                dtype,
                shape: lengths.into_iter().zip(symbols).map(dim).collect::<Shape>(),
                ranked: (runtime.api.TensorTypeAndShape_HasShape)(tensor),
            });
        }
    }
    Ok(specs)
}

fn c_names(specs: &[TensorSpec]) -> Result<Vec<CString>, String> {
    specs
        .iter()
        .map(|spec| {
            CString::new(spec.name.as_str()).map_err(|_| format!("the name {:?} contains a zero", spec.name))
        })
        .collect()
}
