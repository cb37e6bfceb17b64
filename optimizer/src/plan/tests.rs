#![allow(clippy::unwrap_used)]

use edgeopt_models::{DataType, Graph, Node, Shape, Tensor, ValueInfo};
use proptest::prelude::*;

use super::arena::{Interval, place};
use super::*;

fn float(name: &str, dims: Vec<Dim>) -> ValueInfo {
    ValueInfo::tensor(name, DataType::Float32, Shape(dims))
}

fn model(nodes: Vec<Node>, outputs: &[&str]) -> Model {
    let graph = Graph {
        nodes,
        inputs: vec![float("x", vec!["N".into(), 64.into()])],
        outputs: outputs
            .iter()
            .map(|name| float(name, vec![Dim::Unknown, Dim::Unknown]))
            .collect(),
        ..Graph::default()
    };
    Model::new(graph, 17)
}

fn planned(nodes: Vec<Node>, outputs: &[&str], batch: usize) -> ActivationPlan {
    activations(&bound(&model(nodes, outputs), batch, &Bindings::default()).unwrap()).unwrap()
}

#[test]
fn a_chain_takes_two_buffers_whatever_its_length() {
    let nodes = (0..10)
        .map(|i| {
            let input = if i == 0 { "x".to_owned() } else { format!("v{i}") };
            Node::new("Exp", &format!("n{i}"), [input], [format!("v{}", i + 1)])
        })
        .collect();
    let plan = planned(nodes, &["v10"], 4);
    // 4 · 64 floats are 1 KiB each.
    assert_eq!(plan.peak, Bytes::kib(2));
    assert_eq!(plan.lower_bound, Bytes::kib(2));
    assert_eq!(plan.timeline[0], ("n0".to_owned(), Bytes::kib(1)));
    assert_eq!(plan.timeline[5], ("n5".to_owned(), Bytes::kib(2)));
}

#[test]
fn activations_work_in_place_and_quantizing_is_part_of_the_layer_before() {
    let quantized = |zero_point: &str| {
        let mut given = model(
            vec![
                Node::new("Exp", "layer", ["x"], ["a"]),
                Node::new("Relu", "relu", ["a"], ["b"]),
                Node::new("QuantizeLinear", "q", ["b", "scale", zero_point], ["c"]),
                Node::new("DequantizeLinear", "dq", ["c", "scale", zero_point], ["d"]),
                Node::new("Exp", "next", ["d"], ["y"]),
            ],
            &["y"],
        );
        given
            .graph
            .add_initializer("scale".into(), Tensor::scalar(0.1f32));
        given.graph.add_initializer("zero".into(), Tensor::scalar(0i8));
        activations(&bound(&given, 4, &Bindings::default()).unwrap()).unwrap()
    };
    let plan = quantized("zero");
    // 4 · 64 numbers: 256 bytes as int8 for the layer, 1 KiB as float for the next one.
    let sizes: Vec<(&str, Bytes)> = plan
        .placements
        .iter()
        .map(|p| (p.name.as_str(), p.size))
        .collect();
    assert_eq!(sizes, [("a", Bytes(256)), ("y", Bytes::kib(1))]);
    // A second reader of the float values keeps them in memory.
    let shared = vec![
        Node::new("Exp", "layer", ["x"], ["a"]),
        Node::new("Relu", "relu", ["a"], ["b"]),
        Node::new("Add", "add", ["a", "b"], ["y"]),
    ];
    assert_eq!(planned(shared, &["y"], 4).placements.len(), 3);
}

#[test]
fn a_view_has_no_buffer_and_keeps_its_source_alive() {
    let nodes = vec![
        Node::new("Relu", "relu", ["x"], ["a"]),
        Node::new("Flatten", "flat", ["a"], ["b"]),
        Node::new("Neg", "neg", ["x"], ["c"]),
        Node::new("Add", "add", ["b", "c"], ["y"]),
    ];
    let plan = planned(nodes, &["y"], 1);
    let names: Vec<&str> = plan.placements.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["a", "c", "y"]);
    assert_eq!(plan.placements[0].last, 3);
    assert_eq!(plan.peak, Bytes(3 * 256));
}

#[test]
fn nodes_move_where_that_frees_memory() {
    // Four wide values that are reduced at once in the better order, all alive in the file's.
    let mut nodes = Vec::new();
    for i in 0..4 {
        nodes.push(Node::new("Neg", &format!("wide{i}"), ["x"], [format!("w{i}")]));
    }
    for i in 0..4 {
        nodes.push(Node::new(
            "ReduceSum",
            &format!("sum{i}"),
            [format!("w{i}")],
            [format!("s{i}")],
        ));
    }
    nodes.push(Node::new("Sum", "join", ["s0", "s1", "s2", "s3"], ["y"]));
    let plan = planned(nodes, &["y"], 64);
    let wide = Bytes(64 * 64 * 4);
    assert!(plan.peak < wide + wide, "{:?}", plan.peak);
    assert_eq!(plan.order.len(), 9);
}

