//! Execution against a pretended table and device: an "engine" that adds one to every byte of its input `x` of open
//! length. They check the protocol - order of calls, lifetimes, errors -, not TensorRT.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};

use edgeopt_models::Tensor;

use super::*;
use crate::backends::tensorrt::abi::{self, BuildOptions, Callbacks, Sink};
use crate::backends::tensorrt::device::{Graph, Memory, Shared};

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

#[derive(Default)]
struct World {
    calls: Vec<String>,
    /// Objects that are alive, by kind.
    alive: HashMap<&'static str, i64>,
    fail: Option<&'static str>,
    length: usize,
    addresses: HashMap<String, usize>,
    recording: bool,
    callbacks: Option<usize>,
}

fn note(call: impl Into<String>) -> i32 {
    let call = call.into();
    WORLD.with_borrow_mut(|world| {
        let fails = world.fail.is_some_and(|name| call.starts_with(name));
        world.calls.push(call);
        if fails { 6 } else { 0 }
    })
}

fn alive(kind: &'static str, change: i64) {
    WORLD.with_borrow_mut(|world| *world.alive.entry(kind).or_default() += change);
}

unsafe extern "C" fn open(_: *const EntryPoints, callbacks: *const Callbacks) -> *mut c_void {
    alive("context", 1);
    // SAFETY: the test's own structure; leaked, as the table's objects outlive the call.
    let copy = Box::into_raw(Box::new(unsafe { ptr::read(callbacks) }));
    WORLD.with_borrow_mut(|world| world.callbacks = Some(copy as usize));
    ptr::dangling_mut::<c_void>()
}
unsafe extern "C" fn close(_: *mut c_void) {
    alive("context", -1);
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
    7
}
unsafe extern "C" fn load(_: *mut c_void, _: *const c_void, _: u64, out: *mut *mut c_void) -> i32 {
    if note("load") != 0 {
        return 5;
    }
    alive("engine", 1);
    // SAFETY: the caller's place.
    unsafe { *out = ptr::dangling_mut::<c_void>() };
    0
}
unsafe extern "C" fn unload(_: *mut c_void) {
    alive("engine", -1);
}
unsafe extern "C" fn describe(_: *mut c_void) -> i32 {
    let callbacks = WORLD.with_borrow(|world| world.callbacks).unwrap() as *const Callbacks;
    // SAFETY: the copy made in `open`.
    let callbacks = unsafe { &*callbacks };
    for (is_input, name) in [(1, c"x"), (0, c"y")] {
        // SAFETY: as the plugin calls it.
        unsafe {
            (callbacks.tensor.unwrap())(callbacks.user, is_input, name.as_ptr(), 5, 1, [-1i64].as_ptr())
        };
    }
    0
}
unsafe extern "C" fn context_memory(_: *mut c_void) -> i64 {
    1 << 20
}
unsafe extern "C" fn inspect(_: *mut c_void, _: Sink, _: *mut c_void) -> i32 {
    7
}
unsafe extern "C" fn new_execution(_: *mut c_void, out: *mut *mut c_void) -> i32 {
    alive("execution", 1);
    // SAFETY: the caller's place.
    unsafe { *out = ptr::dangling_mut::<c_void>() };
    0
}
unsafe extern "C" fn free_execution(_: *mut c_void) {
    alive("execution", -1);
    note("free_execution");
}
unsafe extern "C" fn select_profile(_: *mut c_void, profile: i32, _: *mut c_void) -> i32 {
    note(format!("select_profile {profile}"))
}
unsafe extern "C" fn set_shape(_: *mut c_void, _: *const c_char, rank: i32, lengths: *const i64) -> i32 {
    assert_eq!(rank, 1);
    // SAFETY: the caller's array of that rank.
    let length = unsafe { *lengths } as usize;
    WORLD.with_borrow_mut(|world| world.length = length);
    note(format!("set_shape {length}"))
}
unsafe extern "C" fn shape(_: *mut c_void, _: *const c_char, rank: *mut i32, lengths: *mut i64) -> i32 {
    // SAFETY: the caller's places.
    unsafe {
        *rank = 1;
        *lengths = WORLD.with_borrow(|world| world.length) as i64;
    }
    note("shape")
}
unsafe extern "C" fn needed_memory(_: *mut c_void) -> i64 {
    note("needed_memory");
    WORLD.with_borrow(|world| world.length * 100) as i64
}
unsafe extern "C" fn set_memory(_: *mut c_void, _: *mut c_void, bytes: i64) -> i32 {
    note(format!("set_memory {bytes}"))
}
unsafe extern "C" fn set_address(_: *mut c_void, name: *const c_char, memory: *mut c_void) -> i32 {
    // SAFETY: a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    WORLD.with_borrow_mut(|world| world.addresses.insert(name.clone(), memory as usize));
    note(format!("set_address {name}"))
}
unsafe extern "C" fn enqueue(_: *mut c_void, _: *mut c_void) -> i32 {
    let result = note("enqueue");
    if result == 0 && !WORLD.with_borrow(|world| world.recording) {
        compute();
    }
    result
}

