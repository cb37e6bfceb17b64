use std::time::{Duration, Instant};

use edgeopt_models::bundle::{MemoryPlan, OutputAccuracy, Precision};
use edgeopt_models::shape_inference::Bindings;
use edgeopt_models::{Bytes, Graph, Model, Tensor, onnx};
use edgeopt_runtime::{Backend, CompileOptions, Engine, ModelSource};
use serde::{Deserialize, Serialize};

use super::{BuildError, Data, Prepared, Progress, Score, Scorer};
use crate::accuracy::{LayerSqnr, compare_parts, rank, worst_output};
use crate::calibrate::SampleInputs;
use crate::plan::{PlanError, activations, bound, memory_plan};
use crate::precision::fp16::simulate;
use crate::precision::int8::KeptNode;

/// One precision of a model with what was measured of it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its precision.
    pub precision: Precision,
    /// The graph.
    pub model: Model,
    /// Layers that stay in a wider type than asked for, and why.
    pub kept: Vec<KeptNode>,
    /// Layers left in float because they cost too much accuracy.
    pub sensitive: Vec<LayerSqnr>,
    /// Things to know that are no errors.
    pub notes: Vec<String>,
    /// Difference from the original per output, once evaluated.
    pub outputs: Vec<OutputAccuracy>,
    /// Samples it was evaluated on.
    pub samples: usize,
    /// The task's metric, once evaluated with labels.
    pub score: Option<Score>,
    /// The same of the original model.
    pub original_score: Option<Score>,
    /// Time of one run on this machine, once measured.
    pub latency: Option<Latency>,
    /// Memory at the planned batch size, once planned.
    pub memory: Option<MemoryPlan>,
    /// Bytes of intermediate values alive while each node runs, once planned.
    pub timeline: Vec<(String, Bytes)>,
}

/// Timing stops after this long, once it has a few runs.
const LONGEST_TIMING: Duration = Duration::from_secs(1);
const LEAST_RUNS: usize = 5;

/// Time of single runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of the runs were faster, milliseconds.
    pub median_ms: f64,
    /// Nine of ten runs were faster, milliseconds.
    pub p90_ms: f64,
    /// Runs measured.
    pub runs: usize,
}

impl Candidate {
    pub(super) fn new(precision: Precision, model: Model) -> Self {
        Self {
            precision,
            model,
            kept: Vec::new(),
            sensitive: Vec::new(),
            notes: Vec::new(),
            outputs: Vec::new(),
            samples: 0,
            score: None,
            original_score: None,
            latency: None,
            memory: None,
            timeline: Vec::new(),
        }
    }

    /// Bytes of all constants, each shared one once.
    pub fn weights(&self) -> Bytes {
        fn constants(graph: &Graph) -> Bytes {
            let own: Bytes = graph
                .initializers
                .values()
                .map(|tensor| Bytes::from(tensor.as_bytes().len()))
                .sum();
            let inner = graph
                .nodes
                .iter()
                .flat_map(|node| node.subgraphs())
                .map(constants);
            own + inner.sum()
        }
        constants(&self.model.graph)
    }

    /// Plans the memory at a batch size. `sample` gives lengths that the model leaves open.
    ///
    /// # Errors
    /// When a size stays unknown.
    pub fn plan(&mut self, batch: usize, sample: Option<&SampleInputs>) -> Result<MemoryPlan, PlanError> {
        let mut bindings = Bindings::default();
        for (input, tensor) in self
            .model
            .graph
            .required_inputs()
            .zip(sample.into_iter().flatten())
        {
            let mut dims = tensor.dims().to_vec();
            let open = input
                .ty
                .shape()
                .is_none_or(|shape| shape.first().is_some_and(|dim| dim.known().is_none()));
            if let (true, Some(first)) = (open, dims.first_mut()) {
                *first = batch;
            }
            bindings.inputs.insert(input.name.to_string(), dims);
        }
        let plan = memory_plan(&self.model, batch, &bindings)?;
        self.timeline = activations(&bound(&self.model, batch, &bindings)?)?.timeline;
        self.memory = Some(plan.clone());
        Ok(plan)
    }

