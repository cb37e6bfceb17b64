//! What stands in for TensorRT: an "engine" of `layers` kernels from input `x` to output `y`, both float32 of open length,
//! each layer adding one, over scratch memory that the session gives.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};

use super::super::abi::{self, BuildOptions, Callbacks, EntryPoints, Sink, Table, source, status};
use super::super::device::{Address, CudaDevice};
use super::super::engine::{Loading, TensorRtEngine};
use super::{gpu, launch};
use crate::RuntimeError;
use crate::memory::Budget;

/// What an engine does besides adding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Manner {
    Plain,
    /// Waits for its stream, which cannot be recorded.
    Waits,
    /// Writes where no memory is.
    Writes,
    /// Asks for more scratch memory than any GPU has when the input is longer than two.
    Devours,
}

/// What the stand-in takes as an engine's bytes.
pub(super) fn plan(layers: u8, manner: Manner) -> [u8; 3] {
    [b'K', layers, manner as u8]
}

thread_local! {
    /// Calls of `enqueue` on this thread.
    pub(super) static ENQUEUED: Cell<u64> = const { Cell::new(0) };
}

struct Engine {
    callbacks: *const Callbacks,
    layers: u8,
    manner: u8,
}

struct Run {
    engine: *const Engine,
    length: usize,
    x: Address,
    y: Address,
    scratch: Address,
}

unsafe extern "C" fn open(_: *const EntryPoints, callbacks: *const Callbacks) -> *mut c_void {
    // SAFETY: the caller's structure of plain pointers.
    Box::into_raw(Box::new(unsafe { ptr::read(callbacks) })).cast()
}
unsafe extern "C" fn close(context: *mut c_void) {
    // SAFETY: made in `open`; as for all functions below, the caller passes back what it was given.
    drop(unsafe { Box::from_raw(context.cast::<Callbacks>()) });
}
unsafe extern "C" fn build(
    _: *mut c_void,
    _: *const c_void,
    _: u64,
    _: *const c_char,
    _: *const BuildOptions,
    _: Sink,
    _: Option<Sink>,
    _: *mut c_void,
) -> i32 {
    status::UNSUPPORTED
}
fn refuse(callbacks: *const Callbacks, text: &CStr) -> i32 {
    // SAFETY: the context is open.
    let callbacks = unsafe { &*callbacks };
    // SAFETY: as the plugin calls it.
    unsafe {
        (callbacks.error.unwrap())(
            callbacks.user,
            source::PLUGIN,
            6,
            text.as_ptr(),
            ptr::null(),
            ptr::null(),
        )
    };
    6
}
unsafe extern "C" fn load(
    context: *mut c_void,
    plan: *const c_void,
    bytes: u64,
    out: *mut *mut c_void,
) -> i32 {
    // SAFETY: the caller's bytes.
    let plan = unsafe { std::slice::from_raw_parts(plan.cast::<u8>(), bytes as usize) };
    let [b'K', layers, manner] = *plan else {
        return refuse(context.cast(), c"magicTag == kEXPECTED_MAGIC_TAG failed");
    };
    let engine = Engine {
        callbacks: context.cast(),
        layers,
        manner,
    };
    // SAFETY: the caller's place.
    unsafe { *out = Box::into_raw(Box::new(engine)).cast() };
    status::OK
}
unsafe extern "C" fn unload(engine: *mut c_void) {
    // SAFETY: made in `load`.
    drop(unsafe { Box::from_raw(engine.cast::<Engine>()) });
}
unsafe extern "C" fn describe(engine: *mut c_void) -> i32 {
    // SAFETY: made in `load`; its context is open.
    let callbacks = unsafe { &*(*engine.cast::<Engine>()).callbacks };
    for (is_input, name) in [(1, c"x"), (0, c"y")] {
        // SAFETY: as the plugin calls it.
        unsafe {
            (callbacks.tensor.unwrap())(callbacks.user, is_input, name.as_ptr(), 0, 1, [-1i64].as_ptr())
        };
    }
    status::OK
}
unsafe extern "C" fn context_memory(_: *mut c_void) -> i64 {
    -1
}
unsafe extern "C" fn inspect(_: *mut c_void, _: Sink, _: *mut c_void) -> i32 {
    status::UNSUPPORTED
}
unsafe extern "C" fn new_execution(engine: *mut c_void, out: *mut *mut c_void) -> i32 {
    let run = Run {
        engine: engine.cast(),
        length: 0,
        x: 0,
        y: 0,
        scratch: 0,
    };
    // SAFETY: the caller's place.
    unsafe { *out = Box::into_raw(Box::new(run)).cast() };
    status::OK
}
unsafe extern "C" fn free_execution(run: *mut c_void) {
    // SAFETY: made in `new_execution`.
    drop(unsafe { Box::from_raw(run.cast::<Run>()) });
}
unsafe extern "C" fn select_profile(_: *mut c_void, _: i32, _: *mut c_void) -> i32 {
    status::OK
}

