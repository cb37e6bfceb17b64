//! From an encoded ONNX model to the bytes of an engine.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use edgeopt_models::Bytes;
use edgeopt_models::bundle::Precision;

use super::abi::{self, ability, flag, status};
use super::context::{Accounting, Context, DeviceMemory, Heard, HeardTensor};
use super::failure::{Stop, TensorRtError, layer_without_tactic};
use super::layers::EngineLayer;
use super::library::Library;
use super::limits::BuildLimits;
use super::shapes::InputRange;
use crate::MemoryUse;

/// Told what a build does, from threads of the library.
pub trait BuildEvents: Sync {
    /// A phase of `steps` steps begins, inside of `parent` if that is given.
    fn phase_begins(&self, phase: &str, parent: Option<&str>, steps: u32);
    /// A step of a phase is done. `false` cancels the build.
    fn step_done(&self, phase: &str, step: u32) -> bool;
    /// A phase is over.
    fn phase_ends(&self, phase: &str);
}

/// How to build.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// What the graph holds: for TensorRT 8, which has no strong types, the precisions the builder may use.
    pub precision: Option<Precision>,
    /// Limits.
    pub limits: BuildLimits,
    /// Ranges of inputs with open lengths.
    pub ranges: Vec<InputRange>,
    /// 0 (fast build) to 5 (fast engine).
    pub optimization_level: Option<u8>,
    /// Threads of the build.
    pub threads: Option<u16>,
    /// Run on this core of the DLA, layers it cannot run on the GPU.
    pub dla_core: Option<u8>,
    /// Keep what the inspector shows.
    pub detailed: bool,
    /// Let later versions of the library load the engine. Refused: see [`build_engine`].
    pub version_compatible: bool,
    /// Leave weights out of the plan; implies that it can be refitted. Refused: see [`build_engine`].
    pub stripped: bool,
    /// Let weights be replaced. Refused: see [`build_engine`].
    pub refittable: bool,
    /// Let weights stream from host memory. Refused: see [`build_engine`].
    pub weight_streaming: bool,
    /// Look for structured sparsity (2:4).
    pub sparse: bool,
    /// Timings of an earlier build.
    pub timing_cache: Option<Vec<u8>>,
}

/// What came out of a build.
#[derive(Debug)]
pub struct BuiltEngine {
    /// The serialized engine, as the library writes it.
    pub plan: Vec<u8>,
    /// Timings for the next build.
    pub timing_cache: Option<Vec<u8>>,
    /// The most memory that went through our allocator at once; zero where none was given or the library never asked.
    pub peak_device_memory: Bytes,
    /// The library's view of inputs and outputs: name and lengths, -1 = open.
    pub tensors: Vec<(String, Vec<i64>)>,
    /// What the engine takes while it runs: weights, and intermediate values with scratch memory. In the library's words
    /// at the end of the build; `None` where it says nothing.
    pub memory: Option<MemoryUse>,
    /// Scratch memory that its layers take, in the library's words; no layer takes more. `None` where it says nothing.
    pub scratch: Option<Bytes>,
    /// The engine's layers, if details were asked for and the library lists them.
    pub layers: Vec<EngineLayer>,
}

/// Memory for the library to allocate through us.
pub(super) struct Allocations {
    pub(super) memory: Box<dyn DeviceMemory>,
    pub(super) limit: Bytes,
}

/// Events that also know why they cancelled.
pub trait Watched: BuildEvents {
    /// Why the build was asked to stop, if it was.
    fn stopped(&self) -> Option<Stop>;
}

/// Builds an engine. Options that make an engine which could not be loaded here afterwards, or would be no different from
/// one without them, are refused: loading neither refits, nor lets the engine's own code run, nor streams weights.
///
/// # Errors
/// See [`TensorRtError`].
pub fn build_engine(
    library: &Library,
    onnx: &[u8],
    options: &EngineOptions,
    events: &dyn Watched,
) -> Result<BuiltEngine, TensorRtError> {
    refuse(options)?;
    build_with(library.table, &library.entries, onnx, options, events, None)
}

fn refuse(options: &EngineOptions) -> Result<(), TensorRtError> {
    let refused = [
        (
            options.stripped,
            "stripped: the engine would hold no weights, and loading does not put them back",
        ),
        (
            options.refittable,
            "refittable: weights are never replaced here, and the engine would only be slower",
        ),
        (
            options.version_compatible,
            "version_compatible: the engine would bring code of the library's own, which loading does not let run; build \
             it again for the other version",
        ),
        (
            options.weight_streaming,
            "weight_streaming: loading sets no limit above which weights would stream, so none would",
        ),
    ];
    let why = refused.into_iter().find_map(|(asked, why)| asked.then_some(why));
    why.map_or(Ok(()), |why| {
        Err(TensorRtError::Unsupported(format!("the option {why}")))
    })
}