#[test]
fn subgraphs_count_while_their_node_runs() {
    let branch = |op: &str| Graph {
        nodes: vec![
            Node::new(op, "inner", ["x"], [format!("{op}1")]),
            Node::new(op, "inner2", [format!("{op}1")], [format!("{op}2")]),
        ],
        outputs: vec![float(&format!("{op}2"), vec![Dim::Unknown, Dim::Unknown])],
        ..Graph::default()
    };
    let mut given = model(
        vec![
            Node::new("If", "if", ["condition"], ["y"])
                .with("then_branch", branch("Exp"))
                .with("else_branch", branch("Floor")),
        ],
        &["y"],
    );
    given
        .graph
        .inputs
        .push(ValueInfo::tensor("condition", DataType::Bool, Shape::known(&[])));
    let plan = activations(&bound(&given, 4, &Bindings::default()).unwrap()).unwrap();
    assert_eq!(plan.peak, Bytes::kib(3));
}

#[test]
fn the_memory_plan_counts_weights_inputs_and_outputs() {
    let mut given = model(vec![Node::new("MatMul", "fc", ["x", "w"], ["y"])], &["y"]);
    let weight = Tensor::zeros(DataType::Float32, &[64, 10]).unwrap();
    given.graph.initializers.insert("w".into(), weight);
    let plan = memory_plan(&given, 8, &Bindings::default()).unwrap();
    assert_eq!(plan.batch, 8);
    assert_eq!(plan.weights, Bytes(64 * 10 * 4));
    assert_eq!(plan.io, Bytes(8 * 64 * 4 + 8 * 10 * 4));
    assert_eq!(plan.activations, Bytes(512));
}

#[test]
fn an_unknown_size_and_a_fixed_batch_are_named() {
    let nodes = vec![Node::new("NonZero", "where", ["x"], ["hits"])];
    let error = activations(&bound(&model(nodes, &["hits"]), 1, &Bindings::default()).unwrap()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("\"hits\"") && text.contains("\"where\""), "{text}");

    let mut fixed = model(vec![Node::new("Relu", "r", ["x"], ["y"])], &["y"]);
    fixed.graph.inputs[0].ty = ValueType::tensor(DataType::Float32, Shape::known(&[1, 64]));
    let error = memory_plan(&fixed, 4, &Bindings::default()).unwrap_err();
    assert!(
        matches!(
            error,
            PlanError::Batch {
                fixed: 1,
                batch: 4,
                ..
            }
        ),
        "{error}"
    );
    assert!(memory_plan(&fixed, 1, &Bindings::default()).is_ok());
}

proptest! {
    #[test]
    fn placements_that_live_together_never_overlap(
        raw in prop::collection::vec((0usize..40, 0usize..12, 0u64..20), 0..60)
    ) {
        let intervals: Vec<Interval> = raw
            .iter()
            .map(|(first, length, size)| Interval { first: *first, last: first + length, size: Bytes(size * 256) })
            .collect();
        let (offsets, peak) = place(&intervals);
        for (i, a) in intervals.iter().enumerate() {
            prop_assert!(offsets[i] + a.size <= peak);
            for (j, b) in intervals.iter().enumerate().skip(i + 1) {
                let apart = offsets[i] + a.size <= offsets[j] || offsets[j] + b.size <= offsets[i];
                prop_assert!(!a.overlaps(b) || apart, "{a:?} and {b:?}");
            }
        }
        let most = (0..60).map(|step| {
            intervals.iter().filter(|i| i.first <= step && step <= i.last).map(|i| i.size).sum::<Bytes>()
        }).max().unwrap_or(Bytes::ZERO);
        prop_assert!(most <= peak);
        prop_assert!(peak <= intervals.iter().map(|i| i.size).sum());
    }

    /// Random graphs: the order is topological, the bounds hold, and it takes no more than the file's order.
    #[test]
    fn plans_of_random_graphs_are_sound(edges in prop::collection::vec((0usize..1000, 0usize..1000), 1..30)) {
        let mut nodes = Vec::new();
        for (index, (a, b)) in edges.iter().enumerate() {
            let name = |at: usize| if at == 0 { "x".to_owned() } else { format!("v{at}") };
            let inputs = [name(a % (index + 1)), name(b % (index + 1))];
            nodes.push(Node::new("Add", &format!("n{index}"), inputs, [format!("v{}", index + 1)]));
        }
        let last = format!("v{}", nodes.len());
        let plan = planned(nodes.clone(), &[&last], 2);
        let total: Bytes = plan.placements.iter().map(|p| p.size).sum();
        prop_assert!(plan.lower_bound <= plan.peak && plan.peak <= total);
        let mut seen = vec!["x".to_owned()];
        for node in &plan.order {
            for input in &nodes[*node].inputs {
                prop_assert!(seen.contains(&input.to_string()));
            }
            seen.push(nodes[*node].outputs[0].to_string());
        }
        prop_assert_eq!(plan.order.len(), nodes.len());
    }
}
