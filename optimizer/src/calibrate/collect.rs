use edgeopt_models::{Bytes, Model, ValueName};
use edgeopt_runtime::{Backend, CompileOptions, Engine, ModelSource, RuntimeError};
use rayon::prelude::*;

use super::taps::{chunks, known_sizes, observed_sizes, tapped};
use super::{CalibrationTable, Method, SampleError, Samples, Statistics, TensorRange};

/// How to calibrate.
#[derive(Clone, Debug)]
pub struct CalibrationOptions {
    /// How ranges are chosen.
    pub method: Method,
    /// Memory that observed tensors of one sample may take together. With more tensors than fit, the data is
    /// read and the model run again for the next ones.
    pub tap_memory: Bytes,
    /// Threads for the model; 0 = all cores.
    pub threads: usize,
}

impl Default for CalibrationOptions {
    fn default() -> Self {
        Self {
            method: Method::default(),
            tap_memory: Bytes::mib(64),
            threads: 0,
        }
    }
}

/// Why calibration failed.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// There is no data.
    #[error("there are no calibration samples; give at least one (128 typical inputs are a good number)")]
    NoSamples,
    /// A sample cannot be read.
    #[error("cannot read calibration sample {sample}: {source}")]
    Sample {
        /// Index of the sample, from 0.
        sample: usize,
        /// Why.
        source: SampleError,
    },
    /// The model cannot be compiled or run.
    #[error("calibration: {0}")]
    Runtime(#[from] RuntimeError),
    /// Infinity or NaN.
    #[error(
        "tensor {tensor:?} has infinite or NaN values in calibration sample {sample}; check the sample's \
         preprocessing, or leave the sample out"
    )]
    NonFinite {
        /// The tensor.
        tensor: String,
        /// Index of the sample, from 0.
        sample: usize,
    },
    /// Not a float tensor.
    #[error("tensor {tensor:?} is not a float tensor: {source}")]
    Type {
        /// The tensor.
        tensor: String,
        /// What it is.
        source: edgeopt_models::TensorError,
    },
}

/// Runs `model` on every sample and finds the range of each of `tensors`. Memory does not grow with the number
/// of samples. `progress` is told the number of the chunk, the number of chunks, and the sample just done.
///
/// # Errors
/// See [`CalibrationError`].
pub fn calibrate(
    model: &Model,
    tensors: &[ValueName],
    samples: &dyn Samples,
    backend: &dyn Backend,
    options: &CalibrationOptions,
    progress: &mut dyn FnMut(usize, usize, usize),
) -> Result<CalibrationTable, CalibrationError> {
    let mut table = CalibrationTable {
        method: options.method,
        ..CalibrationTable::default()
    };
    if tensors.is_empty() {
        return Ok(table);
    }
    let sizes = match known_sizes(model, tensors) {
        Some(sizes) => sizes,
        None => {
            let first = open(samples)?.next().ok_or(CalibrationError::NoSamples)?;
            let first = first.map_err(|source| CalibrationError::Sample { sample: 0, source })?;
            observed_sizes(model, tensors, backend, &first)?
        }
    };
    let chunks = chunks(tensors, &sizes, options.tap_memory);
    for (index, chunk) in chunks.iter().enumerate() {
        let mut report = |sample| progress(index, chunks.len(), sample);
        table.samples = collect(model, chunk, samples, backend, options, &mut table, &mut report)?;
    }
    Ok(table)
}

fn open(
    samples: &dyn Samples,
) -> Result<Box<dyn Iterator<Item = Result<super::SampleInputs, SampleError>> + '_>, CalibrationError> {
    samples
        .open()
        .map_err(|source| CalibrationError::Sample { sample: 0, source })
}

fn collect(
    model: &Model,
    taps: &[ValueName],
    samples: &dyn Samples,
    backend: &dyn Backend,
    options: &CalibrationOptions,
    table: &mut CalibrationTable,
    progress: &mut dyn FnMut(usize),
) -> Result<u64, CalibrationError> {
    let inputs = model
        .graph
        .required_inputs()
        .map(|input| &input.name)
        .collect::<Vec<_>>();
    let model = tapped(model, taps);
    let compile = CompileOptions {
        threads: options.threads,
        frugal: true,
        ..CompileOptions::default()
    };
    let engine = backend.compile(ModelSource::Model(&model), &compile)?;
    drop(model);
    // Inputs that only other parts of the model read may have gone from the library's view.
    let used: Vec<Option<usize>> = engine
        .inputs()
        .iter()
        .map(|spec| inputs.iter().position(|name| **name == spec.name))
        .collect();
    let mut session = Engine::session(engine)?;
    let mut statistics = vec![Statistics::default(); taps.len()];
    let mut count = 0;
    for (sample, item) in open(samples)?.enumerate() {
        let item = item.map_err(|source| CalibrationError::Sample { sample, source })?;
        let given: Vec<_> = used
            .iter()
            .filter_map(|index| item.get((*index)?).cloned())
            .collect();
        let outputs = session.run(&given)?;
        statistics
            .par_iter_mut()
            .zip(taps)
            .zip(outputs)
            .try_for_each(|((statistics, name), output)| {
                let tensor = || name.to_string();
                let values = output.to_f32().map_err(|source| CalibrationError::Type {
                    tensor: tensor(),
                    source,
                })?;
                let added = statistics.add(&values, output.dims(), options.method);
                added.map_err(|_| CalibrationError::NonFinite {
                    tensor: tensor(),
                    sample,
                })
            })?;
        progress(sample);
        count += 1;
    }
    if count == 0 {
        return Err(CalibrationError::NoSamples);
    }
    let ranges = taps.par_iter().zip(&statistics).map(|(name, statistics)| {
        let seen = statistics.values > 0;
        let range = TensorRange {
            min: if seen { statistics.min } else { 0.0 },
            max: if seen { statistics.max } else { 0.0 },
            threshold: statistics.threshold(options.method),
            channel_means: statistics.channel_means(),
        };
        (name.to_string(), range)
    });
    table.ranges.extend(ranges.collect::<Vec<_>>());
    Ok(count)
}
