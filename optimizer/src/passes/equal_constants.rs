use std::collections::HashMap;

use edgeopt_models::graph::Uses;
use edgeopt_models::{DataType, Graph, Model, Tensor, ValueName};

use super::{Changes, Context, every_graph};

/// Makes one of initializers of a graph that have the same type, lengths and elements. Names that are graph
/// inputs or outputs, or that subgraphs read, stay.
pub(super) fn merge(model: &mut Model, _: &Context) -> Changes {
    Changes(every_graph(&mut model.graph, &mut in_graph))
}

/// Type, lengths and first bytes.
type Head<'a> = (DataType, &'a [usize], &'a [u8]);

fn in_graph(graph: &mut Graph) -> usize {
    let uses = Uses::new(graph);
    // Lengths and the first bytes tell most apart; only what they do not is compared in full.
    let mut alike: HashMap<Head, Vec<(&ValueName, &Tensor)>> = HashMap::new();
    let mut merged: HashMap<ValueName, ValueName> = HashMap::new();
    for (name, tensor) in &graph.initializers {
        let captured = uses.readers(name).iter().any(|reader| reader.input.is_none());
        if graph.is_input(name) || graph.is_output(name) || captured {
            continue;
        }
        let bytes = match tensor.as_strings() {
            Some(strings) => strings.first().map_or(&[][..], Vec::as_slice),
            None => tensor.as_bytes(),
        };
        let head = bytes.get(..64).unwrap_or(bytes);
        let group = alike.entry((tensor.dtype(), tensor.dims(), head)).or_default();
        match group.iter().find(|(_, kept)| same_bits(kept, tensor)) {
            Some((kept, _)) => {
                merged.insert(name.clone(), (*kept).clone());
            }
            None => group.push((name, tensor)),
        }
    }
    if merged.is_empty() {
        return 0;
    }
    for input in graph.nodes.iter_mut().flat_map(|node| &mut node.inputs) {
        if let Some(kept) = merged.get(input) {
            *input = kept.clone();
        }
    }
    graph.initializers.retain(|name, _| !merged.contains_key(name));
    merged.len()
}

/// Equality of bits: -0 is not 0, and a NaN is itself.
fn same_bits(a: &Tensor, b: &Tensor) -> bool {
    match (a.as_strings(), b.as_strings()) {
        (Some(a), Some(b)) => a == b,
        _ => a.as_bytes() == b.as_bytes(),
    }
}
