use std::collections::HashSet;

use edgeopt_models::graph::NameGenerator;
use edgeopt_models::{Bytes, DataType, Model, Node, Tensor, ValueInfo, ValueName, ValueType};
use edgeopt_runtime::{Backend, CompileOptions, Engine, ModelSource, RuntimeError};

/// A copy of `model` (constants shared) whose outputs are exactly `taps`, without the nodes they do not need.
pub fn tapped(model: &Model, taps: &[ValueName]) -> Model {
    let mut copy = model.clone();
    copy.graph.outputs = taps
        .iter()
        .map(|name| ValueInfo {
            name: name.clone(),
            // The element type must be given; all taps of calibration are float.
            ty: model.graph.type_of(name).unwrap_or(ValueType::Tensor {
                dtype: DataType::Float32,
                shape: None,
            }),
            extra: None,
        })
        .collect();
    let mut needed: HashSet<ValueName> = taps.iter().cloned().collect();
    let mut keep = vec![false; copy.graph.nodes.len()];
    for (index, node) in copy.graph.nodes.iter().enumerate().rev() {
        if node.outputs.iter().any(|output| needed.contains(output)) {
            keep[index] = true;
            needed.extend(node.inputs.iter().cloned());
            needed.extend(node.subgraphs().flat_map(edgeopt_models::graph::captured_values));
        }
    }
    copy.graph.remove_nodes(|index| !keep[index]);
    copy.graph.drop_unused_constants();
    copy
}

/// The size of each tap for one sample, found by running the model once with nothing but shapes as outputs.
///
/// # Errors
/// When the model cannot be compiled or run.
pub fn observed_sizes(
    model: &Model,
    taps: &[ValueName],
    backend: &dyn Backend,
    inputs: &[Tensor],
) -> Result<Vec<Bytes>, RuntimeError> {
    let mut names = NameGenerator::new(model);
    let mut probe = model.clone();
    probe.graph.outputs.clear();
    for tap in taps {
        let shape = names.fresh(&format!("{tap}_shape"));
        let node = Node::new("Shape", &names.fresh("shape"), [tap.clone()], [shape.clone()]);
        probe.graph.nodes.push(node);
        let ty = ValueType::Tensor {
            dtype: DataType::Int64,
            shape: None,
        };
        probe.graph.outputs.push(ValueInfo {
            name: shape,
            ty,
            extra: None,
        });
    }
    let options = CompileOptions {
        frugal: true,
        ..CompileOptions::default()
    };
    let engine = backend.compile(ModelSource::Model(&probe), &options)?;
    let mut session = Engine::session(engine)?;
    let sizes = session.run(inputs)?.iter().map(|shape| {
        let dims = shape.to_i64().unwrap_or_default();
        let elements = dims
            .iter()
            .fold(1u64, |n, dim| n.saturating_mul(u64::try_from(*dim).unwrap_or(0)));
        Bytes(elements.saturating_mul(4))
    });
    Ok(sizes.collect())
}

/// Splits taps into runs of neighbours that take at most `limit` together; a larger one stands alone.
pub fn chunks(taps: &[ValueName], sizes: &[Bytes], limit: Bytes) -> Vec<Vec<ValueName>> {
    let mut chunks: Vec<Vec<ValueName>> = Vec::new();
    let mut held = Bytes::ZERO;
    for (tap, size) in taps.iter().zip(sizes) {
        match chunks.last_mut() {
            Some(chunk) if held + *size <= limit => {
                held += *size;
                chunk.push(tap.clone());
            }
            _ => {
                held = *size;
                chunks.push(vec![tap.clone()]);
            }
        }
    }
    chunks
}

/// Sizes from the shapes the graph already knows, if it knows them all.
pub fn known_sizes(model: &Model, taps: &[ValueName]) -> Option<Vec<Bytes>> {
    let size = |name: &ValueName| {
        let elements = model.graph.type_of(name)?.shape()?.elements()?;
        Some(Bytes((elements as u64).saturating_mul(4)))
    };
    taps.iter().map(size).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_stay_below_the_limit_and_keep_every_tap() {
        let taps: Vec<ValueName> = ["a", "b", "c", "d", "e"].map(ValueName::from).into();
        let sizes = [3, 3, 9, 1, 5].map(Bytes);
        assert_eq!(
            format!("{:?}", chunks(&taps, &sizes, Bytes(6))),
            r#"[["a", "b"], ["c"], ["d", "e"]]"#
        );
    }
}
