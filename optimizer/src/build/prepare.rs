use std::collections::BTreeMap;

use edgeopt_models::graph::validate::validate;
use edgeopt_models::opset::{self, DEFAULT_TARGET};
use edgeopt_models::{Dim, Graph, Model, ValueType};
use edgeopt_runtime::Backend;
use serde::{Deserialize, Serialize};

use super::BuildError;
use crate::passes::{BackendEvaluator, Context, run_pipeline};

/// How often a pass changed the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassCount {
    /// The pass.
    pub pass: String,
    /// Places it changed.
    pub changes: usize,
}

/// A float model ready for a change of precision.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The model as it was given, at the raised operator set: what everything is compared with.
    pub original: Model,
    /// The same after the passes.
    pub model: Model,
    /// What the passes did.
    pub passes: Vec<PassCount>,
}

/// Checks a model, raises its operator set, fixes the given dimensions and runs the passes.
///
/// # Errors
/// When the model is invalid, or uses an operator that cannot be raised exactly.
pub fn prepare(
    mut model: Model,
    dims: &BTreeMap<String, usize>,
    backend: &dyn Backend,
) -> Result<Prepared, BuildError> {
    validate(&model)?;
    if model.opset() < DEFAULT_TARGET {
        opset::raise(&mut model, DEFAULT_TARGET)?;
    }
    fix_dims(&mut model.graph, dims);
    let original = model.clone();
    let evaluator = BackendEvaluator(backend);
    let context = Context {
        evaluator: Some(&evaluator),
        ..Context::default()
    };
    let passes = run_pipeline(&mut model, &context)?
        .into_iter()
        .map(|(pass, changes)| PassCount {
            pass: pass.to_owned(),
            changes: changes.0,
        })
        .collect();
    // The passes have read every weight; until the comparison, most of the original ones are not needed again.
    original.graph.release_mapped_constants();
    Ok(Prepared {
        original,
        model,
        passes,
    })
}

/// Gives symbolic dimensions of inputs their fixed lengths. Shapes of other values that mention them are forgotten,
/// not patched: they follow from the inputs.
fn fix_dims(graph: &mut Graph, dims: &BTreeMap<String, usize>) {
    if dims.is_empty() {
        return;
    }
    for info in graph.inputs.iter_mut().chain(&mut graph.outputs) {
        if let ValueType::Tensor {
            shape: Some(shape), ..
        } = &mut info.ty
        {
            for dim in shape.iter_mut() {
                if let Dim::Symbol(name) = dim
                    && let Some(length) = dims.get(&**name)
                {
                    *dim = Dim::Known(*length);
                }
            }
        }
    }
    graph.value_types.clear();
}
