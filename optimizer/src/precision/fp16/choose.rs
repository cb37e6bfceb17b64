//! Which nodes compute in half.

use std::collections::{HashMap, HashSet};

use edgeopt_models::graph::Uses;
use edgeopt_models::{DataType, Graph, Model, Node, Tensor, ValueName};
use half::f16;

use super::hazards::Hazards;
use super::masks::{LARGEST_SCORE, is_harmless};
use super::normalization::{divides_by_root, normalizations};
use super::operators::{computes, gives_float, moves, quantizes, reads_shape_only, stays_float, too_large};
use super::{Fp16Options, quantized, sums};
use crate::calibrate::CalibrationTable;
use crate::precision::pattern;

/// What becomes of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// It computes in half.
    Half,
    /// It stays in float32, for this reason.
    Float(&'static str),
    /// It has nothing to do with float32.
    NotFloat,
}

/// Decides for every node of the main graph. Types must have been inferred.
pub(super) fn choose(model: &Model, options: &Fp16Options, ranges: Option<&CalibrationTable>) -> Vec<Choice> {
    let graph = &model.graph;
    let uses = Uses::new(graph);
    let mut chooser = Chooser {
        model,
        graph,
        uses: &uses,
        options,
        ranges,
        dtypes: dtypes(graph),
        normalizing: normalizations(graph, &uses),
        halves: HashSet::new(),
        clamped: HashSet::new(),
        hazards: Hazards::default(),
    };
    let mut choices = Vec::with_capacity(graph.nodes.len());
    for index in 0..graph.nodes.len() {
        choices.push(chooser.next(index));
    }
    let clamped = chooser.clamped;
    quantized::settle(graph, &uses, &clamped, &mut choices);
    choices
}

fn dtypes(graph: &Graph) -> HashMap<&ValueName, DataType> {
    let values = graph
        .nodes
        .iter()
        .flat_map(|node| node.inputs.iter().chain(&node.outputs));
    values
        .filter_map(|name| Some((name, graph.type_of(name)?.dtype()?)))
        .collect()
}

struct Chooser<'a> {
    model: &'a Model,
    graph: &'a Graph,
    uses: &'a Uses,
    options: &'a Fp16Options,
    ranges: Option<&'a CalibrationTable>,
    dtypes: HashMap<&'a ValueName, DataType>,
    /// Nodes of normalizations that are written out.
    normalizing: HashSet<usize>,
    /// Values that are half by the choices so far.
    halves: HashSet<&'a ValueName>,
    /// Sums with a mask whose lowest numbers are raised to half's lowest.
    clamped: HashSet<&'a ValueName>,
    hazards: Hazards,
}

impl<'a> Chooser<'a> {
    /// Decides for the node at `index`, all before it being decided.
    fn next(&mut self, index: usize) -> Choice {
        let node = &self.graph.nodes[index];
        let unknown = |name: &ValueName| !name.is_omitted() && !self.dtypes.contains_key(name);
        let floats = || {
            node.inputs
                .iter()
                .chain(&node.outputs)
                .any(|name| self.is_float(name))
        };
        let choice = if node.outputs.iter().any(unknown) {
            Choice::Float("the types of its outputs do not follow from the graph")
        } else if !floats() || reads_shape_only(node) {
            Choice::NotFloat
        } else if node.inputs.iter().any(unknown) {
            Choice::Float("the types of its inputs do not follow from the graph")
        } else if quantizes(node) {
            self.quantization(node)
        } else {
            match self.obstacle(node, index) {
                Some(reason) => Choice::Float(reason),
                None => Choice::Half,
            }
        };
        if choice == Choice::Half {
            let outputs = node.outputs.iter().enumerate();
            let halves: Vec<&ValueName> = outputs
                .filter(|(output, name)| self.is_float(name) && !gives_float(node, *output))
                .map(|(_, name)| name)
                .collect();
            if self.constants(node).any(|(_, tensor)| too_large(tensor)) {
                self.clamped.extend(&halves);
            }
            self.halves.extend(halves);
        }
        let dtypes = &self.dtypes;
        let may_be_float = |name: &ValueName| {
            !name.is_omitted() && dtypes.get(name).is_none_or(|dtype| *dtype == DataType::Float32)
        };
        let guard = has_guard(node, self.graph);
        self.hazards
            .follow(node, self.graph, choice == Choice::Half, guard, may_be_float);
        choice
    }

    fn is_float(&self, name: &ValueName) -> bool {
        self.dtypes.get(name) == Some(&DataType::Float32)
    }

    /// The node's float32 constants that would become half, with their places.
    fn constants(&self, node: &'a Node) -> impl Iterator<Item = (usize, &'a Tensor)> {
        let graph = self.graph;
        let inputs = node.inputs.iter().enumerate();
        inputs
            .filter(|(index, _)| !stays_float(node, *index))
            .filter_map(|(index, name)| Some((index, graph.constant(name)?)))
            .filter(|(_, tensor)| tensor.dtype() == DataType::Float32)
    }

