//! How images become inputs and outputs become results: by a preset's name or from a file.

use std::path::Path;

use anyhow::Context;
use edgeopt_models::bundle::{OutputShape, Postprocessing, Preprocessing};
use edgeopt_models::{Dim, Model, ValueType};
use edgeopt_runtime::pipeline::presets;
use serde::Deserialize;

use super::Given;

/// The declarations a bundle's manifest carries about its data.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Task {
    /// How images become inputs.
    #[serde(default)]
    pub(crate) preprocessing: Option<Preprocessing>,
    /// How outputs become results.
    #[serde(default)]
    pub(crate) postprocessing: Postprocessing,
}

impl Task {
    /// The task that was named, else the one the bundle declares, else none.
    pub(crate) fn for_model(named: Option<&str>, given: &Given) -> anyhow::Result<Self> {
        match (named, &given.manifest) {
            (Some(named), _) => read_task(named, &given.model),
            (None, Some(manifest)) => Ok(Self {
                preprocessing: manifest.preprocessing.clone(),
                postprocessing: manifest.postprocessing.clone(),
            }),
            (None, None) => Ok(Self::default()),
        }
    }
}

/// Reads the task called `text`, a preset or a JSON file, and holds it against the model's outputs.
pub(crate) fn read_task(text: &str, model: &Model) -> anyhow::Result<Task> {
    let path = Path::new(text);
    let task = if presets::NAMES.contains(&text) || path.extension().is_none() {
        let (preprocessing, postprocessing) = presets::from_model(text, model)?;
        Task {
            preprocessing: Some(preprocessing),
            postprocessing,
        }
    } else {
        read_file(path)?
    };
    if let Some(outputs) = output_shapes(model) {
        let checked = task.postprocessing.check(&outputs);
        checked.with_context(|| format!("task {text:?} does not suit this model"))?;
    }
    Ok(task)
}

/// The outputs' shapes, if the model states how many dimensions each has.
pub(crate) fn output_shapes(model: &Model) -> Option<Vec<OutputShape<'_>>> {
    let outputs = model.graph.outputs.iter().map(|output| match &output.ty {
        ValueType::Tensor {
            shape: Some(shape), ..
        } => Some(OutputShape {
            name: output.name.as_ref(),
            dims: shape.iter().map(Dim::known).collect(),
        }),
        _ => None,
    });
    outputs.collect()
}

fn read_file(path: &Path) -> anyhow::Result<Task> {
    let json = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&json).with_context(|| format!("{} is not a task", path.display()))
}
