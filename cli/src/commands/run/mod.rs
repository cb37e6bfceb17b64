mod drawing;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use edgeopt_models::bundle::Postprocessing;
use edgeopt_models::{Bytes, Tensor};
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::dataset::{Dataset, write_npz};
use edgeopt_runtime::memory::Budget;
use edgeopt_runtime::pipeline::detection::Bounds;
use edgeopt_runtime::pipeline::postprocess::{Outputs, Prediction, interpret};
use edgeopt_runtime::pipeline::preprocess;
use edgeopt_runtime::{CompileOptions, Engine};
use serde::Serialize;

use crate::commands::read_model;
use crate::commands::task::Task;
use crate::screen::{BOLD, DIM, Screen};

/// Runs a model on images or arrays and prints what it finds.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  edgeopt run digits.edge --input images/\n  \
                        edgeopt run model.onnx --input sample.npz --output results/\n  \
                        edgeopt run text.edge --input lines/ --memory 64MiB\n  \
                        edgeopt run detector.edge --input street.jpg --draw found.png")]
pub(crate) struct Arguments {
    /// An `.edge` or `.onnx` file.
    model: PathBuf,

    /// An image, an .npy or .npz file, or a folder of them.
    #[arg(short, long, value_name = "PATH")]
    input: PathBuf,

    /// How images become inputs and outputs become results, if the bundle does not say: a preset's name or a JSON file.
    #[arg(short, long, value_name = "NAME|FILE")]
    task: Option<String>,

    /// Also writes the output tensors of each sample as `<sample>.npz` into this folder.
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Also draws what was found into each image: a .png or .jpg file for a single image, else a folder.
    #[arg(short, long, value_name = "FILE|DIR")]
    draw: Option<PathBuf>,

    /// Samples to run, spread evenly over the data.
    #[arg(short, long, value_name = "N")]
    limit: Option<usize>,

    /// Memory the model may take in all, the backend's own included [default: what the system has available].
    #[arg(short, long, value_name = "SIZE")]
    memory: Option<Bytes>,

    /// Threads; 0 = all cores.
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
}

#[derive(Serialize)]
struct Found {
    sample: String,
    #[serde(flatten)]
    prediction: Prediction,
}

pub(crate) fn run(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let given = read_model(&arguments.model)?;
    let task = Task::for_model(arguments.task.as_deref(), &given)?;
    let backend = CpuBackend::new()?;
    let options = CompileOptions {
        threads: arguments.threads,
        budget: Budget::for_system(arguments.memory),
        ..CompileOptions::default()
    };
    let engine = given.compile(&backend, &options)?;
    let names: Vec<String> = engine
        .outputs()
        .iter()
        .map(|spec| spec.name.to_string())
        .collect();
    let samples = Dataset::open(
        &arguments.input,
        engine.inputs(),
        task.preprocessing.as_ref(),
        arguments.limit,
    )?;
    if let Some(folder) = &arguments.output {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let drawings = match &arguments.draw {
        Some(path) => Some(drawing::Target::new(path, samples.len())?),
        None => None,
    };
    let mut session = Engine::session(engine)?;
    let bar = screen.bar("running", Some(samples.len() as u64));
    let mut failed = 0;
    for index in 0..samples.len() {
        let id = samples.id(index);
        // One broken file of a folder must not hide the results of the others.
        let sample = match samples.sample(index) {
            Ok(sample) => sample,
            Err(error) => {
                failed += 1;
                bar.suspend(|| screen.warning(&error.to_string()));
                continue;
            }
        };
        let outputs = session.run(&sample.inputs)?;
        if let Some(folder) = &arguments.output {
            write_outputs(folder.join(format!("{id}.npz")), &names, outputs)?;
        }
        let outputs = Outputs {
            names: &names,
            tensors: outputs,
            geometry: sample.geometry.as_ref(),
        };
        let found = Found {
            prediction: interpret(&outputs, &task.postprocessing).with_context(|| id.clone())?,
            sample: id,
        };
        if let Some(drawings) = &drawings {
            if sample.geometry.is_none() {
                bail!("--draw: {} is no image", found.sample);
            }
            let mut image = preprocess::decode(samples.path(index))?;
            drawing::draw(&mut image, &found.prediction)?;
            drawings.write(&found.sample, samples.path(index), &image)?;
        }
        bar.suspend(|| screen.line(&found, show))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    if failed > 0 {
        bail!("{failed} of {} samples could not be read", samples.len());
    }
    if matches!(task.postprocessing, Postprocessing::Raw) && arguments.output.is_none() && !screen.json {
        screen.warning("nothing says what the outputs mean: name a --task, or write them with --output");
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes beside, then renames: a reader never sees half a file.
fn write_outputs(path: PathBuf, names: &[String], outputs: &[Tensor]) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let folder = path.parent().unwrap_or(std::path::Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).with_context(failed)?;
    let named: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(outputs).collect();
    write_npz(file.as_file_mut(), &named).with_context(failed)?;
    file.persist(&path).with_context(failed)?;
    Ok(())
}

fn show(found: &Found) -> String {
    let text = match &found.prediction {
        Prediction::Classes { classes } => {
            let shown = classes.iter().map(|class| {
                let name = class.label.clone().unwrap_or_else(|| class.index.to_string());
                format!("{name} {DIM}{:.4}{DIM:#}", class.score)
            });
            shown.collect::<Vec<_>>().join("   ")
        }
        Prediction::Objects { objects } => {
            let shown = objects.iter().map(|object| {
                let name = object.label.clone().unwrap_or_else(|| object.class.to_string());
                let Bounds {
                    left,
                    top,
                    right,
                    bottom,
                } = object.bounds;
                format!(
                    "{name} {DIM}{:.3}{DIM:#} at {left:.0},{top:.0}–{right:.0},{bottom:.0}",
                    object.score
                )
            });
            listed(shown, "no object")
        }
        Prediction::TextRegions { regions } => {
            let shown = regions.iter().map(|region| {
                let corners = region.corners.map(|[x, y]| format!("{x:.0},{y:.0}"));
                format!("{DIM}{:.3}{DIM:#} at {}", region.score, corners.join(" "))
            });
            listed(shown, "no text")
        }
        Prediction::Text(text) => format!("{:?} {DIM}{:.3}{DIM:#}", text.text, text.confidence),
        Prediction::Embedding { vector } => {
            let start: Vec<String> = vector.iter().take(6).map(|x| format!("{x:+.4}")).collect();
            format!("{} … ({} numbers)", start.join(" "), vector.len())
        }
        Prediction::Raw { shapes } => shapes
            .iter()
            .map(|shape| format!("{shape:?}"))
            .collect::<Vec<_>>()
            .join(" "),
    };
    format!("{BOLD}{:24}{BOLD:#} {text}\n", found.sample)
}

/// One a line under the sample's name, or `none`.
fn listed(items: impl Iterator<Item = String>, none: &str) -> String {
    let lines: Vec<String> = items.collect();
    if lines.is_empty() {
        return none.to_owned();
    }
    format!("{} found\n  {}", lines.len(), lines.join("\n  "))
}
