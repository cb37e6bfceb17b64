//! What makes a model unfit to work on, and how that is said.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

use edgeopt_models::graph::validate::validate;
use edgeopt_models::{Attribute, DataType, Graph, Model, Node, Shape, Tensor, ValueInfo};

fn model() -> Model {
    let float = |name: &str| ValueInfo::tensor(name, DataType::Float32, Shape::known(&[2]));
    let graph = Graph {
        name: "main".into(),
        inputs: vec![float("x")],
        outputs: vec![float("y")],
        nodes: vec![
            Node::new("Add", "add", ["x", "w"], ["sum"]),
            Node::new("Softmax", "soft", ["sum"], ["y"]).with("axis", -1),
        ],
        initializers: [("w".into(), Tensor::vector(&[1f32, 2.0]))].into_iter().collect(),
        ..Graph::default()
    };
    Model::new(graph, 17)
}

fn branch(output: &str, read: &str) -> Graph {
    Graph {
        name: "branch".into(),
        outputs: vec![ValueInfo::tensor(output, DataType::Float32, Shape::known(&[2]))],
        nodes: vec![Node::new("Relu", "relu", [read], [output])],
        ..Graph::default()
    }
}

#[test]
fn a_sound_model_passes() {
    let mut model = model();
    assert_eq!(validate(&model), Ok(()));
    let choose = Node::new("If", "if", ["w"], ["z"])
        .with("then_branch", branch("a", "sum"))
        .with("else_branch", branch("b", "x"));
    model.graph.nodes.push(choose);
    assert_eq!(validate(&model), Ok(()));
}

#[test]
fn each_fault_is_named() {
    type Fault = (fn(&mut Model), &'static str);
    let faults: [Fault; 17] = [
        (|m| m.ir_version = 2, "model: IR version 2"),
        (
            |m| m.opsets = [(String::new(), 6)].into(),
            "model: operator set 6",
        ),
        (
            |m| m.opsets.clear(),
            "Add node \"add\": the model does not import",
        ),
        (|m| m.graph.outputs.clear(), "computes nothing"),
        (
            |m| m.graph.nodes.swap(0, 1),
            "Softmax node \"soft\": it reads \"sum\", which a later node",
        ),
        (
            |m| m.graph.nodes[0].inputs[1] = "q".into(),
            "Add node \"add\": it reads \"q\", which nothing",
        ),
        (
            |m| m.graph.nodes[1].outputs[0] = "sum".into(),
            "the value \"sum\" is defined more than once",
        ),
        (
            |m| m.graph.nodes[1].outputs[0] = "x".into(),
            "Softmax node \"soft\": the value \"x\"",
        ),
        (
            |m| m.graph.nodes[1].outputs[0] = "other".into(),
            "graph \"main\": nothing computes the output \"y\"",
        ),
        (|m| m.graph.nodes[1].outputs.clear(), "it has no outputs"),
        (
            |m| m.graph.nodes[0].op_type.clear(),
            "node \"add\": it has no operator",
        ),
        (
            |m| m.graph.nodes[1].name = "add".into(),
            "another node of the graph has the same name",
        ),
        (|m| m.graph.nodes[1].name.clear(), "it has no name"),
        (|m| m.graph.nodes[0].domain = "com.example".into(), "com.example"),
        (
            |m| {
                m.graph.nodes[1]
                    .attributes
                    .insert("axis".into(), Attribute::Float(1.0));
            },
            "Softmax node \"soft\": its attribute \"axis\" must be an integer",
        ),
        (
            |m| {
                m.graph
                    .inputs
                    .push(ValueInfo::tensor("w", DataType::Float32, Shape::known(&[3])))
            },
            "initializer \"w\": it is float32[2]",
        ),
        (
            |m| {
                let node = Node::new("If", "if", ["w"], ["z"]).with("then_branch", branch("sum", "x"));
                m.graph.nodes.push(node);
            },
            "the value \"sum\" is defined more than once",
        ),
    ];
    for (spoil, expected) in faults {
        let mut model = model();
        spoil(&mut model);
        let message = validate(&model).expect_err(expected).to_string();
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    }
}

#[test]
fn many_problems_are_counted_but_not_all_spelled_out() {
    let mut model = model();
    for index in 0..100 {
        let (name, output) = (format!("n{index}"), format!("v{index}"));
        model
            .graph
            .nodes
            .push(Node::new("Relu", &name, ["gone"], [output]));
    }
    let error = validate(&model).unwrap_err();
    assert_eq!((error.problems.len(), error.total), (20, 100));
    assert!(error.to_string().ends_with("and 80 more"));
}
