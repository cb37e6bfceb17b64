//! What reading changes, and what it refuses.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

use edgeopt_models::graph::validate::validate;
use edgeopt_models::onnx::{read_bytes, write_bytes};
use onnx_protobuf::attribute_proto::AttributeType;
use onnx_protobuf::{
    AttributeProto, GraphProto, Message, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    ValueInfoProto,
};

/// The parser and everything after it recurse; the limit on nesting must keep them within any thread's stack.
#[test]
fn the_deepest_model_allowed_is_read_written_and_checked_on_a_small_stack() {
    let nested = |levels: usize| {
        let mut graph = GraphProto::default();
        for level in 0..levels {
            let node = NodeProto {
                op_type: "If".into(),
                input: vec!["x".into()],
                output: vec![format!("y{level}")],
                attribute: vec![AttributeProto {
                    name: "then_branch".into(),
                    type_: AttributeType::GRAPH.into(),
                    g: Some(std::mem::take(&mut graph)).into(),
                    ..Default::default()
                }],
                ..Default::default()
            };
            graph.node.push(node);
        }
        let mut proto = small(8);
        proto.graph.as_mut().unwrap().node = graph.node;
        proto.write_to_bytes().unwrap()
    };
    let check = move || {
        let model = read_bytes(&nested(31)).unwrap();
        assert_eq!(read_bytes(&write_bytes(&model.clone()).unwrap()).unwrap(), model);
        assert!(validate(&model).is_err());
        let error = read_bytes(&nested(32)).unwrap_err().to_string();
        assert!(error.contains("nested more than 96 deep"), "{error}");
    };
    let thread = std::thread::Builder::new().stack_size(1 << 20);
    thread.spawn(check).unwrap().join().unwrap();
}

fn small(ir_version: i64) -> ModelProto {
    let info = |name: &str| ValueInfoProto {
        name: name.into(),
        ..Default::default()
    };
    ModelProto {
        ir_version,
        graph: Some(GraphProto {
            input: vec![info("x"), info("w")],
            output: vec![info("y")],
            initializer: vec![TensorProto {
                name: "w".into(),
                data_type: 6,
                int32_data: vec![1],
                ..Default::default()
            }],
            ..Default::default()
        })
        .into(),
        ..Default::default()
    }
}

#[test]
fn initializers_of_old_files_are_constants_and_later_ones_are_defaults() {
    let read = |ir_version| read_bytes(&small(ir_version).write_to_bytes().unwrap()).unwrap();
    let (old, new) = (read(3), read(4));
    assert_eq!(old.graph.inputs.len(), 1);
    assert!(old.graph.constant("w").is_some());
    assert_eq!(new.graph.inputs.len(), 2);
    assert!(new.graph.constant("w").is_none());
    let written = ModelProto::parse_from_bytes(&write_bytes(&old).unwrap()).unwrap();
    assert_eq!(written.graph.input[1].name, "w");
}

#[test]
fn unknown_ir_versions_are_refused_with_words() {
    for version in [-1, 0, 2, 14] {
        let error = read_bytes(&small(version).write_to_bytes().unwrap())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&format!("IR version {version} is not supported (3 to 13 are)")),
            "{error}"
        );
    }
}

#[test]
fn names_become_unique_and_nodes_sorted() {
    let node = |op: &str, name: &str, input: &str, output: &str| NodeProto {
        op_type: op.into(),
        name: name.into(),
        input: vec![input.into()],
        output: vec![output.into()],
        ..Default::default()
    };
    let branch = |name: &str| {
        let info = ValueInfoProto {
            name: "t".into(),
            ..Default::default()
        };
        AttributeProto {
            name: name.into(),
            type_: AttributeType::GRAPH.into(),
            g: Some(GraphProto {
                // `t` shadows the outer one and is read by the node before the one that computes it
                node: vec![node("Neg", "", "t", "u"), node("Relu", "", "x", "t")],
                output: vec![info],
                ..Default::default()
            })
            .into(),
            ..Default::default()
        }
    };
    let mut proto = small(8);
    let graph = proto.graph.as_mut().unwrap();
    let mut choose = node("If", "", "t", "y");
    choose.attribute = vec![branch("then_branch"), branch("else_branch")];
    graph.node = vec![
        choose,
        node("Abs", "same", "s", "t"),
        node("Abs", "same", "x", "s"),
    ];
    proto.opset_import.push(OperatorSetIdProto {
        domain: "ai.onnx".into(),
        version: 17,
        ..Default::default()
    });
    let model = read_bytes(&proto.write_to_bytes().unwrap()).unwrap();
    assert_eq!(validate(&model), Ok(()));
    let names: Vec<&str> = model.graph.nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["same_1", "same", "If"]);
    let inner: Vec<String> = model.graph.nodes[2]
        .subgraphs()
        .map(|graph| {
            let nodes = graph
                .nodes
                .iter()
                .map(|node| format!("{}:{}>{}", node.name, node.inputs[0], node.outputs[0]));
            format!(
                "{} -> {}",
                nodes.collect::<Vec<_>>().join(" "),
                graph.outputs[0].name
            )
        })
        .collect();
    assert_eq!(
        inner,
        ["Relu:x>t_1 Neg:t_1>u -> t_1", "Relu:x>t_2 Neg:t_2>u_1 -> t_2"]
    );

    let mut cycle = small(8);
    cycle.graph.as_mut().unwrap().node = vec![node("Abs", "a", "p", "q"), node("Abs", "b", "q", "p")];
    let error = read_bytes(&cycle.write_to_bytes().unwrap())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("[\"a\", \"b\"] depend on each other in a circle"),
        "{error}"
    );
}

#[test]
fn lengths_called_question_mark_are_unknown_not_equal() {
    use edgeopt_models::Dim;
    use onnx_protobuf::tensor_shape_proto::{Dimension, dimension};
    use onnx_protobuf::{TensorShapeProto, TypeProto, type_proto};
    let dim = |name: &str| Dimension {
        value: Some(dimension::Value::DimParam(name.into())),
        ..Default::default()
    };
    let mut ty = TypeProto::new();
    ty.value = Some(type_proto::Value::TensorType(type_proto::Tensor {
        elem_type: 1,
        shape: Some(TensorShapeProto {
            dim: vec![dim("?"), dim("N"), dim("?")],
            ..Default::default()
        })
        .into(),
        ..Default::default()
    }));
    let mut proto = small(8);
    proto.graph.as_mut().unwrap().input[0].type_ = Some(ty).into();
    let model = read_bytes(&proto.write_to_bytes().unwrap()).unwrap();
    let shape = model.graph.inputs[0].ty.shape().unwrap();
    assert_eq!(shape.0, [Dim::Unknown, Dim::from("N"), Dim::Unknown]);
}
