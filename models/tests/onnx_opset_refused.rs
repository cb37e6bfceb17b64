//! What raising operator sets refuses or leaves alone.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

use edgeopt_models::opset::{OpsetError, raise};
use edgeopt_models::{DataType, Dim, Graph, Model, Node, Shape, ValueInfo, ValueType};

fn input(name: &str, dims: &[usize]) -> ValueInfo {
    ValueInfo::tensor(name, DataType::Float32, Shape::known(dims))
}

fn untyped(name: &str) -> ValueInfo {
    ValueInfo {
        name: name.into(),
        ty: ValueType::Tensor {
            dtype: DataType::Float32,
            shape: None,
        },
        extra: None,
    }
}

/// `x` of shape `dims` goes into `node`, whose first output `y` comes out.
fn model(opset: i64, dims: &[usize], node: Node) -> Model {
    let graph = Graph {
        name: "main".into(),
        inputs: vec![input("x", dims)],
        outputs: vec![untyped("y")],
        nodes: vec![node],
        ..Graph::default()
    };
    Model::new(graph, opset)
}

fn node(op_type: &str) -> Node {
    Node::new(op_type, "n", ["x"], ["y"])
}

#[test]
fn what_cannot_be_expressed_is_refused_and_changes_nothing() {
    let spatial = Node::new("BatchNormalization", "n", ["x", "x", "x", "x", "x"], ["y"]).with("spatial", 0);
    let mut masked = model(7, &[2], Node::new("Dropout", "n", ["x"], ["y", "m"]));
    masked.graph.outputs.push(untyped("m"));
    let indices = Node::new("OneHot", "n", ["x", "x", "x"], ["y"]);
    let dynamic = Node::new("Resize", "n", ["x", "x"], ["y"]);
    let pixels = node("Resize").with("coordinate_transformation_mode", "tf_half_pixel_for_nn");
    let cases = [
        (
            model(7, &[2], spatial),
            19,
            "BatchNormalization node \"n\" cannot be raised over operator set 9",
        ),
        (
            masked,
            19,
            "the mask, once a number and now boolean, \"m\" is read",
        ),
        (model(9, &[2], indices), 19, "negative indices"),
        (model(10, &[2], dynamic), 19, "which are not constant"),
        (model(11, &[2], pixels), 19, "tf_half_pixel_for_nn"),
        (
            model(8, &[2], node("Scan")),
            19,
            "Scan node \"n\" cannot be raised over operator set 9",
        ),
        (
            model(18, &[2], node("GroupNormalization")),
            21,
            "over operator set 21",
        ),
        (
            model(12, &[2], node("Upsample")),
            19,
            "the standard operator set 19 has no such operator",
        ),
        (model(9, &[2], node("ImageScaler")), 19, "has no such operator"),
        (
            model(9, &[2], node("Unsqueeze").with("axes", 1)),
            19,
            "is no list of integers",
        ),
        (model(6, &[2], node("Relu")), 19, "operator set 6 is too old"),
        (
            model(7, &[2], node("Relu")),
            18,
            "can be raised to operator sets 19 to 21, not 18",
        ),
    ];
    for (mut model, target, expected) in cases {
        let before = model.clone();
        let error: OpsetError = raise(&mut model, target).expect_err(expected);
        assert!(error.to_string().contains(expected), "{error} lacks {expected:?}");
        assert_eq!(model, before, "{expected}");
    }
}

#[test]
fn a_newer_model_and_other_domains_are_left_alone() {
    let mut newer = model(22, &[2], node("Relu"));
    assert_eq!(raise(&mut newer, 19).unwrap().to, 22);
    let mut custom = model(9, &[2], node("Softmax"));
    custom.graph.nodes[0].domain = "com.example".into();
    custom.opsets.insert("com.example".into(), 1);
    custom.graph.inputs[0].ty =
        ValueType::tensor(DataType::Float32, Shape(vec![Dim::from("N"), Dim::from(3)]));
    raise(&mut custom, 19).unwrap();
    assert!(custom.graph.nodes[0].attributes.is_empty());
    assert_eq!((custom.graph.nodes.len(), custom.opset()), (1, 19));
}
