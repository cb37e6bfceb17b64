use std::collections::{HashMap, HashSet};

use edgeopt_models::graph::captured_values;
use edgeopt_models::{Graph, Node, Tensor, ValueInfo, ValueName, ValueType};

use super::super::RANDOM;
use super::growth::{Extent, extent};
use super::size;

/// Quantization of constants is what a quantized model is made of: it stays.
const QUANTIZATION: [&str; 3] = ["QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"];

/// Whether a node gives the same result each time and is worth computing ahead.
fn eligible(node: &Node) -> bool {
    node.domain.is_empty()
        && !node.inputs.is_empty()
        && !RANDOM.contains(&node.op_type.as_str())
        && !QUANTIZATION.contains(&node.op_type.as_str())
        // Sequences and optionals are no constants.
        && !node.op_type.contains("Sequence")
        && !node.op_type.contains("Optional")
        && node.subgraphs().next().is_none()
}

/// The nodes of one graph that depend on constants only.
pub(super) struct Cone {
    /// Their indices, in topological order.
    nodes: Vec<usize>,
    /// The values something outside reads, in node order.
    pub(super) wanted: Vec<ValueName>,
    /// For each value, the bytes of all constants behind it.
    bytes: HashMap<ValueName, usize>,
}

impl Cone {
    pub(super) fn new(graph: &Graph, constants: &HashMap<ValueName, Tensor>) -> Self {
        let mut nodes = Vec::new();
        let mut extents: HashMap<ValueName, Extent> = HashMap::new();
        let mut bytes: HashMap<ValueName, usize> = HashMap::new();
        let mut outside: HashSet<ValueName> =
            graph.outputs.iter().map(|output| output.name.clone()).collect();
        for (index, node) in graph.nodes.iter().enumerate() {
            if let Some((size, source)) = member(node, constants, &extents, &bytes) {
                nodes.push(index);
                for output in node.outputs.iter().filter(|name| !name.is_omitted()) {
                    extents.insert(output.clone(), size.clone());
                    bytes.insert(output.clone(), source);
                }
            } else {
                outside.extend(node.inputs.iter().cloned());
                outside.extend(node.subgraphs().flat_map(captured_values));
            }
        }
        let wanted = nodes
            .iter()
            .flat_map(|index| &graph.nodes[*index].outputs)
            .filter(|name| !name.is_omitted() && outside.contains(*name))
            .cloned()
            .collect();
        Self { nodes, wanted, bytes }
    }

    /// Bytes of the constants that `name` is computed from.
    pub(super) fn source_bytes(&self, name: &str) -> usize {
        self.bytes.get(name).copied().unwrap_or(0)
    }

    /// A graph without inputs that computes `wanted`.
    pub(super) fn closed(
        &self,
        graph: &Graph,
        constants: &HashMap<ValueName, Tensor>,
        wanted: &[ValueName],
    ) -> Graph {
        let mut needed: HashSet<&ValueName> = wanted.iter().collect();
        let mut closed = Graph {
            name: "constants".into(),
            ..Graph::default()
        };
        for index in self.nodes.iter().rev() {
            let node = &graph.nodes[*index];
            if !node.outputs.iter().any(|name| needed.contains(name)) {
                continue;
            }
            needed.extend(node.inputs.iter().filter(|name| !name.is_omitted()));
            for name in &node.inputs {
                if let Some(tensor) = constants.get(name) {
                    closed.add_initializer(name.clone(), tensor.clone());
                }
            }
            closed.nodes.push(node.clone());
        }
        closed.nodes.reverse();
        // The runtime infers the types.
        closed.outputs = wanted
            .iter()
            .map(|name| ValueInfo {
                name: name.clone(),
                ty: ValueType::Other(None),
                extra: None,
            })
            .collect();
        closed
    }
}

/// Size of the result and bytes behind it, if the node only reads constants and cannot grow beyond the limit.
fn member(
    node: &Node,
    constants: &HashMap<ValueName, Tensor>,
    extents: &HashMap<ValueName, Extent>,
    bytes: &HashMap<ValueName, usize>,
) -> Option<(Extent, usize)> {
    if !eligible(node) || node.inputs.iter().all(|name| name.is_omitted()) {
        return None;
    }
    let mut source = 0usize;
    let mut inputs = Vec::with_capacity(node.inputs.len());
    for name in &node.inputs {
        if name.is_omitted() {
            inputs.push(None);
        } else if let Some(tensor) = constants.get(name) {
            source = source.saturating_add(size(tensor));
            inputs.push(Some((Extent::of(tensor), Some(tensor))));
        } else {
            source = source.saturating_add(*bytes.get(name)?);
            inputs.push(Some((extents.get(name)?.clone(), None)));
        }
    }
    Some((extent(node, &inputs, source)?, source))
}
