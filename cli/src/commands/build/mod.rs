mod engine;
mod golden;
mod memory;
mod progress;
mod ranges;
mod reporting;
mod scratch;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use edgeopt_models::bundle::{self, AccuracySummary, Manifest, Member, Precision, Provenance, TaskAccuracy};
use edgeopt_models::{Bytes, Graph, Model, onnx};
use edgeopt_optimizer::build::{BuildOptions, Candidate, Data, Label, Prepared, Progress, make, prepare};
use edgeopt_optimizer::calibrate::{Method, Samples};
use edgeopt_runtime::TensorSpec;
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::dataset::Dataset;

use super::labels;
use super::lengths::{Range, parse_dim, parse_range};
use super::task::{Task, read_task};
use crate::screen::Screen;
use progress::Bars;
use ranges::{Known, Watched};
use scratch::Scratch;

/// Builds a bundle from an ONNX model: optimized, at the asked precision, compared with the original on your data.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    edgeopt build model.onnx -o model.edge --precision fp16\n  \
    edgeopt build model.onnx -o model.edge --precision int8 --memory 64MiB \\\n      \
    --calibration-data train/ --evaluation-data test/ --labels test/labels.csv --task imagenet")]
pub(crate) struct Arguments {
    /// The float model.
    model: PathBuf,

    /// The bundle to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Precision of the result.
    #[arg(short, long, value_enum, default_value = "fp16")]
    precision: PrecisionArgument,

    /// Memory the model may take: weights, activations, inputs and outputs.
    #[arg(short, long, value_name = "SIZE")]
    memory: Option<Bytes>,

    /// Typical inputs: a folder of images, .npy or .npz files, or one stacked .npy or .npz.
    #[arg(short, long, value_name = "PATH")]
    calibration_data: Option<PathBuf>,

    /// Inputs to compare on, not seen in calibration [default: the calibration data].
    #[arg(short, long, value_name = "PATH")]
    evaluation_data: Option<PathBuf>,

    /// What the evaluation inputs show: lines of `file,label` or `file<TAB>label`; for detectors a folder of YOLO's .txt
    /// files, or COCO's instances as .json.
    #[arg(short, long, value_name = "FILE|FOLDER")]
    labels: Option<PathBuf>,

    /// How images become inputs and outputs become results: a preset's name or a JSON file.
    #[arg(short, long, value_name = "NAME|FILE")]
    task: Option<String>,

    /// How ranges of activations are chosen: entropy, minmax, mse, or percentile:99.99.
    #[arg(long, value_name = "METHOD", default_value_t)]
    calibration_method: Method,

    /// Calibration samples to use, spread evenly over the data.
    #[arg(long, value_name = "N", default_value_t = 128)]
    calibration_samples: usize,

    /// Evaluation samples to use, spread evenly over the data; 0 skips the comparison, and the bundle says so.
    #[arg(long, value_name = "N", default_value_t = 500)]
    evaluation_samples: usize,

    /// Leaves the most sensitive layers in float until every output reaches this SQNR.
    #[arg(long, value_name = "DB")]
    min_sqnr: Option<f64>,

    /// Fails if the task's metric (mAP@0.5:0.95 of a detector) drops by more than this many percentage points.
    #[arg(long, value_name = "POINTS")]
    max_accuracy_drop: Option<f64>,

    /// Leaves nodes of these names in float; `*` stands for any text.
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,

    /// Quantizes the last convolutions before the outputs, too; usually costs more accuracy than it gains time.
    #[arg(long)]
    quantize_heads: bool,

    /// Quantizes products of two activations (attention), too.
    #[arg(long)]
    quantize_attention: bool,

    /// With --precision int8: leaves the layers that are not quantized in float32 instead of FP16, for CPUs.
    #[arg(long)]
    float32_rest: bool,

    /// Fixes a symbolic dimension of the inputs.
    #[arg(long, value_name = "NAME=LENGTH", value_parser = parse_dim)]
    dim: Vec<(String, usize)>,

