//! Computing and merging constants.

use super::*;

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
