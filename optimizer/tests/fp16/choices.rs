use edgeopt_models::{Attribute, DataType, Graph, Node, Shape, Tensor, ValueInfo, ValueName};
use edgeopt_optimizer::calibrate::CalibrationTable;
use edgeopt_optimizer::precision::fp16::{Fp16Options, values_to_watch};

use crate::support::{converted, converted_with, kept, measured, model, noise, ops};

#[test]
fn a_chain_is_cast_once_at_each_end_and_its_weights_are_half() {
    let nodes = vec![
        Node::new("MatMul", "a", ["x", "w"], ["h"]),
        Node::new("Relu", "b", ["h"], ["r"]),
        Node::new("MatMul", "c", ["r", "w"], ["y"]),
    ];
    let weights = Tensor::new(&[2, 2], &[0.5f32, 1e-9, -2.0, 1.0]).unwrap();
    let (model, report) = converted(model(&[1, 2], nodes, &[("w", weights)], &[1, 2]));
    assert_eq!(ops(&model), ["Cast", "MatMul", "Relu", "MatMul", "Cast"]);
    assert_eq!(
        (report.converted, report.casts, report.flushed_weights),
        (3, 2, 1)
    );
    let types: Vec<DataType> = model.graph.initializers.values().map(Tensor::dtype).collect();
    assert_eq!(types, [DataType::Float16]);
}

#[test]
fn what_is_not_safe_in_half_stays_and_says_why() {
    let sum = Node::new("ReduceSum", "node", ["x"], ["y"]).with("keepdims", 0i64);
    let square = Node::new("Mul", "node", ["x", "x"], ["y"]);
    let large = Node::new("Add", "node", ["x", "c"], ["y"]);
    let constant = [("c", Tensor::vector(&[1e6f32, 1.0]))];
    let cases = [
        (model(&[70_000], vec![sum], &[], &[]), "too many"),
        (model(&[2], vec![square], &[], &[2]), "squares"),
        (model(&[2], vec![large], &constant, &[2]), "beyond 65504"),
        (
            model(&[2], vec![Node::new("Exp", "node", ["x"], ["y"])], &[], &[2]),
            "not safe",
        ),
    ];
    for (model, reason) in cases {
        let before = ops(&model).len();
        let (after, report) = converted(model);
        assert_eq!(report.converted, 0);
        assert!(report.kept[0].reason.contains(reason), "{:?}", report.kept);
        assert_eq!(ops(&after).len(), before);
    }
}

#[test]
fn a_value_of_unknown_type_keeps_what_reads_it_in_float() {
    let mut foreign = Node::new("Something", "foreign", ["x"], ["u"]);
    foreign.domain = "com.example".into();
    let nodes = vec![
        foreign,
        Node::new("Relu", "relu", ["x"], ["r"]),
        Node::new("Add", "add", ["r", "u"], ["y"]),
    ];
    let mut float = model(&[2], nodes, &[], &[2]);
    float.opsets.insert("com.example".into(), 1);
    let (half, report) = converted(float);
    assert_eq!(kept(&report), ["foreign", "add"]);
    assert!(report.kept[1].reason.contains("types of its inputs"));
    let add = half.graph.nodes.iter().find(|node| node.is("Add")).unwrap();
    let read = half.graph.type_of(add.input(0).unwrap()).unwrap();
    assert_eq!(read.dtype(), Some(DataType::Float32));
}

#[test]
fn excluded_names_stay_and_are_cast_around() {
    let nodes = vec![
        Node::new("Relu", "body/a", ["x"], ["a"]),
        Node::new("Relu", "head/b", ["a"], ["b"]),
        Node::new("Relu", "body/c", ["b"], ["y"]),
    ];
    let options = Fp16Options {
        exclude: vec!["head/*".into()],
        ..Fp16Options::default()
    };
    let (half, report) = converted_with(model(&[2], nodes, &[], &[2]), &options, None);
    assert_eq!(kept(&report), ["head/b"]);
    assert_eq!(
        ops(&half),
        ["Cast", "Relu", "Cast", "Relu", "Cast", "Relu", "Cast"]
    );
    assert_eq!(report.casts, 4);
}

