use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use comfy_table::{CellAlignment, Table, presets};
use edgeopt_models::Bytes;
use edgeopt_models::bundle::OutputAccuracy;
use edgeopt_optimizer::accuracy::{LayerSqnr, compare_parts, layer_sqnr};
use edgeopt_optimizer::build::{Score, Scorer};
use edgeopt_runtime::TensorSpec;
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::dataset::Dataset;
use serde::Serialize;

use super::task::Task;
use super::{labels, read_model};
use crate::screen::{BOLD, Screen};

/// Memory that observed layers of one sample may take.
const TAP_MEMORY: Bytes = Bytes::mib(64);

/// Compares the outputs of two models on the same data.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  edgeopt compare model.onnx model.edge --data images/\n  \
                        edgeopt compare model.onnx model.edge --data images/ --layers 10"
)]
pub(crate) struct Arguments {
    /// The reference, `.onnx` or `.edge`.
    reference: PathBuf,

    /// The other model, `.onnx` or `.edge`.
    other: PathBuf,

    /// Images or arrays: a folder, or one stacked .npy or .npz.
    #[arg(short, long, value_name = "PATH")]
    data: PathBuf,

    /// How images become inputs, if no bundle says: a preset's name or a JSON file.
    #[arg(short, long, value_name = "NAME|FILE")]
    task: Option<String>,

    /// What the data shows, for the task's metric: lines of `file,label`; for detectors a folder of YOLO's .txt files, or
    /// COCO's instances as .json.
    #[arg(long, value_name = "FILE|FOLDER")]
    labels: Option<PathBuf>,

    /// Samples to compare on, spread evenly over the data.
    #[arg(short, long, value_name = "N", default_value_t = 100)]
    limit: usize,

    /// Also shows this many layers with the lowest SQNR.
    #[arg(long, value_name = "N", default_value_t = 0)]
    layers: usize,

    /// Fails if an output's SQNR is below this.
    #[arg(long, value_name = "DB")]
    min_sqnr: Option<f64>,
}

#[derive(Serialize)]
struct Compared {
    samples: usize,
    outputs: Vec<OutputAccuracy>,
    non_finite: Vec<(String, u64)>,
    /// The task's metric of the reference and of the other model, if labels are given.
    #[serde(skip_serializing_if = "Option::is_none")]
    scores: Option<Scores>,
    worst_layers: Vec<LayerSqnr>,
}

#[derive(Serialize)]
struct Scores {
    reference: Score,
    other: Score,
}

pub(crate) fn run(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let reference = read_model(&arguments.reference)?;
    let other = read_model(&arguments.other)?;
    let described = if other.manifest.is_some() {
        &other
    } else {
        &reference
    };
    let task = Task::for_model(arguments.task.as_deref(), described)?;
    let inputs = reference
        .model
        .graph
        .required_inputs()
        .map(|info| TensorSpec::of(info).with_context(|| format!("input {:?} is no tensor", info.name)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let samples = Dataset::open(
        &arguments.data,
        &inputs,
        task.preprocessing.as_ref(),
        Some(arguments.limit),
    )?;
    let labels = match &arguments.labels {
        Some(path) => labels::read(path, &task, &reference.model, &samples, screen)?,
        None => Vec::new(),
    };
    let outputs = reference.model.graph.outputs.iter();
    let outputs = outputs.map(|output| output.name.to_string());
    let mut scorers = [(); 2].map(|()| Scorer::new(&task.postprocessing, &labels, outputs.clone()));
    let mut unread = None;
    let backend = CpuBackend::new()?;
    let bar = screen.bar("comparing", Some(samples.len() as u64));
    let comparison = compare_parts(
        &reference.model,
        &other.model,
        &samples,
        &backend,
        0,
        &task.postprocessing.parts(),
        &mut |sample, expected, actual| {
            for (scorer, outputs) in scorers.iter_mut().zip([expected, actual]) {
                unread = unread.take().or(scorer.add(sample, outputs).err());
            }
            bar.inc(1);
        },
    )?;
    bar.finish_and_clear();
    if let Some(error) = unread {
        return Err(error.into());
    }
    let [reference_score, other_score] = scorers.map(|scorer| scorer.score());
    let mut worst_layers = Vec::new();
    if arguments.layers > 0 {
        let bar = screen.bar("comparing layers", None);
        worst_layers = layer_sqnr(&reference.model, &other.model, &samples, &backend, TAP_MEMORY)?;
        worst_layers.sort_by(|a, b| a.sqnr_db.total_cmp(&b.sqnr_db));
        worst_layers.truncate(arguments.layers);
        bar.finish_and_clear();
    }
    let lowest = comparison.min_sqnr_db();
    let compared = Compared {
        samples: comparison.samples,
        outputs: comparison.outputs,
        non_finite: comparison.non_finite,
        scores: reference_score
            .zip(other_score)
            .map(|(reference, other)| Scores { reference, other }),
        worst_layers,
    };
    screen.result(&compared, show)?;
    if let Some(limit) = arguments.min_sqnr
        && lowest < limit
    {
        bail!("the lowest SQNR is {lowest:.1} dB, below {limit}");
    }
    Ok(ExitCode::SUCCESS)
}

fn show(compared: &Compared) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["output", "SQNR dB", "cosine", "max |difference|"]);
    for output in &compared.outputs {
        table.add_row([
            output.name.clone(),
            format!("{:.2}", output.sqnr_db),
            format!("{:.6}", output.cosine),
            format!("{:.3e}", output.max_abs),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{table}\n{} samples\n", compared.samples);
    if let Some(Scores { reference, other }) = &compared.scores {
        for (metric, _) in reference.all() {
            let (before, after) = (reference.shown(metric), other.shown(metric));
            text.push_str(&format!(
                "{metric}: {before} → {after} on {} samples\n",
                other.samples
            ));
        }
    }
    for (name, count) in &compared.non_finite {
        text.push_str(&format!("output {name:?} has {count} infinite or NaN values\n"));
    }
    if !compared.worst_layers.is_empty() {
        text.push_str(&format!(
            "{BOLD}layers with the lowest SQNR{BOLD:#} (errors of earlier layers included)\n"
        ));
    }
    for layer in &compared.worst_layers {
        text.push_str(&format!(
            "{:8.2} dB  {:14} {}\n",
            layer.sqnr_db, layer.op, layer.node
        ));
    }
    text
}
