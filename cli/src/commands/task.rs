//! How images become inputs and outputs become results: by a preset's name or from a file.

use std::path::Path;

use anyhow::Context;
use edgeopt_models::Model;
use edgeopt_models::bundle::{Postprocessing, Preprocessing};
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

/// Reads the task called `text`: a preset, or a JSON file.
pub(crate) fn read_task(text: &str, model: &Model) -> anyhow::Result<Task> {
    let path = Path::new(text);
    if presets::NAMES.contains(&text) || path.extension().is_none() {
        let (preprocessing, postprocessing) = presets::from_model(text, model)?;
        return Ok(Task {
            preprocessing: Some(preprocessing),
            postprocessing,
        });
    }
    let json = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&json).with_context(|| format!("{} is not a task", path.display()))
}
