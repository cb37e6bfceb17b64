use edgeopt_models::graph::NameGenerator;
use edgeopt_models::{DataType, Model, Node, Shape, Tensor, ValueInfo, ValueName};
use edgeopt_runtime::{Backend, CompileOptions, Engine, ModelSource};

use super::taps::tapped;
use super::{CalibrationError, CalibrationTable, Method, Samples, TensorRange};

/// Finds the smallest and largest value of each of `tensors`, and nothing more: the model reduces them itself, so that
/// one pass over the data and a few numbers per sample are enough for any number of tensors. Infinite values count as
/// they are. `progress` is told the sample just done.
///
/// # Errors
/// See [`CalibrationError`].
pub fn extremes(
    model: &Model,
    tensors: &[ValueName],
    samples: &dyn Samples,
    backend: &dyn Backend,
    threads: usize,
    progress: &mut dyn FnMut(usize),
) -> Result<CalibrationTable, CalibrationError> {
    let mut table = CalibrationTable {
        method: Method::MinMax,
        ..CalibrationTable::default()
    };
    if tensors.is_empty() {
        return Ok(table);
    }
    let inputs: Vec<&ValueName> = model.graph.required_inputs().map(|input| &input.name).collect();
    let options = CompileOptions {
        threads,
        frugal: true,
        ..CompileOptions::default()
    };
    let reduced = reducing(model, tensors);
    let engine = backend.compile(ModelSource::Model(&reduced), &options)?;
    drop(reduced);
    // Inputs that only other parts of the model read may have gone from the library's view.
    let places: Vec<Option<usize>> = engine
        .inputs()
        .iter()
        .map(|spec| inputs.iter().position(|name| **name == spec.name))
        .collect();
    let mut session = Engine::session(engine)?;
    let mut found = vec![(f32::INFINITY, f32::NEG_INFINITY); tensors.len()];
    let opened = samples
        .open()
        .map_err(|source| CalibrationError::Sample { sample: 0, source })?;
    for (sample, item) in opened.enumerate() {
        let item = item.map_err(|source| CalibrationError::Sample { sample, source })?;
        let given: Vec<Tensor> = places
            .iter()
            .filter_map(|place| item.get((*place)?).cloned())
            .collect();
        let outputs = session.run(&given)?;
        for ((range, name), output) in found.iter_mut().zip(tensors).zip(outputs.chunks(2)) {
            for (index, output) in output.iter().enumerate() {
                let value = output.to_f32().map_err(|source| CalibrationError::Type {
                    tensor: name.to_string(),
                    source,
                })?;
                for value in value.iter() {
                    if index == 0 {
                        range.0 = lowest(range.0, *value);
                    } else {
                        range.1 = -lowest(-range.1, -value);
                    }
                }
            }
        }
        table.samples += 1;
        progress(sample);
    }
    if table.samples == 0 {
        return Err(CalibrationError::NoSamples);
    }
    let ranges = tensors.iter().zip(found).map(|(name, (min, max))| {
        let range = TensorRange {
            min,
            max,
            threshold: max.max(-min),
            channel_means: None,
        };
        (name.to_string(), range)
    });
    table.ranges.extend(ranges);
    Ok(table)
}

/// The lower of two, or NaN if there is one.
fn lowest(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        f32::NAN
    } else {
        a.min(b)
    }
}

/// The model with the minimum and the maximum of each tensor as its outputs.
fn reducing(model: &Model, tensors: &[ValueName]) -> Model {
    let mut names = NameGenerator::new(model);
    let mut reduced = tapped(model, tensors);
    reduced.graph.outputs.clear();
    let zero = names.fresh("zero");
    reduced
        .graph
        .add_initializer(zero.clone(), Tensor::vector(&[0f32]));
    for tensor in tensors {
        let known = reduced
            .graph
            .type_of(tensor)
            .and_then(|ty| ty.shape()?.elements())
            .is_some_and(|elements| elements > 0);
        let read = if known {
            tensor.clone()
        } else {
            // Of no elements there is no extreme; one more that does not matter for ranges makes sure of one.
            padded(&mut reduced, &mut names, tensor, &zero)
        };
        for op in ["ReduceMin", "ReduceMax"] {
            let output = names.fresh(&format!("{tensor}_{op}"));
            let node =
                Node::new(op, &names.fresh(op), [read.clone()], [output.clone()]).with("keepdims", 0i64);
            reduced.graph.nodes.push(node);
            reduced
                .graph
                .outputs
                .push(ValueInfo::tensor(output, DataType::Float32, Shape::default()));
        }
    }
    reduced.graph.drop_unused_constants();
    reduced
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
