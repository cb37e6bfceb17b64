//! Names as the rest of the project expects them: unique across scopes, nodes in topological order.

use std::collections::{HashMap, HashSet};

use super::read::{ReadError, invalid};
use crate::graph::NameGenerator;
use crate::{Graph, Model, ValueName};

/// Gives the values of subgraphs that shadow a value of an outer scope, or repeat one of a sibling scope, a
/// name of their own, and sorts the nodes of every graph.
pub(super) fn normalize(model: &mut Model) -> Result<(), ReadError> {
    let mut names = NameGenerator::new(model);
    let mut defined: HashSet<ValueName> = definitions(&model.graph).collect();
    rename_inner(&mut model.graph, &mut defined, &mut names);
    sort(&mut model.graph)
}

pub(super) fn definitions(graph: &Graph) -> impl Iterator<Item = ValueName> + '_ {
    let inputs = graph.inputs.iter().map(|input| &input.name);
    let outputs = graph.nodes.iter().flat_map(|node| &node.outputs);
    inputs
        .chain(graph.initializers.keys())
        .chain(outputs)
        .filter(|name| !name.is_omitted())
        .cloned()
}

pub(super) fn rename_inner(graph: &mut Graph, defined: &mut HashSet<ValueName>, names: &mut NameGenerator) {
    for subgraph in graph.nodes.iter_mut().flat_map(|node| node.subgraphs_mut()) {
        // a name twice in one scope is an error that validation reports: keep it
        let mut seen = HashSet::new();
        let own: Vec<ValueName> = definitions(subgraph)
            .filter(|name| seen.insert(name.clone()))
            .collect();
        let mut renamed = HashMap::new();
        for name in own {
            if !defined.insert(name.clone()) {
                let fresh = names.fresh(&name);
                defined.insert(fresh.clone());
                renamed.insert(name, fresh);
            }
        }
        if !renamed.is_empty() {
            rename(subgraph, &renamed, true);
        }
        rename_inner(subgraph, defined, names);
    }
}

/// Renames values of one scope in `graph`, which is that scope (`own`) or lies within it.
pub(super) fn rename(graph: &mut Graph, renamed: &HashMap<ValueName, ValueName>, own: bool) {
    let mut inner;
    let renamed = if own {
        renamed
    } else {
        inner = renamed.clone();
        for name in definitions(graph) {
            inner.remove(&name);
        }
        if inner.is_empty() {
            return;
        }
        &inner
    };
    let replace = |name: &mut ValueName| {
        if let Some(fresh) = renamed.get(name) {
            *name = fresh.clone();
        }
    };
    for info in graph.inputs.iter_mut().chain(&mut graph.outputs) {
        replace(&mut info.name);
    }
    graph.initializers = std::mem::take(&mut graph.initializers)
        .into_iter()
        .map(|(name, tensor)| (renamed.get(&name).cloned().unwrap_or(name), tensor))
        .collect();
    graph.value_types = std::mem::take(&mut graph.value_types)
        .into_iter()
        .map(|(name, ty)| (renamed.get(&name).cloned().unwrap_or(name), ty))
        .collect();
    for extra in graph.extra.iter_mut() {
        let tensors = extra.initializer.iter_mut().map(|tensor| &mut tensor.name);
        for name in tensors.chain(extra.value_info.iter_mut().map(|info| &mut info.name)) {
            if let Some(fresh) = renamed.get(name.as_str()) {
                *name = fresh.to_string();
            }
        }
        extra.value_info.sort_by(|a, b| a.name.cmp(&b.name));
    }
    for node in &mut graph.nodes {
        node.inputs.iter_mut().chain(&mut node.outputs).for_each(replace);
        for subgraph in node.subgraphs_mut() {
            rename(subgraph, renamed, false);
        }
    }
}

fn sort(graph: &mut Graph) -> Result<(), ReadError> {
    graph
        .sort_topologically()
        .map_err(|error| invalid(format!("graph {:?}", graph.name), error.to_string()))?;
    graph
        .nodes
        .iter_mut()
        .flat_map(|node| node.subgraphs_mut())
        .try_for_each(sort)
}
