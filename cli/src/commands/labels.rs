//! What samples show, for the metric of a task.

use std::path::Path;

use anyhow::{Context, bail};
use edgeopt_models::Model;
use edgeopt_models::bundle::Postprocessing;
use edgeopt_optimizer::build::Label;
use edgeopt_runtime::dataset::{Dataset, Labels, ModelClasses, ObjectLabels};

use super::task::{Task, output_shapes};
use crate::screen::Screen;

/// Reads the labels at `path` for the samples, in their order: text files for classes and texts, YOLO folders and COCO
/// files for objects.
pub(crate) fn read(
    path: &Path,
    task: &Task,
    model: &Model,
    samples: &Dataset,
    screen: &Screen,
) -> anyhow::Result<Vec<Option<Label>>> {
    let labels = match &task.postprocessing {
        Postprocessing::Raw => {
            bail!("labels are given, but not what the outputs mean: name the task with --task")
        }
        Postprocessing::Detection { .. } => objects(path, task, model, samples, screen)?,
        Postprocessing::TextDetection { .. } | Postprocessing::Embedding => {
            bail!(
                "labels are given, and there is no metric for {}",
                task.postprocessing.task()
            )
        }
        Postprocessing::Classification { .. } | Postprocessing::Ctc { .. } => {
            let given = Labels::read(path)?;
            let label = |index| Some(Label::Text(given.get(&samples.id(index))?.to_owned()));
            (0..samples.len()).map(label).collect()
        }
    };
    if labels.iter().all(Option::is_none) {
        bail!(
            "{}: none of its labels belongs to a sample; the first sample is {:?}",
            path.display(),
            samples.id(0)
        );
    }
    Ok(labels)
}

fn objects(
    path: &Path,
    task: &Task,
    model: &Model,
    samples: &Dataset,
    screen: &Screen,
) -> anyhow::Result<Vec<Option<Label>>> {
    let names: &[String] = match &task.postprocessing {
        Postprocessing::Detection { labels, .. } => labels,
        _ => &[],
    };
    let shapes = output_shapes(model).unwrap_or_default();
    let classes = ModelClasses {
        count: task.postprocessing.classes(&shapes),
        names,
    };
    let given = ObjectLabels::open(path, classes)?;
    for note in given.notes() {
        screen.warning(&format!("{}: {note}", path.display()));
    }
    let mut labels = Vec::with_capacity(samples.len());
    for index in 0..samples.len() {
        let id = samples.id(index);
        let geometry = samples.geometry(index)?.with_context(|| {
            format!("sample {id:?} is no image: objects are compared in the image's pixels, so give images")
        })?;
        let objects = given.of(&id, (geometry.width, geometry.height))?;
        labels.push(objects.map(|objects| Label::Objects { objects, geometry }));
    }
    let known = |label: &Label| matches!(label, Label::Objects { objects, .. } if objects.iter().any(|object| !object.crowd));
    if labels.iter().any(Option::is_some) && !labels.iter().flatten().any(known) {
        bail!(
            "{}: no object is known in any of the {} images (the first is {:?}), so there is nothing to find",
            path.display(),
            samples.len(),
            samples.id(0)
        );
    }
    Ok(labels)
}
