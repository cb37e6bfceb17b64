//! What a model costs: parameters, bytes of weights, and multiply-accumulates (MACs), node by node.
//!
//! Counted are the operators whose work is products of matrices; all others are bound by memory, not arithmetic,
//! and count none:
//!
//! | operator | MACs |
//! |---|---|
//! | `Conv`, `ConvInteger`, `QLinearConv` | elements of the output × elements of one filter (channels of a group × window) |
//! | `ConvTranspose` | elements of the input × elements of the weight for one input channel |
//! | `Gemm`, `MatMul`, `MatMulInteger`, `QLinearMatMul` | elements of the output × length of the summed axis |
//! | `LSTM`, `GRU`, `RNN` | directions × steps × batch × gates × hidden × (features + hidden), gates 4, 3, 1 |
//!
//! The bias is not counted. A subgraph's nodes are listed once, whatever number of times they run.

use crate::graph::Attribute;
use crate::{Bytes, DataType, Graph, Model, Node, Shape, Tensor};

/// The cost of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCost {
    /// Elements of all constants of rank 1 and more that are not of 64-bit integers, booleans or strings (those are
    /// shapes, axes and indices).
    pub parameters: u64,
    /// Bytes of all constants.
    pub weights: Bytes,
    /// Multiply-accumulates of one run; `None` when the shapes of a counted node are not known.
    pub macs: Option<u64>,
    /// Every node of the main graph and its subgraphs.
    pub per_node: Vec<NodeCost>,
}

/// The cost of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeCost {
    /// Name of the node.
    pub node: String,
    /// Operator.
    pub op: String,
    /// Multiply-accumulates; 0 for operators that are not counted, `None` when shapes are not known.
    pub macs: Option<u64>,
    /// Elements of the constants that this node reads directly; one that several read counts at each.
    pub parameters: u64,
}

/// The cost of a model whose shapes were inferred: [`infer`](crate::shape_inference::infer) it first.
pub fn cost(model: &Model) -> ModelCost {
    let mut result = ModelCost {
        parameters: 0,
        weights: Bytes::ZERO,
        macs: Some(0),
        per_node: Vec::with_capacity(model.graph.nodes.len()),
    };
    visit(
        &Scope {
            graph: &model.graph,
            outer: None,
        },
        &mut result,
    );
    let mut macs = Some(0u64);
    for node in &result.per_node {
        macs = macs.zip(node.macs).and_then(|(sum, macs)| sum.checked_add(macs));
    }
    result.macs = macs;
    result
}

/// A graph and the graphs around it.
struct Scope<'a> {
    graph: &'a Graph,
    outer: Option<&'a Scope<'a>>,
}

impl Scope<'_> {
    fn shape(&self, name: &str) -> Option<Shape> {
        match self.graph.type_of(name) {
            Some(ty) => ty.shape().cloned(),
            None => self.outer?.shape(name),
        }
    }

    fn constant(&self, name: &str) -> Option<&Tensor> {
        let here = self.graph.initializers.get(name).or_else(|| {
            let node = self.graph.nodes.get(self.graph.producer(name)?)?;
            constant_of(node)
        });
        here.or_else(|| self.outer?.constant(name))
    }
}

fn constant_of(node: &Node) -> Option<&Tensor> {
    match node.attributes.get("value") {
        Some(Attribute::Tensor(tensor)) if node.is("Constant") => Some(tensor),
        _ => None,
    }
}

/// Elements that were trained, as far as type and rank tell: 64-bit integers are shapes and indices, scalars are
/// settings.
fn parameters(tensor: &Tensor) -> u64 {
    let index = matches!(
        tensor.dtype(),
        DataType::Int64 | DataType::Bool | DataType::String
    );
    if index || tensor.dims().is_empty() {
        0
    } else {
        tensor.elements() as u64
    }
}

fn bytes(tensor: &Tensor) -> Bytes {
    match tensor.as_strings() {
        Some(strings) => Bytes::from(strings.iter().map(Vec::len).sum::<usize>()),
        None => Bytes::from(tensor.as_bytes().len()),
    }
}

fn visit(scope: &Scope, result: &mut ModelCost) {
    let constants = scope.graph.nodes.iter().filter_map(constant_of);
    for tensor in scope.graph.initializers.values().chain(constants) {
        result.parameters += parameters(tensor);
        result.weights += bytes(tensor);
    }
    for node in &scope.graph.nodes {
        let read = node.inputs.iter().filter_map(|name| scope.constant(name));
        result.per_node.push(NodeCost {
            node: node.name.clone(),
            op: node.op_type.clone(),
            macs: macs(scope, node),
            parameters: read.map(parameters).sum(),
        });
        for graph in node.subgraphs() {
            visit(
                &Scope {
                    graph,
                    outer: Some(scope),
                },
                result,
            );
        }
    }
}

