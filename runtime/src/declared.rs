//! Engines that hold what a bundle's manifest declares: memory as planned, lengths within their ranges.

use std::sync::Arc;

use edgeopt_models::bundle::{DimInfo, Manifest, MemoryPlan, TensorInfo};
use edgeopt_models::{Bytes, Tensor};

use crate::{Backend, CompileOptions, Engine, MemoryUse, ModelSource, RuntimeError, Session, TensorSpec};

/// Compiles the model of a bundle. The memory plan of its largest batch is reserved, and its sessions refuse inputs
/// whose lengths lie outside the declared ranges: engines are planned and tuned for those alone.
///
/// # Errors
/// As [`Backend::compile`].
pub fn compile_declared(
    manifest: &Manifest,
    model: ModelSource<'_>,
    backend: &dyn Backend,
    options: &CompileOptions,
) -> Result<Arc<dyn Engine>, RuntimeError> {
    Ok(Arc::new(Declared {
        engine: backend.compile(model, &declared_options(manifest, options))?,
        inputs: manifest.inputs.clone().into(),
    }))
}

/// The options with what the manifest declares: its inputs, and the memory plan of its largest batch unless there is one.
pub fn declared_options(manifest: &Manifest, options: &CompileOptions) -> CompileOptions {
    let largest = manifest.memory.iter().max_by_key(|plan| size(plan));
    CompileOptions {
        plan: options.plan.clone().or_else(|| largest.cloned()),
        declared: manifest.inputs.clone(),
        ..options.clone()
    }
}

fn size(plan: &MemoryPlan) -> Bytes {
    plan.weights + plan.activations + plan.io
}

struct Declared {
    engine: Arc<dyn Engine>,
    inputs: Arc<[TensorInfo]>,
}

impl Engine for Declared {
    fn inputs(&self) -> &[TensorSpec] {
        self.engine.inputs()
    }

    fn outputs(&self) -> &[TensorSpec] {
        self.engine.outputs()
    }

    fn memory(&self) -> MemoryUse {
        self.engine.memory()
    }

    fn session(self: Arc<Self>) -> Result<Box<dyn Session>, RuntimeError> {
        let specs = self.engine.inputs().iter();
        // Inputs that the library dropped as unused are not declared in the same places.
        let declared = specs.map(|spec| self.inputs.iter().position(|info| spec.name == *info.name));
        Ok(Box::new(DeclaredSession {
            places: declared.collect(),
            inputs: Arc::clone(&self.inputs),
            session: Arc::clone(&self.engine).session()?,
        }))
    }
}

struct DeclaredSession {
    session: Box<dyn Session>,
    inputs: Arc<[TensorInfo]>,
    /// Where each input of the engine is declared.
    places: Vec<Option<usize>>,
}

impl Session for DeclaredSession {
    fn run(&mut self, inputs: &[Tensor]) -> Result<&[Tensor], RuntimeError> {
        for (place, tensor) in self.places.iter().zip(inputs) {
            if let Some(info) = place.and_then(|place| self.inputs.get(place)) {
                check(info, tensor)?;
            }
        }
        self.session.run(inputs)
    }
}

fn check(info: &TensorInfo, tensor: &Tensor) -> Result<(), RuntimeError> {
    for (axis, (dim, length)) in info.shape.iter().zip(tensor.dims()).enumerate() {
        if let DimInfo::Range { name, min, max, .. } = dim
            && !(*min..=*max).contains(length)
        {
            return Err(RuntimeError::Input {
                name: info.name.clone(),
                problem: format!(
                    "axis {axis} ({name}) has length {length}, the model was built for {min} to {max}; build it with \
                     --range {name}=MIN:OPT:MAX (the first axis: --batch) for others"
                ),
            });
        }
    }
    Ok(())
}
