//! What `Session::run` costs over ONNX Runtime called directly, and the memory that loading takes:
//! `session-overhead MODEL.onnx [RUNS [THREADS]]`.
//!
//! Both run the same file in turns (A B A B …), so that a drifting clock speed meets both alike; what is compared is
//! the median. Open lengths of inputs are 1. Memory is read from `/proc/self/status` before the peer is loaded.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use edgeopt_models::{Dim, Tensor};
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::{Backend, CompileOptions, ModelSource, TensorSpec};
use edgeopt_tests::bare_ort::BareRuntime;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(file) = arguments.first().map(Path::new) else {
        bail!("usage: session-overhead MODEL.onnx [RUNS [THREADS]]");
    };
    let number = |index: usize, default| {
        arguments
            .get(index)
            .map_or(Ok(default), |text| text.parse::<usize>())
    };
    let (runs, threads) = (number(1, 200)?.max(1), number(2, 1)?);

    report_memory("start")?;
    let backend = CpuBackend::new()?;
    report_memory("library loaded")?;
    let options = CompileOptions {
        threads,
        ..CompileOptions::default()
    };
    let start = Instant::now();
    let engine = backend.compile(ModelSource::File(file), &options)?;
    println!("compiled in {:.0?} by {}", start.elapsed(), backend.description());
    report_memory("compiled")?;
    let inputs: Vec<Tensor> = engine.inputs().iter().map(zeros).collect::<Result<_, _>>()?;
    let mut ours = engine.session()?;
    ours.run(&inputs)?;
    report_memory("run once")?;

    let bare = BareRuntime::new(backend.loaded_from())?;
    let peer = bare.load(&std::fs::read(file)?, i32::try_from(threads)?)?;
    let values = peer.values(&inputs)?;
    peer.run(&values)?;
    let (mut a, mut b) = (Vec::with_capacity(runs), Vec::with_capacity(runs));
    for _ in 0..runs {
        let start = Instant::now();
        ours.run(&inputs)?;
        a.push(start.elapsed());
        let start = Instant::now();
        let outputs = peer.run(&values)?;
        b.push(start.elapsed());
        drop(outputs);
    }
    let (a, b) = (median(&mut a)?, median(&mut b)?);
    println!(
        "{runs} runs, {threads} threads: ours {:.1} µs, ONNX Runtime directly {:.1} µs, ratio {:.4}",
        micros(a),
        micros(b),
        a.as_secs_f64() / b.as_secs_f64()
    );
    Ok(())
}

fn zeros(spec: &TensorSpec) -> anyhow::Result<Tensor> {
    let dims: Vec<usize> = spec.shape.iter().map(|dim| dim.known().unwrap_or(1)).collect();
    if spec.shape.iter().any(|dim| !matches!(dim, Dim::Known(_))) {
        println!("input {} is open: {} as {dims:?}", spec.name, spec.shape);
    }
    Ok(Tensor::zeros(spec.dtype, &dims)?)
}

fn median(times: &mut [Duration]) -> anyhow::Result<Duration> {
    times.sort_unstable();
    times.get(times.len() / 2).copied().context("no runs")
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn report_memory(moment: &str) -> anyhow::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| -> anyhow::Result<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB"));
        Ok(kib
            .context("no such field in /proc/self/status")?
            .trim()
            .parse::<f64>()?
            / 1024.0)
    };
    println!(
        "{moment}: resident {:.1} MiB (anonymous {:.1}, files {:.1}), peak {:.1}",
        field("VmRSS:")?,
        field("RssAnon:")?,
        field("RssFile:")?,
        field("VmHWM:")?
    );
    Ok(())
}
