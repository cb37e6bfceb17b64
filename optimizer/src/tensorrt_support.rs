//! What TensorRT's ONNX parser would refuse in a model, known without TensorRT.

use edgeopt_models::{DataType, Graph, Model, Node};

/// TopK takes fewer than this many elements.
const TOP_K_LIMIT: i64 = 3840;

/// Operators of the standard domain that the parser has no importer for.
const REFUSED_OPERATORS: [(&str, &str); 14] = [
    ("QLinearConv", QLINEAR),
    ("QLinearMatMul", QLINEAR),
    ("ConvInteger", QLINEAR),
    ("MatMulInteger", QLINEAR),
    (
        "DynamicQuantizeLinear",
        "scales must be constant: calibrate instead",
    ),
    ("SequenceConstruct", SEQUENCE),
    ("SequenceEmpty", SEQUENCE),
    ("SequenceInsert", SEQUENCE),
    ("SequenceErase", SEQUENCE),
    ("SequenceAt", SEQUENCE),
    ("SequenceLength", SEQUENCE),
    ("SequenceMap", SEQUENCE),
    ("SplitToSequence", SEQUENCE),
    ("ConcatFromSequence", SEQUENCE),
];
const QLINEAR: &str =
    "quantized operators are not supported: use QuantizeLinear and DequantizeLinear around float ones";
const SEQUENCE: &str = "sequences are not supported: use tensors of fixed rank";

/// A node that the parser would refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the node.
    pub node: String,
    /// Its operator, with the domain if it is not the standard one.
    pub operator: String,
    /// Why, and what to do.
    pub reason: String,
}

/// Every node, subgraphs included, that a rule known here refuses. An empty answer is no promise: the parser has
/// limits on shapes and types that only the parser itself can judge.
pub fn refusals(model: &Model) -> Vec<Refusal> {
    let mut found = Vec::new();
    visit(&model.graph, &mut vec![], &mut found);
    found
}

fn visit<'a>(graph: &'a Graph, scopes: &mut Vec<&'a Graph>, found: &mut Vec<Refusal>) {
    scopes.push(graph);
    for node in &graph.nodes {
        if let Some(reason) = refuse(node, scopes) {
            let operator = match node.domain.as_str() {
                "" => node.op_type.clone(),
                domain => format!("{domain}.{}", node.op_type),
            };
            found.push(Refusal {
                node: node.name.clone(),
                operator,
                reason,
            });
        }
        for subgraph in node.subgraphs() {
            visit(subgraph, scopes, found);
        }
    }
    scopes.pop();
}

fn refuse(node: &Node, scopes: &[&Graph]) -> Option<String> {
    if !node.domain.is_empty() {
        return Some("an operator of another domain needs a TensorRT plugin of that name".to_owned());
    }
    if let Some((_, reason)) = REFUSED_OPERATORS.iter().find(|(name, _)| node.is(name)) {
        return Some((*reason).to_owned());
    }
    let constant = |index: usize| {
        let name = node.input(index)?;
        scopes.iter().rev().find_map(|graph| graph.constant(name))
    };
    match node.op_type.as_str() {
        "QuantizeLinear" | "DequantizeLinear" => {
            if let Some(zero_point) = constant(2) {
                if zero_point.dtype() == DataType::Uint8 {
                    return Some("UINT8 is not supported inside a network: quantize to INT8".to_owned());
                }
                if zero_point
                    .to_i64()
                    .is_ok_and(|values| values.iter().any(|value| *value != 0))
                {
                    return Some("the zero point must be 0: quantize symmetrically".to_owned());
                }
            }
            let scale = constant(1)?.to_f32().ok()?;
            let wrong = scale.iter().any(|value| value.is_nan() || *value <= 0.0);
            wrong.then(|| "every scale must be above 0".to_owned())
        }
        "TopK" => {
            let k = constant(1)?.to_i64().ok()?.first().copied()?;
            (k >= TOP_K_LIMIT).then(|| format!("K is {k}, it must be below {TOP_K_LIMIT}"))
        }
        "MaxPool" => node
            .output(1)
            .map(|_| "the second output (Indices) of MaxPool is not supported".to_owned()),
        "If" => branches_differ(node)
            .then(|| "the branches give outputs of different rank, which is not supported".to_owned()),
        _ => None,
    }
}

