//! Handing weights to ONNX Runtime without copying them.
//!
//! The model is encoded with its large constants left out (declared as external data), and each of those is given to
//! the library as a tensor over our own storage, which is shared with the model it came from. The library reads a
//! constant in place, or makes its own rearranged copy for its kernels; it does not tell which, and refuses memory
//! that it would have to free, so the storage stays until the session is gone.
#![allow(unsafe_code)]

use std::collections::HashSet;
use std::ffi::CString;

use edgeopt_models::{DataType, Graph, Tensor, ValueName};
use ort_sys::{OrtSessionOptions, OrtValue};

use super::api::{Owned, Runtime};
use super::tensor_value::over_memory;

/// Constants smaller than this (in bytes) stay in the encoded model: shape inference reads them there, and a copy
/// costs nothing.
const SMALLEST: usize = 4096;

/// Whether a constant is handed over by reference.
fn by_reference(graph: &Graph, name: &ValueName, tensor: &Tensor) -> bool {
    tensor.dtype() != DataType::String && tensor.as_bytes().len() >= SMALLEST && !graph.is_input(name)
}

/// Storage that a session reads in place: must outlive it.
pub(super) struct SharedWeights {
    tensors: Vec<(ValueName, Tensor)>,
}

impl SharedWeights {
    /// Gives the constants of `graph` that [`by_reference`] chooses to `options`.
    ///
    /// # Errors
    /// When the library refuses one; names it.
    pub(super) fn add_to(
        runtime: &Runtime,
        graph: &Graph,
        options: &Owned<OrtSessionOptions>,
    ) -> Result<Self, String> {
        let (mut tensors, mut names, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for (name, tensor) in &graph.initializers {
            if !by_reference(graph, name, tensor) {
                continue;
            }
            let describe = |message: String| format!("constant {name:?}: {message}");
            let bytes = tensor.as_bytes();
            // SAFETY: the tensor's storage is kept in `tensors` until after the session is gone; the library only
            // reads constants.
            let value = unsafe {
                let data = bytes.as_ptr().cast_mut();
                over_memory(runtime, tensor.dtype(), tensor.dims(), data, bytes.len())
            };
            values.push(value.map_err(describe)?);
            names.push(CString::new(name.as_str()).map_err(|error| describe(error.to_string()))?);
            tensors.push((name.clone(), tensor.clone()));
        }
        if !values.is_empty() {
            let names: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
            let objects: Vec<*const OrtValue> = values.iter().map(|value| value.ptr().cast_const()).collect();
            // SAFETY: both arrays have the given length and hold valid C strings and values; the library copies the
            // names and takes its own references to the values.
            let status = unsafe {
                (runtime.api.AddExternalInitializers)(
                    options.ptr(),
                    names.as_ptr(),
                    objects.as_ptr(),
                    objects.len(),
                )
            };
            runtime.check(status)?;
        }
        Ok(Self { tensors })
    }

    /// The constants that were given.
    pub(super) fn names(&self) -> HashSet<ValueName> {
        self.tensors.iter().map(|(name, _)| name.clone()).collect()
    }
}