    /// Lengths that an open dimension of the inputs may have, and the one to tune for [default: what the data has].
    #[arg(long, value_name = "NAME=MIN:OPT:MAX", value_parser = parse_range)]
    range: Vec<(String, Range)>,

    /// Largest batch the memory is planned for.
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: usize,

    /// Also builds an engine with the TensorRT of this machine and adds it to the bundle. An engine serves one version of
    /// TensorRT and, but for TensorRT-RTX, one kind of GPU; devices with others build their own.
    #[arg(long, value_enum, value_name = "LIBRARY")]
    engine: Option<engine::EngineArgument>,

    /// How long the engine's builder may search: 0 (fast build) to 5 (fast engine) [default: TensorRT's].
    #[arg(long, value_name = "LEVEL", requires = "engine", value_parser = clap::value_parser!(u8).range(0..=5))]
    optimization_level: Option<u8>,

    /// Also writes the report (an HTML page, part of the bundle) to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// Name of the model [default: the file's name].
    #[arg(long)]
    name: Option<String>,

    /// Version of the model.
    #[arg(long = "model-version", default_value = "1")]
    model_version: String,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum PrecisionArgument {
    Fp32,
    Fp16,
    Int8,
}

/// The data of a build, opened.
struct Opened {
    calibration: Option<Watched>,
    evaluation: Option<Watched>,
    labels: Vec<Option<Label>>,
    task: Task,
}

pub(crate) fn run(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let asked = match arguments.precision {
        PrecisionArgument::Fp32 => Precision::Fp32,
        PrecisionArgument::Fp16 => Precision::Fp16,
        PrecisionArgument::Int8 => Precision::Int8,
    };
    let stem = arguments
        .model
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned());
    let name = arguments.name.clone().or(stem).unwrap_or_default();
    let model = onnx::read_file(&arguments.model)
        .with_context(|| format!("cannot use {}", arguments.model.display()))?;
    let task = match &arguments.task {
        Some(task) => read_task(task, &model)?,
        None => Task::default(),
    };
    let opened = open_data(arguments, &model, task, screen)?;
    if asked == Precision::Int8 && opened.calibration.is_none() {
        bail!("INT8 needs typical inputs: name them with --calibration-data");
    }
    let backend = CpuBackend::new()?;
    let bars = Bars::new(screen);
    let dims: BTreeMap<String, usize> = arguments.dim.iter().cloned().collect();
    bars.stage("preparing", None);
    let mut prepared = prepare(model, &dims, &backend)?;
    let scratch = Scratch::beside(&arguments.output)?;
    // What the passes made of the weights is as large as the model, and little of it is read at a time.
    let spilled = prepared.model.graph.spill_constants(scratch.path());
    spilled.with_context(|| format!("cannot write the model's weights to {}", scratch.path().display()))?;

