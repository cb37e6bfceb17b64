//! The whole way from a float model to one that is ready to be packed: prepare, change precision, compare.
//!
//! Everything that touches the world (files, clock, vendor libraries) comes in from outside: a [`Backend`], samples,
//! and a [`Progress`] to tell.

mod candidate;
mod error;
mod precisions;
mod prepare;
mod scoring;

use std::collections::HashSet;

use edgeopt_models::bundle::{Postprocessing, Precision};
use edgeopt_models::{Bytes, Model, ValueName};
use edgeopt_runtime::Backend;

pub use candidate::{Candidate, Latency};
pub use error::BuildError;
pub use prepare::{PassCount, Prepared, prepare};
pub use scoring::{LEAST_SCORE, Label, OtherMetric, Score, Scorer};

use crate::calibrate::{CalibrationOptions, CalibrationTable, Method, Samples, Watched, calibrate, extremes};
use crate::precision::fp16::{Fp16Options, values_to_watch};
use crate::precision::int8::{Int8Options, Placement, tensors_to_calibrate};

/// What to build.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// Precision of the result.
    pub precision: Precision,
    /// How ranges of activations are chosen.
    pub method: Method,
    /// Memory that observed tensors may take while calibrating.
    pub tap_memory: Bytes,
    /// Which nodes may compute in half.
    pub fp16: Fp16Options,
    /// How INT8 is placed.
    pub int8: Int8Options,
    /// What an INT8 build does with the layers that are not quantized: half precision where that is safe, or float32. In
    /// half, GPUs need no conversions between the layers and half the memory; CPUs compute half in float32 and lose time.
    pub half_rest: bool,
    /// Leave sensitive layers in float until every output reaches this SQNR in dB.
    pub min_sqnr_db: Option<f64>,
    /// Models the search for sensitive layers may try.
    pub max_tries: usize,
    /// Threads; 0 = all cores.
    pub threads: usize,
    /// Runs timed for each candidate; 0 = do not time.
    pub timed_runs: usize,
}

impl BuildOptions {
    /// The defaults for a precision.
    pub fn new(precision: Precision) -> Self {
        let calibration = CalibrationOptions::default();
        let int8 = Int8Options::default();
        Self {
            precision,
            method: calibration.method,
            tap_memory: calibration.tap_memory,
            fp16: Fp16Options::default(),
            half_rest: int8.placement == Placement::TensorRt,
            int8,
            min_sqnr_db: None,
            max_tries: 8,
            threads: 0,
            timed_runs: 30,
        }
    }
}

/// Told what is going on, for progress bars.
pub trait Progress {
    /// A stage begins; `steps` is how many steps it has, if that is known.
    fn stage(&self, name: &str, steps: Option<u64>);
    /// So many steps of the stage are done.
    fn at(&self, step: u64);
}

/// Data to build with.
pub struct Data<'a> {
    /// Typical inputs, for ranges. Needed for INT8; with them, FP16 leaves values that half cannot hold in float32.
    pub calibration: Option<&'a dyn Samples>,
    /// How many calibration samples there are.
    pub calibration_len: usize,
    /// Inputs to compare on, not seen in calibration if possible.
    pub evaluation: Option<&'a dyn Samples>,
    /// How many evaluation samples there are.
    pub evaluation_len: usize,
    /// What the evaluation samples show, in their order; `None` where there is no label.
    pub labels: Vec<Option<Label>>,
    /// What the outputs mean.
    pub postprocessing: &'a Postprocessing,
}

/// Makes one model of the requested precision from a prepared float model.
///
/// # Errors
/// When data is missing, or a step fails; see [`BuildError`].
pub fn make(
    prepared: &Prepared,
    options: &BuildOptions,
    data: &Data<'_>,
    backend: &dyn Backend,
    progress: &dyn Progress,
) -> Result<Candidate, BuildError> {
    match options.precision {
        Precision::Fp32 => Ok(Candidate::new(Precision::Fp32, prepared.model.clone())),
        Precision::Fp16 => precisions::fp16(prepared, options, data, backend, progress),
        Precision::Int8 => {
            let samples = data.calibration.ok_or(BuildError::NoCalibrationData)?;
            let table = calibration(
                &prepared.model,
                options,
                samples,
                data.calibration_len,
                backend,
                progress,
            )?;
            precisions::int8(prepared, options, &table, data, backend, progress)
        }
    }
}

fn calibration(
    model: &Model,
    options: &BuildOptions,
    samples: &dyn Samples,
    len: usize,
    backend: &dyn Backend,
    progress: &dyn Progress,
) -> Result<CalibrationTable, BuildError> {
    let tensors = tensors_to_calibrate(model, &options.int8)?;
    if options.method == Method::MinMax {
        // What the model can reduce itself takes one pass, with what FP16 wants to know.
        let mut others = match options.half_rest {
            true => values_to_watch(model, &options.fp16)?,
            false => Vec::new(),
        };
        let known: HashSet<&ValueName> = tensors.iter().collect();
        others.retain(|name| !known.contains(name));
        let watched = Watched {
            calibrated: &tensors,
            others: &others,
        };
        progress.stage("calibrating", Some(len as u64));
        let mut at = |sample: usize| progress.at(sample as u64 + 1);
        return Ok(extremes(
            model,
            watched,
            samples,
            backend,
            options.threads,
            &mut at,
        )?);
    }
    let settings = CalibrationOptions {
        method: options.method,
        tap_memory: options.tap_memory,
        threads: options.threads,
    };
    progress.stage("calibrating", None);
    let mut announced = false;
    let table = calibrate(
        model,
        &tensors,
        samples,
        backend,
        &settings,
        &mut |chunk, chunks, sample| {
            if !announced {
                progress.stage("calibrating", Some((chunks * len) as u64));
                announced = true;
            }
            progress.at((chunk * len + sample + 1) as u64);
        },
    )?;
    Ok(table)
}