pub(super) fn build_with(
    table: &'static abi::Table,
    entries: &abi::EntryPoints,
    onnx: &[u8],
    options: &EngineOptions,
    events: &dyn Watched,
    allocations: Option<Allocations>,
) -> Result<BuiltEngine, TensorRtError> {
    let heard = Arc::new(Heard::default());
    let accounting = allocations.map(|given| Arc::new(Accounting::new(given.memory, given.limit)));
    let progress = Progress(events);
    let context = Context::open(
        table,
        entries,
        Arc::clone(&heard),
        Some(&progress),
        accounting.clone(),
    )
    .ok_or_else(|| TensorRtError::Library {
        step: "was not opened by its plugin",
        messages: Vec::new(),
    })?;
    let names: Vec<CString> = options
        .ranges
        .iter()
        .map(|range| CString::new(range.input.as_str()))
        .collect::<Result<_, _>>()
        .map_err(|_| TensorRtError::Unsupported("the name of an input contains a zero byte".into()))?;
    let shapes: Vec<abi::ShapeRange> = options
        .ranges
        .iter()
        .zip(&names)
        .map(|(range, name)| {
            let lengths = |lengths: &[usize]| {
                let mut all = [0i64; abi::MAX_RANK];
                for (to, from) in all.iter_mut().zip(lengths) {
                    *to = i64::try_from(*from).unwrap_or(i64::MAX);
                }
                all
            };
            abi::ShapeRange {
                input: name.as_ptr(),
                rank: range.min.len() as i32,
                min: lengths(&range.min),
                opt: lengths(&range.opt),
                max: lengths(&range.max),
            }
        })
        .collect();
    let cache = options.timing_cache.as_deref().unwrap_or_default();
    let raw = abi::BuildOptions {
        size: size_of::<abi::BuildOptions>() as u32,
        flags: flags(table.abilities, options),
        workspace: options.limits.workspace.map_or(0, |bytes| bytes.0),
        tactic_memory: options.limits.tactic_memory.map_or(0, |bytes| bytes.0),
        optimization_level: options.optimization_level.map_or(-1, i32::from),
        max_tactics: -1,
        auxiliary_streams: -1,
        threads: options.threads.map_or(0, i32::from),
        dla_core: options.dla_core.map_or(-1, i32::from),
        shape_count: shapes.len() as i32,
        shapes: shapes.as_ptr(),
        timing_cache: if cache.is_empty() {
            std::ptr::null()
        } else {
            cache.as_ptr().cast()
        },
        timing_cache_bytes: cache.len() as u64,
    };
    let outputs = Outputs::default();
    // SAFETY: everything pointed to lives for the call; the sinks get `outputs`, which they lock.
    let result = unsafe {
        (table.build)(
            context.raw(),
            onnx.as_ptr().cast(),
            onnx.len() as u64,
            std::ptr::null(),
            &raw,
            take_plan,
            Some(take_cache),
            std::ptr::from_ref(&outputs).cast_mut().cast(),
        )
    };
    drop(context);
    if result != status::OK {
        return Err(explain(result, &heard, options, events, accounting.as_deref()));
    }
    let tensors = heard.take_tensors();
    Ok(BuiltEngine {
        layers: heard.take_layers(),
        memory: heard.take_memory(),
        scratch: heard.take_scratch(),
        plan: outputs.plan.into_inner().unwrap_or_else(PoisonError::into_inner),
        timing_cache: Some(
            outputs
                .timing_cache
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner),
        )
        .filter(|bytes| !bytes.is_empty()),
        peak_device_memory: accounting.map_or(Bytes::ZERO, |accounting| accounting.peak()),
        tensors: tensors
            .into_iter()
            .map(|HeardTensor { name, lengths, .. }| (name, lengths))
            .collect(),
    })
}

/// Events are only told to the library's monitor; why they cancelled is for us.
struct Progress<'a>(&'a dyn Watched);

impl BuildEvents for Progress<'_> {
    fn phase_begins(&self, phase: &str, parent: Option<&str>, steps: u32) {
        self.0.phase_begins(phase, parent, steps);
    }
    fn step_done(&self, phase: &str, step: u32) -> bool {
        self.0.step_done(phase, step)
    }
    fn phase_ends(&self, phase: &str) {
        self.0.phase_ends(phase);
    }
}

