//! A context of the plugin, and what it tells while it works.
#![allow(unsafe_code)]

use std::alloc::Layout;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use edgeopt_models::Bytes;

use super::abi::{self, Callbacks, Context as RawContext, Table, event, source};
use super::builder::BuildEvents;
use super::failure::ParserProblem;
use super::layers::{self, EngineLayer};
use crate::MemoryUse;

/// Device memory that the library asks for through us.
pub(super) trait DeviceMemory: Send + Sync {
    /// Memory of the given size and alignment, or null. Must not panic.
    fn allocate(&self, layout: Layout) -> *mut c_void;
    /// Takes it back.
    fn deallocate(&self, memory: *mut c_void);
}

/// What happened in a context, gathered while the library calls back from threads of its own.
#[derive(Default)]
pub(super) struct Heard {
    /// Errors of the library and the plugin, in order.
    messages: Mutex<Vec<String>>,
    problems: Mutex<Vec<ParserProblem>>,
    tensors: Mutex<Vec<HeardTensor>>,
    layers: Mutex<Vec<EngineLayer>>,
    memory: Mutex<Option<MemoryUse>>,
    scratch: Mutex<Option<Bytes>>,
}

/// An input or output that the library described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeardTensor {
    pub(super) is_input: bool,
    pub(super) name: String,
    /// TensorRT's number of the element type.
    pub(super) dtype: i32,
    /// Lengths; -1 = open.
    pub(super) lengths: Vec<i64>,
}

/// Most messages kept: a library that fails in a loop must not fill memory.
const MOST_MESSAGES: usize = 64;

