use edgeopt_models::{Graph, Node};

/// The elements of an integer constant.
pub(super) fn integers(graph: &Graph, name: &str) -> Option<Vec<i64>> {
    Some(graph.constant(name)?.to_i64().ok()?.into_owned())
}

/// The axes a node names, as attribute or (in later operator sets) as constant input `index`.
pub(super) fn axes(graph: &Graph, node: &Node, index: usize) -> Option<Vec<i64>> {
    match node.ints("axes") {
        Some(axes) => Some(axes.to_vec()),
        None => integers(graph, node.input(index)?),
    }
}