    /// Size of the encoded model.
    ///
    /// # Errors
    /// When it cannot be encoded.
    pub fn encoded(&self) -> Result<Vec<u8>, BuildError> {
        Ok(onnx::write_bytes(&self.model)?)
    }

    /// The worst output's SQNR in dB, once evaluated; −∞ if one is no number.
    pub fn min_sqnr_db(&self) -> Option<f64> {
        worst_output(&self.outputs).map(|output| rank(output.sqnr_db))
    }

    /// The model to judge accuracy by: with half, ONNX Runtime on a CPU would not round every result where it arises.
    ///
    /// # Errors
    /// When the model contradicts itself.
    pub fn judged(&self) -> Result<Model, BuildError> {
        Ok(match self.precision {
            Precision::Fp32 => self.model.clone(),
            Precision::Fp16 | Precision::Int8 => simulate(&self.model)?,
        })
    }

    /// Compares with the original on the evaluation data, output by output and by the task's metric.
    ///
    /// # Errors
    /// When a model cannot be run.
    pub fn evaluate(
        &mut self,
        prepared: &Prepared,
        data: &Data<'_>,
        backend: &dyn Backend,
        progress: &dyn Progress,
    ) -> Result<(), BuildError> {
        let Some(samples) = data.evaluation else {
            return Ok(());
        };
        progress.stage(
            &format!("comparing {}", self.precision),
            Some(data.evaluation_len as u64),
        );
        let judged = self.judged()?;
        let outputs = prepared.original.graph.outputs.iter();
        let outputs = outputs.map(|output| output.name.to_string());
        let mut own = Scorer::new(data.postprocessing, &data.labels, outputs);
        let mut original = own.clone();
        let mut unread = None;
        let comparison = compare_parts(
            &prepared.original,
            &judged,
            samples,
            backend,
            0,
            &data.postprocessing.parts(),
            &mut |sample, expected: &[Tensor], actual: &[Tensor]| {
                if unread.is_none() {
                    let added = original
                        .add(sample, expected)
                        .and_then(|()| own.add(sample, actual));
                    unread = added.err();
                }
                progress.at(sample as u64 + 1);
            },
        )?;
        if let Some(error) = unread {
            return Err(error.into());
        }
        for (output, count) in &comparison.non_finite {
            self.notes
                .push(format!("output {output:?} has {count} infinite or NaN values"));
        }
        self.samples = comparison.samples;
        self.outputs = comparison.outputs;
        self.score = own.score();
        self.original_score = original.score();
        Ok(())
    }

    /// Times single runs on one sample, the way the backend runs the model in earnest. Needs a clock, which is why it
    /// is apart from everything else.
    ///
    /// # Errors
    /// When the model cannot be run.
    pub fn time(
        &mut self,
        inputs: &SampleInputs,
        runs: usize,
        threads: usize,
        backend: &dyn Backend,
    ) -> Result<(), BuildError> {
        let options = CompileOptions {
            threads,
            ..CompileOptions::default()
        };
        let engine = backend.compile(ModelSource::Model(&self.model), &options)?;
        let mut session = Engine::session(engine)?;
        for _ in 0..3 {
            session.run(inputs)?;
        }
        let mut times = Vec::with_capacity(runs);
        let begun = Instant::now();
        while times.len() < runs && (times.len() < LEAST_RUNS || begun.elapsed() < LONGEST_TIMING) {
            let start = Instant::now();
            session.run(inputs)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        let runs = times.len();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| {
            times
                .get((share * (runs.saturating_sub(1)) as f64).round() as usize)
                .copied()
        };
        if let (Some(median_ms), Some(p90_ms)) = (at(0.5), at(0.9)) {
            self.latency = Some(Latency {
                median_ms,
                p90_ms,
                runs,
            });
        }
        Ok(())
    }
}
