//! The engine that a bundle may carry: built by the TensorRT of this machine, under the same limit as the model.

use anyhow::{Context, bail};
use edgeopt_models::Bytes;
use edgeopt_models::bundle::{Manifest, Member, MemoryPlan};
use edgeopt_runtime::MemoryUse;
use edgeopt_runtime::backends::tensorrt::{
    BUILD_FLOOR, BuildEvents, BuildLimits, EngineOptions, Library, MemoryWatch, Places, Product, StopRequest,
    Stoppable, TensorRtError, build_engine, plan_file, ranges,
};
use edgeopt_runtime::memory::{Budget, available};
use indicatif::ProgressBar;

use super::scratch::Scratch;
use crate::screen::Screen;

/// Which TensorRT builds the engine.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum EngineArgument {
    /// TensorRT, of JetPack.
    Tensorrt,
    /// TensorRT-RTX, which needs no GPU to build.
    TensorrtRtx,
}

/// What was asked for.
pub(super) struct Asked {
    pub(super) builder: EngineArgument,
    pub(super) level: Option<u8>,
    pub(super) memory: Option<Bytes>,
}

/// Builds the engine and gives the bundle's member for it.
pub(super) fn member(
    asked: &Asked,
    onnx: &[u8],
    manifest: &Manifest,
    scratch: &Scratch,
    screen: &Screen,
) -> anyhow::Result<(String, Member)> {
    let product = match asked.builder {
        EngineArgument::Tensorrt => Product::TensorRt,
        EngineArgument::TensorrtRtx => Product::Rtx,
    };
    let library = Library::find(Some(product), &Places::usual())?;
    let plan = manifest.memory.iter().max_by_key(|plan| plan.batch);
    let limits = match (asked.memory, plan) {
        (Some(memory), Some(plan)) => BuildLimits::derive(&manifest.name, memory, plan, None)?,
        _ => BuildLimits::default(),
    };
    let options = EngineOptions {
        precision: Some(manifest.precision),
        limits,
        ranges: ranges(&manifest.inputs)?,
        optimization_level: asked.level,
        ..EngineOptions::default()
    };
    let stop = StopRequest::default();
    let interruptible = scratch.interrupts(stop.clone());
    let _watch = MemoryWatch::start(BUILD_FLOOR, stop.clone(), available);
    let what = format!("building with {}", library.identity);
    let bar = screen.bar(&what, None);
    let shown = Shown {
        bar: &bar,
        what: &what,
    };
    let built = build_engine(&library, onnx, &options, &Stoppable::new(&shown, stop))
        .map_err(|error| with_parts(error, asked.memory, plan))
        .context("no engine was built, and no bundle written")?;
    drop(interruptible);
    bar.finish_and_clear();
    // What the builder kept to while it chose is scratch memory; what the engine takes in all is known only now.
    if let (Some(limit), Some(takes)) = (asked.memory, built.memory) {
        let io = manifest
            .memory
            .iter()
            .map(|plan| plan.io)
            .max()
            .unwrap_or(Bytes::ZERO);
        let needs = MemoryUse { io, ..takes };
        if let Err(error) = Budget::new(limit).reserve(&format!("{} as an engine", manifest.name), needs) {
            return Err(error
                .with_would_fit("without --engine the model's own plan fits")
                .into());
        }
    }
    let target = match product {
        Product::Rtx => "portable".to_owned(),
        // Built where it runs: the plan itself knows its GPU, the name tells it to people.
        Product::TensorRt => match edgeopt_runtime::backends::tensorrt::gpu() {
            Ok(gpu) => gpu,
            Err(problem) => bail!("the GPU that the engine is for cannot be told: {problem}"),
        },
    };
    let key = plan_file::EngineKey::for_build(onnx, library.identity.to_string(), target.clone(), &options)?;
    let (major, minor, _) = library.identity.version;
    let name = match product {
        Product::TensorRt => "tensorrt",
        Product::Rtx => "tensorrt-rtx",
    };
    Ok((
        format!("engines/{name}-{major}.{minor}-{target}.plan"),
        Member::Data(plan_file::encode(&key, &built.plan)?),
    ))
}

/// The same error with what the limit went into.
fn with_parts(error: TensorRtError, limit: Option<Bytes>, plan: Option<&MemoryPlan>) -> TensorRtError {
    match (error, limit, plan) {
        (TensorRtError::Workspace { layer, workspace, .. }, Some(limit), Some(plan)) => {
            TensorRtError::Workspace {
                layer,
                workspace,
                detail: format!(
                    "; of the limit {limit}, weights take {}, activations {}, inputs and outputs {}",
                    plan.weights, plan.activations, plan.io
                ),
            }
        }
        (error, ..) => error,
    }
}

/// The builder's innermost phase beside the bar's own text.
struct Shown<'a> {
    bar: &'a ProgressBar,
    what: &'a str,
}

impl BuildEvents for Shown<'_> {
    fn phase_begins(&self, phase: &str, _: Option<&str>, steps: u32) {
        self.bar
            .set_message(format!("{}: {phase} ({steps} steps)", self.what));
    }

    fn step_done(&self, _: &str, _: u32) -> bool {
        true
    }

    fn phase_ends(&self, _: &str) {
        self.bar.set_message(self.what.to_owned());
    }
}
