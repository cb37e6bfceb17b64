//! The plan of one graph's intermediate values.

use edgeopt_models::{Bytes, Graph, Model, ValueName};

use super::arena::{Interval, place};
use super::buffers::{Buffer, buffers};
use super::order::{greedy, lifetimes, live};
use super::{ALIGNMENT, PlanError};

/// Where every intermediate value lies, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivationPlan {
    /// Size of the arena.
    pub peak: Bytes,
    /// What no placement can go below in this order: the most that lives at one step.
    pub lower_bound: Bytes,
    /// One for every buffer of the main graph; values that are views of another have none of their own.
    pub placements: Vec<Placement>,
    /// Every node of the main graph in order, with the bytes live while it runs (subgraphs included).
    pub timeline: Vec<(String, Bytes)>,
    /// Indices into the graph's nodes, in the order of the plan.
    pub order: Vec<usize>,
}

/// A piece of the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The value.
    pub name: ValueName,
    /// Where it begins in the arena.
    pub offset: Bytes,
    /// Bytes, rounded up to [`ALIGNMENT`].
    pub size: Bytes,
    /// Position in the order of the node that makes it.
    pub first: usize,
    /// Position in the order of the last node that reads it; the end for outputs of the graph.
    pub last: usize,
}

/// Plans the intermediate values of a model whose shapes are inferred and concrete: lifetimes, an order of the
/// nodes that takes no more than the file's, and offsets.
///
/// Inputs and constants are not in the plan; outputs of the graph are.
///
/// # Errors
/// [`PlanError::Unknown`] names the first value whose size is not known.
pub fn activations(model: &Model) -> Result<ActivationPlan, PlanError> {
    plan(&model.graph)
}

fn plan(graph: &Graph) -> Result<ActivationPlan, PlanError> {
    let buffers = buffers(graph)?;
    let mut inner = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let mut most = Bytes::ZERO;
        for subgraph in node.subgraphs() {
            most = most.max(plan(subgraph)?.peak);
        }
        inner.push(most.align_up(ALIGNMENT));
    }
    let original: Vec<usize> = (0..graph.nodes.len()).collect();
    let candidate = greedy(graph, &buffers, &inner);
    let as_given = laid_out(graph, &buffers, &inner, original);
    // A graph with a circle has no complete order; it is kept as it is.
    if candidate.len() < graph.nodes.len() {
        return Ok(as_given);
    }
    let reordered = laid_out(graph, &buffers, &inner, candidate);
    Ok(if reordered.peak < as_given.peak {
        reordered
    } else {
        as_given
    })
}

fn laid_out(graph: &Graph, buffers: &[Buffer], inner: &[Bytes], order: Vec<usize>) -> ActivationPlan {
    let lives = lifetimes(buffers, &order);
    let live = live(buffers, &lives, inner, &order);
    let mut intervals: Vec<Interval> = buffers
        .iter()
        .zip(&lives)
        .map(|(buffer, (first, last))| Interval {
            first: *first,
            last: *last,
            size: buffer.size,
        })
        .collect();
    // What a subgraph takes lies in the arena too, while its node runs.
    intervals.extend(order.iter().enumerate().map(|(step, node)| Interval {
        first: step,
        last: step,
        size: inner[*node],
    }));
    let (offsets, peak) = place(&intervals);
    let placements = buffers
        .iter()
        .zip(&intervals)
        .zip(&offsets)
        .map(|((buffer, interval), offset)| Placement {
            name: buffer.name.clone(),
            offset: *offset,
            size: buffer.size,
            first: interval.first,
            last: interval.last,
        })
        .collect();
    let timeline = order
        .iter()
        .zip(&live)
        .map(|(node, bytes)| (graph.nodes[*node].name.clone(), *bytes))
        .collect();
    ActivationPlan {
        peak,
        lower_bound: live.iter().copied().max().unwrap_or(Bytes::ZERO),
        placements,
        timeline,
        order,
    }
}