fn flags(abilities: u32, options: &EngineOptions) -> u32 {
    let mut flags = 0;
    let mut set = |wanted: bool, flag: u32| {
        if wanted {
            flags |= flag;
        }
    };
    // Precision is in the graph. Where the library has weak types only, it must be allowed what the graph holds.
    if abilities & ability::STRONG_TYPES != 0 {
        set(true, flag::STRONGLY_TYPED);
    } else if abilities & ability::WEAK_TYPES != 0 {
        set(
            matches!(options.precision, Some(Precision::Fp16 | Precision::Int8)),
            flag::ALLOW_FP16,
        );
        set(options.precision == Some(Precision::Int8), flag::ALLOW_INT8);
    }
    set(options.version_compatible, flag::VERSION_COMPATIBLE);
    set(options.stripped, flag::STRIPPED | flag::REFITTABLE);
    set(options.refittable, flag::REFITTABLE);
    set(options.weight_streaming, flag::WEIGHT_STREAMING);
    set(options.sparse, flag::SPARSE);
    set(options.detailed, flag::DETAILED);
    set(options.dla_core.is_some(), flag::GPU_FALLBACK);
    flags
}

fn explain(
    result: i32,
    heard: &Heard,
    options: &EngineOptions,
    events: &dyn Watched,
    accounting: Option<&Accounting>,
) -> TensorRtError {
    if let Some(stop) = events.stopped() {
        return TensorRtError::Stopped(stop);
    }
    if let Some((asked, limit)) = accounting.and_then(Accounting::refused) {
        return TensorRtError::Memory { asked, limit };
    }
    let mut messages = heard.take_messages();
    let problems = heard.take_problems();
    if result == status::PARSE && !problems.is_empty() {
        return TensorRtError::Parse(problems);
    }
    if let (Some(layer), Some(workspace)) = (layer_without_tactic(&messages), options.limits.workspace) {
        return TensorRtError::Workspace {
            layer,
            workspace,
            detail: String::new(),
        };
    }
    messages.reverse();
    messages.dedup();
    match result {
        status::UNSUPPORTED => TensorRtError::Unsupported(messages.join("; ")),
        status::PROFILE => TensorRtError::Library {
            step: "refused the declared ranges",
            messages,
        },
        _ => TensorRtError::Library {
            step: "could not build the engine",
            messages,
        },
    }
}

#[derive(Default)]
struct Outputs {
    plan: Mutex<Vec<u8>>,
    timing_cache: Mutex<Vec<u8>>,
}

/// # Safety
/// `data` must be `bytes` long.
unsafe fn put(to: &Mutex<Vec<u8>>, data: *const c_void, bytes: u64) {
    let len = usize::try_from(bytes).unwrap_or(0);
    if data.is_null() || len == 0 {
        return;
    }
    // SAFETY: by the contract of this function.
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) };
    to.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .extend_from_slice(data);
}

unsafe extern "C" fn take_plan(user: *mut c_void, data: *const c_void, bytes: u64) {
    // SAFETY: `user` is the `Outputs` of the call in progress.
    unsafe { put(&(*user.cast::<Outputs>()).plan, data, bytes) }
}

unsafe extern "C" fn take_cache(user: *mut c_void, data: *const c_void, bytes: u64) {
    // SAFETY: `user` is the `Outputs` of the call in progress.
    unsafe { put(&(*user.cast::<Outputs>()).timing_cache, data, bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precision_flags_are_for_libraries_without_strong_types() {
        let options = EngineOptions {
            precision: Some(Precision::Int8),
            ..EngineOptions::default()
        };
        assert_eq!(
            flags(ability::STRONG_TYPES | ability::WEAK_TYPES, &options),
            flag::STRONGLY_TYPED
        );
        assert_eq!(
            flags(ability::WEAK_TYPES, &options),
            flag::ALLOW_FP16 | flag::ALLOW_INT8
        );
        let float = EngineOptions {
            precision: Some(Precision::Fp32),
            ..EngineOptions::default()
        };
        assert_eq!(flags(ability::WEAK_TYPES, &float), 0);
    }

    #[test]
    fn stripped_plans_can_be_refitted() {
        let options = EngineOptions {
            stripped: true,
            ..EngineOptions::default()
        };
        assert_eq!(flags(0, &options), flag::STRIPPED | flag::REFITTABLE);
    }
}
