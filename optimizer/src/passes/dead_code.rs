use std::collections::HashSet;

use edgeopt_models::graph::captured_values;
use edgeopt_models::{Graph, Model, ValueName};

use super::{Changes, Context, every_graph};

/// Removes nodes none of whose outputs reach a graph output, and constants nothing reads.
pub(super) fn remove(model: &mut Model, _: &Context) -> Changes {
    Changes(every_graph(&mut model.graph, &mut in_graph))
}

fn in_graph(graph: &mut Graph) -> usize {
    let mut live: HashSet<ValueName> = graph.outputs.iter().map(|output| output.name.clone()).collect();
    let mut dead = vec![false; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        if node
            .outputs
            .iter()
            .any(|output| !output.is_omitted() && live.contains(output))
        {
            live.extend(node.inputs.iter().cloned());
            live.extend(node.subgraphs().flat_map(captured_values));
        } else {
            dead[index] = true;
        }
    }
    graph.remove_nodes(|index| dead[index]);
    dead.iter().filter(|dead| **dead).count() + graph.drop_unused_constants()
}