    let data = opened.data();
    let sample = match opened.evaluation.as_ref().or(opened.calibration.as_ref()) {
        Some(samples) => Some(samples.dataset.sample(0)?.inputs),
        None => None,
    };
    let mut candidates = Vec::new();
    // Everything up to the asked precision, so that the table shows what each step costs and gains; without data to
    // compare on, there is nothing to show of those in between.
    let all = [Precision::Fp32, Precision::Fp16, Precision::Int8];
    let shown = |other: &Precision| {
        *other == Precision::Fp32 || *other == asked || (*other < asked && data.evaluation.is_some())
    };
    for precision in all.into_iter().filter(shown) {
        let mut options = BuildOptions::new(precision);
        options.method = arguments.calibration_method;
        options.min_sqnr_db = arguments.min_sqnr;
        options.fp16.exclude.clone_from(&arguments.exclude);
        options.int8.exclude.clone_from(&arguments.exclude);
        options.int8.quantize_heads = arguments.quantize_heads;
        options.int8.quantize_attention = arguments.quantize_attention;
        options.half_rest &= !arguments.float32_rest;
        let mut candidate = make(&prepared, &options, &data, &backend, &bars)?;
        memory::plan(
            &mut candidate,
            arguments.batch,
            sample.as_ref(),
            arguments.memory,
            screen,
        )?;
        if let (true, Some(limit)) = (precision == asked, arguments.memory) {
            let half_rest = !arguments.float32_rest;
            memory::check(
                &name,
                &mut candidate,
                arguments.batch,
                sample.as_ref(),
                limit,
                half_rest,
            )?;
        }
        if precision != Precision::Fp32 || data.evaluation.is_some() {
            candidate.evaluate(&prepared, &data, &backend, &bars)?;
        }
        if let Some(samples) = &opened.evaluation {
            bars.stage(&format!("timing {precision}"), None);
            candidate.time(
                &samples.dataset.sample(0)?.inputs,
                options.timed_runs,
                options.threads,
                &backend,
            )?;
        }
        candidates.push(candidate);
    }
    let Some(chosen) = candidates.last() else {
        bail!("nothing was built")
    };
    check_drop(arguments, chosen)?;

    let encoded = chosen.encoded()?;
    let manifest = manifest(arguments, name, &prepared, chosen, &opened)?;
    let mut members = BTreeMap::new();
    if let Some(engine) = arguments.engine {
        let asked = engine::Asked {
            builder: engine,
            level: arguments.optimization_level,
            memory: arguments.memory,
        };
        members.extend([engine::member(&asked, &encoded, &manifest, &scratch, screen)?]);
    }
    members.insert(bundle::MODEL.to_owned(), Member::Data(encoded));
    if let Some(samples) = &opened.evaluation {
        members.extend(golden::members(&chosen.model, &samples.dataset, &backend)?);
    }
    bars.stage("comparing layers", None);
    let layers = reporting::layers(
        &prepared,
        chosen,
        opened.evaluation.as_ref().map(|data| &data.dataset),
        &backend,
    )?;
    let page = reporting::page(arguments, &manifest, &prepared, &candidates, layers);
    members.insert(bundle::REPORT.to_owned(), Member::Data(page.clone().into_bytes()));
    bars.stage("packing", None);
    bundle::pack(manifest, &members, None, &arguments.output)
        .with_context(|| format!("cannot write {}", arguments.output.display()))?;
    // A report without its bundle would tell of something that is not there.
    if let Some(path) = &arguments.report {
        bundle::write_file(path, page.as_bytes())
            .with_context(|| format!("cannot write the report {}", path.display()))?;
    }
    bars.finish();

    let summary = table::Summary::new(&arguments.output, &candidates)?;
    screen.result(&summary, table::show)?;
    for warning in table::warnings(&candidates) {
        screen.warning(&warning);
    }
    Ok(ExitCode::SUCCESS)
}

impl Opened {
    fn data(&self) -> Data<'_> {
        let len = |data: &Option<Watched>| data.as_ref().map_or(0, |data| data.dataset.len());
        Data {
            calibration: self.calibration.as_ref().map(|data| data as &dyn Samples),
            calibration_len: len(&self.calibration),
            evaluation: self.evaluation.as_ref().map(|data| data as &dyn Samples),
            evaluation_len: len(&self.evaluation),
            labels: self.labels.clone(),
            postprocessing: &self.task.postprocessing,
        }
    }
}

