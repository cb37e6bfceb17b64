//! Running an engine.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::Arc;

use edgeopt_models::{DataType, Dim, Tensor};
use ort_sys::{OrtStatusPtr, OrtValue};

use super::NAME;
use super::api::Owned;
use super::engine::CpuEngine;
use super::tensor_value::{copy_into, of_strings, over_memory};
use crate::{RuntimeError, Session, TensorSpec};

/// One stream of runs. Values over input and output memory are kept from run to run while address and shape
/// repeat, so that the steady path makes no allocation of its own.
pub(super) struct CpuSession {
    engine: Arc<CpuEngine>,
    inputs: Vec<InputSlot>,
    outputs: Vec<OutputSlot>,
    tensors: Vec<Tensor>,
    input_names: Vec<*const std::ffi::c_char>,
    output_names: Vec<*const std::ffi::c_char>,
    input_values: Vec<*const OrtValue>,
    output_values: Vec<*mut OrtValue>,
}

#[derive(Default)]
struct InputSlot {
    /// Over the tensor of the last run; used again only if address and shape are the same now.
    value: Option<Owned<OrtValue>>,
    data: usize,
    dims: Vec<usize>,
}

#[derive(Default)]
struct OutputSlot {
    /// Over this output's tensor.
    value: Option<Owned<OrtValue>>,
    data: usize,
    /// The library was given this output's memory in the current run.
    bound: bool,
    /// The tensor has the shape that the last run produced.
    filled: bool,
    /// The library must allocate it anew: its shape depends on more than the shapes of the inputs, or it is an input.
    varies: bool,
}

// SAFETY: the raw pointers refer to names in the engine and to values that this session owns; a session is used
// by one thread at a time (`run` takes `&mut self`), and the engine may be used from any thread.
unsafe impl Send for CpuSession {}

impl CpuSession {
    pub(super) fn new(engine: Arc<CpuEngine>) -> Self {
        let names = |names: &[std::ffi::CString]| names.iter().map(|name| name.as_ptr()).collect::<Vec<_>>();
        // The library hands an input that is also an output through; it does not copy it into memory given for the output.
        let passed_on = |output: &TensorSpec| engine.inputs.iter().any(|input| input.name == output.name);
        let slot = |output: &TensorSpec| OutputSlot {
            varies: passed_on(output),
            ..OutputSlot::default()
        };
        Self {
            inputs: engine.inputs.iter().map(|_| InputSlot::default()).collect(),
            outputs: engine.outputs.iter().map(slot).collect(),
            tensors: engine.outputs.iter().map(|_| Tensor::vector::<u8>(&[])).collect(),
            input_names: names(&engine.input_names),
            output_names: names(&engine.output_names),
            input_values: vec![ptr::null(); engine.inputs.len()],
            output_values: vec![ptr::null_mut(); engine.outputs.len()],
            engine,
        }
    }

    /// Points the values at the inputs. Returns whether every shape is that of the last run.
    fn bind_inputs(&mut self, inputs: &[Tensor]) -> Result<bool, String> {
        let runtime = self.engine.runtime;
        let mut repeated = true;
        for ((slot, pointer), tensor) in self.inputs.iter_mut().zip(&mut self.input_values).zip(inputs) {
            let same_shape = slot.value.is_some() && slot.dims == tensor.dims();
            repeated &= same_shape;
            let bytes = tensor.as_bytes();
            let data = bytes.as_ptr() as usize;
            let strings = tensor.as_strings();
            if strings.is_some() || !same_shape || slot.data != data {
                slot.value = None;
                let value = match strings {
                    Some(strings) => of_strings(runtime, tensor.dims(), strings)?,
                    // SAFETY: the value is used in a run only while a tensor with this address and size is borrowed,
                    // and the library only reads inputs.
                    None => unsafe {
                        let data = bytes.as_ptr().cast_mut();
                        over_memory(runtime, tensor.dtype(), tensor.dims(), data, bytes.len())?
                    },
                };
                slot.value = Some(value);
                slot.data = data;
                slot.dims.clear();
                slot.dims.extend_from_slice(tensor.dims());
            }
            *pointer = slot
                .value
                .as_ref()
                .map_or(ptr::null(), |value| value.ptr().cast_const());
        }
        Ok(repeated)
    }

