use edgeopt_models::bundle::{OutputAccuracy, OutputPart};
use edgeopt_models::{DataType, Model, Tensor};
use edgeopt_runtime::{Backend, CompileOptions, Engine, ModelSource, RuntimeError, Session};

use super::sqnr::{Difference, rank, worst_output};
use crate::calibrate::{SampleError, SampleInputs, Samples};

/// Why two models cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// There is no data.
    #[error("there are no samples to compare on; give at least one")]
    NoSamples,
    /// A sample cannot be read.
    #[error("cannot read sample {sample}: {source}")]
    Sample {
        /// Index of the sample, from 0.
        sample: usize,
        /// Why.
        source: SampleError,
    },
    /// A model cannot be compiled or run.
    #[error("comparing: {0}")]
    Runtime(#[from] RuntimeError),
    /// The models do not match.
    #[error("output {output:?}: {problem}")]
    Output {
        /// The output.
        output: String,
        /// What differs.
        problem: String,
    },
}

/// Is shown each sample's index and the outputs of the reference and of the other model.
pub type Observer<'a> = dyn FnMut(usize, &[Tensor], &[Tensor]) + 'a;

/// What a comparison found.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Samples compared.
    pub samples: usize,
    /// Per output, in the reference's order; the first may be there by its parts.
    pub outputs: Vec<OutputAccuracy>,
    /// Outputs in which values became infinite or NaN, with how many.
    pub non_finite: Vec<(String, u64)>,
}

impl Comparison {
    /// The worst output's SQNR in dB; −∞ if one is no number.
    pub fn min_sqnr_db(&self) -> f64 {
        worst_output(&self.outputs).map_or(f64::INFINITY, |output| rank(output.sqnr_db))
    }
}

/// Runs both models on every sample and compares their outputs of the same name, one sample in memory at a time.
/// The outputs of both are also given to `observe` (index of the sample, reference, other), for task metrics.
/// A quantized model is computed exactly as its Q/DQ graph says.
///
/// # Errors
/// See [`CompareError`].
pub fn compare(
    reference: &Model,
    other: &Model,
    samples: &dyn Samples,
    backend: &dyn Backend,
    threads: usize,
    observe: &mut Observer<'_>,
) -> Result<Comparison, CompareError> {
    compare_parts(reference, other, samples, backend, threads, &[], observe)
}

/// As [`compare`]; `parts` of the first output are compared each by itself, under the output's name and their own.
///
/// # Errors
/// See [`CompareError`].
pub fn compare_parts(
    reference: &Model,
    other: &Model,
    samples: &dyn Samples,
    backend: &dyn Backend,
    threads: usize,
    parts: &[OutputPart],
    observe: &mut Observer<'_>,
) -> Result<Comparison, CompareError> {
    let mut reference = Runner::new(reference, backend, threads)?;
    let mut other = Runner::new(other, backend, threads)?;
    if reference.outputs != other.outputs {
        return Err(CompareError::Output {
            output: reference.outputs.join(", "),
            problem: format!("the other model has the outputs {}", other.outputs.join(", ")),
        });
    }
    let mut compared: Vec<Compared<'_>> = Vec::new();
    for (output, name) in reference.outputs.iter().enumerate() {
        let parts = if output == 0 { parts } else { &[] };
        compared.extend(
            parts
                .iter()
                .map(|part| Compared::new(output, format!("{name} {}", part.name), Some(part))),
        );
        if parts.is_empty() {
            compared.push(Compared::new(output, name.clone(), None));
        }
    }
    let mut count = 0;
    for (sample, item) in open(samples)?.enumerate() {
        let inputs = item.map_err(|source| CompareError::Sample { sample, source })?;
        let expected = reference.run(&inputs)?;
        let actual = other.run(&inputs)?;
        for compared in &mut compared {
            let output = compared.output;
            if let (Some(expected), Some(actual)) = (expected.get(output), actual.get(output)) {
                add(
                    &mut compared.difference,
                    &compared.name,
                    compared.part,
                    expected,
                    actual,
                )?;
            }
        }
        observe(sample, expected, actual);
        count += 1;
    }
    if count == 0 {
        return Err(CompareError::NoSamples);
    }
    let broken = compared
        .iter()
        .filter(|compared| compared.difference.non_finite() > 0);
    Ok(Comparison {
        samples: count,
        outputs: compared
            .iter()
            .map(|compared| compared.difference.summary(&compared.name))
            .collect(),
        non_finite: broken
            .map(|compared| (compared.name.clone(), compared.difference.non_finite()))
            .collect(),
    })
}

