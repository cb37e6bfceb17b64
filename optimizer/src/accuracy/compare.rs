use edgeopt_models::bundle::OutputAccuracy;
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
    /// Per output, in the reference's order.
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
    let mut reference = Runner::new(reference, backend, threads)?;
    let mut other = Runner::new(other, backend, threads)?;
    if reference.outputs != other.outputs {
        return Err(CompareError::Output {
            output: reference.outputs.join(", "),
            problem: format!("the other model has the outputs {}", other.outputs.join(", ")),
        });
    }
    let names = reference.outputs.clone();
    let mut differences = vec![Difference::default(); names.len()];
    let mut count = 0;
    for (sample, item) in open(samples)?.enumerate() {
        let inputs = item.map_err(|source| CompareError::Sample { sample, source })?;
        let expected = reference.run(&inputs)?;
        let actual = other.run(&inputs)?;
        add_all(&mut differences, &names, expected, actual)?;
        observe(sample, expected, actual);
        count += 1;
    }
    if count == 0 {
        return Err(CompareError::NoSamples);
    }
    let named = || names.iter().zip(&differences);
    let broken = named().filter(|(_, difference)| difference.non_finite() > 0);
    Ok(Comparison {
        samples: count,
        outputs: named()
            .map(|(name, difference)| difference.summary(name))
            .collect(),
        non_finite: broken
            .map(|(name, difference)| (name.clone(), difference.non_finite()))
            .collect(),
    })
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
        let problem = |problem: String| CompareError::Output {
            output: name.clone(),
            problem,
        };
        if expected.dims() != actual.dims() {
            return Err(problem(format!(
                "the shapes are {:?} and {:?}",
                expected.dims(),
                actual.dims()
            )));
        }
        if expected.dtype() == DataType::String {
            continue;
        }
        let expected = expected.to_f32().map_err(|error| problem(error.to_string()))?;
        difference.add(
            &expected,
            &actual.to_f32().map_err(|error| problem(error.to_string()))?,
        );
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
