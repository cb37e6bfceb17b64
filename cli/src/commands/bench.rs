use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use edgeopt_models::{Bytes, DataType, Dim, Tensor};
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::{Backend, CompileOptions, Engine, TensorSpec};
use serde::Serialize;

use super::lengths::{parse_dim, parse_shape};
use super::read_model;
use crate::screen::{BOLD, Screen};

/// Measures latency, throughput and memory of a model on this machine.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  edgeopt bench model.edge\n  edgeopt bench model.onnx --dim N=8 --threads 1 --seconds 10"
)]
pub(crate) struct Arguments {
    /// An `.edge` or `.onnx` file.
    model: PathBuf,

    /// Length of a symbolic dimension of the inputs [default: 1].
    #[arg(long, value_name = "NAME=LENGTH", value_parser = parse_dim)]
    dim: Vec<(String, usize)>,

    /// Shape of an input whose dimensions have no names, such as x=1,3,48,320.
    #[arg(long, value_name = "INPUT=N,N,…", value_parser = parse_shape)]
    shape: Vec<(String, Vec<usize>)>,

    /// Threads; 0 = all cores.
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,

    /// How long to measure.
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,

    /// Runs before measuring.
    #[arg(long, value_name = "N", default_value_t = 5)]
    warmup: usize,
}

#[derive(Serialize)]
struct Measured {
    backend: String,
    threads: usize,
    inputs: Vec<String>,
    runs: usize,
    load_ms: f64,
    first_ms: f64,
    min_ms: f64,
    median_ms: f64,
    p90_ms: f64,
    p99_ms: f64,
    runs_per_second: f64,
    peak_resident: Option<Bytes>,
}

pub(crate) fn run(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    if !(arguments.seconds > 0.0 && arguments.seconds <= 3600.0) {
        bail!("--seconds must be above 0 and at most 3600");
    }
    let given = read_model(&arguments.model)?;
    let backend = CpuBackend::new()?;
    let options = CompileOptions {
        threads: arguments.threads,
        ..CompileOptions::default()
    };
    let start = Instant::now();
    let engine = given.compile(&backend, &options)?;
    let inputs = engine
        .inputs()
        .iter()
        .map(|spec| noise(spec, arguments))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let described: Vec<String> = engine
        .inputs()
        .iter()
        .zip(&inputs)
        .map(|(spec, tensor)| format!("{} {} {:?}", spec.name, spec.dtype, tensor.dims()))
        .collect();
    let mut session = Engine::session(engine)?;
    let load_ms = millis(start.elapsed());
    let start = Instant::now();
    session.run(&inputs)?;
    let first_ms = millis(start.elapsed());
    for _ in 0..arguments.warmup {
        session.run(&inputs)?;
    }
    let bar = screen.bar("measuring", None);
    let limit = Duration::from_secs_f64(arguments.seconds);
    let begun = Instant::now();
    let mut times = Vec::new();
    while begun.elapsed() < limit || times.is_empty() {
        let start = Instant::now();
        session.run(&inputs)?;
        times.push(millis(start.elapsed()));
    }
    let total = begun.elapsed().as_secs_f64();
    bar.finish_and_clear();
    let runs = times.len();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[(share * (runs - 1) as f64).round() as usize];
    let threads = match arguments.threads {
        0 => std::thread::available_parallelism().map_or(1, Into::into),
        threads => threads,
    };
    let measured = Measured {
        backend: backend.description(),
        threads,
        inputs: described,
        runs,
        load_ms,
        first_ms,
        min_ms: times[0],
        median_ms: at(0.5),
        p90_ms: at(0.9),
        p99_ms: at(0.99),
        runs_per_second: runs as f64 / total,
        peak_resident: peak_resident(),
    };
    screen.result(&measured, show)?;
    Ok(ExitCode::SUCCESS)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Seeded noise of the input's type: −1..1 for floats, 0 for everything else (always a valid index).
fn noise(spec: &TensorSpec, arguments: &Arguments) -> anyhow::Result<Tensor> {
    let given = arguments.shape.iter().find(|(name, _)| spec.name == **name);
    let dims: Vec<usize> = match given {
        Some((_, dims)) => dims.clone(),
        None => spec
            .shape
            .iter()
            .map(|dim| match dim {
                Dim::Known(length) => Ok(*length),
                Dim::Symbol(name) => {
                    Ok(arguments.dim.iter().find(|(known, _)| **known == **name).map_or(1, |(_, length)| *length))
                }
                Dim::Unknown => bail!(
                    "input {:?} has shape {} with a length that has no name; give its shape with --shape {}=…",
                    spec.name,
                    spec.shape,
                    spec.name
                ),
            })
            .collect::<anyhow::Result<_>>()?,
    };
    let mut tensor =
        Tensor::zeros(spec.dtype, &dims).with_context(|| format!("cannot make input {:?}", spec.name))?;
    if spec.dtype == DataType::Float32 {
        let mut state = 0x9E37_79B9u32;
        for value in tensor.view_mut::<f32>()? {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            *value = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
        }
    }
    Ok(tensor)
}

/// The most memory this process held so far, as Linux counts it.
fn peak_resident() -> Option<Bytes> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes::kib(kib))
}

fn show(measured: &Measured) -> String {
    let memory = measured
        .peak_resident
        .map_or("unknown".into(), |bytes| bytes.to_string());
    format!(
        "{BOLD}backend{BOLD:#}     {}, {} threads\n\
         {BOLD}inputs{BOLD:#}      {}\n\
         {BOLD}latency{BOLD:#}     median {:.3} ms, p90 {:.3}, p99 {:.3}, least {:.3} ({} runs)\n\
         {BOLD}throughput{BOLD:#}  {:.1} runs/s\n\
         {BOLD}start{BOLD:#}       load {:.1} ms, first run {:.2} ms\n\
         {BOLD}memory{BOLD:#}      {memory} at peak, the whole process\n",
        measured.backend,
        measured.threads,
        measured.inputs.join(", "),
        measured.median_ms,
        measured.p90_ms,
        measured.p99_ms,
        measured.min_ms,
        measured.runs,
        measured.runs_per_second,
        measured.load_ms,
        measured.first_ms
    )
}