/// An output, or a part of one.
struct Compared<'a> {
    output: usize,
    name: String,
    part: Option<&'a OutputPart>,
    difference: Difference,
}

impl<'a> Compared<'a> {
    fn new(output: usize, name: String, part: Option<&'a OutputPart>) -> Self {
        Self {
            output,
            name,
            part,
            difference: Difference::default(),
        }
    }
}

/// Adds each pair of tensors to its difference. Strings are left out.
pub(crate) fn add_all(
    differences: &mut [Difference],
    names: &[String],
    expected: &[Tensor],
    actual: &[Tensor],
) -> Result<(), CompareError> {
    for (((difference, name), expected), actual) in
        differences.iter_mut().zip(names).zip(expected).zip(actual)
    {
        add(difference, name, None, expected, actual)?;
    }
    Ok(())
}

/// Adds a pair of tensors, or a part of them, to its difference. Strings are left out.
fn add(
    difference: &mut Difference,
    name: &str,
    part: Option<&OutputPart>,
    expected: &Tensor,
    actual: &Tensor,
) -> Result<(), CompareError> {
    let problem = |problem: String| CompareError::Output {
        output: name.to_owned(),
        problem,
    };
    let dims = expected.dims();
    if dims != actual.dims() {
        return Err(problem(format!(
            "the shapes are {dims:?} and {:?}",
            actual.dims()
        )));
    }
    if expected.dtype() == DataType::String {
        return Ok(());
    }
    let expected = expected.to_f32().map_err(|error| problem(error.to_string()))?;
    let actual = actual.to_f32().map_err(|error| problem(error.to_string()))?;
    let Some(part) = part else {
        difference.add(&expected, &actual);
        return Ok(());
    };
    let Some(length) = dims
        .get(part.axis)
        .copied()
        .filter(|length| part.places.start < *length)
    else {
        return Err(problem(format!(
            "shape {dims:?} has no such part: declare the task that the model has"
        )));
    };
    let inner: usize = dims.iter().skip(part.axis + 1).product();
    let places = part.places.start * inner..part.places.end.min(length) * inner;
    let block = (length * inner).max(1);
    for (expected, actual) in expected.chunks_exact(block).zip(actual.chunks_exact(block)) {
        if let (Some(expected), Some(actual)) = (expected.get(places.clone()), actual.get(places.clone())) {
            difference.add(expected, actual);
        }
    }
    Ok(())
}

pub(crate) fn open(
    samples: &dyn Samples,
) -> Result<Box<dyn Iterator<Item = Result<SampleInputs, SampleError>> + '_>, CompareError> {
    samples
        .open()
        .map_err(|source| CompareError::Sample { sample: 0, source })
}

/// A compiled model that takes samples in the order of the original's required inputs.
pub(crate) struct Runner {
    session: Box<dyn Session>,
    /// For each input of the engine, its place in a sample.
    places: Vec<usize>,
    pub(crate) outputs: Vec<String>,
}

impl Runner {
    pub(crate) fn new(model: &Model, backend: &dyn Backend, threads: usize) -> Result<Self, RuntimeError> {
        let options = CompileOptions {
            threads,
            exact_quantization: true,
            ..CompileOptions::default()
        };
        let engine = backend.compile(ModelSource::Model(model), &options)?;
        let inputs: Vec<&str> = model.graph.required_inputs().map(|input| &*input.name).collect();
        let places = engine
            .inputs()
            .iter()
            .filter_map(|spec| inputs.iter().position(|name| spec.name == **name));
        Ok(Self {
            places: places.collect(),
            outputs: engine
                .outputs()
                .iter()
                .map(|spec| spec.name.to_string())
                .collect(),
            session: Engine::session(engine)?,
        })
    }

    pub(crate) fn run(&mut self, sample: &[Tensor]) -> Result<&[Tensor], RuntimeError> {
        let inputs: Vec<Tensor> = self
            .places
            .iter()
            .filter_map(|place| sample.get(*place).cloned())
            .collect();
        self.session.run(&inputs)
    }
}
