use std::collections::HashSet;

use edgeopt_models::graph::NameGenerator;
use edgeopt_models::{DataType, Graph, Model, Node, Tensor, ValueInfo, ValueName, ValueType};
use edgeopt_runtime::{Backend, CompileOptions, Engine, ModelSource};

use super::statistics::Statistics;
use super::taps::tapped;
use super::{CalibrationError, CalibrationTable, Method, Samples, TensorRange};

/// What to find out about a model's tensors in one pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watched<'a> {
    /// Tensors whose range is to be represented, as [`Method::MinMax`] calibrates: a value that is not finite is an error,
    /// and means along axis 1 are found, too.
    pub calibrated: &'a [ValueName],
    /// Tensors of which only the extremes are of interest, infinite values included.
    pub others: &'a [ValueName],
}

/// Finds the smallest and largest value of tensors: the model reduces them itself, so that one pass over the data and a
/// few numbers per sample are enough for any number of tensors. `progress` is told the sample just done.
///
/// # Errors
/// See [`CalibrationError`].
pub fn extremes(
    model: &Model,
    watched: Watched<'_>,
    samples: &dyn Samples,
    backend: &dyn Backend,
    threads: usize,
    progress: &mut dyn FnMut(usize),
) -> Result<CalibrationTable, CalibrationError> {
    let mut table = CalibrationTable {
        method: Method::MinMax,
        ..CalibrationTable::default()
    };
    let calibrated = watched.calibrated.iter().map(|name| (name, true));
    let others = watched.others.iter().map(|name| (name, false));
    let tensors: Vec<(&ValueName, bool)> = calibrated.chain(others).collect();
    if tensors.is_empty() {
        return Ok(table);
    }
    let inputs: Vec<&ValueName> = model.graph.required_inputs().map(|input| &input.name).collect();
    let options = CompileOptions {
        threads,
        frugal: true,
        many_runs: true,
        ..CompileOptions::default()
    };
    let (reduced, mut found) = reducing(model, &tensors);
    let engine = backend.compile(ModelSource::Model(&reduced), &options)?;
    drop(reduced);
    // Inputs that only other parts of the model read may have gone from the library's view.
    let places: Vec<Option<usize>> = engine
        .inputs()
        .iter()
        .map(|spec| inputs.iter().position(|name| **name == spec.name))
        .collect();
    let mut session = Engine::session(engine)?;
    let opened = samples
        .open()
        .map_err(|source| CalibrationError::Sample { sample: 0, source })?;
    for (sample, item) in opened.enumerate() {
        let item = item.map_err(|source| CalibrationError::Sample { sample, source })?;
        let given: Vec<Tensor> = places
            .iter()
            .filter_map(|place| item.get((*place)?).cloned())
            .collect();
        let mut outputs = session.run(&given)?.iter();
        for found in &mut found {
            found.add(&mut outputs, sample)?;
        }
        table.samples += 1;
        progress(sample);
    }
    if table.samples == 0 {
        return Err(CalibrationError::NoSamples);
    }
    table.ranges.extend(
        found
            .into_iter()
            .map(|found| (found.name.to_string(), found.range())),
    );
    Ok(table)
}

/// What is known of a tensor so far.
struct Found {
    name: ValueName,
    min: f32,
    max: f32,
    /// Of those that are calibrated.
    statistics: Option<Statistics>,
    /// Whether the sums are along axis 1.
    by_channel: bool,
    /// Whether the model leaves the smallest value out.
    never_negative: bool,
}

impl Found {
    /// Takes its numbers from the outputs of a run.
    fn add<'a>(
        &mut self,
        outputs: &mut impl Iterator<Item = &'a Tensor>,
        sample: usize,
    ) -> Result<(), CalibrationError> {
        let fail = |source| CalibrationError::Type {
            tensor: self.name.to_string(),
            source,
        };
        let mut fold = |pick: fn(f32, f32) -> f32| -> Result<f32, CalibrationError> {
            let values = outputs.next().map(Tensor::to_f32).transpose().map_err(fail)?;
            let values = values.as_deref().unwrap_or_default();
            Ok(values.iter().copied().reduce(pick).unwrap_or(0.0))
        };
        let min = if self.never_negative { 0.0 } else { fold(lowest)? };
        let max = fold(|a, b| -lowest(-a, -b))?;
        self.min = lowest(self.min, min);
        self.max = -lowest(-self.max, -max);
        let Some(statistics) = &mut self.statistics else {
            return Ok(());
        };
        let size = outputs.next().map(Tensor::to_i64).transpose().map_err(fail)?;
        let size = size.and_then(|size| size.first().copied()).unwrap_or(0);
        let sums = outputs.next().map(Tensor::to_f32).transpose().map_err(fail)?;
        let sums = sums.as_deref().unwrap_or_default();
        // Libraries may pass over NaN when they look for extremes; a sum shows it.
        if !min.is_finite() || !max.is_finite() || sums.iter().any(|sum| !sum.is_finite()) {
            return Err(CalibrationError::NonFinite {
                tensor: self.name.to_string(),
                sample,
            });
        }
        let sums = self.by_channel.then_some(sums);
        statistics.add_reduced(min, max, u64::try_from(size).unwrap_or(0), sums);
        Ok(())
    }

    fn range(self) -> TensorRange {
        match self.statistics {
            Some(statistics) if statistics.values > 0 => TensorRange {
                min: statistics.min,
                max: statistics.max,
                threshold: statistics.threshold(Method::MinMax),
                channel_means: statistics.channel_means(),
            },
            Some(_) => TensorRange {
                min: 0.0,
                max: 0.0,
                threshold: 0.0,
                channel_means: None,
            },
            None => TensorRange {
                min: self.min,
                max: self.max,
                threshold: self.max.max(-self.min),
                channel_means: None,
            },
        }
    }
}

