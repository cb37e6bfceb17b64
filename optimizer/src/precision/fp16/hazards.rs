use std::collections::HashSet;

use edgeopt_models::{Attribute, Graph, Node, ValueName};

use super::LARGEST;
use super::operators::{bounds, moves, stays_float, too_large};

/// Values that a cast to half would ruin, as far as the graph's constants tell: followed from node to node, because a
/// mask or an epsilon is usually made in one place and used in another.
#[derive(Debug, Default)]
pub(super) struct Hazards {
    /// Computed from constants beyond half's range, such as masks of −1e9: infinite in half.
    large: HashSet<ValueName>,
    /// Kept away from 0 by an epsilon that is 0 in half.
    guarded: HashSet<ValueName>,
    /// A reciprocal of such a value: infinite in half where the guarded value is 0.
    inverse: HashSet<ValueName>,
}

impl Hazards {
    /// Why the node must not compute in half, if what it reads is the reason.
    pub(super) fn reason(&self, node: &Node) -> Option<&'static str> {
        let reads = |values: &HashSet<ValueName>| {
            let mut inputs = node.inputs.iter().enumerate();
            inputs.any(|(index, name)| !stays_float(node, index) && values.contains(name))
        };
        if reads(&self.large) {
            return Some("reads a value that may be beyond 65504, such as a mask");
        }
        let divides = node.is("Div") && node.input(1).is_some_and(|name| self.guarded.contains(name));
        if divides || (node.is("Mul") && reads(&self.inverse)) {
            return Some("divides by a value that only a tiny constant keeps from 0");
        }
        (reads(&self.inverse) || (keeps_guard(node) && reads(&self.guarded)))
            .then_some("a tiny constant that is 0 in half keeps its value from 0")
    }

    /// Follows the node's values. `half`: it computes in half. `guard`: it has an epsilon that would be 0 in half.
    /// `is_float`: which values may be float32 numbers.
    pub(super) fn follow(
        &mut self,
        node: &Node,
        graph: &Graph,
        half: bool,
        guard: bool,
        is_float: impl Fn(&ValueName) -> bool,
    ) {
        let reads = |values: &HashSet<ValueName>| node.inputs.iter().any(|name| values.contains(name));
        let large = reads(&self.large) || (!half && has_large_constant(node, graph));
        let guarded = guard || (keeps_guard(node) && reads(&self.guarded));
        let reciprocal = node.is("Reciprocal") && reads(&self.guarded);
        let inverse =
            reciprocal || ((moves(node) || node.is("Sqrt") || node.is("Cast")) && reads(&self.inverse));
        let outputs = || node.outputs.iter().filter(|name| is_float(name)).cloned();
        if large && !bounds(node, graph) {
            self.large.extend(outputs());
        }
        if guarded && !half {
            self.guarded.extend(outputs());
        }
        if inverse && !half {
            self.inverse.extend(outputs());
        }
    }
}

/// Whether a value kept from 0 is so after this node, too.
fn keeps_guard(node: &Node) -> bool {
    const KEEPS: [&str; 7] = ["Abs", "Cast", "Clip", "Max", "ReduceMean", "ReduceSum", "Sqrt"];
    moves(node) || (node.domain.is_empty() && KEEPS.contains(&node.op_type.as_str()))
}

/// Whether the node can make values beyond half's range from a constant of its own.
fn has_large_constant(node: &Node, graph: &Graph) -> bool {
    // A limit is not reached, and what is divided by a large number becomes small.
    let read = |index: usize| !(node.is("Clip") || (node.is("Div") && index == 1));
    let mut inputs = node.inputs.iter().enumerate();
    inputs.any(|(index, name)| read(index) && graph.constant(name).is_some_and(too_large))
        || node.attributes.values().any(|attribute| match attribute {
            Attribute::Tensor(tensor) => too_large(tensor),
            Attribute::Float(value) => node.is("Constant") && value.abs() > LARGEST,
            Attribute::Floats(values) => {
                node.is("Constant") && values.iter().any(|value| value.abs() > LARGEST)
            }
            _ => false,
        })
        || node.subgraphs().any(has_large_constants)
}

fn has_large_constants(graph: &Graph) -> bool {
    graph.initializers.values().any(too_large)
        || graph.nodes.iter().any(|node| has_large_constant(node, graph))
}
