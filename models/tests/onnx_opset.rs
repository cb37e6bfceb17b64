//! Raising operator sets: small graphs before and after, as text.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

use edgeopt_models::graph::validate::validate;
use edgeopt_models::opset::raise;
use edgeopt_models::{Attribute, DataType, Graph, Model, Node, Shape, Tensor, ValueInfo, ValueType};

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

/// One node a line: `outputs = Op(inputs; attributes)`, constants spelled out.
fn text(model: &Model) -> String {
    let name = |graph: &Graph, name: &str| match graph.initializers.get(name) {
        Some(tensor) => format!("{tensor:?}"),
        None if name.is_empty() => "_".to_owned(),
        None => name.to_owned(),
    };
    let graph = &model.graph;
    let line = |node: &Node| {
        let inputs: Vec<String> = node.inputs.iter().map(|input| name(graph, input)).collect();
        let outputs: Vec<&str> = node.outputs.iter().map(|output| &**output).collect();
        let attributes: Vec<String> = node
            .attributes
            .iter()
            .map(|(key, value)| match value {
                Attribute::Int(value) => format!(" {key}={value}"),
                Attribute::String(value) => format!(" {key}={}", String::from_utf8_lossy(value)),
                other => format!(" {key}={other:?}"),
            })
            .collect();
        format!(
            "{} = {}({}{}{})",
            outputs.join(", "),
            node.op_type,
            inputs.join(", "),
            if attributes.is_empty() { "" } else { ";" },
            attributes.concat()
        )
    };
    graph.nodes.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn cases() -> Vec<(&'static str, Model, &'static str)> {
    let image = [1, 2, 4, 4];
    let scaled = |opset, scales: &[f32], mode: &str| {
        let mut model = model(
            opset,
            &image,
            Node::new("Resize", "n", ["x", "s"], ["y"]).with("mode", mode),
        );
        model
            .graph
            .initializers
            .insert("s".into(), Tensor::vector(scales));
        model
    };
    let mut upsample9 = scaled(9, &[1.0, 1.0, 2.0, 2.0], "nearest");
    upsample9.graph.nodes[0].op_type = "Upsample".into();
    let mut sized = model(
        11,
        &image,
        Node::new("Resize", "n", ["x", "roi", "scales", "sizes"], ["y"]),
    );
    let empty = || Tensor::vector::<f32>(&[]);
    sized.graph.initializers.extend([
        ("roi".into(), empty()),
        ("scales".into(), empty()),
        ("sizes".into(), Tensor::vector(&[1i64, 2, 8, 8])),
    ]);
    let mut unranked = model(9, &[2, 3, 4], node("Softmax"));
    unranked.graph.inputs[0] = untyped("x");
    let mut half_clip = model(9, &[2], node("Clip").with("min", 0.5).with("max", 6.0));
    half_clip.graph.inputs[0] = ValueInfo::tensor("x", DataType::Float16, Shape::known(&[2]));
    half_clip.graph.outputs[0].ty = half_clip.graph.inputs[0].ty.clone();
    let mut inner_clip = model(9, &[2], node("Relu"));
    inner_clip.graph.nodes[0].outputs[0] = "r".into();
    inner_clip.graph.nodes.push(Node::new("Neg", "neg", ["r"], ["t"]));
    inner_clip
        .graph
        .nodes
        .push(Node::new("Clip", "clip", ["t"], ["y"]).with("min", -1.0));
    let mut dropout = model(
        7,
        &[4],
        Node::new("Dropout", "n", ["x"], ["y", "mask"]).with("ratio", 0.3),
    );
    dropout.graph.outputs[0] = input("y", &[4]);
    let mut one_hot = model(9, &[2], Node::new("OneHot", "n", ["i", "d", "v"], ["y"]));
    one_hot.graph.initializers.extend([
        ("i".into(), Tensor::vector(&[1i64, 0])),
        ("d".into(), Tensor::scalar(3i64)),
        ("v".into(), Tensor::vector(&[0f32, 1.0])),
    ]);
    vec![
        (
            "softmax over the last axis",
            model(9, &[2, 3], node("Softmax")),
            "y = Softmax(x; axis=-1)",
        ),
        (
            "softmax over two axes",
            model(9, &[2, 3, 4], node("Softmax")),
            "n_flat = Flatten(x; axis=1)\nn_shape = Shape(x)\nn_result = Softmax(n_flat; axis=-1)\n\
             y = Reshape(n_result, n_shape; allowzero=1)",
        ),
        (
            "softmax from a negative axis",
            model(11, &[2, 3, 4], node("LogSoftmax").with("axis", -2)),
            "n_flat = Flatten(x; axis=-2)\nn_shape = Shape(x)\nn_result = LogSoftmax(n_flat; axis=-1)\n\
             y = Reshape(n_result, n_shape; allowzero=1)",
        ),
        (
            "softmax of unknown rank",
            unranked,
            "n_flat = Flatten(x; axis=1)\nn_shape = Shape(x)\nn_result = Softmax(n_flat; axis=-1)\n\
             y = Reshape(n_result, n_shape; allowzero=1)",
        ),
        (
            "softmax of today",
            model(13, &[2, 3, 4], node("Softmax").with("axis", 1)),
            "y = Softmax(x; axis=1)",
        ),
        (
            "squeeze",
            model(11, &[1, 3, 1], node("Squeeze").with("axes", [0, 2])),
            "y = Squeeze(x, int64[2] [0, 2])",
        ),
        (
            "squeeze all",
            model(7, &[1, 3], node("Squeeze")),
            "y = Squeeze(x)",
        ),
        (
            "unsqueeze",
            model(7, &[3], node("Unsqueeze").with("axes", [0])),
            "y = Unsqueeze(x, int64[1] [0])",
        ),
        (
            "reduce sum",
            model(
                11,
                &[2, 3],
                node("ReduceSum").with("axes", [-1]).with("keepdims", 0),
            ),
            "y = ReduceSum(x, int64[1] [-1]; keepdims=0)",
        ),
        (
            "reduce mean",
            model(13, &[2, 3], node("ReduceMean").with("axes", [1])),
            "y = ReduceMean(x, int64[1] [1])",
        ),
        (
            "reduce all",
            model(13, &[2, 3], node("ReduceMax")),
            "y = ReduceMax(x)",
        ),
        (
            "clip above",
            model(7, &[3], node("Clip").with("max", 6.0)),
            "y = Clip(x, _, float32[] [6.0])",
        ),
        (
            "clip half",
            half_clip,
            "y = Clip(x, float16[] [0.5], float16[] [6.0])",
        ),
        (
            "clip of unknown type",
            inner_clip,
            "r = Relu(x)\nt = Neg(r)\nclip_min_typed = CastLike(float32[] [-1.0], t)\ny = Clip(t, clip_min_typed)",
        ),
        (
            "slice",
            model(
                9,
                &[4, 4],
                node("Slice")
                    .with("starts", [1])
                    .with("ends", [i64::MAX])
                    .with("axes", [1]),
            ),
            "y = Slice(x, int64[1] [1], int64[1] [9223372036854775807], int64[1] [1])",
        ),
        (
            "slice of the first axes",
            model(
                7,
                &[4, 4],
                node("Slice").with("starts", [0, 1]).with("ends", [2, -1]),
            ),
            "y = Slice(x, int64[2] [0, 1], int64[2] [2, -1])",
        ),
        (
            "pad",
            model(
                9,
                &[2, 2],
                node("Pad").with("pads", [0, 1, 0, 1]).with("value", 2.0),
            ),
            "y = Pad(x, int64[4] [0, 1, 0, 1], float32[] [2.0])",
        ),
        (
            "pad by reflection",
            model(
                9,
                &[3, 3],
                node("Pad").with("pads", [0, 1, 0, 1]).with("mode", "reflect"),
            ),
            "y = Pad(x, int64[4] [0, 1, 0, 1]; mode=reflect)",
        ),
        (
            "split by sizes",
            model(
                11,
                &[7],
                Node::new("Split", "n", ["x"], ["y", "z"]).with("split", [3, 4]),
            ),
            "y, z = Split(x, int64[2] [3, 4])",
        ),
        (
            "split evenly",
            model(13, &[6], Node::new("Split", "n", ["x"], ["y", "z", "w"])),
            "y, z, w = Split(x; num_outputs=3)",
        ),
        ("dropout", dropout, "y = Dropout(x)"),
        (
            "top k",
            model(9, &[5], Node::new("TopK", "n", ["x"], ["y", "i"]).with("k", 2)),
            "y, i = TopK(x, int64[1] [2])",
        ),
        (
            "upsample 7",
            model(
                7,
                &image,
                node("Upsample")
                    .with("scales", [1.0, 1.0, 2.0, 3.0].as_slice())
                    .with("mode", "linear"),
            ),
            "y = Resize(x, _, float32[4] [1.0, 1.0, 2.0, 3.0]; coordinate_transformation_mode=asymmetric mode=linear \
             nearest_mode=floor)",
        ),
        (
            "upsample 9",
            upsample9,
            "y = Resize(x, _, float32[4] [1.0, 1.0, 2.0, 2.0]; coordinate_transformation_mode=asymmetric mode=nearest \
             nearest_mode=floor)",
        ),
        (
            "shrink 10",
            scaled(10, &[1.0, 1.0, 0.5, 0.5], "nearest"),
            "y = Resize(x, _, float32[4] [1.0, 1.0, 0.5, 0.5]; coordinate_transformation_mode=asymmetric mode=nearest \
             nearest_mode=ceil)",
        ),
        (
            "resize to sizes",
            sized,
            "y = Resize(x, _, _, int64[4] [1, 2, 8, 8])",
        ),
        (
            "one-hot of constants",
            one_hot,
            "y = OneHot(int64[2] [1, 0], int64[] [3], float32[2] [0.0, 1.0])",
        ),
        ("unchanged", model(7, &[2], node("Relu")), "y = Relu(x)"),
    ]
}

#[test]
fn each_operator_gets_its_new_form() {
    for (name, mut model, expected) in cases() {
        assert_eq!(validate(&model), Ok(()), "{name}, before");
        let from = model.opset();
        let changes = raise(&mut model, 19).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            (changes.from, changes.to, model.opset()),
            (from, 19, 19),
            "{name}"
        );
        assert!(model.ir_version >= 9, "{name}");
        assert_eq!(validate(&model), Ok(()), "{name}, after");
        assert_eq!(text(&model), expected, "{name}");
    }
}

