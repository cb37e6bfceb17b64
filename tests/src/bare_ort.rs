//! ONNX Runtime called directly, with nothing of ours in between: what the CPU backend is compared with.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::ptr;

use anyhow::{Context, bail};
use edgeopt_models::{DataType, Tensor};
use ort_sys::{
    ONNXTensorElementDataType, OrtAllocator, OrtAllocatorType, OrtApi, OrtApiBase, OrtEnv, OrtLoggingLevel,
    OrtMemType, OrtMemoryInfo, OrtSession, OrtStatusPtr, OrtValue,
};

/// The library and its environment. Never given back: a process has one.
pub struct BareRuntime {
    api: &'static OrtApi,
    env: *mut OrtEnv,
    memory: *mut OrtMemoryInfo,
}

/// A loaded model.
pub struct BareSession<'a> {
    runtime: &'a BareRuntime,
    session: *mut OrtSession,
    inputs: Vec<CString>,
    outputs: Vec<CString>,
}

// SAFETY: ONNX Runtime's environment and memory description may be used from any thread.
unsafe impl Sync for BareRuntime {}

impl BareRuntime {
    /// Opens the library at `path`.
    ///
    /// # Errors
    /// When it is not an ONNX Runtime of a fitting version.
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        // SAFETY: the file is ONNX Runtime, which exports this symbol with this signature.
        unsafe {
            let library = libloading::Library::new(path)?;
            let base =
                library.get::<unsafe extern "C" fn() -> *const OrtApiBase>(c"OrtGetApiBase".to_bytes())?();
            let base = base.as_ref().context("no OrtApiBase")?;
            let api = (base.GetApi)(ort_sys::ORT_API_VERSION)
                .as_ref()
                .context("too old")?;
            std::mem::forget(library);
            let mut runtime = Self {
                api,
                env: ptr::null_mut(),
                memory: ptr::null_mut(),
            };
            let level = OrtLoggingLevel::ORT_LOGGING_LEVEL_FATAL;
            let status = (api.CreateEnv)(level, c"bare".as_ptr(), &mut runtime.env);
            runtime.check(status)?;
            runtime.check((api.DisableTelemetryEvents)(runtime.env))?;
            let (kind, place) = (
                OrtAllocatorType::OrtDeviceAllocator,
                OrtMemType::OrtMemTypeDefault,
            );
            let status = (api.CreateCpuMemoryInfo)(kind, place, &mut runtime.memory);
            runtime.check(status)?;
            Ok(runtime)
        }
    }

    fn check(&self, status: OrtStatusPtr) -> anyhow::Result<()> {
        if status.0.is_null() {
            return Ok(());
        }
        // SAFETY: the status is ours to read and release.
        unsafe {
            let message = CStr::from_ptr((self.api.GetErrorMessage)(status.0))
                .to_string_lossy()
                .into_owned();
            (self.api.ReleaseStatus)(status.0);
            bail!(message)
        }
    }

    /// Loads an encoded model with default options and `threads` threads.
    ///
    /// # Errors
    /// When the library refuses it.
    pub fn load(&self, model: &[u8], threads: i32) -> anyhow::Result<BareSession<'_>> {
        let api = self.api;
        let mut session = ptr::null_mut();
        // SAFETY: plain use of the interface with live arguments.
        unsafe {
            let mut options = ptr::null_mut();
            self.check((api.CreateSessionOptions)(&mut options))?;
            self.check((api.SetIntraOpNumThreads)(options, threads))?;
            let made = (api.CreateSessionFromArray)(
                self.env,
                model.as_ptr().cast(),
                model.len(),
                options,
                &mut session,
            );
            (api.ReleaseSessionOptions)(options);
            self.check(made)?;
        }
        let mut loaded = BareSession {
            runtime: self,
            session,
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        // SAFETY: as above; the names are allocated by the default allocator and freed with it.
        unsafe {
            let mut allocator: *mut OrtAllocator = ptr::null_mut();
            self.check((api.GetAllocatorWithDefaultOptions)(&mut allocator))?;
            let (mut inputs, mut outputs) = (0, 0);
            self.check((api.SessionGetInputCount)(session, &mut inputs))?;
            self.check((api.SessionGetOutputCount)(session, &mut outputs))?;
            let name = |raw: *mut c_char| {
                let name = CStr::from_ptr(raw).to_owned();
                self.check((api.AllocatorFree)(allocator, raw.cast()))
                    .map(|()| name)
            };
            for index in 0..inputs {
                let mut raw = ptr::null_mut();
                self.check((api.SessionGetInputName)(session, index, allocator, &mut raw))?;
                loaded.inputs.push(name(raw)?);
            }
            for index in 0..outputs {
                let mut raw = ptr::null_mut();
                self.check((api.SessionGetOutputName)(session, index, allocator, &mut raw))?;
                loaded.outputs.push(name(raw)?);
            }
        }
        Ok(loaded)
    }
}

/// Values over tensors' memory, released together.
pub struct BareValues<'a> {
    runtime: &'a BareRuntime,
    values: Vec<*mut OrtValue>,
}

impl Drop for BareValues<'_> {
    fn drop(&mut self) {
        for value in &self.values {
            // SAFETY: each was made by the library and is released once (null is allowed).
            unsafe { (self.runtime.api.ReleaseValue)(*value) }
        }
    }
}

