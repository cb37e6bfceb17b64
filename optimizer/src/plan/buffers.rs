//! Which values share memory, and how large each buffer is.

use std::collections::HashMap;

use edgeopt_models::graph::{Attribute, Uses};
use edgeopt_models::{Bytes, Graph, Node, Tensor, ValueName, ValueType};

use super::{ALIGNMENT, PlanError};

/// One piece of memory: a value and those that are views of it.
pub(super) struct Buffer {
    /// The value it was made for.
    pub(super) name: ValueName,
    /// Bytes, rounded up to [`ALIGNMENT`].
    pub(super) size: Bytes,
    /// Index of the node that makes it.
    pub(super) producer: usize,
    /// Indices of the nodes that read it under any of its names, in file order.
    pub(super) readers: Vec<usize>,
    /// Whether it must outlive the last node: the caller reads it.
    pub(super) output: bool,
}

/// Bytes of a value, not rounded.
pub(super) fn size(name: &str, ty: Option<&ValueType>, node: &str) -> Result<Bytes, PlanError> {
    let unknown = || PlanError::Unknown {
        value: name.to_owned(),
        node: node.to_owned(),
        ty: match ty {
            Some(ValueType::Tensor {
                dtype,
                shape: Some(shape),
            }) => format!("{dtype} {shape}"),
            Some(ValueType::Tensor { dtype, shape: None }) => format!("{dtype} of unknown rank"),
            _ => "nothing is known of it".to_owned(),
        },
    };
    let ty_known = ty.ok_or_else(unknown)?;
    let dims = ty_known.shape().ok_or_else(unknown)?;
    let dtype = ty_known.dtype().ok_or_else(unknown)?;
    if dims.as_known().is_none() || dtype.bits().is_none() {
        return Err(unknown());
    }
    dims.elements()
        .and_then(|elements| dtype.size_of(elements))
        .map(Bytes::from)
        .ok_or_else(|| PlanError::TooLarge {
            value: name.to_owned(),
        })
}

/// Bytes of all constants of a graph and its subgraphs; a string counts with its length.
pub(super) fn weights(graph: &Graph) -> Result<Bytes, PlanError> {
    let tensor_bytes = |tensor: &Tensor| match tensor.as_strings() {
        Some(strings) => Bytes::from(strings.iter().map(Vec::len).sum::<usize>()),
        None => Bytes::from(tensor.as_bytes().len()),
    };
    let mut total: Bytes = graph.initializers.values().map(tensor_bytes).sum();
    for node in &graph.nodes {
        if let (true, Some(Attribute::Tensor(tensor))) = (node.is("Constant"), node.attributes.get("value")) {
            total += tensor_bytes(tensor);
        }
        for subgraph in node.subgraphs() {
            total += weights(subgraph)?;
        }
    }
    Ok(total)
}

/// Whether the node's first output takes no memory beside its first input: the same data under another shape, or
/// numbers that readers turn into float as they load them (engines fuse DequantizeLinear into what follows).
fn is_view(node: &Node) -> bool {
    node.domain.is_empty()
        && matches!(
            &*node.op_type,
            "Reshape" | "Squeeze" | "Unsqueeze" | "Flatten" | "Identity" | "DequantizeLinear"
        )
}

/// Whether the node can work on its input where it stands, being the only one that reads it.
fn works_in_place(node: &Node) -> bool {
    node.domain.is_empty()
        && matches!(
            &*node.op_type,
            "Relu"
                | "LeakyRelu"
                | "PRelu"
                | "Clip"
                | "Sigmoid"
                | "HardSigmoid"
                | "HardSwish"
                | "Tanh"
                | "Elu"
                | "Neg"
        )
}

/// The buffers of a graph's nodes, by producer. Inputs and constants have their own memory: a view of one takes
/// none. Constants made by `Constant` nodes count as weights.
pub(super) fn buffers(graph: &Graph) -> Result<Vec<Buffer>, PlanError> {
    let mut buffers: Vec<Buffer> = Vec::new();
    let mut owner: HashMap<ValueName, usize> = HashMap::new();
    let uses = Uses::new(graph);
    // For buffers that hold one value after the other, each read once: the name of the last.
    let mut tips: HashMap<usize, ValueName> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        for name in reads(node) {
            if let Some(buffer) = owner.get(&name).and_then(|at| buffers.get_mut(*at)) {
                buffer.readers.push(index);
            }
        }
        if node.is("Constant") {
            continue;
        }
        if is_view(node) {
            if let (Some(input), Some(output)) = (node.input(0), node.output(0))
                && let Some(at) = owner.get(input).copied()
            {
                owner.insert(output.clone(), at);
                tips.remove(&at);
                continue;
            }
            // A view of an input or a constant.
            if node.output(0).is_some_and(|output| !graph.is_output(output)) {
                continue;
            }
        }
        if let (Some(input), Some(output)) = (node.input(0), node.output(0))
            && let Some(at) = owner.get(input).copied()
            && tips.get(&at) == Some(input)
            && uses.sole_reader(input).is_some()
        {
            // What quantizes a layer's only output is part of that layer: the float values never reach memory.
            if node.is("QuantizeLinear") {
                let ty = graph.type_of(output);
                buffers[at].size = size(output, ty.as_ref(), &node.to_string())?.align_up(ALIGNMENT);
            }
            if node.is("QuantizeLinear") || works_in_place(node) {
                owner.insert(output.clone(), at);
                tips.insert(at, output.clone());
                continue;
            }
        }
        for name in node.outputs.iter().filter(|name| !name.is_omitted()) {
            let ty = graph.type_of(name);
            let bytes = size(name, ty.as_ref(), &node.to_string())?;
            owner.insert(name.clone(), buffers.len());
            tips.insert(buffers.len(), name.clone());
            buffers.push(Buffer {
                name: name.clone(),
                size: bytes.align_up(ALIGNMENT),
                producer: index,
                readers: Vec::new(),
                output: false,
            });
        }
    }
    for output in &graph.outputs {
        if let Some(buffer) = owner.get(&output.name).and_then(|at| buffers.get_mut(*at)) {
            buffer.output = true;
        }
    }
    Ok(buffers)
}

/// Everything a node reads, with what its subgraphs read from around them.
pub(super) fn reads(node: &Node) -> Vec<ValueName> {
    let captured = node.subgraphs().flat_map(edgeopt_models::graph::captured_values);
    node.inputs
        .iter()
        .filter(|name| !name.is_omitted())
        .cloned()
        .chain(captured)
        .collect()
}
