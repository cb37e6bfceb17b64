use edgeopt_models::{DataType, Graph, Model, Node, Shape, Tensor, ValueInfo, ValueType};

use super::{Context, run_pipeline};

fn model(nodes: Vec<Node>, outputs: &[&str], constants: Vec<(&str, Tensor)>) -> Model {
    let float = |name: &str| ValueInfo {
        name: name.into(),
        ty: ValueType::Tensor {
            dtype: DataType::Float32,
            shape: None,
        },
        extra: None,
    };
    let mut graph = Graph {
        name: "g".into(),
        nodes,
        ..Graph::default()
    };
    graph.inputs = vec![float("x")];
    graph.outputs = outputs.iter().map(|name| float(name)).collect();
    for (name, tensor) in constants {
        graph.add_initializer(name.into(), tensor);
    }
    Model::new(graph, 17)
}

fn ops(mut model: Model) -> (Model, Vec<String>) {
    run_pipeline(&mut model, &Context::default()).unwrap();
    let ops = model
        .graph
        .nodes
        .iter()
        .map(|node| node.op_type.clone())
        .collect();
    (model, ops)
}

fn norm(name: &str, input: &str, output: &str) -> Node {
    Node::new("BatchNormalization", name, [input, "s", "b", "m", "v"], [output]).with("epsilon", 0.0)
}

/// Two channels: scale 3/√4 and 4/√1, so factors 1.5 and 4.
fn parameters(weight: Tensor) -> Vec<(&'static str, Tensor)> {
    vec![
        ("w", weight),
        ("s", Tensor::vector(&[3f32, 4.0])),
        ("b", Tensor::vector(&[1f32, 2.0])),
        ("m", Tensor::vector(&[2f32, 1.0])),
        ("v", Tensor::vector(&[4f32, 1.0])),
    ]
}

#[test]
fn shared_weight_of_two_normalized_convolutions_is_copied() {
    let nodes = vec![
        Node::new("Conv", "c1", ["x", "w"], ["a"]),
        norm("n1", "a", "y"),
        Node::new("Conv", "c2", ["x", "w"], ["c"]).with("strides", [2, 2]),
        Node::new("BatchNormalization", "n2", ["c", "b", "b", "m", "v"], ["z"]).with("epsilon", 0.0),
    ];
    let weight = Tensor::new(&[2, 1, 1, 1], &[1f32, 10.0]).unwrap();
    let (model, ops) = ops(model(nodes, &["y", "z"], parameters(weight)));
    assert_eq!(ops, ["Conv", "Conv"]);
    let expected = [([1.5, 40.0], [-2.0, -2.0]), ([0.5, 20.0], [0.0, 0.0])];
    for (node, (weight, bias)) in model.graph.nodes.iter().zip(expected) {
        let values = |i: usize| {
            model.graph.initializers[&*node.inputs[i]]
                .view::<f32>()
                .unwrap()
                .into_owned()
        };
        assert_eq!(values(1), weight);
        assert_eq!(values(2), bias);
    }
    assert!(!model.graph.initializers.contains_key("w"));
}

#[test]
fn grouped_transposed_convolution_scales_by_group_block() {
    // C = 4, group 2, M/group = 1: input channels 0, 1 make output 0; 2, 3 make output 1.
    let weight = Tensor::new(&[4, 1, 1, 1], &[1f32, 1.0, 1.0, 1.0]).unwrap();
    let conv = Node::new("ConvTranspose", "c", ["x", "w"], ["a"]).with("group", 2);
    let (model, ops) = ops(model(vec![conv, norm("n", "a", "y")], &["y"], parameters(weight)));
    assert_eq!(ops, ["ConvTranspose"]);
    let folded = &model.graph.initializers[&*model.graph.nodes[0].inputs[1]];
    assert_eq!(*folded.view::<f32>().unwrap(), [1.5, 1.5, 4.0, 4.0]);
}