impl BareSession<'_> {
    /// Values that read the tensors in place.
    ///
    /// # Errors
    /// For types that the library does not take.
    pub fn values<'t>(&'t self, tensors: &'t [Tensor]) -> anyhow::Result<BareValues<'t>> {
        let api = self.runtime.api;
        let mut made = BareValues {
            runtime: self.runtime,
            values: Vec::new(),
        };
        for tensor in tensors {
            let dims: Vec<i64> = tensor.dims().iter().map(|n| *n as i64).collect();
            let mut value = ptr::null_mut();
            // SAFETY: the tensors outlive the values by the lifetime; strings are copied.
            unsafe {
                // ONNX's numbers are ONNX Runtime's too for every type the node tests use.
                let code: ONNXTensorElementDataType = match tensor.dtype() as i32 {
                    code @ 1..=22 => std::mem::transmute::<i32, ONNXTensorElementDataType>(code),
                    code => bail!("type {code} is not supported here"),
                };
                if let Some(strings) = tensor.as_strings() {
                    let mut allocator = ptr::null_mut();
                    self.runtime
                        .check((api.GetAllocatorWithDefaultOptions)(&mut allocator))?;
                    let status =
                        (api.CreateTensorAsOrtValue)(allocator, dims.as_ptr(), dims.len(), code, &mut value);
                    self.runtime.check(status)?;
                    made.values.push(value);
                    let strings: Vec<CString> = strings
                        .iter()
                        .map(|string| CString::new(string.as_slice()))
                        .collect::<Result<_, _>>()?;
                    let raw: Vec<_> = strings.iter().map(|string| string.as_ptr()).collect();
                    self.runtime
                        .check((api.FillStringTensor)(value, raw.as_ptr(), raw.len()))?;
                } else {
                    let bytes = tensor.as_bytes();
                    let status = (api.CreateTensorWithDataAsOrtValue)(
                        self.runtime.memory,
                        bytes.as_ptr().cast_mut().cast(),
                        bytes.len(),
                        dims.as_ptr(),
                        dims.len(),
                        code,
                        &mut value,
                    );
                    self.runtime.check(status)?;
                    made.values.push(value);
                }
            }
        }
        Ok(made)
    }

    /// Runs the model on values made before; the outputs are allocated by the library.
    ///
    /// # Errors
    /// When the library fails.
    pub fn run(&self, inputs: &BareValues<'_>) -> anyhow::Result<BareValues<'_>> {
        let mut outputs = BareValues {
            runtime: self.runtime,
            values: vec![ptr::null_mut(); self.outputs.len()],
        };
        if inputs.values.len() != self.inputs.len() {
            bail!(
                "{} inputs expected, {} given",
                self.inputs.len(),
                inputs.values.len()
            );
        }
        let input_names: Vec<_> = self.inputs.iter().map(|name| name.as_ptr()).collect();
        let output_names: Vec<_> = self.outputs.iter().map(|name| name.as_ptr()).collect();
        // SAFETY: all arrays have the lengths given.
        let status = unsafe {
            (self.runtime.api.Run)(
                self.session,
                ptr::null(),
                input_names.as_ptr(),
                inputs.values.as_ptr().cast(),
                input_names.len(),
                output_names.as_ptr(),
                output_names.len(),
                outputs.values.as_mut_ptr(),
            )
        };
        self.runtime.check(status)?;
        Ok(outputs)
    }

    /// Copies of the outputs.
    ///
    /// # Errors
    /// When an output is not a tensor of numbers or strings.
    pub fn tensors(&self, outputs: &BareValues<'_>) -> anyhow::Result<Vec<Tensor>> {
        let api = self.runtime.api;
        let mut tensors = Vec::new();
        for value in &outputs.values {
            // SAFETY: the description is released below; the data has the size that type and lengths ask for.
            unsafe {
                let mut info = ptr::null_mut();
                self.runtime
                    .check((api.GetTensorTypeAndShape)(*value, &mut info))?;
                let (mut code, mut rank) = (0i32, 0);
                self.runtime
                    .check((api.GetTensorElementType)(info, (&raw mut code).cast()))?;
                self.runtime.check((api.GetDimensionsCount)(info, &mut rank))?;
                let mut dims = vec![0i64; rank];
                self.runtime
                    .check((api.GetDimensions)(info, dims.as_mut_ptr(), rank))?;
                (api.ReleaseTensorTypeAndShapeInfo)(info);
                let dims: Vec<usize> = dims.iter().map(|n| *n as usize).collect();
                let dtype = DataType::from_onnx(code).context("unknown type")?;
                if dtype == DataType::String {
                    tensors.push(Tensor::strings(
                        &dims,
                        self.strings(*value, dims.iter().product())?,
                    )?);
                    continue;
                }
                let mut tensor = Tensor::zeros(dtype, &dims)?;
                let bytes = tensor.as_bytes_mut();
                let mut data = ptr::null_mut();
                self.runtime
                    .check((api.GetTensorMutableData)(*value, &mut data))?;
                if !bytes.is_empty() {
                    ptr::copy_nonoverlapping(data.cast::<u8>().cast_const(), bytes.as_mut_ptr(), bytes.len());
                }
                tensors.push(tensor);
            }
        }
        Ok(tensors)
    }

    fn strings(&self, value: *mut OrtValue, count: usize) -> anyhow::Result<Vec<Vec<u8>>> {
        let api = self.runtime.api;
        let mut strings = Vec::new();
        for index in 0..count {
            // SAFETY: the buffer has the length the library asked for.
            unsafe {
                let mut len = 0;
                self.runtime
                    .check((api.GetStringTensorElementLength)(value, index, &mut len))?;
                let mut bytes = vec![0u8; len];
                self.runtime.check((api.GetStringTensorElement)(
                    value,
                    len,
                    index,
                    bytes.as_mut_ptr().cast(),
                ))?;
                strings.push(bytes);
            }
        }
        Ok(strings)
    }
}

impl Drop for BareSession<'_> {
    fn drop(&mut self) {
        // SAFETY: made by the library, released once.
        unsafe { (self.runtime.api.ReleaseSession)(self.session) }
    }
}
