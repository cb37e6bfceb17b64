use std::collections::{BTreeSet, HashMap, HashSet};

use edgeopt_models::graph::Uses;
use edgeopt_models::{DataType, Graph, Node, ValueName};

use super::residual::residual_input;
use super::weighted::{Weighted, heads, is_weighted, judge};
use super::{Int8Options, KeptNode, Placement};

/// Where Q/DQ nodes go, before anything is known of ranges.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) weighted: Vec<Weighted>,
    pub(super) kept: Vec<KeptNode>,
    /// Node inputs that read a dequantized value: node index and input index.
    pub(super) edges: BTreeSet<(usize, usize)>,
    /// Values that must have one scale: the outputs and inputs of a layer that only moves numbers.
    pub(super) one_scale: Vec<Vec<ValueName>>,
}

impl Plan {
    pub(super) fn new(graph: &Graph, options: &Int8Options) -> Self {
        let mut plan = Self::default();
        for index in (0..graph.nodes.len()).filter(|index| is_weighted(&graph.nodes[*index])) {
            match judge(graph, index, options) {
                Ok(weighted) => plan.weighted.push(weighted),
                Err(reason) => plan.keep(&graph.nodes[index], reason),
            }
        }
        if !options.quantize_heads {
            let heads: HashSet<usize> = heads(graph, &plan.weighted).into_iter().collect();
            // A net of one convolution has no body to protect the head's accuracy with.
            plan.weighted.retain(|weighted| !heads.contains(&weighted.node));
            for index in heads.iter().copied().collect::<BTreeSet<_>>() {
                plan.keep(
                    &graph.nodes[index],
                    "the last convolution before an output".into(),
                );
            }
        }
        for weighted in &plan.weighted {
            plan.edges.insert((weighted.node, 0));
            if weighted.weight.is_none() {
                plan.edges.insert((weighted.node, 1));
            }
        }
        let uses = Uses::new(graph);
        match options.placement {
            Placement::TensorRt => plan.residuals(graph, &uses, options),
            Placement::Cpu => plan.between(graph, &uses, options),
        }
        plan.concatenations(graph);
        plan
    }

    /// The values that get Q/DQ, in the order in which nodes read them.
    pub(super) fn values(&self, graph: &Graph) -> Vec<ValueName> {
        let mut seen = HashSet::new();
        let inputs = self
            .edges
            .iter()
            .filter_map(|(node, input)| graph.nodes.get(*node)?.input(*input));
        inputs
            .filter(|name| seen.insert((*name).clone()))
            .cloned()
            .collect()
    }

    fn keep(&mut self, node: &Node, reason: String) {
        self.kept.push(KeptNode {
            node: node.name.clone(),
            op: node.op_type.clone(),
            reason,
        });
    }

    fn residuals(&mut self, graph: &Graph, uses: &Uses, options: &Int8Options) {
        for (index, node) in graph.nodes.iter().enumerate() {
            if node.is("Add")
                && options.excludes(&node.name).is_none()
                && let Some(input) = residual_input(graph, uses, index)
                && self.computes(graph, uses, &node.inputs[1 - input], 0)
            {
                self.edges.insert((index, input));
            }
        }
    }

    /// Whether `value` comes out of a quantized node, through layers fused behind it.
    fn computes(&self, graph: &Graph, uses: &Uses, value: &ValueName, depth: usize) -> bool {
        let Some(index) = uses.producer(value) else {
            return false;
        };
        if self.weighted.iter().any(|weighted| weighted.node == index) {
            return true;
        }
        let node = &graph.nodes[index];
        let fused = [
            "BatchNormalization",
            "Relu",
            "Clip",
            "LeakyRelu",
            "HardSwish",
            "Sigmoid",
            "Mul",
        ];
        depth < 8
            && fused.iter().any(|op| node.is(op))
            && node
                .inputs
                .iter()
                .any(|input| self.computes(graph, uses, input, depth + 1))
    }

    /// For CPUs: layers without weights run in INT8 when all their inputs and their output are quantized.
    fn between(&mut self, graph: &Graph, uses: &Uses, options: &Int8Options) {
        const LAYERS: [&str; 9] = [
            "Add",
            "Mul",
            "Concat",
            "MaxPool",
            "AveragePool",
            "GlobalAveragePool",
            "Sigmoid",
            "LeakyRelu",
            "Resize",
        ];
        let mut near: HashSet<ValueName> = HashSet::new();
        let weighted: HashSet<usize> = self.weighted.iter().map(|weighted| weighted.node).collect();
        for (index, node) in graph.nodes.iter().enumerate() {
            if weighted.contains(&index) {
                near.extend(node.outputs.first().cloned());
                continue;
            }
            let carries = ["Relu", "Clip", "BatchNormalization"]
                .iter()
                .any(|op| node.is(op));
            if carries && node.input(0).is_some_and(|input| near.contains(input)) {
                near.extend(node.outputs.first().cloned());
                continue;
            }
            let Some(output) = node.output(0).filter(|_| LAYERS.iter().any(|op| node.is(op))) else {
                continue;
            };
            let data = if ["Add", "Mul", "Concat"].iter().any(|op| node.is(op)) {
                node.inputs.len()
            } else {
                1
            };
            let float = |name: &ValueName| {
                !name.is_omitted()
                    && !graph.initializers.contains_key(name)
                    && graph
                        .type_of(name)
                        .and_then(|ty| ty.dtype())
                        .is_none_or(|ty| ty == DataType::Float32)
            };
            let inputs = &node.inputs[..data.min(node.inputs.len())];
            if !inputs.iter().all(float)
                || !inputs.iter().all(|input| near.contains(input))
                || options.excludes(&node.name).is_some()
                || node.outputs.len() > 1
            {
                continue;
            }
            let mut output = output.clone();
            while let Some(reader) = uses.sole_reader(&output).map(|reader| &graph.nodes[reader.node])
                && (reader.is("Relu") || reader.is("Clip"))
                && let Some(next) = reader.output(0)
            {
                output = next.clone();
            }
            near.insert(output.clone());
            near.extend(node.outputs.first().cloned());
            self.edges.extend((0..inputs.len()).map(|input| (index, input)));
            let readers = uses.readers(&output).iter();
            self.edges
                .extend(readers.filter_map(|reader| Some((reader.node, reader.input?))));
            if node.is("MaxPool") || node.is("Resize") {
                self.one_scale.push(vec![inputs[0].clone(), output]);
            }
        }
    }

    /// Inputs of a concatenation share the scale of its output, so that joining needs no requantization.
    fn concatenations(&mut self, graph: &Graph) {
        let quantized: HashSet<ValueName> = self.values(graph).into_iter().collect();
        for node in graph.nodes.iter().filter(|node| node.is("Concat")) {
            let members = node
                .inputs
                .iter()
                .chain(&node.outputs)
                .filter(|name| quantized.contains(*name));
            let members: Vec<ValueName> = members.cloned().collect();
            if members.len() > 1 {
                self.one_scale.push(members);
            }
        }
    }
}

/// Joins the groups of values that must share a scale, where they overlap: value to the group's number.
pub(super) fn joined(groups: &[Vec<ValueName>]) -> HashMap<ValueName, usize> {
    let mut number: HashMap<ValueName, usize> = HashMap::new();
    for (fresh, group) in groups.iter().enumerate() {
        let old: HashSet<usize> = group
            .iter()
            .filter_map(|name| number.get(name).copied())
            .collect();
        for member in number.values_mut().filter(|member| old.contains(member)) {
            *member = fresh;
        }
        number.extend(group.iter().map(|name| (name.clone(), fresh)));
    }
    number
}