#[test]
fn values_seen_to_be_large_stay_in_float_with_what_reads_them() {
    let nodes = vec![
        Node::new("Mul", "up", ["x", "c"], ["h"]),
        Node::new("Mul", "down", ["h", "d"], ["s"]),
        Node::new("Relu", "last", ["s"], ["y"]),
    ];
    let constants = [("c", Tensor::scalar(1000.0f32)), ("d", Tensor::scalar(0.001f32))];
    let float = model(&[2], nodes, &constants, &[2]);
    let watched = values_to_watch(&float, &Fp16Options::default()).unwrap();
    assert_eq!(watched, ["x", "h", "s", "y"].map(ValueName::from));
    let mut ranges = CalibrationTable::default();
    for (name, peak) in [("x", 100.0), ("h", 100_000.0), ("s", 100.0), ("y", 100.0)] {
        ranges.insert(name, peak);
    }
    let (half, report) = converted_with(float.clone(), &Fp16Options::default(), Some(&ranges));
    assert_eq!(kept(&report), ["up", "down"]);
    let samples = vec![vec![Tensor::vector(&[1.0f32, 100.0])]];
    let found = measured(&float, &half, &samples);
    assert!(
        found.non_finite.is_empty() && found.min_sqnr_db() > 60.0,
        "{found:?}"
    );
    // Not a number is not within the range.
    ranges.insert("h", f32::NAN);
    let (_, report) = converted_with(float, &Fp16Options::default(), Some(&ranges));
    assert_eq!(kept(&report), ["up", "down"]);
}

/// A normalization written out between two products, over values whose squares are beyond 65504.
fn written_out(reciprocal: bool) -> edgeopt_models::Model {
    let mut nodes = vec![
        Node::new("MatMul", "in", ["x", "w"], ["h"]),
        Node::new("ReduceMean", "mean", ["h", "axes"], ["m"]),
        Node::new("Sub", "centre", ["h", "m"], ["d"]),
        Node::new("Pow", "square", ["d", "two"], ["q"]),
        Node::new("ReduceMean", "variance", ["q", "axes"], ["v"]),
        Node::new("Add", "epsilon", ["v", "eps"], ["e"]),
        Node::new("Sqrt", "root", ["e"], ["r"]),
    ];
    if reciprocal {
        nodes.push(Node::new("Reciprocal", "inverse", ["r"], ["i"]));
        nodes.push(Node::new("Mul", "divide", ["d", "i"], ["n"]));
    } else {
        nodes.push(Node::new("Div", "divide", ["d", "r"], ["n"]));
    }
    nodes.push(Node::new("Mul", "gain", ["n", "g"], ["s"]));
    nodes.push(Node::new("MatMul", "out", ["s", "w"], ["y"]));
    let constants = [
        ("w", noise(&[16, 16], 30.0)),
        ("axes", Tensor::vector(&[-1i64])),
        ("two", Tensor::scalar(2.0f32)),
        ("eps", Tensor::scalar(1e-12f32)),
        ("g", noise(&[16], 1.0)),
    ];
    model(&[4, 16], nodes, &constants, &[4, 16])
}

#[test]
fn a_normalization_that_is_written_out_stays_in_float_as_a_whole() {
    for reciprocal in [false, true] {
        let float = written_out(reciprocal);
        let (half, report) = converted(float.clone());
        let mut expected = vec!["mean", "centre", "square", "variance", "epsilon", "root"];
        expected.extend(reciprocal.then_some("inverse"));
        expected.push("divide");
        assert_eq!(kept(&report), expected);
        // In and out of the whole, one cast each.
        assert_eq!(report.casts, 4);
        // A row of equal numbers has no variance, and one of large numbers squares beyond 65504.
        let mut rows = noise(&[4, 16], 100.0);
        rows.view_mut::<f32>().unwrap()[..16].fill(0.0);
        let found = measured(&float, &half, &vec![vec![rows]]);
        assert!(
            found.non_finite.is_empty() && found.min_sqnr_db() > 50.0,
            "{found:?}"
        );
    }
}

#[test]
fn a_shared_constant_has_one_copy_for_each_type_that_reads_it() {
    let nodes = vec![
        Node::new("MatMul", "a", ["x", "w"], ["a"]),
        Node::new("MatMul", "b", ["a", "w"], ["b"]),
        Node::new("Exp", "float", ["w"], ["e"]),
        Node::new("Add", "y", ["b", "e"], ["y"]),
    ];
    let weights = noise(&[2, 2], 1.0);
    let float = model(&[2, 2], nodes, &[("w", weights)], &[2, 2]);
    let (half, report) = converted(float.clone());
    assert_eq!(kept(&report), ["float"]);
    let mut types: Vec<DataType> = half.graph.initializers.values().map(Tensor::dtype).collect();
    types.sort_by_key(|dtype| dtype.to_onnx());
    assert_eq!(types, [DataType::Float32, DataType::Float16]);
    let found = measured(&float, &half, &vec![vec![noise(&[2, 2], 3.0)]]);
    assert!(found.min_sqnr_db() > 50.0, "{found:?}");
}