/// Whether two branches are known to give outputs of different rank.
fn branches_differ(node: &Node) -> bool {
    let ranks = |graph: &Graph| -> Vec<Option<usize>> {
        let rank = |name: &str| graph.type_of(name)?.shape().map(|shape| shape.len());
        graph.outputs.iter().map(|output| rank(&output.name)).collect()
    };
    let branches: Vec<_> = node.subgraphs().map(ranks).collect();
    branches.windows(2).any(|pair| match pair {
        [first, second] => first
            .iter()
            .zip(second)
            .any(|(a, b)| matches!((a, b), (Some(a), Some(b)) if a != b)),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use edgeopt_models::{Shape, Tensor, ValueInfo};

    use super::*;

    fn model(node: Node, constants: Vec<(&str, Tensor)>) -> Model {
        let mut graph = Graph {
            nodes: vec![node],
            ..Graph::default()
        };
        for (name, tensor) in constants {
            graph.initializers.insert(name.into(), tensor);
        }
        Model::new(graph, 19)
    }

    fn quantize(scale: f32, zero_point: Tensor) -> Model {
        let node = Node::new("QuantizeLinear", "q", ["x", "scale", "zero"], ["y"]);
        model(node, vec![("scale", Tensor::scalar(scale)), ("zero", zero_point)])
    }

    fn branch(rank: usize) -> Graph {
        Graph {
            outputs: vec![ValueInfo::tensor(
                "r",
                DataType::Float32,
                Shape::known(&vec![1; rank]),
            )],
            ..Graph::default()
        }
    }

    fn branches(then_rank: usize, else_rank: usize) -> Model {
        let node = Node::new("If", "n", ["c"], ["y"])
            .with("then_branch", branch(then_rank))
            .with("else_branch", branch(else_rank));
        model(node, vec![])
    }

    #[test]
    fn refuses_what_the_parser_refuses_and_nothing_else() {
        let top_k = |k: i64| {
            let node = Node::new("TopK", "n", ["x", "k"], ["v", "i"]);
            model(node, vec![("k", Tensor::vector(&[k]))])
        };
        let mut custom = Node::new("Fancy", "n", ["x"], ["y"]);
        custom.domain = "com.example".into();
        let mut outer = model(Node::new("If", "n", ["c"], ["y"]), vec![]);
        let inner = Graph {
            nodes: vec![Node::new("SequenceAt", "inside", ["s", "i"], ["r"])],
            ..Graph::default()
        };
        outer.graph.nodes[0] = outer.graph.nodes[0].clone().with("then_branch", inner);
        for (model, expected) in [
            (quantize(0.5, Tensor::scalar(0i8)), None),
            (quantize(0.5, Tensor::scalar(3i8)), Some("zero point must be 0")),
            (quantize(0.5, Tensor::scalar(0u8)), Some("UINT8")),
            (quantize(0.0, Tensor::scalar(0i8)), Some("above 0")),
            (quantize(f32::NAN, Tensor::scalar(0i8)), Some("above 0")),
            (top_k(3839), None),
            (top_k(3840), Some("below 3840")),
            (model(Node::new("MaxPool", "n", ["x"], ["y"]), vec![]), None),
            (
                model(Node::new("MaxPool", "n", ["x"], ["y", "i"]), vec![]),
                Some("Indices"),
            ),
            (
                model(Node::new("QLinearConv", "n", ["x"], ["y"]), vec![]),
                Some("QuantizeLinear"),
            ),
            (model(custom, vec![]), Some("plugin")),
            (branches(2, 2), None),
            (branches(2, 3), Some("rank")),
            (outer, Some("sequences")),
        ] {
            let found = refusals(&model);
            match expected {
                None => assert_eq!(found, vec![]),
                Some(text) => assert!(
                    found.len() == 1 && found[0].reason.contains(text),
                    "{text}: {found:?}"
                ),
            }
        }
    }
}
