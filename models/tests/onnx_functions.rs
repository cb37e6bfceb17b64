//! Functions of a model are put in the place of their calls.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

use edgeopt_models::Graph;
use edgeopt_models::graph::validate::validate;
use edgeopt_models::onnx::{read_bytes, write_bytes};
use edgeopt_models::opset::raise;
use onnx_protobuf::attribute_proto::AttributeType;
use onnx_protobuf::{
    AttributeProto, FunctionProto, GraphProto, Message, ModelProto, NodeProto, OperatorSetIdProto,
    ValueInfoProto,
};

fn strings(text: &str) -> Vec<String> {
    text.split(',')
        .filter(|part| !part.is_empty())
        .map(Into::into)
        .collect()
}

/// `node("y,z", "Op", "x,w")`; a name with a dot has a domain.
fn node(outputs: &str, op: &str, inputs: &str) -> NodeProto {
    let (domain, op_type) = op.split_once('.').unwrap_or(("", op));
    NodeProto {
        op_type: op_type.into(),
        domain: domain.into(),
        name: format!("n_{op_type}"),
        input: strings(inputs),
        output: strings(outputs),
        ..Default::default()
    }
}

fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        type_: AttributeType::INT.into(),
        i: value,
        ..Default::default()
    }
}

fn reference(name: &str, to: &str) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        type_: AttributeType::INT.into(),
        ref_attr_name: to.into(),
        ..Default::default()
    }
}

fn branch(name: &str, nodes: Vec<NodeProto>, output: &str) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        type_: AttributeType::GRAPH.into(),
        g: Some(GraphProto {
            node: nodes,
            output: vec![info(output)],
            ..Default::default()
        })
        .into(),
        ..Default::default()
    }
}

fn with(mut node: NodeProto, attributes: Vec<AttributeProto>) -> NodeProto {
    node.attribute = attributes;
    node
}

fn info(name: &str) -> ValueInfoProto {
    ValueInfoProto {
        name: name.into(),
        ..Default::default()
    }
}

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto {
        domain: domain.into(),
        version,
        ..Default::default()
    }
}

fn function(name: &str, outputs: &str, inputs: &str, nodes: Vec<NodeProto>) -> FunctionProto {
    FunctionProto {
        name: name.into(),
        domain: "f".into(),
        input: strings(inputs),
        output: strings(outputs),
        node: nodes,
        opset_import: vec![opset("", 17), opset("f", 1)],
        ..Default::default()
    }
}

fn model(nodes: Vec<NodeProto>, functions: Vec<FunctionProto>) -> ModelProto {
    ModelProto {
        ir_version: 8,
        opset_import: vec![opset("", 17), opset("f", 1)],
        graph: Some(GraphProto {
            node: nodes,
            input: vec![info("x"), info("c")],
            output: vec![info("y")],
            ..Default::default()
        })
        .into(),
        functions,
        ..Default::default()
    }
}

fn text(graph: &Graph) -> String {
    let line = |node: &edgeopt_models::Node| {
        let names =
            |names: &[edgeopt_models::ValueName]| names.iter().map(|n| &**n).collect::<Vec<_>>().join(",");
        let axis = node.int("axis").map_or(String::new(), |axis| format!("[{axis}]"));
        let inner: String = node
            .subgraphs()
            .map(|graph| format!("{{{}}}", text(graph)))
            .collect();
        format!(
            "{}={}{axis}({}){inner}",
            names(&node.outputs),
            node.op_type,
            names(&node.inputs)
        )
    };
    graph.nodes.iter().map(line).collect::<Vec<_>>().join(" ")
}

fn read(proto: &ModelProto) -> Result<edgeopt_models::Model, String> {
    read_bytes(&proto.write_to_bytes().unwrap()).map_err(|error| error.to_string())
}

