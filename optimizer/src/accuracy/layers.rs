use edgeopt_models::{Bytes, Model, ValueName};
use edgeopt_runtime::Backend;
use serde::{Deserialize, Serialize};

use super::compare::{Runner, add_all, open};
use super::{CompareError, Difference};
use crate::calibrate::Samples;
use crate::calibrate::taps::{chunks, known_sizes, observed_sizes, tapped};

/// How close a layer's output is to the float model's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerSqnr {
    /// The node.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// Its first output.
    pub tensor: String,
    /// Signal to quantization noise ratio in dB, at most [`super::EXACT_DB`].
    pub sqnr_db: f64,
}

/// Compares the outputs of weighted layers (Conv, ConvTranspose, Gemm, MatMul) and Adds that both models name
/// alike, in the reference's order; the errors of the layers before are included. The observed tensors of one
/// sample take at most `tap_memory` in each model; with more, the samples are run again for the next ones.
///
/// # Errors
/// See [`CompareError`].
pub fn layer_sqnr(
    reference: &Model,
    other: &Model,
    samples: &dyn Samples,
    backend: &dyn Backend,
    tap_memory: Bytes,
) -> Result<Vec<LayerSqnr>, CompareError> {
    const OPERATORS: [&str; 5] = ["Conv", "ConvTranspose", "Gemm", "MatMul", "Add"];
    let float = |name: &str| {
        reference
            .graph
            .type_of(name)
            .and_then(|ty| ty.dtype())
            .is_none_or(|ty| ty.is_float())
    };
    let nodes = reference
        .graph
        .nodes
        .iter()
        .filter(|node| OPERATORS.iter().any(|op| node.is(op)));
    let layers: Vec<_> = nodes
        .filter_map(|node| Some((node, node.output(0)?)))
        .filter(|(_, output)| float(output) && other.graph.producer(output).is_some())
        .collect();
    let taps: Vec<ValueName> = layers.iter().map(|(_, output)| (*output).clone()).collect();
    if taps.is_empty() {
        return Ok(Vec::new());
    }
    let sizes = match known_sizes(reference, &taps) {
        Some(sizes) => sizes,
        None => {
            let first = open(samples)?.next().ok_or(CompareError::NoSamples)?;
            let first = first.map_err(|source| CompareError::Sample { sample: 0, source })?;
            observed_sizes(reference, &taps, backend, &first)?
        }
    };
    let mut differences = Vec::with_capacity(taps.len());
    for chunk in chunks(&taps, &sizes, tap_memory) {
        let mut first = Runner::new(&tapped(reference, &chunk), backend, 0)?;
        let mut second = Runner::new(&tapped(other, &chunk), backend, 0)?;
        let names: Vec<String> = chunk.iter().map(ToString::to_string).collect();
        let mut found = vec![Difference::default(); chunk.len()];
        for (sample, item) in open(samples)?.enumerate() {
            let inputs = item.map_err(|source| CompareError::Sample { sample, source })?;
            let (expected, actual) = (first.run(&inputs)?, second.run(&inputs)?);
            add_all(&mut found, &names, expected, actual)?;
        }
        differences.extend(found);
    }
    let table = layers
        .iter()
        .zip(&differences)
        .map(|((node, output), difference)| LayerSqnr {
            node: node.name.clone(),
            op: node.op_type.clone(),
            tensor: output.to_string(),
            sqnr_db: difference.sqnr_db(),
        });
    Ok(table.collect())
}