impl Heard {
    pub(super) fn take_messages(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.messages))
    }

    pub(super) fn take_problems(&self) -> Vec<ParserProblem> {
        std::mem::take(&mut *lock(&self.problems))
    }

    /// What the engine takes, as the library says at the end of a build.
    pub(super) fn take_memory(&self) -> Option<MemoryUse> {
        lock(&self.memory).take()
    }

    /// Scratch memory of the layers of the engine that was built, if the library said.
    pub(super) fn take_scratch(&self) -> Option<Bytes> {
        lock(&self.scratch).take()
    }

    fn note_memory(&self, message: &str) {
        let bytes = |name: &str| {
            message
                .strip_prefix(name)?
                .strip_suffix(" bytes")?
                .trim()
                .parse()
                .ok()
                .map(Bytes)
        };
        // TensorRT 8 leaves the unit out.
        let scratch = message.strip_prefix("Total Scratch Memory:");
        if let Some(Ok(bytes)) = scratch.map(|rest| rest.trim_end_matches(" bytes").trim().parse()) {
            *lock(&self.scratch) = Some(Bytes(bytes));
        }
        let mut memory = lock(&self.memory);
        if let Some(bytes) = bytes("Total Weights Memory:") {
            memory.get_or_insert_default().weights = bytes;
        }
        if let Some(bytes) = bytes("Total Activation Memory:") {
            memory.get_or_insert_default().activations = bytes;
        }
    }

    pub(super) fn take_layers(&self) -> Vec<EngineLayer> {
        std::mem::take(&mut *lock(&self.layers))
    }

    pub(super) fn take_tensors(&self) -> Vec<HeardTensor> {
        std::mem::take(&mut *lock(&self.tensors))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Accounts for what the library allocates and refuses beyond a limit.
pub(super) struct Accounting {
    memory: Box<dyn DeviceMemory>,
    limit: Bytes,
    held: Mutex<HashMap<usize, u64>>,
    peak: AtomicU64,
    refused: AtomicU64,
}

impl Accounting {
    pub(super) fn new(memory: Box<dyn DeviceMemory>, limit: Bytes) -> Self {
        Self {
            memory,
            limit,
            held: Mutex::default(),
            peak: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// The most that was held at once.
    pub(super) fn peak(&self) -> Bytes {
        Bytes(self.peak.load(Ordering::Relaxed))
    }

    /// The allocation that was refused last, and the limit.
    pub(super) fn refused(&self) -> Option<(Bytes, Bytes)> {
        let asked = self.refused.load(Ordering::Relaxed);
        (asked > 0).then_some((Bytes(asked), self.limit))
    }

    fn allocate(&self, bytes: u64, alignment: u64) -> *mut c_void {
        let mut held = lock(&self.held);
        let total: u64 = held.values().sum();
        let layout = usize::try_from(bytes.max(1))
            .ok()
            .zip(usize::try_from(alignment.max(1)).ok())
            .and_then(|(size, alignment)| Layout::from_size_align(size, alignment.next_power_of_two()).ok());
        let fits = total
            .checked_add(bytes)
            .is_some_and(|total| total <= self.limit.0);
        let (Some(layout), true) = (layout, fits) else {
            self.refused.store(bytes.max(1), Ordering::Relaxed);
            return std::ptr::null_mut();
        };
        let memory = self.memory.allocate(layout);
        if !memory.is_null() {
            held.insert(memory as usize, bytes);
            self.peak.fetch_max(total + bytes, Ordering::Relaxed);
        }
        memory
    }

    fn deallocate(&self, memory: *mut c_void) -> bool {
        if memory.is_null() {
            return true;
        }
        let known = lock(&self.held).remove(&(memory as usize)).is_some();
        if known {
            self.memory.deallocate(memory);
        }
        known
    }
}

/// What the callbacks see.
struct User<'a> {
    heard: Arc<Heard>,
    events: Option<&'a dyn BuildEvents>,
    accounting: Option<Arc<Accounting>>,
}

/// A context of the plugin; closed when dropped.
pub(super) struct Context<'a> {
    pub(super) table: &'static Table,
    raw: *mut RawContext,
    // The plugin copies the callbacks, and refers to `user` until it is closed.
    _user: Box<User<'a>>,
}

impl<'a> Context<'a> {
    /// Opens a context; `None` when the plugin refuses.
    pub(super) fn open(
        table: &'static Table,
        entries: &abi::EntryPoints,
        heard: Arc<Heard>,
        events: Option<&'a dyn BuildEvents>,
        accounting: Option<Arc<Accounting>>,
    ) -> Option<Self> {
        let allocates = accounting.is_some();
        let mut user = Box::new(User {
            heard,
            events,
            accounting,
        });
        let callbacks = Callbacks {
            size: size_of::<Callbacks>() as u32,
            user: std::ptr::from_mut(&mut *user).cast(),
            log: Some(on_log),
            progress: events.map(|_| on_progress as _),
            allocate: allocates.then_some(on_allocate as _),
            deallocate: allocates.then_some(on_deallocate as _),
            error: Some(on_error),
            tensor: Some(on_tensor),
        };
        // SAFETY: both structures are as the plugin expects (its table was checked), and `user` stays where it is until
        // after the context is closed.
        let raw = unsafe { (table.open)(entries, &callbacks) };
        (!raw.is_null()).then_some(Self {
            table,
            raw,
            _user: user,
        })
    }

    pub(super) fn raw(&self) -> *mut RawContext {
        self.raw
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // SAFETY: opened by this plugin and not closed before.
        unsafe { (self.table.close)(self.raw) }
    }
}

/// The text at `text`; empty for null.
///
/// # Safety
/// `text` must be null or a C string.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by the contract of this function.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// # Safety
/// `user` must be the pointer given to the plugin, whose context is open.
unsafe fn user<'a>(user: *mut c_void) -> &'a User<'a> {
    // SAFETY: by the contract of this function; the user data is only ever borrowed shared.
    unsafe { &*user.cast::<User<'a>>() }
}

unsafe extern "C" fn on_log(data: *mut c_void, severity: i32, message: *const c_char) {
    // SAFETY: called while the context is open; the plugin passes C strings.
    let (user, message) = unsafe { (user(data), text(message)) };
    lock(&user.heard.layers).extend(layers::parse(&message));
    user.heard.note_memory(&message);
    match severity {
        0 | 1 => tracing::error!(target: "tensorrt", "{message}"),
        2 => tracing::warn!(target: "tensorrt", "{message}"),
        3 => tracing::info!(target: "tensorrt", "{message}"),
        _ => tracing::trace!(target: "tensorrt", "{message}"),
    }
}

unsafe extern "C" fn on_progress(
    data: *mut c_void,
    kind: i32,
    phase: *const c_char,
    parent: *const c_char,
    steps: i32,
) -> i32 {
    // SAFETY: called while the context is open; the plugin passes C strings or null.
    let (user, phase, parent) = unsafe { (user(data), text(phase), text(parent)) };
    let Some(events) = user.events else { return 1 };
    let steps = u32::try_from(steps).unwrap_or(0);
    match kind {
        event::PHASE_BEGINS => {
            events.phase_begins(&phase, (!parent.is_empty()).then_some(&*parent), steps);
            1
        }
        event::STEP_DONE => i32::from(events.step_done(&phase, steps)),
        _ => {
            events.phase_ends(&phase);
            1
        }
    }
}

unsafe extern "C" fn on_allocate(
    data: *mut c_void,
    bytes: u64,
    alignment: u64,
    _: *mut c_void,
) -> *mut c_void {
    // SAFETY: called while the context is open.
    let user = unsafe { user(data) };
    user.accounting
        .as_ref()
        .map_or(std::ptr::null_mut(), |accounting| {
            accounting.allocate(bytes, alignment)
        })
}

unsafe extern "C" fn on_deallocate(data: *mut c_void, memory: *mut c_void, _: *mut c_void) -> i32 {
    // SAFETY: called while the context is open.
    let user = unsafe { user(data) };
    i32::from(
        user.accounting
            .as_ref()
            .is_some_and(|accounting| accounting.deallocate(memory)),
    )
}

unsafe extern "C" fn on_error(
    data: *mut c_void,
    from: i32,
    code: i32,
    description: *const c_char,
    node: *const c_char,
    op: *const c_char,
) {
    // SAFETY: called while the context is open; the plugin passes C strings or null.
    let (user, description, node, op) = unsafe { (user(data), text(description), text(node), text(op)) };
    let some = |text: String| (!text.is_empty()).then_some(text);
    if from == source::PARSER {
        let mut problems = lock(&user.heard.problems);
        if problems.len() < MOST_MESSAGES {
            problems.push(ParserProblem::new(some(node), some(op), &description));
        }
        return;
    }
    if from == source::PLUGIN && code == abi::status::OK {
        tracing::warn!(target: "tensorrt", "{description}");
        return;
    }
    let mut messages = lock(&user.heard.messages);
    if messages.len() < MOST_MESSAGES {
        messages.push(description);
    }
}

unsafe extern "C" fn on_tensor(
    data: *mut c_void,
    is_input: i32,
    name: *const c_char,
    dtype: i32,
    rank: i32,
    lengths: *const i64,
) {
    // SAFETY: called while the context is open; `lengths` holds up to `MAX_RANK` numbers.
    let (user, name, lengths) = unsafe {
        let rank = usize::try_from(rank).unwrap_or(0).min(abi::MAX_RANK);
        let lengths = if lengths.is_null() {
            &[]
        } else {
            std::slice::from_raw_parts(lengths, rank)
        };
        (user(data), text(name), lengths.to_vec())
    };
    lock(&user.heard.tensors).push(HeardTensor {
        is_input: is_input != 0,
        name,
        dtype,
        lengths,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Heap;

    impl DeviceMemory for Heap {
        fn allocate(&self, layout: Layout) -> *mut c_void {
            // SAFETY: the size is not zero. Leaked: the tests allocate a few bytes.
            unsafe { std::alloc::alloc(layout).cast() }
        }
        fn deallocate(&self, _: *mut c_void) {}
    }

    #[test]
    fn the_engines_memory_is_heard_from_the_log() {
        let heard = Heard::default();
        for message in [
            "Total Activation Memory: 8405504 bytes",
            "Total Weights Memory: 109192 bytes",
            "Total Scratch Memory: 1024 bytes",
            "Total: 5 bytes",
        ] {
            heard.note_memory(message);
        }
        let memory = heard.take_memory().unwrap();
        assert_eq!(
            (memory.weights, memory.activations),
            (Bytes(109_192), Bytes(8_405_504))
        );
        assert_eq!(heard.take_scratch(), Some(Bytes(1024)));
        heard.note_memory("Total Scratch Memory: 2048");
        assert_eq!(heard.take_scratch(), Some(Bytes(2048)));
    }

    #[test]
    fn allocations_are_counted_and_refused_beyond_the_limit() {
        let accounting = Accounting::new(Box::new(Heap), Bytes(1000));
        let first = accounting.allocate(600, 256);
        assert!(!first.is_null() && (first as usize).is_multiple_of(256));
        assert!(accounting.allocate(401, 1).is_null());
        assert_eq!(accounting.refused(), Some((Bytes(401), Bytes(1000))));
        let second = accounting.allocate(400, 1);
        assert!(!second.is_null());
        assert_eq!(accounting.peak(), Bytes(1000));
        assert!(accounting.deallocate(first) && !accounting.deallocate(first));
        assert!(!accounting.allocate(600, 1).is_null());
        assert!(accounting.allocate(u64::MAX, 1).is_null());
        assert!(accounting.deallocate(std::ptr::null_mut()));
    }
}