/// y = x + 1.
fn compute() {
    WORLD.with_borrow(|world| {
        let (x, y) = (world.addresses["x"] as *const u8, world.addresses["y"] as *mut u8);
        for index in 0..world.length {
            // SAFETY: the session gave memory of this length.
            unsafe { *y.add(index) = (*x.add(index)).wrapping_add(1) };
        }
    });
}

pub(in super::super) static TABLE: Table = Table {
    size: size_of::<Table>() as u32,
    abi: abi::ABI,
    header_version: 100_300,
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

/// A device whose memory is the host's.
struct Pretended;

impl Device for Pretended {
    fn make_current(&self) -> Result<(), String> {
        Ok(())
    }
    fn new_stream(&self) -> Result<Stream, String> {
        alive("stream", 1);
        Ok(Stream::new(ptr::dangling_mut::<c_void>()))
    }
    fn free_stream(&self, _: Stream) {
        alive("stream", -1);
    }
    fn allocate(&self, bytes: usize) -> Result<Memory, String> {
        if note(format!("allocate {bytes}")) != 0 {
            return Err("out of memory".into());
        }
        alive("memory", 1);
        Ok(Memory { address: 64, bytes })
    }
    fn free(&self, _: Memory) {
        alive("memory", -1);
    }
    fn allocate_shared(&self, bytes: usize) -> Result<Shared, String> {
        alive("shared", 1);
        let host = Box::into_raw(vec![0u8; bytes].into_boxed_slice()).cast::<u8>();
        Ok(Shared {
            host,
            device: host as u64,
            bytes,
        })
    }
    fn free_shared(&self, memory: Shared) {
        alive("shared", -1);
        let slice = ptr::slice_from_raw_parts_mut(memory.host, memory.bytes);
        // SAFETY: made by `allocate_shared`.
        drop(unsafe { Box::from_raw(slice) });
    }
    fn to_device(&self, _: &Shared, _: &Stream) -> Result<(), String> {
        Ok(())
    }
    fn to_host(&self, _: &Shared, _: &Stream) -> Result<(), String> {
        match WORLD.with_borrow(|world| world.fail) {
            Some("to_host") => Err("cuMemcpyDtoHAsync: refused".into()),
            _ => Ok(()),
        }
    }
    fn synchronize(&self, _: &Stream) -> Result<(), String> {
        note("synchronize");
        Ok(())
    }
    fn begin_capture(&self, _: &Stream) -> Result<(), String> {
        WORLD.with_borrow_mut(|world| world.recording = true);
        note("begin_capture");
        Ok(())
    }
    fn end_capture(&self, _: &Stream) -> Result<Graph, String> {
        WORLD.with_borrow_mut(|world| world.recording = false);
        if note("end_capture") != 0 {
            return Err("not permitted while capturing".into());
        }
        alive("graph", 1);
        Ok(Graph::new(ptr::dangling_mut::<c_void>()))
    }
    fn launch(&self, _: &Graph, _: &Stream) -> Result<(), String> {
        note("launch");
        compute();
        Ok(())
    }
    fn free_graph(&self, _: Graph) {
        alive("graph", -1);
    }
}

fn loaded(budget: Option<Budget>) -> Result<Arc<TensorRtEngine>, RuntimeError> {
    WORLD.with_borrow_mut(|world| *world = World::default());
    let entries = EntryPoints {
        size: size_of::<EntryPoints>() as u32,
        create_builder: ptr::null_mut(),
        create_runtime: ptr::null_mut(),
        create_parser: ptr::null_mut(),
    };
    let loading = Loading {
        table: &TABLE,
        entries,
        device: Arc::new(Pretended),
        budget,
        name: "net".into(),
    };
    TensorRtEngine::load(b"engine", loading).map(Arc::new)
}

fn bytes(values: &[u8]) -> Tensor {
    Tensor::vector(values)
}

fn calls() -> Vec<String> {
    WORLD.with_borrow_mut(|world| std::mem::take(&mut world.calls))
}

fn fail(call: &'static str) {
    WORLD.with_borrow_mut(|world| world.fail = Some(call));
}

fn nothing_is_left() {
    let left: Vec<_> = WORLD.with_borrow(|world| {
        world
            .alive
            .iter()
            .filter(|(_, count)| **count != 0)
            .map(|(kind, count)| (*kind, *count))
            .collect()
    });
    assert_eq!(left, [], "objects that were not freed, or freed twice");
}

#[test]
fn shapes_memory_and_addresses_are_set_before_the_run_and_only_when_they_change() {
    let engine = loaded(None).unwrap();
    assert_eq!(
        engine.inputs()[0].shape.to_string(),
        Shape::from_iter([Dim::Unknown]).to_string()
    );
    calls();
    let mut session = engine.session().unwrap();
    assert_eq!(calls(), ["select_profile 0"]);
    assert_eq!(session.run(&[bytes(&[1, 2])]).unwrap()[0], bytes(&[2, 3]));
    assert_eq!(
        calls(),
        [
            "set_shape 2",
            "needed_memory",
            "shape",
            "allocate 200",
            "set_memory 200",
            "set_address x",
            "set_address y",
            "enqueue",
            "synchronize"
        ]
    );
    // The second run with these shapes is recorded, the third only launched.
    assert_eq!(session.run(&[bytes(&[7, 8])]).unwrap()[0], bytes(&[8, 9]));
    assert_eq!(
        calls(),
        ["begin_capture", "enqueue", "end_capture", "launch", "synchronize"]
    );
    assert_eq!(session.run(&[bytes(&[0, 255])]).unwrap()[0], bytes(&[1, 0]));
    assert_eq!(calls(), ["launch", "synchronize"]);
    // A smaller shape needs no new memory, a larger one does.
    assert_eq!(session.run(&[bytes(&[5])]).unwrap()[0], bytes(&[6]));
    assert!(!calls().iter().any(|call| call.starts_with("allocate")));
    assert_eq!(session.run(&[bytes(&[5, 5, 5])]).unwrap()[0], bytes(&[6, 6, 6]));
    assert!(calls().contains(&"allocate 300".to_owned()));
    drop(session);
    nothing_is_left();
}

#[test]
fn an_engine_that_cannot_be_recorded_runs_without() {
    let mut session = loaded(None).unwrap().session().unwrap();
    fail("end_capture");
    for _ in 0..4 {
        assert_eq!(session.run(&[bytes(&[1])]).unwrap()[0], bytes(&[2]));
    }
    assert_eq!(calls().iter().filter(|call| *call == "begin_capture").count(), 1);
    drop(session);
    nothing_is_left();
}

#[test]
fn every_call_may_fail_and_the_session_recovers() {
    for call in [
        "set_shape",
        "set_memory",
        "set_address x",
        "set_address y",
        "shape",
        "allocate",
        "enqueue",
        "to_host",
    ] {
        let mut session = loaded(None).unwrap().session().unwrap();
        fail(call);
        let error = session.run(&[bytes(&[1, 2])]).unwrap_err().to_string();
        let named = if call == "set_shape" {
            "input \"x\""
        } else {
            "tensorrt failed while running"
        };
        assert!(error.contains(named), "{call}: {error}");
        WORLD.with_borrow_mut(|world| world.fail = None);
        assert_eq!(
            session.run(&[bytes(&[1, 2])]).unwrap()[0],
            bytes(&[2, 3]),
            "after {call}"
        );
        drop(session);
        nothing_is_left();
    }
}

#[test]
fn a_run_that_fails_after_it_was_enqueued_is_waited_for() {
    let mut session = loaded(None).unwrap().session().unwrap();
    fail("to_host");
    let error = session.run(&[bytes(&[1])]).unwrap_err().to_string();
    assert!(error.contains("cuMemcpyDtoHAsync"), "{error}");
    assert_eq!(calls().last().unwrap(), "synchronize");
}

#[test]
fn a_profile_that_cannot_be_shared_is_said_when_the_session_is_opened() {
    let engine = loaded(None).unwrap();
    let first = Arc::clone(&engine).session().unwrap();
    fail("select_profile");
    let error = Arc::clone(&engine).session().err().unwrap().to_string();
    assert!(error.contains("range of shapes in another session"), "{error}");
    drop((first, engine));
    nothing_is_left();
}

#[test]
fn memory_is_reserved_and_given_back() {
    let budget = Budget::new(Bytes(500));
    let engine = loaded(Some(budget.clone())).unwrap();
    let mut session = engine.session().unwrap();
    session.run(&[bytes(&[0; 4])]).unwrap();
    // Scratch memory, input and output of the session, and the engine's 6 bytes.
    assert_eq!(budget.available(), Bytes(500 - 400 - 8 - 6));
    let error = session.run(&[bytes(&[0; 5])]).unwrap_err().to_string();
    assert!(
        error.contains("needs 510 B, limit 500 B (already held: net 6 B)"),
        "{error}"
    );
    assert_eq!(budget.available(), Bytes(500 - 6));
    WORLD.with_borrow(|world| assert_eq!((world.alive["memory"], world.alive["shared"]), (0, 0)));
    session.run(&[bytes(&[0; 3])]).unwrap();
    assert_eq!(budget.available(), Bytes(500 - 300 - 6 - 6));
    drop(session);
    assert_eq!(budget.available(), budget.limit());
    assert!(loaded(Some(Budget::new(Bytes(5)))).is_err());
    nothing_is_left();
}

#[test]
fn scratch_memory_that_only_a_smaller_shape_leaves_room_for_is_given_up() {
    let budget = Budget::new(Bytes(500));
    let engine = loaded(Some(budget.clone())).unwrap();
    let mut session = engine.session().unwrap();
    session.run(&[bytes(&[0; 4])]).unwrap();
    session.run(&[bytes(&[0; 2])]).unwrap();
    // The larger memory is kept while there is room …
    assert_eq!(budget.available(), Bytes(500 - 400 - 4 - 6));
    let other = MemoryUse {
        io: Bytes(90),
        ..MemoryUse::default()
    };
    let _other = budget.reserve("another", other).unwrap();
    session.run(&[bytes(&[0; 3])]).unwrap();
    // … and replaced by what is needed when there is not.
    assert_eq!(budget.available(), Bytes(500 - 300 - 6 - 6 - 90));
    drop(session);
    nothing_is_left();
}

#[test]
fn an_engine_that_the_library_refuses_leaves_nothing() {
    WORLD.with_borrow_mut(|world| *world = World::default());
    let result = {
        let engine = loaded(None);
        drop(engine);
        fail("load");
        let entries = EntryPoints {
            size: 0,
            create_builder: ptr::null_mut(),
            create_runtime: ptr::null_mut(),
            create_parser: ptr::null_mut(),
        };
        let loading = Loading {
            table: &TABLE,
            entries,
            device: Arc::new(Pretended),
            budget: None,
            name: "net".into(),
        };
        TensorRtEngine::load(b"engine", loading)
    };
    let error = result.err().unwrap().to_string();
    assert!(error.contains("refused the engine"), "{error}");
    nothing_is_left();
}

#[test]
fn wrong_inputs_are_named() {
    let mut session = loaded(None).unwrap().session().unwrap();
    for (inputs, part) in [
        (vec![], "1 inputs expected, 0 given"),
        (vec![Tensor::vector(&[1.0f32])], "expected uint8"),
        (
            vec![Tensor::zeros(DataType::Uint8, &[1, 1]).unwrap()],
            "expected shape",
        ),
    ] {
        let error = session.run(&inputs).unwrap_err().to_string();
        assert!(error.contains("\"x\"") && error.contains(part), "{error}");
    }
}