#[test]
fn convolution_that_is_a_graph_output_keeps_its_normalization_apart() {
    let weight = Tensor::new(&[2, 1, 1, 1], &[1f32, 10.0]).unwrap();
    let nodes = vec![Node::new("Conv", "c", ["x", "w"], ["a"]), norm("n", "a", "y")];
    assert_eq!(
        ops(model(nodes, &["a", "y"], parameters(weight))).1,
        ["Conv", "Mul", "Add"]
    );
}

#[test]
fn constants_take_the_type_of_their_attribute() {
    let nodes = vec![
        Node::new("Constant", "c", [""; 0], ["one"]).with("value_float", 1.0),
        Node::new("Constant", "d", [""; 0], ["axes"]).with("value_ints", [0]),
        Node::new("Add", "a", ["x", "one"], ["sum"]),
        Node::new("Unsqueeze", "u", ["sum", "axes"], ["y"]),
    ];
    let (model, ops) = ops(model(nodes, &["y"], vec![]));
    assert_eq!(ops, ["Add", "Unsqueeze"]);
    assert_eq!(model.graph.initializers["one"].dtype(), DataType::Float32);
    assert_eq!(model.graph.initializers["axes"].dtype(), DataType::Int64);
}

#[test]
fn outputs_keep_their_names_and_used_masks_their_dropout() {
    let nodes = vec![
        Node::new("Identity", "i", ["x"], ["a"]),
        Node::new("Dropout", "d", ["a"], ["b", "mask"]),
        Node::new("Relu", "r1", ["b"], ["c"]),
        Node::new("Relu", "r2", ["b"], ["d"]),
        Node::new("Add", "s", ["c", "d"], ["e"]),
        Node::new("Sqrt", "unused", ["e"], ["f"]),
        Node::new("Identity", "o", ["e"], ["y"]),
    ];
    assert_eq!(ops(model(nodes.clone(), &["y"], vec![])).1, ["Relu", "Add"]);
    assert_eq!(
        ops(model(nodes, &["y", "mask"], vec![])).1,
        ["Shape", "ConstantOfShape", "Relu", "Add"]
    );
}

#[test]
fn overridable_initializers_are_constants_only_on_request() {
    let weight = Tensor::new(&[2, 1, 1, 1], &[1f32, 10.0]).unwrap();
    let nodes = vec![Node::new("Conv", "c", ["x", "w"], ["a"]), norm("n", "a", "y")];
    let mut kept = model(nodes, &["y"], parameters(weight));
    kept.graph.inputs.push(ValueInfo::tensor(
        "w",
        DataType::Float32,
        Shape::known(&[2, 1, 1, 1]),
    ));
    let mut fixed = kept.clone();
    run_pipeline(&mut kept, &Context::default()).unwrap();
    assert_eq!((kept.graph.nodes.len(), kept.graph.inputs.len()), (3, 2));
    run_pipeline(
        &mut fixed,
        &Context {
            fold_overridable: true,
            ..Context::default()
        },
    )
    .unwrap();
    assert_eq!((fixed.graph.nodes.len(), fixed.graph.inputs.len()), (1, 1));
}

