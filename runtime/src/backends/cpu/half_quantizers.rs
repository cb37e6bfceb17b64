//! QuantizeLinear of half numbers in float32: up to and including 1.29, ONNX Runtime's kernel for it cuts the fraction
//! off instead of rounding (onnxruntime#18576, fixed by #32452), which costs a bit of every quantized activation. In
//! float32 it rounds, and the cast to it is exact.

use std::collections::HashSet;

use edgeopt_models::graph::Node;
use edgeopt_models::{DataType, Graph, Tensor, ValueName};

const SCALE: usize = 1;

/// Whether [`rewrite`] may find something, without changing anything.
pub(super) fn applies(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| has_half_scale(graph, node))
}

/// Makes every QuantizeLinear of the main graph with a half scale read float32. Returns how many.
pub(super) fn rewrite(graph: &mut Graph) -> usize {
    let mut count = 0;
    let nodes = std::mem::take(&mut graph.nodes);
    let mut rewritten = Vec::with_capacity(nodes.len());
    let taken: HashSet<ValueName> = nodes
        .iter()
        .flat_map(|node| node.outputs.iter().cloned())
        .collect();
    let mut made = HashSet::new();
    for mut node in nodes {
        if has_half_scale(graph, &node)
            && let [value, scale, ..] = &node.inputs[..]
            && let Some(wide_scale) = graph.constant(scale).and_then(widened)
        {
            let mut fresh = |base: &ValueName| {
                let mut name = format!("{base}_float32");
                while graph.initializers.contains_key(name.as_str())
                    || graph.is_input(&name)
                    || taken.contains(name.as_str())
                    || made.contains(name.as_str())
                {
                    name.push('_');
                }
                made.insert(ValueName::from(name.as_str()));
                ValueName::from(name)
            };
            let (wide, scale) = (fresh(value), fresh(scale));
            let to = i64::from(DataType::Float32.to_onnx());
            rewritten.push(Node::new("Cast", &wide, [value.clone()], [wide.clone()]).with("to", to));
            graph.add_initializer(scale.clone(), wide_scale);
            node.inputs[0] = wide;
            node.inputs[SCALE] = scale;
            count += 1;
        }
        rewritten.push(node);
    }
    graph.nodes = rewritten;
    graph.drop_unused_constants();
    count
}

fn has_half_scale(graph: &Graph, node: &Node) -> bool {
    node.is("QuantizeLinear")
        && node
            .input(SCALE)
            .and_then(|name| graph.constant(name))
            .is_some_and(|scale| scale.dtype() == DataType::Float16)
}

fn widened(scale: &Tensor) -> Option<Tensor> {
    Tensor::new(scale.dims(), &scale.to_f32().ok()?).ok()
}