#[test]
fn raising_twice_changes_nothing_more() {
    for (name, mut model, _) in cases() {
        raise(&mut model, 19).unwrap();
        let once = model.clone();
        assert!(raise(&mut model, 19).unwrap().rewritten.is_empty(), "{name}");
        assert_eq!(model, once, "{name}");
    }
}

#[test]
fn nodes_in_branches_are_raised_with_their_constants_beside_them() {
    let branch = |output: &str, read: &str| Graph {
        name: "branch".into(),
        outputs: vec![untyped(output)],
        nodes: vec![Node::new("Unsqueeze", "u", [read], [output]).with("axes", [0])],
        ..Graph::default()
    };
    let mut model = model(11, &[3], Node::new("If", "if", ["c"], ["y"]));
    model
        .graph
        .initializers
        .insert("c".into(), Tensor::bools(&[], &[true]).unwrap());
    model.graph.nodes[0] = model.graph.nodes[0]
        .clone()
        .with("then_branch", branch("a", "x"))
        .with("else_branch", branch("b", "x"));
    raise(&mut model, 19).unwrap();
    assert_eq!(validate(&model), Ok(()));
    for subgraph in model.graph.nodes[0].subgraphs() {
        assert_eq!(subgraph.nodes[0].inputs.len(), 2);
        assert_eq!(
            subgraph.initializers[&subgraph.nodes[0].inputs[1]],
            Tensor::vector(&[0i64])
        );
    }
}
