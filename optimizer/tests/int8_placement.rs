//! Where Q/DQ nodes go: small graphs in, one line per node out. `q:x` = the node reads `x` dequantized.

#![allow(clippy::unwrap_used)] // helpers of tests, too

use edgeopt_models::{DataType, Graph, Model, Node, Shape, Tensor, ValueInfo};
use edgeopt_optimizer::calibrate::CalibrationTable;
use edgeopt_optimizer::precision::int8::{
    Int8Error, Int8Options, Int8Report, Placement, quantize, tensors_to_calibrate,
};

struct Net(Graph);

impl Net {
    fn new(nodes: Vec<Node>, weights: &[(&str, &[usize])], output: &str) -> Self {
        let mut graph = Graph {
            nodes,
            ..Graph::default()
        };
        graph.inputs.push(ValueInfo::tensor(
            "x",
            DataType::Float32,
            Shape::known(&[1, 16, 8, 8]),
        ));
        graph.outputs.push(ValueInfo::tensor(
            output,
            DataType::Float32,
            Shape::known(&[1, 16, 8, 8]),
        ));
        for (name, dims) in weights {
            let count = dims.iter().product();
            let values: Vec<f32> = (0..count).map(|i| (i % 13) as f32 / 13.0 - 0.4).collect();
            graph.add_initializer((*name).into(), Tensor::new(dims, &values).unwrap());
        }
        Self(graph)
    }

    fn quantized(self, options: &Int8Options) -> (Model, Int8Report) {
        self.with_ranges(options, &[])
    }

    fn with_ranges(self, options: &Int8Options, ranges: &[(&str, f32)]) -> (Model, Int8Report) {
        let mut model = Model::new(self.0, 17);
        let mut table = CalibrationTable::default();
        for tensor in tensors_to_calibrate(&model, options).unwrap() {
            table.insert(&tensor, 1.0);
        }
        for (name, threshold) in ranges {
            table.insert(name, *threshold);
        }
        let report = quantize(&mut model, &table, options).unwrap();
        let order: Vec<Node> = model.graph.nodes.clone();
        model.graph.sort_topologically().unwrap();
        assert_eq!(order, model.graph.nodes, "nodes stay in topological order");
        (model, report)
    }
}

fn conv(name: &str, input: &str, weight: &str, output: &str) -> Node {
    Node::new("Conv", name, [input, weight], [output])
}

