use std::collections::HashSet;

use edgeopt_models::graph::Uses;
use edgeopt_models::{Graph, Model, Node};

use super::{Changes, Context, every_graph};

/// Removes `Identity`, inference-time `Dropout` whose mask nobody reads, and `Cast` to the type a value has.
/// A node whose output is a graph output or is captured by a subgraph stays: names of outputs are part of the
/// model, and a subgraph may use the source's name for something else.
pub(super) fn remove(model: &mut Model, _: &Context) -> Changes {
    let opset = model.opset();
    Changes(every_graph(&mut model.graph, &mut |graph| in_graph(graph, opset)))
}

fn in_graph(graph: &mut Graph, opset: i64) -> usize {
    let uses = Uses::new(graph);
    let mut gone = HashSet::new();
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let (Some(from), Some(to)) = (node.output(0).cloned(), node.input(0).cloned()) else {
            continue;
        };
        let direct = uses.readers(&from).iter().all(|reader| reader.input.is_some());
        if direct && !graph.is_output(&from) && passes_through(graph, node, &uses, opset) {
            graph.replace_reads(&from, &to);
            gone.insert(index);
        }
    }
    graph.remove_nodes(|index| gone.contains(&index));
    gone.len()
}

fn passes_through(graph: &Graph, node: &Node, uses: &Uses, opset: i64) -> bool {
    if node.is("Identity") {
        return true;
    }
    if node.is("Dropout") {
        // From operator set 12 on, a third input can switch training on.
        let inference = opset < 12 || node.input(2).is_none();
        return inference && node.output(1).is_none_or(|mask| uses.is_dead(mask));
    }
    if node.is("Cast") {
        let held = node
            .input(0)
            .and_then(|name| graph.type_of(name))
            .and_then(|ty| ty.dtype());
        return held.is_some_and(|dtype| node.int("to") == Some(i64::from(dtype.to_onnx())));
    }
    false
}
