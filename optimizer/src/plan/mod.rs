//! The memory plan: how much memory the intermediate values of a model take, before anything runs.
//!
//! ```text
//! shapes ─▶ buffers (values that share memory) ─▶ order ─▶ lifetimes ─▶ offsets in one arena ─▶ peak, timeline
//! ```
//!
//! Nothing here runs a model. A backend with its own allocator may need more (workspaces of kernels, layouts)
//! or less (fused operators); the plan is what an arena that follows it takes.

mod activations;
mod arena;
mod buffers;
mod order;

use edgeopt_models::bundle::MemoryPlan;
use edgeopt_models::shape_inference::{Bindings, InferenceError, infer};
use edgeopt_models::{Bytes, Dim, Model, ValueType};

pub use activations::{ActivationPlan, Placement, activations};

/// Offsets and sizes are multiples of this many bytes.
pub const ALIGNMENT: u64 = 256;

/// Why memory cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A value whose size is not known.
    #[error(
        "the size of the value {value:?}, made by {node}, is not known ({ty}); bind the inputs to concrete shapes"
    )]
    Unknown {
        /// Name of the value.
        value: String,
        /// The node that makes it, or the graph's input.
        node: String,
        /// What is known of it.
        ty: String,
    },
    /// A value that is larger than can be addressed.
    #[error("the value {value:?} is larger than can be addressed")]
    TooLarge {
        /// Name of the value.
        value: String,
    },
    /// The batch cannot be set.
    #[error("the input {input:?} with the fixed batch {fixed} cannot take the batch {batch}")]
    Batch {
        /// Name of the input.
        input: String,
        /// Its fixed first length.
        fixed: usize,
        /// The batch asked for.
        batch: usize,
    },
    /// Shapes cannot be inferred.
    #[error(transparent)]
    Shapes(#[from] InferenceError),
}

/// Plans the memory of a model at a batch size: the first length of every input is the batch where it is open.
///
/// An input whose shape stands in `bindings.inputs` keeps that shape. `bindings.dims` fixes other open lengths.
///
/// # Errors
/// When an input has another fixed batch, shapes contradict each other, or a size stays unknown.
pub fn memory_plan(model: &Model, batch: usize, bindings: &Bindings) -> Result<MemoryPlan, PlanError> {
    let model = bound(model, batch, bindings)?;
    let plan = activations(&model)?;
    Ok(MemoryPlan {
        batch,
        weights: buffers::weights(&model.graph)?,
        activations: plan.peak,
        io: io(&model)?,
    })
}

/// The model with its shapes inferred at a batch size, as [`memory_plan`] sees it.
///
/// # Errors
/// When an input has another fixed batch, or shapes contradict each other.
pub fn bound(model: &Model, batch: usize, bindings: &Bindings) -> Result<Model, PlanError> {
    let mut bindings = bindings.clone();
    let mut model = model.clone();
    for input in model.graph.required_inputs() {
        if bindings.inputs.contains_key(&*input.name) {
            continue;
        }
        match input.ty.shape().and_then(|shape| shape.first()) {
            Some(Dim::Symbol(symbol)) => {
                bindings.dims.insert(symbol.to_string(), batch);
            }
            // A fixed first length that is not the batch: many models have side inputs (states, sizes).
            Some(Dim::Known(fixed)) if *fixed != batch && is_data(&input.ty) => {
                return Err(PlanError::Batch {
                    input: input.name.to_string(),
                    fixed: *fixed,
                    batch,
                });
            }
            _ => {}
        }
    }
    let open: Vec<_> = model
        .graph
        .inputs
        .iter()
        .filter(|input| !bindings.inputs.contains_key(&*input.name))
        .filter_map(|input| {
            // A first length with no name is the batch too.
            let shape = input.ty.shape()?;
            let (Dim::Unknown, rest) = shape.split_first()? else {
                return None;
            };
            let rest: Option<Vec<usize>> = rest
                .iter()
                .map(|dim| match dim {
                    Dim::Symbol(symbol) => bindings.dims.get(&**symbol).copied(),
                    dim => dim.known(),
                })
                .collect();
            let shape = std::iter::once(batch).chain(rest?).collect();
            Some((input.name.to_string(), shape))
        })
        .collect();
    bindings.inputs.extend(open);
    infer(&mut model, &bindings)?;
    Ok(model)
}

/// Whether an input looks like a batch of data: images or features, not a vector of settings.
fn is_data(ty: &ValueType) -> bool {
    ty.shape().is_some_and(|shape| shape.len() >= 2)
}

/// Bytes of all inputs that a caller gives and of all outputs.
fn io(model: &Model) -> Result<Bytes, PlanError> {
    let graph = &model.graph;
    let inputs = graph.required_inputs().map(|input| (input, "the graph's input"));
    let outputs = graph.outputs.iter().map(|output| (output, "the graph"));
    let mut total = Bytes::ZERO;
    for (info, node) in inputs.chain(outputs) {
        total += buffers::size(&info.name, Some(&info.ty), node)?;
    }
    Ok(total)
}

#[cfg(test)]
mod tests;