/// The nodes of the model without the Q/DQ nodes, their reads marked.
fn shown(model: &Model) -> String {
    let graph = &model.graph;
    let read = |name: &str| match graph.producer(name).map(|index| &graph.nodes[index]) {
        Some(node) if node.op_type == "DequantizeLinear" => {
            match graph.producer(&node.inputs[0]).map(|index| &graph.nodes[index]) {
                Some(quantizer) => format!("q:{}", quantizer.inputs[0]),
                None => format!("q:{}", node.inputs[0].trim_end_matches("_int8")),
            }
        }
        _ => name.to_owned(),
    };
    let compute = graph
        .nodes
        .iter()
        .filter(|node| !node.op_type.ends_with("quantizeLinear") && node.op_type != "QuantizeLinear");
    let lines = compute.map(|node| {
        let inputs: Vec<String> = node.inputs.iter().map(|name| read(name)).collect();
        format!("{}({})", node.name, inputs.join(", "))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn everything() -> Int8Options {
    Int8Options {
        quantize_heads: true,
        ..Int8Options::default()
    }
}

const W: &[usize] = &[16, 16, 3, 3];

#[test]
fn the_epilogue_of_a_convolution_stays_free_of_quantizers() {
    let nodes = || {
        vec![
            conv("c1", "x", "w1", "a"),
            Node::new("Relu", "r", ["a"], ["b"]),
            conv("c2", "b", "w2", "y"),
        ]
    };
    let (model, report) = Net::new(nodes(), &[("w1", W), ("w2", W)], "y").quantized(&everything());
    assert_eq!(shown(&model), "c1(q:x, q:w1)\nr(a)\nc2(q:b, q:w2)");
    assert!(report.kept.is_empty());
    assert_eq!(model.graph.initializers["w1_int8"].dtype(), DataType::Int8);
    assert!(!model.graph.initializers.contains_key("w1"));
    assert!(report.weights_after.0 * 3 < report.weights_before.0, "{report:?}");

    // The head, an excluded node and its own input edge stay in float.
    let (model, report) = Net::new(nodes(), &[("w1", W), ("w2", W)], "y").quantized(&Int8Options::default());
    assert_eq!(shown(&model), "c1(q:x, q:w1)\nr(a)\nc2(b, w2)");
    assert_eq!(report.kept[0].reason, "the last convolution before an output");
    let options = Int8Options {
        exclude: vec!["c1*".into()],
        ..everything()
    };
    let (model, report) = Net::new(nodes(), &[("w1", W), ("w2", W)], "y").quantized(&options);
    assert_eq!(shown(&model), "c1(x, w1)\nr(a)\nc2(q:b, q:w2)");
    assert_eq!(report.kept[0].reason, "excluded by \"c1*\"");
}

/// YOLOv8's head: boxes as distributions over 16 distances, whose expectation is a convolution; scores beside them.
#[test]
fn the_expectation_behind_a_detectors_head_does_not_hide_that_it_is_the_head() {
    let nodes = || {
        vec![
            conv("body", "x", "w1", "a"),
            conv("boxes", "a", "w2", "bins"),
            conv("scores", "a", "w3", "logits"),
            Node::new("Concat", "both", ["bins", "logits"], ["all"]).with("axis", 1i64),
            Node::new("Split", "parts", ["all"], ["b", "s"]).with("axis", 1i64),
            Node::new("Transpose", "turn", ["b"], ["turned"]).with("perm", [0, 1, 3, 2]),
            Node::new("Softmax", "softmax", ["turned"], ["p"]).with("axis", 1i64),
            conv("expectation", "p", "places", "distances"),
            Node::new("Sigmoid", "sigmoid", ["s"], ["score"]),
            Node::new("Concat", "join", ["distances", "score"], ["y"]).with("axis", 1i64),
        ]
    };
    let weights: &[(&str, &[usize])] = &[("w1", W), ("w2", W), ("w3", W), ("places", &[1, 16, 1, 1])];
    let (model, report) = Net::new(nodes(), weights, "y").quantized(&Int8Options::default());
    let placed = shown(&model);
    for line in [
        "body(q:x, q:w1)",
        "boxes(a, w2)",
        "scores(a, w3)",
        "expectation(p, places)",
        "join(distances, score)",
    ] {
        assert!(placed.lines().any(|shown| shown == line), "{line}: {placed}");
    }
    let reasons: Vec<&str> = report.kept.iter().map(|kept| kept.reason.as_str()).collect();
    assert!(
        reasons[0].starts_with("the expectation of a distribution"),
        "{reasons:?}"
    );
    assert_eq!(reasons[1..], ["the last convolution before an output"; 2]);
    // Asked for, the head is quantized, and still not the expectation.
    let (model, _) = Net::new(nodes(), weights, "y").quantized(&everything());
    let placed = shown(&model);
    assert!(
        placed.contains("scores(q:a, q:w3)") && placed.contains("expectation(p, places)"),
        "{placed}"
    );
}

#[test]
fn only_the_residual_input_of_a_skip_connection_is_quantized() {
    let weights: &[(&str, &[usize])] = &[("w1", W), ("w2", W), ("w3", W), ("w4", W)];
    let identity = vec![
        conv("c0", "x", "w1", "s"),
        conv("c1", "s", "w2", "a"),
        Node::new("Relu", "r", ["a"], ["b"]),
        conv("c2", "b", "w3", "c"),
        Node::new("Add", "add", ["c", "s"], ["d"]),
        conv("c3", "d", "w4", "y"),
    ];
    let (model, _) = Net::new(identity, weights, "y").quantized(&everything());
    assert_eq!(
        shown(&model),
        "c0(q:x, q:w1)\nc1(q:s, q:w2)\nr(a)\nc2(q:b, q:w3)\nadd(c, q:s)\nc3(q:d, q:w4)"
    );
    assert_eq!(
        model
            .graph
            .nodes
            .iter()
            .filter(|node| node.op_type == "QuantizeLinear")
            .count(),
        4,
        "s is quantized once"
    );

    // Both sides end in a convolution: the longer one is fused with, whichever input it is.
    let projection = vec![
        conv("down", "x", "w1", "s"),
        conv("c1", "x", "w2", "a"),
        conv("c2", "a", "w3", "c"),
        Node::new("Add", "add", ["s", "c"], ["d"]),
        conv("c3", "d", "w4", "y"),
    ];
    let (model, _) = Net::new(projection, weights, "y").quantized(&everything());
    assert!(shown(&model).contains("add(q:s, c)"), "{}", shown(&model));

    // The only convolution is where the branches part: no residual.
    let parting = vec![
        conv("c1", "x", "w1", "s"),
        Node::new("Sqrt", "f", ["s"], ["t"]),
        Node::new("Add", "add", ["s", "t"], ["y"]),
    ];
    let (model, _) = Net::new(parting, &weights[..1], "y").quantized(&everything());
    assert!(shown(&model).contains("add(s, t)"), "{}", shown(&model));
}

#[test]
fn concatenated_values_share_a_scale_unless_their_ranges_differ_too_much() {
    let nodes = || {
        vec![
            conv("c1", "x", "w1", "a"),
            conv("c2", "a", "w2", "b"),
            Node::new("Concat", "cat", ["a", "b"], ["c"]).with("axis", 1),
            conv("c3", "c", "w3", "y"),
        ]
    };
    let weights: &[(&str, &[usize])] = &[("w1", W), ("w2", W), ("w3", &[16, 32, 1, 1])];
    let scale = |report: &Int8Report, tensor: &str| {
        report
            .activations
            .iter()
            .find(|a| a.tensor == tensor)
            .unwrap()
            .scale
    };
    let (model, report) =
        Net::new(nodes(), weights, "y").with_ranges(&everything(), &[("a", 2.0), ("c", 8.0)]);
    assert_eq!(
        shown(&model),
        "c1(q:x, q:w1)\nc2(q:a, q:w2)\ncat(a, b)\nc3(q:c, q:w3)"
    );
    assert_eq!(
        (scale(&report, "a"), scale(&report, "c")),
        (8.0 / 127.0, 8.0 / 127.0)
    );
    let (_, report) = Net::new(nodes(), weights, "y").with_ranges(&everything(), &[("a", 0.1), ("c", 8.0)]);
    assert_eq!(
        (scale(&report, "a"), scale(&report, "c")),
        (0.1 / 127.0, 8.0 / 127.0)
    );
    assert_eq!(
        report.notes,
        ["a, c keep their own scales: their ranges differ by a factor of 80"]
    );
}

#[test]
fn weights_are_quantized_along_the_axis_of_their_outputs_and_shared_once() {
    let nodes = vec![
        conv("c1", "x", "w", "a"),
        conv("c2", "a", "w", "b"),
        Node::new("ConvTranspose", "t", ["b", "wt"], ["c"]),
        Node::new("Flatten", "f", ["c"], ["d"]),
        Node::new("Gemm", "g1", ["d", "wg"], ["e"]).with("transB", 1),
        Node::new("Gemm", "g2", ["e", "wh"], ["h"]),
        Node::new("MatMul", "small", ["h", "ws"], ["y"]),
    ];
    let weights: &[(&str, &[usize])] = &[
        ("w", W),
        ("wt", &[16, 16, 2, 2]),
        ("wg", &[32, 4096]),
        ("wh", &[32, 64]),
        ("ws", &[64, 4]),
    ];
    let (model, report) = Net::new(nodes, weights, "y").quantized(&everything());
    let scales = |name: &str| model.graph.initializers[name].elements();
    assert_eq!(
        (
            scales("w_scale"),
            scales("wt_scale"),
            scales("wg_scale"),
            scales("wh_scale")
        ),
        (16, 1, 32, 64)
    );
    let axis = |name: &str| {
        let node = model
            .graph
            .nodes
            .iter()
            .find(|node| node.outputs[0] == *name)
            .unwrap();
        node.int("axis")
    };
    assert_eq!(
        (
            axis("wg_dequantized"),
            axis("wh_dequantized"),
            axis("wt_dequantized")
        ),
        (Some(0), Some(1), None)
    );
    assert_eq!(
        model
            .graph
            .initializers
            .keys()
            .filter(|name| name.starts_with("w_int8"))
            .count(),
        1
    );
    assert_eq!(report.kept.len(), 1);
    assert_eq!(
        (&*report.kept[0].node, &*report.kept[0].reason),
        ("small", "too small to gain: weight [64, 4]")
    );
}

#[test]
fn small_and_depthwise_convolutions_follow_the_limits() {
    for (dims, group, quantized) in [
        (&[16usize, 1, 3, 3], 16i64, true),
        (&[16, 1, 1, 1], 16, false),
        (&[12, 1, 3, 3], 12, false),
        (&[8, 4, 3, 3], 1, true),
        (&[3, 5, 3, 3], 1, false),
    ] {
        let node = conv("c", "x", "w", "y").with("group", group);
        let (_, report) = Net::new(vec![node], &[("w", dims)], "y").quantized(&everything());
        assert_eq!(
            report.quantized.len() == 1,
            quantized,
            "{dims:?} {group}: {:?}",
            report.kept
        );
    }
}

#[test]
fn a_channel_of_zeros_and_an_activation_of_zeros_have_positive_scales() {
    let mut net = Net::new(vec![conv("c", "x", "w", "y")], &[("w", W)], "y");
    let weight = net.0.initializers.get_mut("w").unwrap();
    weight.view_mut::<f32>().unwrap()[..144].fill(0.0);
    let (model, report) = net.with_ranges(&everything(), &[("x", 0.0)]);
    assert_eq!(report.activations[0].scale, 1.0 / 127.0);
    let scales = model.graph.initializers["w_scale"]
        .view::<f32>()
        .unwrap()
        .into_owned();
    assert_eq!(scales[0], 1.0);
    assert!(scales.iter().all(|scale| *scale > 0.0));
}

#[test]
fn cpus_get_both_inputs_and_the_output_of_an_add_in_unsigned_bytes() {
    let nodes = vec![
        conv("c0", "x", "w1", "s"),
        conv("c1", "s", "w2", "a"),
        Node::new("Add", "add", ["a", "s"], ["d"]),
        Node::new("Relu", "r", ["d"], ["e"]),
        Node::new("MaxPool", "pool", ["e"], ["f"]),
        conv("c3", "f", "w3", "y"),
    ];
    let options = Int8Options {
        placement: Placement::Cpu,
        ..everything()
    };
    let (model, _) =
        Net::new(nodes, &[("w1", W), ("w2", W), ("w3", W)], "y").with_ranges(&options, &[("e", 3.0)]);
    assert_eq!(
        shown(&model),
        "c0(q:x, q:w1)\nc1(q:s, q:w2)\nadd(q:a, q:s)\nr(d)\npool(q:e)\nc3(q:f, q:w3)"
    );
    let scale = |name: &str| model.graph.initializers[name].view::<f32>().unwrap()[0];
    assert_eq!(scale("e_scale"), scale("f_scale"));
}

#[test]
fn what_cannot_be_quantized_is_refused_with_words_and_left_as_it_was() {
    let net = || Net::new(vec![conv("c", "x", "w", "y")], &[("w", W)], "y").0;
    let table = CalibrationTable::default();
    let mut old = Model::new(net(), 11);
    let before = old.clone();
    assert!(matches!(
        quantize(&mut old, &table, &everything()),
        Err(Int8Error::Opset { opset: 11 })
    ));
    assert_eq!(old, before);
    let mut model = Model::new(net(), 17);
    let error = quantize(&mut model, &table, &everything()).unwrap_err();
    assert!(
        matches!(&error, Int8Error::Uncalibrated { tensor } if tensor == "x"),
        "{error}"
    );
    let mut table = CalibrationTable::default();
    table.insert("x", 1.0);
    quantize(&mut model, &table, &everything()).unwrap();
    let before = model.clone();
    let error = quantize(&mut model, &table, &everything()).unwrap_err();
    assert!(matches!(error, Int8Error::AlreadyQuantized { .. }));
    assert_eq!(model, before);
    let mut bad = Model::new(net(), 17);
    bad.graph
        .initializers
        .get_mut("w")
        .unwrap()
        .view_mut::<f32>()
        .unwrap()[0] = f32::NAN;
    assert!(matches!(
        quantize(&mut bad, &table, &everything()),
        Err(Int8Error::NonFinite { .. })
    ));
}