/// # Safety
/// `run` must come from `new_execution`.
unsafe fn run_of<'a>(run: *mut c_void) -> (&'a mut Run, &'a Engine) {
    // SAFETY: by the contract; one thread at a time uses a run, and the engine outlives it.
    unsafe {
        let run = &mut *run.cast::<Run>();
        let engine = &*run.engine;
        (run, engine)
    }
}

unsafe extern "C" fn set_shape(run: *mut c_void, _: *const c_char, _: i32, lengths: *const i64) -> i32 {
    // SAFETY: the caller's run, and one length.
    unsafe { run_of(run).0.length = *lengths as usize };
    status::OK
}
unsafe extern "C" fn shape(run: *mut c_void, _: *const c_char, rank: *mut i32, lengths: *mut i64) -> i32 {
    // SAFETY: the caller's run and places.
    unsafe {
        *rank = 1;
        *lengths = run_of(run).0.length as i64;
    }
    status::OK
}
unsafe extern "C" fn needed_memory(run: *mut c_void) -> i64 {
    // SAFETY: the caller's run.
    let (run, engine) = unsafe { run_of(run) };
    if engine.manner == Manner::Devours as u8 && run.length > 2 {
        1 << 48
    } else {
        (run.length * 4) as i64
    }
}
unsafe extern "C" fn set_memory(run: *mut c_void, memory: *mut c_void, bytes: i64) -> i32 {
    // SAFETY: the caller's run.
    let (run, _) = unsafe { run_of(run) };
    assert!(bytes >= (run.length * 4) as i64 && (memory as u64).is_multiple_of(256));
    run.scratch = memory as Address;
    status::OK
}
unsafe extern "C" fn set_address(run: *mut c_void, name: *const c_char, memory: *mut c_void) -> i32 {
    // SAFETY: the caller's run and C string.
    let (run, name) = unsafe { (run_of(run).0, CStr::from_ptr(name)) };
    assert!((memory as u64).is_multiple_of(256), "TensorRT wants 256");
    if name == c"x" {
        run.x = memory as Address;
    } else {
        run.y = memory as Address;
    }
    status::OK
}
unsafe extern "C" fn enqueue(run: *mut c_void, stream: *mut c_void) -> i32 {
    ENQUEUED.set(ENQUEUED.get() + 1);
    // SAFETY: the caller's run.
    let (run, engine) = unsafe { run_of(run) };
    if engine.manner == Manner::Waits as u8 {
        // SAFETY: the caller's stream.
        let waited = unsafe { sys::cuStreamSynchronize(stream.cast()) };
        if waited != CUresult::CUDA_SUCCESS {
            return refuse(engine.callbacks, c"not permitted while the stream is captured");
        }
    }
    for layer in 1..=engine.layers {
        let from = if layer == 1 { run.x } else { run.scratch };
        let to = match layer == engine.layers {
            true if engine.manner == Manner::Writes as u8 => 0x100,
            true => run.y,
            false => run.scratch,
        };
        if launch(gpu().add_one, from, to, run.length, stream) != CUresult::CUDA_SUCCESS {
            return refuse(engine.callbacks, c"a kernel was not launched");
        }
    }
    status::OK
}

static TABLE: Table = Table {
    size: size_of::<Table>() as u32,
    abi: abi::ABI,
    header_version: 110_400,
    is_rtx: 0,
    abilities: 0,
    open,
    close,
    build,
    load,
    unload,
    describe,
    context_memory,
    inspect,
    new_execution,
    free_execution,
    select_profile,
    set_shape,
    shape,
    needed_memory,
    set_memory,
    set_address,
    enqueue,
};

/// Loads an "engine" onto a device.
pub(super) fn loaded(
    device: &Arc<CudaDevice>,
    plan: &[u8],
    budget: Option<Budget>,
) -> Result<Arc<TensorRtEngine>, RuntimeError> {
    let loading = Loading {
        table: &TABLE,
        entries: EntryPoints {
            size: size_of::<EntryPoints>() as u32,
            create_builder: ptr::null_mut(),
            create_runtime: ptr::null_mut(),
            create_parser: ptr::null_mut(),
        },
        device: Arc::<CudaDevice>::clone(device),
        budget,
        name: "net".into(),
    };
    TensorRtEngine::load(plan, loading).map(Arc::new)
}
