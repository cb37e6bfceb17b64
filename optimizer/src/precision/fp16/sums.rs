use edgeopt_models::{Graph, Node};

/// Most elements a half reduction may add up: beyond it, sums overflow or lose their small terms.
const LONGEST_SUM: usize = 1024;

/// Whether the reduction adds up few enough elements.
pub(super) fn is_short(node: &Node, graph: &Graph) -> bool {
    let (Some(input), Some(output)) = (node.input(0), node.output(0)) else {
        return false;
    };
    let elements = |name: &str| graph.type_of(name)?.shape()?.elements();
    // The batch may be open: compare the lengths that are known on both sides.
    let known = || {
        let (before, after) = (graph.type_of(input)?, graph.type_of(output)?);
        let (before, after) = (before.shape()?, after.shape()?);
        if before.len() != after.len() {
            return None;
        }
        before
            .iter()
            .zip(after.iter())
            .try_fold(1usize, |product, (a, b)| {
                if a == b {
                    Some(product)
                } else {
                    product.checked_mul(a.known()?)
                }
            })
    };
    let count = match (elements(input), elements(output)) {
        (Some(before), Some(after)) if after > 0 => Some(before / after),
        _ => known(),
    };
    count.is_some_and(|count| count <= LONGEST_SUM)
}