    /// Gives the library our own memory for the outputs whose shape is foreseen. Returns whether there is any.
    fn bind_outputs(&mut self, repeated: bool) -> Result<bool, String> {
        let runtime = self.engine.runtime;
        let mut any = false;
        let slots = self
            .outputs
            .iter_mut()
            .zip(&mut self.tensors)
            .zip(&self.engine.outputs);
        for (((slot, tensor), spec), pointer) in slots.zip(&mut self.output_values) {
            *pointer = ptr::null_mut();
            slot.bound = false;
            if slot.varies || spec.dtype == DataType::String {
                continue;
            }
            if !(slot.filled && repeated) {
                let Some(dims) = spec.shape.as_known().filter(|_| spec.ranked) else {
                    continue;
                };
                if tensor.dtype() != spec.dtype || tensor.dims() != dims {
                    *tensor = Tensor::zeros(spec.dtype, &dims).map_err(|error| error.to_string())?;
                    slot.value = None;
                }
            }
            let dtype = tensor.dtype();
            // Copies the storage if a caller kept a clone of the last output; the address then differs.
            let bytes = tensor.as_bytes_mut();
            let (data, len) = (bytes.as_mut_ptr(), bytes.len());
            if slot.value.is_none() || slot.data != data as usize {
                // SAFETY: the tensor is owned by this session, unshared, and keeps its address until it is replaced or
                // unshared again, which both come back here.
                slot.value = Some(unsafe { over_memory(runtime, dtype, tensor.dims(), data, len)? });
                slot.data = data as usize;
            }
            *pointer = slot.value.as_ref().map_or(ptr::null_mut(), Owned::ptr);
            slot.bound = true;
            any = true;
        }
        Ok(any)
    }

    fn call(&mut self) -> Result<(), String> {
        let engine = &*self.engine;
        // SAFETY: all arrays have the lengths given and hold valid names and values; null outputs ask the library
        // to allocate. Concurrent runs of one session are allowed.
        let status = unsafe {
            (engine.runtime.api.Run)(
                engine.session.ptr(),
                ptr::null(),
                self.input_names.as_ptr(),
                self.input_values.as_ptr(),
                self.input_values.len(),
                self.output_names.as_ptr(),
                self.output_names.len(),
                self.output_values.as_mut_ptr(),
            )
        };
        engine.runtime.check(status)
    }

    /// Copies the outputs that the library allocated into our tensors.
    fn collect(&mut self) -> Result<(), String> {
        let runtime = self.engine.runtime;
        let mut result = Ok(());
        let slots = self.outputs.iter_mut().zip(&mut self.tensors);
        for ((slot, tensor), pointer) in slots.zip(&mut self.output_values) {
            if slot.bound {
                slot.filled = true;
                continue;
            }
            let object = std::mem::replace(pointer, ptr::null_mut());
            let made = runtime.create(runtime.api.ReleaseValue, |out| {
                // SAFETY: `out` is a live place; the object was made by this run and is ours.
                unsafe { *out = object };
                OrtStatusPtr::default()
            });
            // The tensor may move; the value over it is made again when it is needed.
            slot.value = None;
            let copied = made.and_then(|value| copy_into(runtime, &value, tensor));
            slot.filled = copied.is_ok();
            result = result.and(copied);
        }
        result
    }

