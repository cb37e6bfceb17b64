//! Signed 8-bit activations as unsigned ones, for x86.
//!
//! x86 multiplies unsigned by signed bytes; ONNX Runtime has no fast kernels for signed activations there (a ResNet-50
//! takes 2 to 5 times as long). Adding 128 to the zero points of a QuantizeLinear and of the DequantizeLinear nodes that
//! read it moves every quantized number by 128 and changes no dequantized value: saturation moves along, from
//! \[−128, 127\] to \[0, 255\]. Weights stay signed. ARM multiplies signed bytes, and needs none of this.

use std::collections::HashMap;

use edgeopt_models::graph::{Node, Uses};
use edgeopt_models::{DataType, Graph, Tensor, ValueName};

/// Input of QuantizeLinear and DequantizeLinear that holds the zero point.
const ZERO_POINT: usize = 2;

/// Whether [`rewrite`] may find something, without changing anything.
pub(super) fn applies(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| node.is("QuantizeLinear"))
}

/// Makes every signed 8-bit activation of the main graph unsigned whose only readers are DequantizeLinear nodes.
/// Returns how many.
pub(super) fn rewrite(graph: &mut Graph) -> usize {
    let uses = Uses::new(graph);
    let mut replaced: HashMap<ValueName, ValueName> = HashMap::new();
    let mut edits: Vec<(usize, ValueName)> = Vec::new();
    let mut count = 0;
    for (index, node) in graph.nodes.iter().enumerate() {
        let (true, Some(output)) = (node.is("QuantizeLinear"), node.output(0)) else {
            continue;
        };
        let readers = uses.readers(output);
        let all_dequantize = readers.iter().all(|reader| {
            reader.input == Some(0)
                && graph.nodes.get(reader.node).is_some_and(|node| {
                    node.is("DequantizeLinear") && signed_zero_point(graph, node).is_some()
                })
        });
        if readers.is_empty() || !all_dequantize || graph.is_output(output) {
            continue;
        }
        let pair: Vec<usize> = std::iter::once(index)
            .chain(readers.iter().map(|reader| reader.node))
            .collect();
        let zero_points: Option<Vec<&ValueName>> = pair
            .iter()
            .map(|index| {
                graph
                    .nodes
                    .get(*index)
                    .and_then(|node| signed_zero_point(graph, node))
            })
            .collect();
        let Some(zero_points) = zero_points else { continue };
        edits.extend(pair.iter().copied().zip(zero_points.into_iter().cloned()));
        count += 1;
    }
    for (index, zero_point) in edits {
        let unsigned = match replaced.get(&zero_point) {
            Some(name) => name.clone(),
            None => {
                let name = fresh_name(graph, &zero_point);
                if let Some(tensor) = graph.constant(&zero_point).and_then(moved_by_128) {
                    graph.add_initializer(name.clone(), tensor);
                }
                replaced.insert(zero_point, name.clone());
                name
            }
        };
        if let Some(node) = graph.nodes.get_mut(index) {
            // Where the type is given twice, the zero point alone says it from now on.
            node.attributes.remove("output_dtype");
            let output = node.output(0).cloned();
            if let Some(input) = node.inputs.get_mut(ZERO_POINT) {
                *input = unsigned;
            }
            if node.is("QuantizeLinear")
                && let Some(output) = output
            {
                graph.value_types.remove(&output);
            }
        }
    }
    graph.drop_unused_constants();
    count
}

/// The zero point's name, if it is a constant of signed 8-bit integers.
fn signed_zero_point<'a>(graph: &Graph, node: &'a Node) -> Option<&'a ValueName> {
    node.input(ZERO_POINT).filter(|name| {
        graph
            .constant(name)
            .is_some_and(|tensor| tensor.dtype() == DataType::Int8)
    })
}

fn moved_by_128(tensor: &Tensor) -> Option<Tensor> {
    // In two's complement, adding 128 flips the highest bit.
    let bytes: Vec<u8> = tensor.as_bytes().iter().map(|byte| byte ^ 0x80).collect();
    Tensor::from_bytes(DataType::Uint8, tensor.dims(), &bytes).ok()
}

fn fresh_name(graph: &Graph, base: &ValueName) -> ValueName {
    let mut name = format!("{base}_unsigned");
    while graph.initializers.contains_key(name.as_str())
        || graph.is_input(&name)
        || graph.producer(&name).is_some()
    {
        name.push('_');
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use edgeopt_models::{Shape, ValueInfo};

    use super::*;

    /// x → Q → `between` → DQ → y
    fn graph(zero: Tensor, between: Option<&str>) -> Graph {
        let float = |name| ValueInfo::tensor(name, DataType::Float32, Shape::known(&[4]));
        let mut graph = Graph {
            inputs: vec![float("x")],
            outputs: vec![float("y")],
            ..Graph::default()
        };
        graph.add_initializer("scale".into(), Tensor::scalar(0.5f32));
        graph.add_initializer("zero".into(), zero);
        graph
            .nodes
            .push(Node::new("QuantizeLinear", "q", ["x", "scale", "zero"], ["q"]));
        let from = match between {
            Some(op) => {
                graph.nodes.push(Node::new(op, "between", ["q"], ["moved"]));
                "moved"
            }
            None => "q",
        };
        graph.nodes.push(Node::new(
            "DequantizeLinear",
            "dq",
            [from, "scale", "zero"],
            ["y"],
        ));
        graph
    }

    #[test]
    fn both_ends_of_a_pair_move_by_128() {
        for (zero, expected) in [(0i8, 128u8), (-128, 0), (127, 255), (-3, 125)] {
            let mut graph = graph(Tensor::scalar(zero), None);
            assert_eq!(rewrite(&mut graph), 1);
            for node in &graph.nodes {
                let name = node.input(ZERO_POINT).unwrap();
                assert_eq!(graph.initializers[name], Tensor::scalar(expected), "{node}");
            }
            assert!(!graph.initializers.contains_key("zero"));
        }
    }

    #[test]
    fn what_others_read_stays_signed() {
        let mut moved = graph(Tensor::scalar(0i8), Some("Flatten"));
        let mut output = graph(Tensor::scalar(0i8), None);
        output
            .outputs
            .push(ValueInfo::tensor("q", DataType::Int8, Shape::known(&[4])));
        let mut unsigned = graph(Tensor::scalar(7u8), None);
        for graph in [&mut moved, &mut output, &mut unsigned] {
            let before = graph.clone();
            assert_eq!(rewrite(graph), 0);
            assert_eq!(*graph, before);
        }
    }

    #[test]
    fn weights_that_share_the_zero_point_stay_signed() {
        let mut graph = graph(Tensor::scalar(0i8), None);
        graph.add_initializer("w".into(), Tensor::vector(&[1i8, -1, 2, -2]));
        graph.nodes.push(Node::new(
            "DequantizeLinear",
            "dq_w",
            ["w", "scale", "zero"],
            ["w_float"],
        ));
        assert_eq!(rewrite(&mut graph), 1);
        assert_eq!(*graph.nodes[2].input(ZERO_POINT).unwrap(), "zero");
        assert_eq!(graph.initializers["zero"], Tensor::scalar(0i8));
    }
}
