//! ONNX Runtime's C interface with ownership and errors.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use ort_sys::{OrtAllocatorType, OrtApi, OrtEnv, OrtLoggingLevel, OrtMemType, OrtMemoryInfo, OrtStatusPtr};

use super::library;
use crate::RuntimeError;

/// The library and its process-wide objects. ONNX Runtime allows one environment per process, so there is one of
/// these, made at first use and never given back.
pub(super) struct Runtime {
    pub(super) api: &'static OrtApi,
    pub(super) env: *mut OrtEnv,
    /// "Ordinary memory", for tensors over our own buffers.
    pub(super) memory: *mut OrtMemoryInfo,
    pub(super) version: String,
    pub(super) path: PathBuf,
}

// SAFETY: the environment and the memory description are immutable after creation and documented as usable from
// any thread; `OrtApi` is a table of functions.
unsafe impl Send for Runtime {}
// SAFETY: as above.
unsafe impl Sync for Runtime {}

static RUNTIME: Mutex<Option<&'static Runtime>> = Mutex::new(None);

impl Runtime {
    /// The process's runtime; loads the library at first use. A failure is not remembered.
    ///
    /// # Errors
    /// When no library is found or it cannot be started.
    pub(super) fn get() -> Result<&'static Self, RuntimeError> {
        let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = *runtime {
            return Ok(runtime);
        }
        let library = library::find()?;
        let new = Self::start(library).map_err(|message| RuntimeError::Compile {
            backend: "cpu",
            message: format!("ONNX Runtime does not start: {message}"),
        })?;
        tracing::debug!(version = new.version, path = %new.path.display(), "loaded ONNX Runtime");
        let new: &'static Self = Box::leak(Box::new(new));
        *runtime = Some(new);
        Ok(new)
    }

    fn start(library: library::Library) -> Result<Self, String> {
        let api = library.api;
        let mut runtime = Self {
            api,
            env: ptr::null_mut(),
            memory: ptr::null_mut(),
            version: library.version,
            path: library.path,
        };
        // SAFETY: the callback is `extern "system"` with the declared signature, the parameter is unused, the name
        // is a C string, and the results are written to live places.
        unsafe {
            let status = (api.CreateEnvWithCustomLogger)(
                forward_message,
                ptr::null_mut(),
                log_level(),
                c"edgeopt".as_ptr(),
                &mut runtime.env,
            );
            runtime.check(status)?;
            runtime.check((api.DisableTelemetryEvents)(runtime.env))?;
            let status = (api.CreateCpuMemoryInfo)(
                OrtAllocatorType::OrtDeviceAllocator,
                OrtMemType::OrtMemTypeDefault,
                &mut runtime.memory,
            );
            runtime.check(status)?;
        }
        Ok(runtime)
    }

    /// The message of a failed call.
    pub(super) fn check(&self, status: OrtStatusPtr) -> Result<(), String> {
        if status.0.is_null() {
            return Ok(());
        }
        // SAFETY: a status that is not null is ours to read once and release; its message is a C string.
        unsafe {
            let message = CStr::from_ptr((self.api.GetErrorMessage)(status.0))
                .to_string_lossy()
                .into_owned();
            (self.api.ReleaseStatus)(status.0);
            Err(message)
        }
    }

    /// Takes over an object that `make` creates, to be released by `release`.
    pub(super) fn create<T>(
        &self,
        release: unsafe extern "system" fn(*mut T),
        make: impl FnOnce(*mut *mut T) -> OrtStatusPtr,
    ) -> Result<Owned<T>, String> {
        let mut object = ptr::null_mut();
        self.check(make(&mut object))?;
        let object = NonNull::new(object).ok_or("ONNX Runtime returned no object")?;
        Ok(Owned { object, release })
    }
}

/// An object of the library, released when dropped.
pub(super) struct Owned<T> {
    object: NonNull<T>,
    release: unsafe extern "system" fn(*mut T),
}

impl<T> Owned<T> {
    pub(super) fn ptr(&self) -> *mut T {
        self.object.as_ptr()
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the object was created by the library, is owned here alone, and is released once.
        unsafe { (self.release)(self.object.as_ptr()) }
    }
}

/// ONNX Runtime formats messages that nobody will see if it is not told; warnings and worse are always passed on.
fn log_level() -> OrtLoggingLevel {
    if tracing::enabled!(target: "onnxruntime", tracing::Level::TRACE) {
        OrtLoggingLevel::ORT_LOGGING_LEVEL_VERBOSE
    } else {
        OrtLoggingLevel::ORT_LOGGING_LEVEL_WARNING
    }
}

unsafe extern "system" fn forward_message(
    _parameter: *mut c_void,
    severity: OrtLoggingLevel,
    _category: *const c_char,
    _id: *const c_char,
    place: *const c_char,
    message: *const c_char,
) {
    if message.is_null() || place.is_null() {
        return;
    }
    // SAFETY: the library passes C strings that live for the call.
    let (place, message) = unsafe { (CStr::from_ptr(place), CStr::from_ptr(message)) };
    let (place, message) = (place.to_string_lossy(), message.to_string_lossy());
    match severity as i32 {
        0 => tracing::trace!(target: "onnxruntime", %place, "{message}"),
        1 => tracing::debug!(target: "onnxruntime", %place, "{message}"),
        2 => tracing::warn!(target: "onnxruntime", %place, "{message}"),
        _ => tracing::error!(target: "onnxruntime", %place, "{message}"),
    }
}