/// The lower of two, or NaN if there is one.
fn lowest(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        f32::NAN
    } else {
        a.min(b)
    }
}

/// The model with each tensor's minimum and maximum as its outputs, followed for those that are calibrated by the number of
/// elements and their sum, along axis 1 where there is one.
fn reducing(model: &Model, tensors: &[(&ValueName, bool)]) -> (Model, Vec<Found>) {
    let mut names = NameGenerator::new(model);
    let taps: Vec<ValueName> = tensors.iter().map(|(name, _)| (*name).clone()).collect();
    let mut reduced = tapped(model, &taps);
    reduced.graph.outputs.clear();
    let zero = names.fresh("zero");
    reduced
        .graph
        .add_initializer(zero.clone(), Tensor::vector(&[0f32]));
    let rectified = rectified(&model.graph);
    let mut found = Vec::with_capacity(tensors.len());
    for (tensor, calibrated) in tensors {
        let ty = reduced.graph.type_of(tensor);
        let shape = ty.as_ref().and_then(|ty| ty.shape());
        let known = shape
            .and_then(|shape| shape.elements())
            .is_some_and(|elements| elements > 0);
        let rank = shape.map(|shape| shape.len()).filter(|rank| *rank >= 2);
        let read = if known {
            (*tensor).clone()
        } else {
            // Of no elements there is no extreme; one more that does not matter for ranges makes sure of one.
            padded(&mut reduced, &mut names, tensor, &zero)
        };
        // Channel by channel where there are channels: libraries share the work among threads by results.
        let axes = rank.filter(|_| known || *calibrated).map(|rank| {
            let axes: Vec<i64> = (0..rank as i64).filter(|axis| *axis != 1).collect();
            let name = names.fresh("axes");
            reduced.graph.add_initializer(name.clone(), Tensor::vector(&axes));
            name
        });
        let never_negative = rectified.contains(*tensor);
        for op in ["ReduceMin", "ReduceMax"] {
            if op == "ReduceMin" && never_negative {
                continue;
            }
            let mut inputs = vec![read.clone()];
            inputs.extend(axes.clone().filter(|_| known));
            output(&mut reduced, &mut names, op, &inputs);
        }
        if *calibrated {
            output(&mut reduced, &mut names, "Size", std::slice::from_ref(*tensor));
            let mut inputs = vec![(*tensor).clone()];
            inputs.extend(axes);
            output(&mut reduced, &mut names, "ReduceSum", &inputs);
        }
        found.push(Found {
            name: (*tensor).clone(),
            min: f32::INFINITY,
            max: f32::NEG_INFINITY,
            statistics: calibrated.then(Statistics::default),
            by_channel: rank.is_some(),
            never_negative,
        });
    }
    reduced.graph.drop_unused_constants();
    (reduced, found)
}

/// What Relu gives. Zero then stands for the smallest value, which every range includes anyway: looking for it would take a
/// tenth of the time of a run.
fn rectified(graph: &Graph) -> HashSet<ValueName> {
    let relus = graph.nodes.iter().filter(|node| node.is("Relu"));
    relus.flat_map(|node| node.outputs.iter().cloned()).collect()
}

/// Adds a node whose result is an output of the model.
fn output(model: &mut Model, names: &mut NameGenerator, op: &str, inputs: &[ValueName]) {
    let (name, result) = (names.fresh(op), names.fresh(op));
    let node = Node::new(op, &name, inputs.iter().cloned(), [result.clone()]);
    let (node, dtype) = match op {
        "Size" => (node, DataType::Int64),
        _ => (node.with("keepdims", 0i64), DataType::Float32),
    };
    model.graph.nodes.push(node);
    let ty = ValueType::Tensor { dtype, shape: None };
    model.graph.outputs.push(ValueInfo {
        name: result,
        ty,
        extra: None,
    });
}

/// The elements of `tensor` in one row, with a zero behind them.
fn padded(model: &mut Model, names: &mut NameGenerator, tensor: &ValueName, zero: &ValueName) -> ValueName {
    let lengths = names.fresh("row");
    model
        .graph
        .add_initializer(lengths.clone(), Tensor::vector(&[-1i64]));
    let (row, longer) = (names.fresh("row"), names.fresh("row"));
    let nodes = [
        Node::new(
            "Reshape",
            &names.fresh("row"),
            [tensor.clone(), lengths],
            [row.clone()],
        ),
        Node::new(
            "Concat",
            &names.fresh("row"),
            [row, zero.clone()],
            [longer.clone()],
        )
        .with("axis", 0i64),
    ];
    model.graph.nodes.extend(nodes);
    longer
}
