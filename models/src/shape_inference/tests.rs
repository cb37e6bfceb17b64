use super::*;
use crate::{DataType, Node, Tensor, ValueInfo};

fn dims(text: &str) -> Shape {
    text.split_whitespace()
        .map(|dim| match dim.parse() {
            Ok(length) => Dim::Known(length),
            Err(_) if dim == "?" => Dim::Unknown,
            Err(_) => Dim::from(dim),
        })
        .collect()
}

/// A model of one node with float inputs of the given shapes and constants after them.
fn single(op: &str, inputs: &[&str], constants: &[Tensor], attributes: &[(&str, Attribute)]) -> Model {
    let mut graph = Graph::default();
    let mut names = Vec::new();
    for (index, shape) in inputs.iter().enumerate() {
        let name = format!("x{index}");
        graph
            .inputs
            .push(ValueInfo::tensor(name.as_str(), DataType::Float32, dims(shape)));
        names.push(name);
    }
    for (index, tensor) in constants.iter().enumerate() {
        let name = format!("c{index}");
        graph.add_initializer(name.as_str().into(), tensor.clone());
        names.push(name);
    }
    let outputs = if op == "Split" {
        vec!["y", "y1", "y2"]
    } else {
        vec!["y"]
    };
    let mut node = Node::new(op, "node", names.iter().map(String::as_str), outputs);
    for (name, value) in attributes {
        node = node.with(name, value.clone());
    }
    graph.nodes.push(node);
    Model::new(graph, 18)
}

fn shown(model: &Model, value: &str) -> String {
    match &model.graph.value_types.get(value) {
        Some(ValueType::Tensor {
            dtype,
            shape: Some(shape),
        }) => format!("{dtype} {shape}"),
        Some(ValueType::Tensor { dtype, shape: None }) => format!("{dtype} *"),
        _ => "unknown".into(),
    }
}

