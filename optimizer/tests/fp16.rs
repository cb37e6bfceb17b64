//! FP16: what converts, what stays in float32 and why, and that overflow is seen.

#![allow(clippy::unwrap_used)] // helpers of tests, too

use edgeopt_models::graph::validate::validate;
use edgeopt_models::{DataType, Graph, Model, Node, Shape, Tensor, ValueInfo};
use edgeopt_optimizer::accuracy::compare;
use edgeopt_optimizer::precision::fp16::{Fp16Options, Fp16Report, simulate, to_fp16};
use edgeopt_runtime::backends::cpu::CpuBackend;

/// A model from `x` (float32, `dims`) to `y`.
fn model(dims: &[usize], nodes: Vec<Node>, constants: &[(&str, Tensor)], output: &[usize]) -> Model {
    let mut graph = Graph {
        nodes,
        inputs: vec![ValueInfo::tensor("x", DataType::Float32, Shape::known(dims))],
        outputs: vec![ValueInfo::tensor("y", DataType::Float32, Shape::known(output))],
        ..Graph::default()
    };
    for (name, tensor) in constants {
        graph.add_initializer((*name).into(), tensor.clone());
    }
    Model::new(graph, 18)
}

/// Converts, checks that the result is valid with its outputs as before, and gives it with the report.
fn converted(mut model: Model) -> (Model, Fp16Report) {
    let outputs = model.graph.outputs.clone();
    let report = to_fp16(&mut model, &Fp16Options::default(), None).unwrap();
    validate(&model).unwrap();
    assert_eq!(model.graph.outputs[0].name, outputs[0].name);
    assert_eq!(model.graph.outputs[0].ty.dtype(), Some(DataType::Float32));
    (model, report)
}

fn ops(model: &Model) -> Vec<&str> {
    model
        .graph
        .nodes
        .iter()
        .map(|node| node.op_type.as_str())
        .collect()
}

#[test]
fn a_chain_is_cast_once_at_each_end_and_its_weights_are_half() {
    let nodes = vec![
        Node::new("MatMul", "a", ["x", "w"], ["h"]),
        Node::new("Relu", "b", ["h"], ["r"]),
        Node::new("MatMul", "c", ["r", "w"], ["y"]),
    ];
    let weights = Tensor::new(&[2, 2], &[0.5f32, 1e-9, -2.0, 1.0]).unwrap();
    let (model, report) = converted(model(&[1, 2], nodes, &[("w", weights)], &[1, 2]));
    assert_eq!(ops(&model), ["Cast", "MatMul", "Relu", "MatMul", "Cast"]);
    assert_eq!(
        (report.converted, report.casts, report.flushed_weights),
        (3, 2, 1)
    );
    let types: Vec<DataType> = model.graph.initializers.values().map(Tensor::dtype).collect();
    assert_eq!(types, [DataType::Float16]);
}

#[test]
fn what_is_not_safe_in_half_stays_and_says_why() {
    let sum = Node::new("ReduceSum", "node", ["x"], ["y"]).with("keepdims", 0i64);
    let square = Node::new("Mul", "node", ["x", "x"], ["y"]);
    let large = Node::new("Add", "node", ["x", "c"], ["y"]);
    let constant = [("c", Tensor::vector(&[1e6f32, 1.0]))];
    let cases = [
        (model(&[70_000], vec![sum], &[], &[]), "too many"),
        (model(&[2], vec![square], &[], &[2]), "squares"),
        (model(&[2], vec![large], &constant, &[2]), "beyond 65504"),
        (
            model(&[2], vec![Node::new("Exp", "node", ["x"], ["y"])], &[], &[2]),
            "not safe",
        ),
    ];
    for (model, reason) in cases {
        let before = ops(&model).len();
        let (after, report) = converted(model);
        assert_eq!(report.converted, 0);
        assert!(report.kept[0].reason.contains(reason), "{:?}", report.kept);
        assert_eq!(ops(&after).len(), before);
    }
}

#[test]
fn masks_become_the_lowest_half_and_softmax_ignores_them_as_before() {
    let nodes = vec![
        Node::new("Add", "mask", ["x", "m"], ["s"]),
        Node::new("Softmax", "softmax", ["s"], ["y"]),
    ];
    let mask = Tensor::vector(&[0.0f32, -3.4e38, 0.0]);
    let float = model(&[3], nodes, &[("m", mask)], &[3]);
    let (half, report) = converted(float.clone());
    assert_eq!((report.converted, report.clamped_masks), (2, 1));
    let samples = vec![vec![Tensor::vector(&[1.0f32, 50.0, 2.0])]];
    let backend = CpuBackend::new().unwrap();
    let found = compare(
        &float,
        &simulate(&half).unwrap(),
        &samples,
        &backend,
        1,
        &mut |_, _, _| (),
    )
    .unwrap();
    assert!(found.min_sqnr_db() > 60.0, "{found:?}");
}

#[test]
fn overflow_shows_in_the_simulation() {
    let nodes = vec![
        Node::new("Mul", "up", ["x", "c"], ["h"]),
        Node::new("Mul", "down", ["h", "d"], ["y"]),
    ];
    let constants = [("c", Tensor::scalar(1000.0f32)), ("d", Tensor::scalar(0.001f32))];
    let float = model(&[2], nodes, &constants, &[2]);
    let (half, _) = converted(float.clone());
    let samples = vec![vec![Tensor::vector(&[1.0f32, 100.0])]];
    let backend = CpuBackend::new().unwrap();
    let found = compare(
        &float,
        &simulate(&half).unwrap(),
        &samples,
        &backend,
        1,
        &mut |_, _, _| (),
    )
    .unwrap();
    assert_eq!(found.non_finite, [("y".to_owned(), 1)]);
}