fn open_data(arguments: &Arguments, model: &Model, task: Task, screen: &Screen) -> anyhow::Result<Opened> {
    let inputs = model
        .graph
        .required_inputs()
        .map(|info| TensorSpec::of(info).with_context(|| format!("input {:?} is no tensor", info.name)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let open = |path: &Path, limit| {
        Dataset::open(path, &inputs, task.preprocessing.as_ref(), Some(limit)).map(Watched::new)
    };
    let calibration = arguments
        .calibration_data
        .as_deref()
        .map(|path| open(path, arguments.calibration_samples.max(1)))
        .transpose()?;
    let evaluation = arguments
        .evaluation_data
        .as_deref()
        .or(arguments.calibration_data.as_deref())
        .filter(|_| arguments.evaluation_samples > 0)
        .map(|path| open(path, arguments.evaluation_samples))
        .transpose()?;
    if arguments.evaluation_data.is_none() && evaluation.is_some() {
        screen
            .warning("the comparison uses the calibration data; give --evaluation-data for an honest figure");
    }
    let labels = match (&arguments.labels, &evaluation) {
        (Some(path), Some(samples)) => labels::read(path, &task, model, &samples.dataset, screen)?,
        _ => Vec::new(),
    };
    Ok(Opened {
        calibration,
        evaluation,
        labels,
        task,
    })
}

fn check_drop(arguments: &Arguments, chosen: &Candidate) -> anyhow::Result<()> {
    let Some(limit) = arguments.max_accuracy_drop else {
        return Ok(());
    };
    let (Some(own), Some(original)) = (&chosen.score, &chosen.original_score) else {
        bail!("--max-accuracy-drop needs --labels and a --task that has a metric");
    };
    let drop = (original.value - own.value) * 100.0;
    if drop > limit {
        bail!(
            "{} drops by {drop:.2} points to {:.2} %, more than the {limit} allowed; nothing was written. Leave \
             sensitive layers in float with --min-sqnr, or try another --calibration-method",
            own.metric,
            own.value * 100.0
        );
    }
    Ok(())
}

fn manifest(
    arguments: &Arguments,
    name: String,
    prepared: &Prepared,
    chosen: &Candidate,
    opened: &Opened,
) -> anyhow::Result<Manifest> {
    let task = &opened.task;
    let known = Known {
        asked: &arguments.range,
        batch: arguments.batch,
        preprocessing: task.preprocessing.as_ref(),
        data: opened.calibration.iter().chain(&opened.evaluation).collect(),
    };
    let inputs = known.inputs(prepared.model.graph.required_inputs())?;
    let outputs = ranges::outputs(prepared.model.graph.outputs.iter(), &inputs)?;
    let source = std::fs::File::open(&arguments.model)?;
    let mut options = BTreeMap::from([("precision".to_owned(), chosen.precision.to_string())]);
    if chosen.precision == Precision::Int8 {
        options.insert(
            "calibration_method".into(),
            arguments.calibration_method.to_string(),
        );
        options.insert(
            "calibration_samples".into(),
            opened.data().calibration_len.to_string(),
        );
        let rest = if arguments.float32_rest { "fp32" } else { "fp16" };
        options.insert("other_layers".into(), rest.to_owned());
    }
    let task_accuracy = chosen
        .score
        .as_ref()
        .zip(chosen.original_score.as_ref())
        .map(|(own, original)| TaskAccuracy {
            metric: own.metric.clone(),
            float: original.value,
            this: own.value,
        });
    Ok(Manifest {
        inputs,
        outputs,
        preprocessing: task.preprocessing.clone(),
        postprocessing: task.postprocessing.clone(),
        memory: chosen.memory.iter().cloned().collect(),
        accuracy: (chosen.samples > 0).then(|| AccuracySummary {
            samples: chosen.samples,
            outputs: chosen.outputs.clone(),
            task: task_accuracy,
        }),
        provenance: Provenance {
            source: arguments
                .model
                .file_name()
                .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            source_sha256: bundle::digest_of(source)?.0,
            tool: concat!("edgeopt ", env!("CARGO_PKG_VERSION")).into(),
            options,
        },
        ..Manifest::new(&name, &arguments.model_version, chosen.precision)
    })
}

/// Parameters of a graph with its subgraphs, for the summary.
fn nodes(graph: &Graph) -> usize {
    graph
        .nodes
        .iter()
        .map(|node| 1 + node.subgraphs().map(nodes).sum::<usize>())
        .sum()
}
