//! Nodes that go, or become fewer.

use super::*;

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