    /// Q/DQ follow what they stand between, where the operator set has them in half and their scale survives it.
    fn quantization(&self, node: &Node) -> Choice {
        let quantize = node.is("QuantizeLinear");
        if quantize && !node.input(0).is_some_and(|name| self.halves.contains(name)) {
            return Choice::NotFloat;
        }
        if self.model.opset() < quantized::OPSET {
            return Choice::Float("quantizes; in half only from operator set 19 on");
        }
        let scale = node.input(1).and_then(|name| self.graph.constant(name));
        if !scale.is_some_and(|scale| quantized::scale_survives(scale, self.options.range_limit)) {
            return Choice::Float("quantizes with a scale that is inexact in half");
        }
        Choice::Half
    }

    /// Why the node cannot compute in half.
    fn obstacle(&self, node: &'a Node, index: usize) -> Option<&'static str> {
        let excluded = &self.options.exclude;
        if excluded.iter().any(|wanted| pattern::matches(wanted, &node.name)) {
            return Some("excluded by name");
        }
        if !node.domain.is_empty() {
            return Some("an operator of another domain");
        }
        if moves(node) {
            if !self.moves_half(node) {
                return Some("moves float32 data");
            }
        } else if !computes(node) {
            return Some("the operator is not safe, or does not exist, in half");
        }
        if (node.is("ReduceSum") || node.is("ReduceMean")) && !sums::is_short(node, self.graph) {
            return Some("adds up too many elements, or nobody knows how many");
        }
        if node.is("Mul") && node.inputs.first() == node.inputs.get(1) {
            return Some("squares: overflows from 256 on");
        }
        if self.normalizing.contains(&index) {
            return Some("part of a normalization that is written out");
        }
        if node.is("Div") && divides_by_root(node, self.graph, self.uses) {
            return Some("normalizes by a root of a variance");
        }
        self.hazards
            .reason(node)
            .or_else(|| self.constant_obstacle(node))
            .or_else(|| self.range_obstacle(node))
    }

    fn moves_half(&self, node: &Node) -> bool {
        if node.is("Concat") {
            return node.inputs.iter().any(|name| self.halves.contains(name));
        }
        // Gather takes constants (tables of embeddings) into half, too.
        node.input(0).is_some_and(|name| {
            self.halves.contains(name) || (node.is("Gather") && self.graph.constant(name).is_some())
        })
    }

    fn constant_obstacle(&self, node: &'a Node) -> Option<&'static str> {
        if self.constants(node).any(|(_, tensor)| too_large(tensor))
            && !is_harmless(node, self.model, self.uses)
        {
            return Some("a constant is beyond 65504");
        }
        let vanishing = self.constants(node).any(|(index, tensor)| {
            if node.is("Div") && index == 1 {
                return has_flushed(tensor);
            }
            !is_bias(node, index) && vanishes(tensor)
        });
        vanishing.then_some("a constant is so small that it is 0 in half")
    }

    /// Whether calibration saw the node read or give values that come near half's end.
    fn range_obstacle(&self, node: &'a Node) -> Option<&'static str> {
        let ranges = self.ranges?;
        let masked = self.constants(node).any(|(_, tensor)| too_large(tensor));
        let limit = if masked {
            LARGEST_SCORE.min(self.options.range_limit)
        } else {
            self.options.range_limit
        };
        let fits = |name: &ValueName, masked: bool| {
            ranges
                .get(name)
                // Not a number is no number within the range.
                .is_none_or(|range| range.max <= limit && (masked || range.min >= -limit))
        };
        let inputs = node.inputs.iter().enumerate();
        let mut read = inputs
            .filter(|(index, name)| !stays_float(node, *index) && self.is_float(name))
            .filter(|(_, name)| self.graph.constant(name).is_none());
        if !read.all(|(_, name)| fits(name, self.clamped.contains(name))) {
            return Some("an input was seen to come near half's largest number");
        }
        if !node.outputs.iter().all(|name| fits(name, masked)) {
            return Some("its output was seen to come near half's largest number");
        }
        None
    }
}

/// The bias of a weighted node: where all of it vanishes, it did not matter.
fn is_bias(node: &Node, input: usize) -> bool {
    input == 2 && !node.is("Where") && !node.is("Clip")
}

/// Whether the node keeps values from 0 by a constant that is 0 in half.
fn has_guard(node: &Node, graph: &Graph) -> bool {
    ["Add", "Sub", "Max", "Clip", "Where"]
        .iter()
        .any(|op| node.is(op))
        && node
            .inputs
            .iter()
            .filter_map(|name| graph.constant(name))
            .any(vanishes)
}

fn flushes(value: f32) -> bool {
    value != 0.0 && f16::from_f32(value) == f16::ZERO
}

fn has_flushed(tensor: &Tensor) -> bool {
    tensor
        .view::<f32>()
        .is_ok_and(|values| values.iter().any(|value| flushes(*value)))
}

/// Whether the tensor has numbers, and all of them become 0 in half.
fn vanishes(tensor: &Tensor) -> bool {
    has_flushed(tensor)
        && tensor
            .view::<f32>()
            .is_ok_and(|values| values.iter().all(|value| f16::from_f32(*value) == f16::ZERO))
}