    fn try_run(&mut self, inputs: &[Tensor]) -> Result<(), String> {
        let repeated = self.bind_inputs(inputs)?;
        let foreseen = self.bind_outputs(repeated)?;
        let Err(message) = self.call() else {
            return self.collect();
        };
        if !foreseen {
            return Err(message);
        }
        // An output whose shape follows from the inputs' contents may not fit the memory of the last run. Let the
        // library allocate; what then differs in shape is remembered as varying.
        self.output_values.fill(ptr::null_mut());
        self.call().map_err(|_| message)?;
        let expected: Vec<Option<Vec<usize>>> = self
            .outputs
            .iter_mut()
            .zip(&self.tensors)
            .map(|(slot, tensor)| std::mem::take(&mut slot.bound).then(|| tensor.dims().to_vec()))
            .collect();
        self.collect()?;
        for ((slot, tensor), expected) in self.outputs.iter_mut().zip(&self.tensors).zip(expected) {
            slot.varies |= expected.is_some_and(|dims| tensor.dims() != dims);
        }
        Ok(())
    }
}

impl Session for CpuSession {
    fn run(&mut self, inputs: &[Tensor]) -> Result<&[Tensor], RuntimeError> {
        check_inputs(&self.engine.inputs, inputs)?;
        match self.try_run(inputs) {
            Ok(()) => Ok(&self.tensors),
            Err(message) => {
                for slot in &mut self.outputs {
                    slot.filled = false;
                }
                Err(RuntimeError::Run {
                    backend: NAME,
                    message,
                })
            }
        }
    }
}

/// Number, types and shapes of the inputs against what the engine takes.
fn check_inputs(specs: &[TensorSpec], inputs: &[Tensor]) -> Result<(), RuntimeError> {
    let wrong = |name: &str, problem: String| {
        Err(RuntimeError::Input {
            name: name.to_owned(),
            problem,
        })
    };
    if let Some(missing) = specs.get(inputs.len()) {
        let problem = format!(
            "it is missing: {} inputs expected, {} given",
            specs.len(),
            inputs.len()
        );
        return wrong(&missing.name, problem);
    }
    if let (Some(extra), Some(last)) = (inputs.get(specs.len()), specs.last()) {
        let problem = format!(
            "it is the last of {} inputs, but {} were given (then came {extra:?})",
            specs.len(),
            inputs.len()
        );
        return wrong(&last.name, problem);
    }
    if specs.is_empty() && !inputs.is_empty() {
        return wrong("", format!("the model takes no input, {} given", inputs.len()));
    }
    for (index, (spec, tensor)) in specs.iter().zip(inputs).enumerate() {
        if spec.dtype != tensor.dtype() {
            return wrong(
                &spec.name,
                format!("expected {}, given {}", spec.dtype, tensor.dtype()),
            );
        }
        if !spec.ranked {
            continue;
        }
        let fits = |(dim, length): (&Dim, &usize)| dim.known().is_none_or(|known| known == *length);
        if spec.shape.len() != tensor.dims().len() || !spec.shape.iter().zip(tensor.dims()).all(fits) {
            return wrong(
                &spec.name,
                format!("expected shape {}, given {:?}", spec.shape, tensor.dims()),
            );
        }
        for (dim, length) in spec.shape.iter().zip(tensor.dims()) {
            let Dim::Symbol(symbol) = dim else { continue };
            if let Some((other, first)) = first_with_symbol(specs, inputs, index, symbol)
                && first != *length
            {
                let problem = format!(
                    "expected shape {}, given {:?}: {symbol} is {first} in input {:?}",
                    spec.shape,
                    tensor.dims(),
                    other.name
                );
                return wrong(&spec.name, problem);
            }
        }
    }
    Ok(())
}

/// The first length that stands for `symbol` among the inputs up to `last`.
fn first_with_symbol<'a>(
    specs: &'a [TensorSpec],
    inputs: &[Tensor],
    last: usize,
    symbol: &str,
) -> Option<(&'a TensorSpec, usize)> {
    let pairs = specs
        .iter()
        .zip(inputs)
        .take(last + 1)
        .filter(|(spec, _)| spec.ranked);
    pairs
        .flat_map(|(spec, tensor)| spec.shape.iter().zip(tensor.dims()).map(move |pair| (spec, pair)))
        .find(|(_, (dim, _))| matches!(dim, Dim::Symbol(name) if **name == *symbol))
        .map(|(spec, (_, length))| (spec, *length))
}
