//! What goes into weights.

use super::*;

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
    let evaluator = super::super::BackendEvaluator(&cpu);
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