fn macs(scope: &Scope, node: &Node) -> Option<u64> {
    let input = |index: usize| scope.shape(node.input(index)?);
    let output = |index: usize| scope.shape(node.output(index)?);
    let known = |shape: &Shape, axis: usize| shape.get(axis)?.known();
    if !node.domain.is_empty() {
        return Some(0);
    }
    let product = |factors: &[usize]| {
        factors.iter().try_fold(1u64, |product, factor| {
            product.checked_mul(u64::try_from(*factor).ok()?)
        })
    };
    match &*node.op_type {
        "Conv" | "ConvInteger" | "QLinearConv" => {
            let weight = input(if node.op_type == "QLinearConv" { 3 } else { 1 })?;
            let filter = Shape(weight.iter().skip(1).cloned().collect());
            product(&[output(0)?.elements()?, filter.elements()?])
        }
        "ConvTranspose" => {
            let filter = Shape(input(1)?.iter().skip(1).cloned().collect());
            product(&[input(0)?.elements()?, filter.elements()?])
        }
        "Gemm" => {
            let a = input(0)?;
            let inner = known(&a, usize::from(node.int("transA").unwrap_or(0) == 0))?;
            product(&[output(0)?.elements()?, inner])
        }
        "MatMul" | "MatMulInteger" | "QLinearMatMul" => {
            let a = input(0)?;
            let inner = known(&a, a.len().checked_sub(1)?)?;
            product(&[output(0)?.elements()?, inner])
        }
        "LSTM" | "GRU" | "RNN" => {
            let gates = match &*node.op_type {
                "LSTM" => 4,
                "GRU" => 3,
                _ => 1,
            };
            // Steps and batch in either layout; the weight is [directions, gates · hidden, features].
            let (data, weight, recurrence) = (input(0)?, input(1)?, input(2)?);
            let (features, hidden) = (known(&weight, 2)?, known(&recurrence, 2)?);
            product(&[
                known(&weight, 0)?,
                known(&data, 0)?,
                known(&data, 1)?,
                gates,
                hidden,
                features.checked_add(hidden)?,
            ])
        }
        _ => Some(0),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::shape_inference::{Bindings, infer};
    use crate::{Dim, ValueInfo};

    /// One node with inputs of the given shapes, the second and later ones constants.
    fn one(node: Node, shapes: &[&[usize]]) -> ModelCost {
        let mut graph = Graph::default();
        for (index, (name, dims)) in node.inputs.iter().zip(shapes).enumerate() {
            if index == 0 {
                graph.inputs.push(ValueInfo::tensor(
                    name.clone(),
                    DataType::Float32,
                    Shape::known(dims),
                ));
            } else {
                let tensor = Tensor::zeros(DataType::Float32, dims).unwrap();
                graph.initializers.insert(name.clone(), tensor);
            }
        }
        graph.nodes.push(node);
        let mut model = Model::new(graph, 17);
        infer(&mut model, &Bindings::default()).unwrap();
        cost(&model)
    }

    #[test]
    fn macs_follow_the_formulas() {
        let table: [(Node, &[&[usize]], u64, u64); 6] = [
            // 1·8·14·14 outputs of 3·3·3 products each.
            (
                Node::new("Conv", "n", ["x", "w"], ["y"]),
                &[&[1, 3, 16, 16], &[8, 3, 3, 3]],
                8 * 14 * 14 * 27,
                216,
            ),
            // Depthwise: one channel a filter.
            (
                Node::new("Conv", "n", ["x", "w", "b"], ["y"]).with("group", 8),
                &[&[1, 8, 4, 4], &[8, 1, 3, 3], &[8]],
                8 * 2 * 2 * 9,
                80,
            ),
            (
                Node::new("ConvTranspose", "n", ["x", "w"], ["y"]),
                &[&[2, 4, 5, 5], &[4, 6, 2, 2]],
                200 * 24,
                96,
            ),
            (
                Node::new("Gemm", "n", ["x", "w"], ["y"]).with("transB", 1),
                &[&[3, 10], &[7, 10]],
                210,
                70,
            ),
            (
                Node::new("MatMul", "n", ["x", "w"], ["y"]),
                &[&[2, 5, 10], &[10, 7]],
                2 * 5 * 7 * 10,
                70,
            ),
            (
                Node::new("LSTM", "n", ["x", "w", "r"], ["y"]).with("hidden_size", 6),
                &[&[9, 2, 5], &[1, 24, 5], &[1, 24, 6]],
                9 * 2 * 4 * 6 * 11,
                24 * 11,
            ),
        ];
        for (node, shapes, macs, parameters) in table {
            let op = node.op_type.clone();
            let cost = one(node, shapes);
            assert_eq!((cost.macs, cost.parameters), (Some(macs), parameters), "{op}");
            assert_eq!(cost.weights, Bytes(parameters * 4), "{op}");
            assert_eq!(
                (cost.per_node[0].macs, cost.per_node[0].parameters),
                (Some(macs), parameters),
                "{op}"
            );
        }
    }

    #[test]
    fn an_open_batch_leaves_the_macs_unknown() {
        let mut graph = Graph {
            inputs: vec![ValueInfo::tensor(
                "x",
                DataType::Float32,
                Shape(vec![Dim::from("N"), 10.into()]),
            )],
            nodes: vec![Node::new("MatMul", "n", ["x", "w"], ["y"])],
            ..Graph::default()
        };
        let weight = Tensor::zeros(DataType::Float32, &[10, 7]).unwrap();
        graph.initializers.insert("w".into(), weight);
        let mut model = Model::new(graph, 17);
        infer(&mut model, &Bindings::default()).unwrap();
        assert_eq!(cost(&model).macs, None);
        let dims = [("N".to_owned(), 4)].into();
        infer(
            &mut model,
            &Bindings {
                dims,
                ..Bindings::default()
            },
        )
        .unwrap();
        assert_eq!(cost(&model).macs, Some(280));
    }
}
