//! Shapes and memory of a session: told and taken when the inputs' shapes change.
#![allow(unsafe_code)]

use std::ptr;

use edgeopt_models::{Bytes, Tensor};

use super::abi::{self, status};
use super::engine::NAME;
use super::session::TensorRtSession;
use crate::{MemoryUse, RuntimeError};

#[derive(Clone, Copy)]
enum Side {
    Input,
    Output,
}

impl TensorRtSession {
    /// Tells the library the inputs' shapes, and gives it memory for everything.
    pub(super) fn prepare(&mut self, inputs: &[Tensor]) -> Result<(), RuntimeError> {
        let run = |message: String| RuntimeError::Run {
            backend: NAME,
            message,
        };
        self.forget_graph();
        // Until everything below has worked, the next run must come here again.
        for io in &mut self.inputs {
            io.dims = None;
        }
        for (io, tensor) in self.inputs.iter().zip(inputs) {
            let lengths: Vec<i64> = tensor
                .dims()
                .iter()
                .map(|length| i64::try_from(*length).unwrap_or(i64::MAX))
                .collect();
            // SAFETY: a live execution; name and lengths live for the call.
            let result = unsafe {
                (self.table().set_shape)(
                    self.execution,
                    io.name.as_ptr(),
                    lengths.len() as i32,
                    lengths.as_ptr(),
                )
            };
            if result != status::OK {
                return Err(RuntimeError::Input {
                    name: io.name.to_string_lossy().into_owned(),
                    problem: format!(
                        "{:?} is outside of what the engine was built for: {}",
                        tensor.dims(),
                        self.refused("refused the shape")
                    ),
                });
            }
        }
        // SAFETY: a live execution.
        let scratch = unsafe { (self.table().needed_memory)(self.execution) };
        let scratch = usize::try_from(scratch)
            .map_err(|_| run(self.refused("does not tell how much memory the run needs")))?;
        let mut outputs = Vec::with_capacity(self.outputs.len());
        for index in 0..self.outputs.len() {
            let dims = self.output_dims(index).map_err(run)?;
            let elements = dims.iter().try_fold(1usize, |n, length| n.checked_mul(*length));
            let bytes = elements.and_then(|elements| self.outputs[index].dtype.size_of(elements));
            let bytes =
                bytes.ok_or_else(|| run(format!("output {:?} is too large", self.outputs[index].name)))?;
            outputs.push((dims, bytes));
        }
        let sizes = inputs.iter().map(|tensor| tensor.as_bytes().len());
        let io = sizes.chain(outputs.iter().map(|(_, bytes)| *bytes));
        self.reserve(scratch, io.fold(0, usize::saturating_add))?;
        self.give_scratch(scratch).map_err(run)?;
        for (index, tensor) in inputs.iter().enumerate() {
            self.give_memory(Side::Input, index, tensor.as_bytes().len())
                .map_err(run)?;
        }
        for (index, (dims, bytes)) in outputs.into_iter().enumerate() {
            self.give_memory(Side::Output, index, bytes).map_err(run)?;
            let dtype = self.outputs[index].dtype;
            self.results[index] = Tensor::zeros(dtype, &dims).map_err(|error| run(error.to_string()))?;
        }
        for (io, tensor) in self.inputs.iter_mut().zip(inputs) {
            io.dims = Some(tensor.dims().to_vec());
        }
        Ok(())
    }

    /// Reserves what a run needs, in bytes, before any of it is taken. Scratch memory that is there and large enough is
    /// kept, unless the budget only allows less.
    fn reserve(&mut self, scratch: usize, io: usize) -> Result<(), RuntimeError> {
        let Some(budget) = self.engine.budget.clone() else {
            return Ok(());
        };
        let needs = |workspace: usize| MemoryUse {
            workspace: Bytes::from(workspace),
            io: Bytes::from(io),
            ..MemoryUse::default()
        };
        let name = "a session's intermediate values, inputs and outputs";
        self.reservation = None;
        let held = self.scratch.as_ref().map_or(0, |memory| memory.bytes);
        if held > scratch
            && let Ok(kept) = budget.reserve(name, needs(held))
        {
            self.reservation = Some(kept);
            return Ok(());
        }
        if held > scratch {
            self.free_memory();
        }
        match budget.reserve(name, needs(scratch)) {
            Ok(reservation) => self.reservation = Some(reservation),
            Err(error) => {
                self.free_memory();
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Frees everything a run needs; the next one must prepare again.
    pub(super) fn free_memory(&mut self) {
        let device = &self.engine.device;
        let io = self.inputs.iter_mut().chain(&mut self.outputs);
        for memory in io.filter_map(|io| io.memory.take()) {
            device.free_shared(memory);
        }
        if let Some(memory) = self.scratch.take() {
            device.free(memory);
        }
    }

    /// Memory for intermediate values, as much as the shapes now set need.
    fn give_scratch(&mut self, needed: usize) -> Result<(), String> {
        let device = &self.engine.device;
        if self.scratch.as_ref().is_none_or(|memory| memory.bytes < needed) {
            if let Some(memory) = self.scratch.take() {
                device.free(memory);
            }
            self.scratch = Some(device.allocate(needed)?);
        }
        let Some(memory) = &self.scratch else {
            return Ok(());
        };
        // SAFETY: the memory is this session's, and lives until it is replaced here or the execution is gone.
        let result = unsafe {
            (self.table().set_memory)(
                self.execution,
                ptr::with_exposed_provenance_mut(memory.address as usize),
                memory.bytes as i64,
            )
        };
        if result == status::OK {
            Ok(())
        } else {
            Err(self.refused("refused memory for the run"))
        }
    }

    fn give_memory(&mut self, side: Side, index: usize, bytes: usize) -> Result<(), String> {
        let table = self.table();
        let list = match side {
            Side::Input => &mut self.inputs,
            Side::Output => &mut self.outputs,
        };
        let Some(io) = list.get_mut(index) else {
            return Ok(());
        };
        if io.memory.as_ref().is_none_or(|memory| memory.bytes != bytes) {
            if let Some(memory) = io.memory.take() {
                self.engine.device.free_shared(memory);
            }
            io.memory = Some(self.engine.device.allocate_shared(bytes)?);
        }
        let address = io.memory.as_ref().map_or(0, |memory| memory.device);
        // SAFETY: the memory is this session's, and lives until it is replaced here or the execution is gone.
        let result = unsafe {
            (table.set_address)(
                self.execution,
                io.name.as_ptr(),
                ptr::with_exposed_provenance_mut(address as usize),
            )
        };
        if result == status::OK {
            Ok(())
        } else {
            Err(self.refused("refused the memory of an input or output"))
        }
    }

    fn output_dims(&self, index: usize) -> Result<Vec<usize>, String> {
        let (mut rank, mut lengths) = (0i32, [0i64; abi::MAX_RANK]);
        // SAFETY: a live execution; there is room for the largest rank.
        let result = unsafe {
            (self.table().shape)(
                self.execution,
                self.outputs[index].name.as_ptr(),
                &mut rank,
                lengths.as_mut_ptr(),
            )
        };
        if result != status::OK {
            return Err(self.refused("does not tell the shape of an output"));
        }
        let rank = usize::try_from(rank).unwrap_or(0).min(abi::MAX_RANK);
        lengths[..rank]
            .iter()
            .map(|length| {
                usize::try_from(*length).map_err(|_| {
                    format!(
                        "the shape of output {:?} depends on the data, which is not supported",
                        self.outputs[index].name
                    )
                })
            })
            .collect()
    }
}