#[test]
fn a_branch_finds_what_it_captures_as_before() {
    let branch = |name: &str, op: &str| {
        let output = format!("{name}_y");
        Graph {
            name: name.into(),
            nodes: vec![Node::new(op, name, ["h"], [output.clone()])],
            outputs: vec![ValueInfo::tensor(output, DataType::Float32, Shape::known(&[2]))],
            ..Graph::default()
        }
    };
    let choose = Node::new("If", "if", ["c"], ["i"])
        .with("then_branch", Attribute::Graph(Box::new(branch("then", "Exp"))))
        .with("else_branch", Attribute::Graph(Box::new(branch("else", "Neg"))));
    let nodes = vec![
        Node::new("Tanh", "tanh", ["x"], ["h"]),
        Node::new("ReduceMax", "max", ["x"], ["m"]).with("keepdims", 0i64),
        Node::new("Greater", "positive", ["m", "zero"], ["c"]),
        choose,
        Node::new("Add", "add", ["i", "h"], ["y"]),
    ];
    let float = model(&[2], nodes, &[("zero", Tensor::scalar(0.0f32))], &[2]);
    let (half, report) = converted(float.clone());
    assert_eq!(kept(&report), ["positive", "if"]);
    let samples = [[1.0f32, 0.3], [-1.0, -0.2]].map(|x| vec![Tensor::vector(&x)]);
    let found = measured(&float, &half, &samples.to_vec());
    assert!(found.min_sqnr_db() > 55.0, "{found:?}");
}

#[test]
fn scales_of_resize_and_statistics_of_a_normalization_stay_float() {
    let nodes = vec![
        Node::new("Relu", "relu", ["x"], ["r"]),
        Node::new("Resize", "resize", ["r", "", "s"], ["z"]).with("mode", "nearest"),
        Node::new("LayerNormalization", "norm", ["z", "g"], ["n", "m"]),
        Node::new("Add", "add", ["n", "m"], ["y"]),
    ];
    let scales = Tensor::vector(&[1.0f32, 1.0, 2.0, 2.0]);
    let constants = [("s", scales.clone()), ("g", noise(&[6], 1.0))];
    let float = model(&[1, 1, 3, 3], nodes, &constants, &[1, 1, 6, 6]);
    let (half, report) = converted(float.clone());
    assert!(report.kept.is_empty(), "{:?}", report.kept);
    let resize = half.graph.nodes.iter().find(|node| node.is("Resize")).unwrap();
    assert_eq!(half.graph.constant(resize.input(2).unwrap()), Some(&scales));
    let found = measured(&float, &half, &vec![vec![noise(&[1, 1, 3, 3], 2.0)]]);
    assert!(found.min_sqnr_db() > 50.0, "{found:?}");
}

#[test]
fn who_asks_only_for_the_shape_needs_no_cast() {
    let nodes = vec![
        Node::new("Relu", "relu", ["x"], ["r"]),
        Node::new("Shape", "shape", ["r"], ["s"]),
        Node::new("Expand", "expand", ["r", "s"], ["y"]),
    ];
    let (half, report) = converted(model(&[2], nodes, &[], &[2]));
    assert_eq!(ops(&half), ["Cast", "Relu", "Shape", "Expand", "Cast"]);
    assert!(report.kept.is_empty());
}

#[test]
fn a_half_value_keeps_its_name_unless_a_caller_knows_it() {
    let nodes = vec![
        Node::new("Relu", "a", ["x"], ["r"]),
        Node::new("Exp", "b", ["r"], ["e"]),
        Node::new("Neg", "c", ["e"], ["y"]),
    ];
    let (half, _) = converted(model(&[2], nodes, &[], &[2]));
    let dtype = |name: &str| half.graph.type_of(name).and_then(|ty| ty.dtype());
    assert_eq!(dtype("r"), Some(DataType::Float16));
    assert_eq!(dtype("r_fp32"), Some(DataType::Float32));
    assert_eq!(
        (dtype("y"), dtype("y_fp16")),
        (Some(DataType::Float32), Some(DataType::Float16))
    );
}