#[test]
fn rules_of_single_operators() {
    let ints = |values: &[i64]| Tensor::vector(values);
    let weights = |dims: &[usize]| Tensor::zeros(DataType::Float32, dims).unwrap();
    let cases: Vec<(Model, &str)> = vec![
        (single("Add", &["N 3 1", "1 5"], &[], &[]), "float32 [N, 3, 5]"),
        (single("Relu", &["N ? 7"], &[], &[]), "float32 [N, ?, 7]"),
        (
            single(
                "Einsum",
                &["N 3 4", "N 4 5"],
                &[],
                &[("equation", "bij,bjk->bik".into())],
            ),
            "float32 [N, 3, 5]",
        ),
        (
            single("Einsum", &["3 4"], &[], &[("equation", "ba".into())]),
            "float32 [4, 3]",
        ),
        (single("Less", &["2 1", "3"], &[], &[]), "bool [2, 3]"),
        (
            single(
                "Conv",
                &["N 3 224 224"],
                &[weights(&[16, 3, 3, 3])],
                &[("strides", [2, 2].into()), ("pads", [1, 1, 1, 1].into())],
            ),
            "float32 [N, 16, 112, 112]",
        ),
        (
            single(
                "Conv",
                &["N 4 W"],
                &[weights(&[8, 2, 3])],
                &[("group", 2i64.into()), ("pads", [1, 1].into())],
            ),
            "float32 [N, 8, W]",
        ),
        (
            single(
                "Conv",
                &["1 1 7 7"],
                &[weights(&[1, 1, 3, 3])],
                &[("auto_pad", "SAME_UPPER".into()), ("strides", [2, 2].into())],
            ),
            "float32 [1, 1, 4, 4]",
        ),
        (
            single(
                "ConvTranspose",
                &["1 4 5 5"],
                &[weights(&[4, 3, 2, 2])],
                &[("strides", [2, 2].into())],
            ),
            "float32 [1, 3, 10, 10]",
        ),
        (
            single(
                "MaxPool",
                &["1 2 7 7"],
                &[],
                &[
                    ("kernel_shape", [2, 2].into()),
                    ("strides", [2, 2].into()),
                    ("ceil_mode", 1i64.into()),
                ],
            ),
            "float32 [1, 2, 4, 4]",
        ),
        (
            single("MatMul", &["N 1 4 8", "6 8 2"], &[], &[]),
            "float32 [N, 6, 4, 2]",
        ),
        (single("MatMul", &["8", "8 2"], &[], &[]), "float32 [2]"),
        (
            single("Gemm", &["N 8"], &[weights(&[2, 8])], &[("transB", 1i64.into())]),
            "float32 [N, 2]",
        ),
        (
            single("Reshape", &["N 3 4"], &[ints(&[0, -1])], &[]),
            "float32 [N, 12]",
        ),
        (
            single("Reshape", &["N 3 4"], &[ints(&[-1, 12])], &[]),
            "float32 [N, 12]",
        ),
        (
            single("Reshape", &["2 3 4"], &[ints(&[4, -1])], &[]),
            "float32 [4, 6]",
        ),
        (
            single("Transpose", &["a b c"], &[], &[("perm", [2, 0, 1].into())]),
            "float32 [c, a, b]",
        ),
        (
            single("Squeeze", &["1 a 1"], &[ints(&[-1])], &[]),
            "float32 [1, a]",
        ),
        (
            single("Unsqueeze", &["a b"], &[ints(&[0, 3])], &[]),
            "float32 [1, a, b, 1]",
        ),
        (
            single("Concat", &["N 2", "N 3"], &[], &[("axis", 1i64.into())]),
            "float32 [N, 5]",
        ),
        (
            single(
                "Split",
                &["N 7"],
                &[],
                &[("axis", 1i64.into()), ("num_outputs", 3i64.into())],
            ),
            "float32 [N, 3]",
        ),
        (
            single(
                "Slice",
                &["N 10"],
                &[ints(&[-3]), ints(&[i64::MAX]), ints(&[1])],
                &[],
            ),
            "float32 [N, 3]",
        ),
        (
            single(
                "Slice",
                &["10"],
                &[ints(&[-1]), ints(&[i64::MIN]), ints(&[0]), ints(&[-3])],
                &[],
            ),
            "float32 [4]",
        ),
        (
            single(
                "Gather",
                &["5 6 7"],
                &[Tensor::scalar(2i64)],
                &[("axis", 1i64.into())],
            ),
            "float32 [5, 7]",
        ),
        (
            single("Pad", &["1 3"], &[ints(&[0, 1, 0, 2])], &[]),
            "float32 [1, 6]",
        ),
        (single("Tile", &["2 N"], &[ints(&[3, 1])], &[]), "float32 [6, N]"),
        (
            single("ReduceMean", &["2 3 4"], &[ints(&[-1, 0])], &[]),
            "float32 [1, 3, 1]",
        ),
        (
            single("ReduceSum", &["2 3"], &[], &[("keepdims", 0i64.into())]),
            "float32 []",
        ),
        (
            single(
                "ArgMax",
                &["N 10"],
                &[],
                &[("axis", 1i64.into()), ("keepdims", 0i64.into())],
            ),
            "int64 [N]",
        ),
        (
            single("Cast", &["N"], &[], &[("to", 10i64.into())]),
            "float16 [N]",
        ),
        (single("Shape", &["N 3"], &[], &[]), "int64 [2]"),
        (single("Flatten", &["N 3 4"], &[], &[]), "float32 [N, 12]"),
        (
            single("GlobalAveragePool", &["N 3 4 5"], &[], &[]),
            "float32 [N, 3, 1, 1]",
        ),
        (
            single("DepthToSpace", &["1 8 2 3"], &[], &[("blocksize", 2i64.into())]),
            "float32 [1, 2, 4, 6]",
        ),
        (single("NoSuchOperator", &["1"], &[], &[]), "unknown"),
    ];
    for (mut model, expected) in cases {
        infer(&mut model, &Bindings::default()).unwrap();
        assert_eq!(shown(&model, "y"), expected, "{}", model.graph.nodes[0].op_type);
    }
}

#[test]
fn the_last_part_of_an_uneven_split_is_shorter() {
    let mut model = single("Split", &["7"], &[], &[("num_outputs", 3i64.into())]);
    infer(&mut model, &Bindings::default()).unwrap();
    assert_eq!(
        ["y", "y1", "y2"].map(|name| shown(&model, name)),
        ["float32 [3]", "float32 [3]", "float32 [1]"]
    );
}