#[test]
fn transposed_weight_is_folded_and_dequantization_is_kept() {
    let cpu = edgeopt_runtime::backends::cpu::CpuBackend::new().unwrap();
    let nodes = vec![
        Node::new("Transpose", "t", ["w"], ["wt"]),
        Node::new("DequantizeLinear", "q", ["k", "scale"], ["kf"]),
        Node::new("MatMul", "m", ["x", "wt"], ["a"]),
        Node::new("Mul", "n", ["a", "kf"], ["y"]),
    ];
    let weight = Tensor::new(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let constants = vec![
        ("w", weight),
        ("k", Tensor::scalar(4i8)),
        ("scale", Tensor::scalar(0.5f32)),
    ];
    let mut model = model(nodes, &["y"], constants);
    let evaluator = super::BackendEvaluator(&cpu);
    let context = Context {
        evaluator: Some(&evaluator),
        ..Context::default()
    };
    run_pipeline(&mut model, &context).unwrap();
    let ops: Vec<_> = model
        .graph
        .nodes
        .iter()
        .map(|node| node.op_type.as_str())
        .collect();
    assert_eq!(ops, ["DequantizeLinear", "MatMul", "Mul"]);
    let folded = &model.graph.initializers["wt"];
    assert_eq!(folded.dims(), [3, 2]);
    assert_eq!(*folded.view::<f32>().unwrap(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
}

/// Counts evaluations of the CPU backend.
struct Counting(edgeopt_runtime::backends::cpu::CpuBackend, std::cell::Cell<usize>);

impl Counting {
    fn new() -> Self {
        Self(
            edgeopt_runtime::backends::cpu::CpuBackend::new().unwrap(),
            std::cell::Cell::new(0),
        )
    }
}

impl super::Evaluator for Counting {
    fn evaluate(&self, model: &Model) -> Result<Vec<Tensor>, String> {
        self.1.set(self.1.get() + 1);
        super::BackendEvaluator(&self.0).evaluate(model)
    }
}

fn folded(mut model: Model) -> (Model, Vec<String>, usize) {
    let evaluator = Counting::new();
    let context = Context {
        evaluator: Some(&evaluator),
        ..Context::default()
    };
    run_pipeline(&mut model, &context).unwrap();
    let ops = model
        .graph
        .nodes
        .iter()
        .map(|node| node.op_type.clone())
        .collect();
    (model, ops, evaluator.1.get())
}

#[test]
fn constants_of_several_levels_are_computed_at_once() {
    let mut nodes = vec![Node::new("Neg", "n0", ["one"], ["v0"])];
    for level in 0..20 {
        nodes.push(Node::new(
            "Add",
            &format!("n{}", level + 1),
            [format!("v{level}"), "one".into()],
            [format!("v{}", level + 1)],
        ));
    }
    nodes.push(Node::new("Mul", "m", ["x", "v20"], ["y"]));
    let (model, ops, evaluations) = folded(model(nodes, &["y"], vec![("one", Tensor::scalar(1f32))]));
    assert_eq!((ops, evaluations), (vec!["Mul".to_owned()], 1));
    assert_eq!(*model.graph.initializers["v20"].view::<f32>().unwrap(), [19.0]);
    assert_eq!(model.graph.initializers.len(), 1);
}

#[test]
fn a_constant_that_cannot_be_computed_leaves_the_others() {
    let nodes = vec![
        Node::new("Neg", "good", ["two"], ["a"]),
        Node::new("Reshape", "bad", ["two", "five"], ["b"]),
        Node::new("Sqrt", "better", ["two"], ["c"]),
        Node::new("Mul", "m", ["x", "a"], ["d"]),
        Node::new("Add", "n", ["d", "b"], ["e"]),
        Node::new("Add", "o", ["e", "c"], ["y"]),
    ];
    let constants = vec![
        ("two", Tensor::vector(&[4f32])),
        ("five", Tensor::vector(&[5i64])),
    ];
    let (model, ops, _) = folded(model(nodes, &["y"], constants));
    assert_eq!(ops, ["Reshape", "Mul", "Add", "Add"]);
    assert_eq!(*model.graph.initializers["c"].view::<f32>().unwrap(), [2.0]);
}

#[test]
fn a_constant_result_keeps_the_name_of_its_output() {
    let nodes = vec![
        Node::new("Neg", "n", ["one"], ["y"]),
        Node::new("Mul", "m", ["x", "y"], ["z"]),
    ];
    let (model, ops, _) = folded(model(nodes, &["y", "z"], vec![("one", Tensor::scalar(1f32))]));
    assert_eq!(ops, ["Constant", "Mul"]);
    assert_eq!(model.graph.outputs[0].name, "y");
    assert_eq!(model.graph.outputs[0].ty.dtype(), Some(DataType::Float32));
}

#[test]
fn what_would_grow_beyond_the_limit_stays() {
    let fill = |side: i64| {
        let nodes = vec![
            Node::new("Neg", "n", ["minus"], ["sides"]),
            Node::new("ConstantOfShape", "c", ["sides"], ["big"]),
            Node::new("Add", "a", ["x", "big"], ["y"]),
        ];
        let minus = Tensor::vector(&[-side, -side]);
        folded(model(nodes, &["y"], vec![("minus", minus)])).1
    };
    assert_eq!(fill(1024), ["ConstantOfShape", "Add"]);
    assert_eq!(fill(100_000_000), ["ConstantOfShape", "Add"]);
    assert_eq!(fill(64), ["Add"]);
    let random = Node::new("RandomNormalLike", "r", ["one"], ["noise"]);
    let nodes = vec![random, Node::new("Add", "a", ["x", "noise"], ["y"])];
    let (_, ops, evaluations) = folded(model(nodes, &["y"], vec![("one", Tensor::scalar(1f32))]));
    assert_eq!((ops.len(), evaluations), (2, 0));
}

#[test]
fn branches_are_folded_with_the_constants_around_them() {
    let branch = |name: &str, op: &str| Graph {
        name: name.into(),
        nodes: vec![
            Node::new(op, &format!("{name}_op"), ["one"], [format!("{name}_c")]),
            Node::new(
                "Add",
                &format!("{name}_add"),
                ["x", &format!("{name}_c")],
                [format!("{name}_y")],
            ),
        ],
        outputs: vec![ValueInfo::tensor(
            format!("{name}_y"),
            DataType::Float32,
            Shape::default(),
        )],
        ..Graph::default()
    };
    let node = Node::new("If", "if", ["cond"], ["y"])
        .with("then_branch", branch("t", "Neg"))
        .with("else_branch", branch("e", "Exp"));
    let mut model = model(vec![node], &["y"], vec![("one", Tensor::scalar(1f32))]);
    model
        .graph
        .inputs
        .push(ValueInfo::tensor("cond", DataType::Bool, Shape::default()));
    let (model, _, _) = folded(model);
    let graphs: Vec<&Graph> = model.graph.nodes[0].subgraphs().collect();
    assert!(
        graphs
            .iter()
            .all(|graph| graph.nodes.len() == 1 && graph.initializers.len() == 1)
    );
    assert_eq!(*graphs[1].initializers["t_c"].view::<f32>().unwrap(), [-1.0]);
    assert!(model.graph.initializers.is_empty());
}

#[test]
fn equal_constants_become_one_by_bits_type_and_shape() {
    let nodes = ["a", "b", "c", "d", "e"]
        .iter()
        .enumerate()
        .map(|(i, name)| Node::new("Add", name, ["x", *name], [format!("y{i}")]))
        .collect();
    let constants = vec![
        ("a", Tensor::vector(&[0f32, 1.0])),
        ("b", Tensor::vector(&[0f32, 1.0])),
        ("c", Tensor::vector(&[-0f32, 1.0])),
        ("d", Tensor::new(&[1, 2], &[0f32, 1.0]).unwrap()),
        ("e", Tensor::vector(&[0i32, 1_065_353_216])),
    ];
    let outputs = ["y0", "y1", "y2", "y3", "y4"];
    let (model, _) = ops(model(nodes, &outputs, constants));
    let reads: Vec<&str> = model.graph.nodes.iter().map(|node| &*node.inputs[1]).collect();
    assert_eq!(reads, ["a", "a", "c", "d", "e"]);
    assert_eq!(model.graph.initializers.len(), 4);
}

#[test]
fn constants_along_the_channel_axis_go_into_the_convolution() {
    let weight = || Tensor::new(&[2, 1, 1, 1], &[1f32, 10.0]).unwrap();
    let pair = |dims: &[usize]| Tensor::new(dims, &[2f32, 4.0]).unwrap();
    // Weight and bias afterwards.
    type Parameters = Option<([f32; 2], [f32; 2])>;
    let cases: [(&str, bool, Tensor, Parameters); 10] = [
        ("Mul", false, pair(&[2, 1, 1]), Some(([2.0, 40.0], [0.0, 0.0]))),
        ("Mul", true, pair(&[1, 2, 1, 1]), Some(([2.0, 40.0], [0.0, 0.0]))),
        ("Add", false, pair(&[1, 2, 1, 1]), Some(([1.0, 10.0], [2.0, 4.0]))),
        ("Sub", false, pair(&[2, 1, 1]), Some(([1.0, 10.0], [-2.0, -4.0]))),
        ("Sub", true, pair(&[2, 1, 1]), Some(([-1.0, -10.0], [2.0, 4.0]))),
        ("Div", false, Tensor::scalar(2f32), Some(([0.5, 5.0], [0.0, 0.0]))),
        ("Div", true, Tensor::scalar(2f32), None),
        ("Div", false, Tensor::scalar(0f32), None),
        // As wide as there are channels: this is the width.
        ("Mul", false, pair(&[1, 1, 1, 2]), None),
        ("Add", false, pair(&[1, 1, 2, 1, 1]), None),
    ];
    for (op, constant_first, constant, expected) in cases {
        let inputs = if constant_first { ["k", "a"] } else { ["a", "k"] };
        let nodes = vec![
            Node::new("Conv", "c", ["x", "w"], ["a"]),
            Node::new(op, "op", inputs, ["y"]),
        ];
        let shown = format!("{op} {constant:?}");
        let (model, ops) = ops(model(nodes, &["y"], vec![("w", weight()), ("k", constant)]));
        let Some((weight, bias)) = expected else {
            assert_eq!(ops, ["Conv", op], "{shown}");
            continue;
        };
        assert_eq!(ops, ["Conv"], "{shown}");
        let node = &model.graph.nodes[0];
        let values = |i: usize| {
            model.graph.initializers[&*node.inputs[i]]
                .to_f32()
                .unwrap()
                .into_owned()
        };
        assert_eq!(
            (values(1), values(2)),
            (weight.to_vec(), bias.to_vec()),
            "{shown}"
        );
    }
}

#[test]
fn gemm_takes_in_factors_of_its_columns() {
    let nodes = vec![
        Node::new("Gemm", "g", ["x", "w", "c"], ["a"])
            .with("transB", 1)
            .with("beta", 0.5),
        Node::new("Mul", "m", ["a", "k"], ["b"]),
        Node::new("Add", "n", ["b", "one"], ["y"]),
    ];
    let constants = vec![
        ("w", Tensor::new(&[2, 1], &[1f32, 10.0]).unwrap()),
        ("c", Tensor::new(&[1, 2], &[2f32, 4.0]).unwrap()),
        ("k", Tensor::vector(&[3f32, 5.0])),
        ("one", Tensor::scalar(1f32)),
    ];
    let (model, ops) = ops(model(nodes, &["y"], constants));
    assert_eq!(ops, ["Gemm"]);
    let node = &model.graph.nodes[0];
    let values = |i: usize| {
        model.graph.initializers[&*node.inputs[i]]
            .to_f32()
            .unwrap()
            .into_owned()
    };
    assert_eq!((values(1), values(2)), (vec![3.0, 50.0], vec![4.0, 11.0]));
    assert_eq!(node.float("beta"), Some(1.0));
}

/// Layer normalization over the last axis as exporters write it, with `square` for the square of the difference.
fn spelled_out(square: Node) -> Vec<Node> {
    let mean =
        |name: &str, input: &str, output: &str| Node::new("ReduceMean", name, [input, "axes"], [output]);
    vec![
        mean("m1", "x", "mean"),
        Node::new("Sub", "sub", ["x", "mean"], ["d"]),
        square,
        mean("m2", "sq", "var"),
        Node::new("Add", "eps", ["var", "epsilon"], ["e"]),
        Node::new("Sqrt", "root", ["e"], ["s"]),
        Node::new("Div", "div", ["d", "s"], ["n"]),
        Node::new("Mul", "mul", ["n", "gamma"], ["g"]),
        Node::new("Add", "add", ["beta", "g"], ["y"]),
    ]
}

#[test]
fn layer_normalization_spelled_out_is_one_node_and_computes_the_same() {
    let pow = || Node::new("Pow", "sq", ["d", "two"], ["sq"]);
    let mul = || Node::new("Mul", "sq", ["d", "d"], ["sq"]);
    let build = |square: Node, axis: i64, gamma: Tensor, outputs: &[&str]| {
        let constants = vec![
            ("axes", Tensor::vector(&[axis])),
            ("two", Tensor::scalar(2f32)),
            ("epsilon", Tensor::scalar(0.25f32)),
            ("gamma", gamma),
            ("beta", Tensor::vector(&[0.5f32, -1.0, 2.0])),
        ];
        let mut model = model(spelled_out(square), outputs, constants);
        model.opsets.insert(String::new(), 18);
        model
    };
    let gamma = || Tensor::vector(&[1f32, 2.0, 3.0]);
    for square in [pow(), mul()] {
        let before = build(square, -1, gamma(), &["y"]);
        let (after, ops) = ops(before.clone());
        assert_eq!(ops, ["LayerNormalization"]);
        assert_eq!(after.graph.nodes[0].float("epsilon"), Some(0.25));
        let x = Tensor::new(&[2, 3], &[1f32, 2.0, 4.0, -1.0, 0.5, 8.0]).unwrap();
        same_results(&before, &after, &[x]);
    }
    // Another axis, another power, a parameter that is no vector, and a value in between that is an output.
    let cube = Node::new("Pow", "sq", ["d", "epsilon"], ["sq"]);
    for kept in [
        build(pow(), -2, gamma(), &["y"]),
        build(cube, -1, gamma(), &["y"]),
        build(
            pow(),
            -1,
            Tensor::new(&[3, 1], &[1f32, 2.0, 3.0]).unwrap(),
            &["y"],
        ),
        build(pow(), -1, gamma(), &["y", "d"]),
    ] {
        assert!(!ops(kept).1.contains(&"LayerNormalization".to_owned()));
    }
}

fn same_results(before: &Model, after: &Model, inputs: &[Tensor]) {
    use edgeopt_runtime::{Backend, CompileOptions, ModelSource};
    let cpu = edgeopt_runtime::backends::cpu::CpuBackend::new().unwrap();
    let [expected, actual] = [before, after].map(|model| {
        let engine = cpu
            .compile(ModelSource::Model(model), &CompileOptions::default())
            .unwrap();
        engine.session().unwrap().run(inputs).unwrap().to_vec()
    });
    assert_eq!(expected.len(), actual.len());
    for (expected, actual) in expected.iter().zip(&actual) {
        assert_eq!(expected.dims(), actual.dims());
        let (expected, actual) = (expected.to_f32().unwrap(), actual.to_f32().unwrap());
        for (e, a) in expected.iter().zip(&*actual) {
            assert!(
                (e - a).abs() <= 1e-5 * e.abs().max(1.0),
                "{expected:?} became {actual:?}"
            );
        }
    }
}

#[test]
fn nodes_that_change_nothing_go() {
    let constants = || {
        vec![
            ("zeros", Tensor::vector(&[0i64; 6])),
            ("start", Tensor::vector(&[0i64])),
            ("end", Tensor::vector(&[i64::MAX])),
            ("end7", Tensor::vector(&[7i64])),
            ("axis", Tensor::vector(&[1i64])),
            ("other", Tensor::vector(&[2i64])),
        ]
    };
    let cases: Vec<(Vec<Node>, &[&str])> = vec![
        (
            vec![Node::new("Transpose", "n", ["a"], ["b"]).with("perm", [0, 1, 2])],
            &[],
        ),
        (
            vec![Node::new("Transpose", "n", ["a"], ["b"]).with("perm", [0, 2, 1])],
            &["Transpose"],
        ),
        (vec![Node::new("Concat", "n", ["a"], ["b"]).with("axis", 0)], &[]),
        (vec![Node::new("Pad", "n", ["a", "zeros"], ["b"])], &[]),
        (vec![Node::new("Slice", "n", ["a", "start", "end"], ["b"])], &[]),
        (
            vec![Node::new("Slice", "n", ["a", "start", "end7"], ["b"])],
            &["Slice"],
        ),
        (
            vec![
                Node::new("Unsqueeze", "n", ["a", "axis"], ["t"]),
                Node::new("Squeeze", "o", ["t", "axis"], ["b"]),
            ],
            &[],
        ),
        (
            vec![
                Node::new("Unsqueeze", "n", ["a", "axis"], ["t"]),
                Node::new("Squeeze", "o", ["t", "other"], ["b"]),
            ],
            &["Unsqueeze", "Squeeze"],
        ),
    ];
    for (middle, left) in cases {
        let mut nodes = vec![Node::new("Relu", "first", ["x"], ["a"])];
        nodes.extend(middle);
        nodes.push(Node::new("Neg", "last", ["b"], ["y"]));
        let (_, ops) = ops(model(nodes, &["y"], constants()));
        assert_eq!(ops[1..ops.len() - 1], *left, "{ops:?}");
    }
}

#[test]
fn zero_padding_of_spatial_axes_goes_into_the_convolution() {
    let fused = |pads: &[i64], value: f32, axes: Option<&[i64]>, mode: &str, readers: usize| {
        let mut inputs = vec!["x", "pads", "value"];
        let mut constants = vec![
            ("pads", Tensor::vector(pads)),
            ("value", Tensor::scalar(value)),
            ("w", Tensor::new(&[1, 1, 1, 1], &[1f32]).unwrap()),
        ];
        if let Some(axes) = axes {
            inputs.push("axes");
            constants.push(("axes", Tensor::vector(axes)));
        }
        let mut nodes = vec![
            Node::new("Pad", "p", inputs, ["a"]).with("mode", mode),
            Node::new("Conv", "c", ["a", "w"], ["y"]).with("pads", [1, 0, 0, 0]),
        ];
        if readers > 1 {
            nodes.push(Node::new("Relu", "r", ["a"], ["z"]));
        }
        let outputs = &["y", "z"][..readers];
        let (model, _) = ops(model(nodes, outputs, constants));
        let conv = model.graph.nodes.iter().find(|node| node.is("Conv")).unwrap();
        (conv.inputs[0] == "x").then(|| conv.ints("pads").unwrap().to_vec())
    };
    let all = [0, 0, 1, 2, 0, 0, 3, 4];
    assert_eq!(fused(&all, 0.0, None, "constant", 1), Some(vec![2, 2, 3, 4]));
    assert_eq!(
        fused(&[5, 6], 0.0, Some(&[-1]), "constant", 1),
        Some(vec![1, 5, 0, 6])
    );
    assert_eq!(fused(&all, 0.0, None, "constant", 2), None);
    assert_eq!(fused(&all, 1.0, None, "constant", 1), None);
    assert_eq!(fused(&all, 0.0, None, "reflect", 1), None);
    assert_eq!(fused(&[0, 0, 1, 2, 0, 0, -1, 4], 0.0, None, "constant", 1), None);
    assert_eq!(fused(&[0, 1, 1, 2, 0, 0, 3, 4], 0.0, None, "constant", 1), None);
}

#[test]
fn chains_that_move_elements_become_one_node() {
    let slice = |name: &str, input: &str, part: [&str; 3], output: &str| {
        Node::new("Slice", name, [input, part[0], part[1], part[2]], [output])
    };
    let constants = || {
        vec![
            ("zero", Tensor::vector(&[0i64])),
            ("one", Tensor::vector(&[1i64])),
            ("two", Tensor::vector(&[2i64])),
            ("last", Tensor::vector(&[-1i64])),
            ("flat", Tensor::vector(&[-1i64])),
            ("copy", Tensor::vector(&[0i64, -1])),
        ]
    };
    let cases: Vec<(Vec<Node>, &[&str])> = vec![
        (
            vec![
                Node::new("Transpose", "t", ["x"], ["a"]).with("perm", [1, 2, 0]),
                Node::new("Transpose", "u", ["a"], ["y"]).with("perm", [1, 0, 2]),
            ],
            &["Transpose"],
        ),
        (
            vec![
                Node::new("Flatten", "t", ["x"], ["a"]),
                Node::new("Reshape", "u", ["a", "flat"], ["y"]),
            ],
            &["Reshape"],
        ),
        (
            vec![
                Node::new("Flatten", "t", ["x"], ["a"]),
                Node::new("Reshape", "u", ["a", "copy"], ["y"]),
            ],
            &["Flatten", "Reshape"],
        ),
        (
            vec![
                slice("s", "x", ["one", "two", "zero"], "a"),
                slice("t", "a", ["zero", "last", "two"], "y"),
            ],
            &["Slice"],
        ),
        // The same axis, and an axis that may be the same.
        (
            vec![
                slice("s", "x", ["zero", "two", "two"], "a"),
                slice("t", "a", ["one", "two", "two"], "y"),
            ],
            &["Slice", "Slice"],
        ),
        (
            vec![
                slice("s", "x", ["zero", "two", "two"], "a"),
                slice("t", "a", ["one", "two", "last"], "y"),
            ],
            &["Slice", "Slice"],
        ),
    ];
    let x: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let x = Tensor::new(&[2, 3, 4], &x).unwrap();
    for (nodes, left) in cases {
        let before = model(nodes, &["y"], constants());
        let (after, ops) = ops(before.clone());
        assert_eq!(ops, *left);
        same_results(&before, &after, std::slice::from_ref(&x));
    }
}

#[test]
fn bodies_of_loops_and_scans_keep_what_they_capture() {
    let value = |name: &str, dtype: DataType| ValueInfo {
        name: name.into(),
        ty: ValueType::Tensor { dtype, shape: None },
        extra: None,
    };
    let scalar = |name: &str, dtype: DataType| ValueInfo::tensor(name, dtype, Shape::default());
    let state = |name: &str| ValueInfo::tensor(name, DataType::Float32, Shape::known(&[2, 3]));
    // Both bodies read an initializer, a passed-through value and one of two equal nodes of the graph around.
    let steps = |p: &str, state: &str| {
        vec![
            Node::new("Neg", &format!("{p}0"), ["k"], [format!("{p}nk")]),
            Node::new(
                "Mul",
                &format!("{p}1"),
                [state.to_owned(), format!("{p}nk")],
                [format!("{p}a")],
            ),
            Node::new(
                "Add",
                &format!("{p}2"),
                [&format!("{p}a"), "same"],
                [format!("{p}b")],
            ),
            Node::new(
                "Add",
                &format!("{p}3"),
                [&format!("{p}b"), "r2"],
                [format!("{p}out")],
            ),
        ]
    };
    let mut body = Graph {
        name: "loop_body".into(),
        nodes: steps("l", "state"),
        inputs: vec![
            scalar("i", DataType::Int64),
            scalar("go", DataType::Bool),
            value("state", DataType::Float32),
        ],
        outputs: vec![scalar("on", DataType::Bool), value("lout", DataType::Float32)],
        ..Graph::default()
    };
    body.nodes.push(Node::new("Identity", "again", ["go"], ["on"]));
    let scan_body = Graph {
        name: "scan_body".into(),
        nodes: steps("s", "kept"),
        inputs: vec![state("kept"), value("row", DataType::Float32)],
        outputs: vec![state("sout")],
        ..Graph::default()
    };
    let nodes = vec![
        Node::new("Identity", "n0", ["x"], ["same"]),
        Node::new("Relu", "n1", ["x"], ["r1"]),
        Node::new("Relu", "n2", ["x"], ["r2"]),
        Node::new("Loop", "loop", ["three", "yes", "r1"], ["looped"]).with("body", body),
        Node::new("Scan", "scan", ["looped", "x"], ["y"])
            .with("body", scan_body)
            .with("num_scan_inputs", 1),
    ];
    let constants = vec![
        ("k", Tensor::scalar(0.5f32)),
        ("three", Tensor::scalar(3i64)),
        ("yes", Tensor::bools(&[], &[true]).unwrap()),
    ];
    let mut before = model(nodes, &["y"], constants);
    before.graph.inputs = vec![state("x")];
    let (after, ops, _) = folded(before.clone());
    assert_eq!(ops.last().map(String::as_str), Some("Scan"));
    // The negated constant is folded in each body.
    let inner: Vec<usize> = after
        .graph
        .nodes
        .iter()
        .flat_map(Node::subgraphs)
        .map(|graph| graph.nodes.iter().filter(|node| node.is("Neg")).count())
        .collect();
    assert_eq!(inner, [0, 0]);
    let x = Tensor::new(&[2, 3], &[1f32, -2.0, 4.0, -1.0, 0.5, 8.0]).unwrap();
    same_results(&before, &after, &[x]);
}