#[test]
fn calls_become_copies_with_names_and_attributes_of_the_call() {
    let mut soft = function(
        "Soft",
        "out",
        "in",
        vec![
            node("t", "Relu", "in"),
            with(node("out", "Softmax", "t"), vec![reference("axis", "along")]),
        ],
    );
    soft.attribute_proto = vec![int("along", 7)];
    let twice = function(
        "Twice",
        "b",
        "a",
        vec![node("m", "f.Soft", "a"), node("b", "f.Soft", "m")],
    );
    let mut plain = soft.clone();
    plain.name = "Plain".into();
    plain.attribute_proto.clear();
    let same = function("Same", "p,p", "p", vec![]);
    let optional = function("Optional", "r", "p,q", vec![node("r", "Clip", "p,q")]);
    // the branch's own `x` must not capture the caller's, which stands for `v`
    let choose = function(
        "Choose",
        "r",
        "v,k",
        vec![with(
            node("r", "If", "k"),
            vec![
                branch(
                    "then_branch",
                    vec![node("x", "Neg", "v"), node("o", "Add", "x,v")],
                    "o",
                ),
                branch("else_branch", vec![node("e", "f.Soft", "v")], "e"),
            ],
        )],
    );
    let functions = vec![soft, twice, plain, same, optional, choose];
    let cases = [
        (
            vec![with(node("y", "f.Soft", "x"), vec![int("along", 1)])],
            "n_Soft_t=Relu(x) y=Softmax[1](n_Soft_t)",
        ),
        (
            vec![node("y", "f.Soft", "x")],
            "n_Soft_t=Relu(x) y=Softmax[7](n_Soft_t)",
        ),
        (
            vec![node("y", "f.Plain", "x")],
            "n_Plain_t=Relu(x) y=Softmax(n_Plain_t)",
        ),
        (
            vec![node("y", "f.Twice", "x")],
            "n_Twice_n_Soft_t=Relu(x) n_Twice_m=Softmax[7](n_Twice_n_Soft_t) \
             n_Twice_n_Soft_1_t=Relu(n_Twice_m) y=Softmax[7](n_Twice_n_Soft_1_t)",
        ),
        (vec![node("y,z", "f.Same", "x")], "y=Identity(x) z=Identity(x)"),
        (vec![node("y", "f.Optional", "x")], "y=Clip(x,)"),
        (
            vec![node("y", "f.Choose", "x,c")],
            "y=If(c){n_Soft_t=Relu(x) e=Softmax[7](n_Soft_t)}{x_1=Neg(x) o=Add(x_1,x)}",
        ),
    ];
    for (nodes, expected) in cases {
        let read = read(&model(nodes, functions.clone())).unwrap();
        assert_eq!(validate(&read), Ok(()), "{expected}");
        assert!(read.extra.is_none());
        assert_eq!(read_bytes(&write_bytes(&read).unwrap()).unwrap(), read);
        assert_eq!(text(&read.graph), expected);
    }
}

#[test]
fn recursion_and_explosion_are_refused() {
    let itself = function("F", "b", "a", vec![node("b", "f.F", "a")]);
    let error = read(&model(vec![node("y", "f.F", "x")], vec![itself])).unwrap_err();
    assert!(error.contains("calls itself"), "{error}");

    let deeper = function(
        "F",
        "b",
        "a",
        vec![with(
            node("b", "If", "a"),
            vec![branch("then_branch", vec![node("t", "f.F", "a")], "t")],
        )],
    );
    let error = read(&model(vec![node("y", "f.F", "x")], vec![deeper])).unwrap_err();
    assert!(error.contains("32 deep"), "{error}");

    // each calls the next ten times: ten to the power of twenty nodes
    let level = |index: usize| {
        let calls = (0..10).map(|call| node(&format!("v{call}"), &format!("f.F{}", index + 1), "a"));
        function(&format!("F{index}"), "v0", "a", calls.collect())
    };
    let mut functions: Vec<_> = (0..20).map(level).collect();
    functions.push(function("F20", "b", "a", vec![node("b", "Relu", "a")]));
    let error = read(&model(vec![node("y", "f.F0", "x")], functions)).unwrap_err();
    assert!(
        error.contains("more memory than a file of this size needs"),
        "{error}"
    );

    let call = node("y", "f.F", "x,x");
    let error = read(&model(vec![call], vec![function("F", "b", "a", vec![])])).unwrap_err();
    assert!(error.contains("a function of 1 inputs and 1 outputs"), "{error}");
}

#[test]
fn functions_for_another_operator_set_are_kept_and_reported() {
    let mut proto = model(
        vec![node("y", "f.F", "x")],
        vec![function("F", "b", "a", vec![node("b", "Relu", "a")])],
    );
    proto.functions[0].opset_import[0].version = 12;
    let mut read = read(&proto).unwrap();
    let message = validate(&read).unwrap_err().to_string();
    assert!(
        message.contains("function \"F\": it is written for another version"),
        "{message}"
    );
    assert!(
        raise(&mut read, 19)
            .unwrap_err()
            .to_string()
            .contains("functions")
    );
    let written = ModelProto::parse_from_bytes(&write_bytes(&read).unwrap()).unwrap();
    assert_eq!(written.functions, proto.functions);
}