#[test]
fn contradictions_name_the_node_and_hostile_attributes_do_not_panic() {
    let weights = Tensor::zeros(DataType::Float32, &[4, 3, 3, 3]).unwrap();
    let cases = [
        single("Add", &["2 3", "2 4"], &[], &[]),
        single("MatMul", &["2 3", "4 5"], &[], &[]),
        single("Conv", &["1 8 4 4"], std::slice::from_ref(&weights), &[]),
        single("Conv", &["1 3 1 1"], std::slice::from_ref(&weights), &[]),
        single(
            "Conv",
            &["1 3 9 9"],
            std::slice::from_ref(&weights),
            &[("strides", [0, 1].into())],
        ),
        single(
            "Conv",
            &["1 3 9 9"],
            &[weights],
            &[("dilations", [i64::MAX, 1].into())],
        ),
        single("Reshape", &["2 3"], &[Tensor::vector(&[-1i64, -1])], &[]),
        single("Reshape", &["2 3"], &[Tensor::vector(&[4i64, -1])], &[]),
        single("Transpose", &["2 3"], &[], &[("perm", [0, 5].into())]),
        single("Concat", &["2 3", "3 3"], &[], &[("axis", 1i64.into())]),
        single("Squeeze", &["2 3"], &[Tensor::vector(&[0i64])], &[]),
        single("DepthToSpace", &["1 8 2 2"], &[], &[("blocksize", 0i64.into())]),
        single("MaxPool", &["1 1 4"], &[], &[("kernel_shape", [2, 2].into())]),
    ];
    for mut model in cases {
        let error = infer(&mut model, &Bindings::default()).unwrap_err().to_string();
        assert!(error.contains("node \"node\""), "{error}");
        assert_eq!(model.graph.nodes.len(), 1, "the graph is whole after an error");
    }
    let huge = [i64::MAX, i64::MAX];
    let mut model = single("Tile", &["4 4"], &[Tensor::vector(&huge)], &[]);
    infer(&mut model, &Bindings::default()).unwrap();
    let mut model = single("Pad", &["4"], &[Tensor::vector(&huge)], &[]);
    infer(&mut model, &Bindings::default()).unwrap();
}

/// `Reshape(x, Concat(Shape(x)[0], [-1]))`, as exporters flatten.
#[test]
fn shapes_are_followed_by_value() {
    let mut graph = Graph::default();
    graph
        .inputs
        .push(ValueInfo::tensor("x", DataType::Float32, dims("N 3 H")));
    graph.add_initializer("zero".into(), Tensor::scalar(0i64));
    graph.add_initializer("axes".into(), Tensor::vector(&[0i64]));
    graph.add_initializer("rest".into(), Tensor::vector(&[-1i64]));
    graph.nodes = vec![
        Node::new("Shape", "shape", ["x"], ["s"]),
        Node::new("Gather", "gather", ["s", "zero"], ["n"]),
        Node::new("Unsqueeze", "unsqueeze", ["n", "axes"], ["n1"]),
        Node::new("Concat", "concat", ["n1", "rest"], ["target"]).with("axis", 0i64),
        Node::new("Reshape", "reshape", ["x", "target"], ["y"]),
    ];
    let mut symbolic = Model::new(graph, 18);
    let mut concrete = symbolic.clone();
    infer(&mut symbolic, &Bindings::default()).unwrap();
    assert_eq!(shown(&symbolic, "y"), "float32 [N, ?]");
    let bindings = Bindings {
        dims: BTreeMap::from([("N".into(), 2), ("H".into(), 5)]),
        ..Bindings::default()
    };
    infer(&mut concrete, &bindings).unwrap();
    assert_eq!(shown(&concrete, "y"), "float32 [2, 15]");
    let wrong = Bindings {
        inputs: BTreeMap::from([("x".into(), vec![2, 4, 5])]),
        ..Bindings::default()
    };
    assert!(
        infer(&mut concrete, &wrong)
            .unwrap_err()
            .to_string()
            .contains("[2, 3, 5]")
    );
}
