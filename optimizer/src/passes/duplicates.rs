use std::collections::{HashMap, HashSet};

use edgeopt_models::graph::Uses;
use edgeopt_models::{Graph, Model, ValueName};

use super::{Changes, Context, RANDOM, every_graph};

/// Makes one of standard, deterministic nodes that have the same operator, attributes and inputs.
pub(super) fn merge(model: &mut Model, _: &Context) -> Changes {
    Changes(every_graph(&mut model.graph, &mut in_graph))
}

fn in_graph(graph: &mut Graph) -> usize {
    let uses = Uses::new(graph);
    let mut first: HashMap<(String, Vec<ValueName>), Vec<usize>> = HashMap::new();
    let mut gone = HashSet::new();
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        if !node.domain.is_empty()
            || RANDOM.contains(&node.op_type.as_str())
            || node.subgraphs().next().is_some()
        {
            continue;
        }
        let same = first
            .entry((node.op_type.clone(), node.inputs.clone()))
            .or_default();
        let kept = same.iter().copied().find(|kept| {
            let kept = &graph.nodes[*kept];
            kept.attributes == node.attributes
                && kept.outputs.len() == node.outputs.len()
                && kept
                    .outputs
                    .iter()
                    .zip(&node.outputs)
                    .all(|(a, b)| a.is_omitted() == b.is_omitted())
        });
        // Graph outputs keep their producers; captured values keep their names (see `identities`).
        let movable = node.outputs.iter().all(|output| {
            !graph.is_output(output) && uses.readers(output).iter().all(|reader| reader.input.is_some())
        });
        match kept {
            Some(kept) if movable => {
                let pairs: Vec<_> = node
                    .outputs
                    .iter()
                    .cloned()
                    .zip(graph.nodes[kept].outputs.clone())
                    .filter(|(from, _)| !from.is_omitted())
                    .collect();
                for (from, to) in pairs {
                    graph.replace_reads(&from, &to);
                }
                gone.insert(index);
            }
            Some(_) => {}
            None => same.push(index),
        }
    }
    graph.remove_nodes(|index| gone.contains(&index));
    gone.len()
}
