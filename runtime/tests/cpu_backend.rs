//! Behaviour of the CPU backend on small graphs.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use edgeopt_models::graph::Model;
use edgeopt_models::{DataType, Dim, Graph, Node, Shape, Tensor, ValueInfo, ValueType};
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::memory::Budget;
use edgeopt_runtime::{Backend, CompileOptions, Engine, ModelSource, RuntimeError};
use half::f16;

fn shape(dims: &[&str]) -> Shape {
    dims.iter()
        .map(|dim| match dim.parse() {
            Ok(n) => Dim::Known(n),
            Err(_) => Dim::from(*dim),
        })
        .collect()
}

fn value(name: &str, dtype: DataType, dims: &[&str]) -> ValueInfo {
    ValueInfo::tensor(name, dtype, shape(dims))
}

fn model(inputs: Vec<ValueInfo>, nodes: Vec<Node>, outputs: Vec<ValueInfo>) -> Model {
    let graph = Graph {
        name: "small".into(),
        inputs,
        nodes,
        outputs,
        ..Graph::default()
    };
    Model::new(graph, 21)
}

fn compile(model: &Model) -> Result<Arc<dyn Engine>, RuntimeError> {
    CpuBackend::new()?.compile(ModelSource::Model(model), &CompileOptions::default())
}

fn floats(dims: &[usize], elements: &[f32]) -> Tensor {
    Tensor::new(dims, elements).unwrap()
}

fn add_model(a: &[&str], b: &[&str]) -> Model {
    model(
        vec![value("a", DataType::Float32, a), value("b", DataType::Float32, b)],
        vec![Node::new("Add", "add", ["a", "b"], ["sum"])],
        vec![value("sum", DataType::Float32, a)],
    )
}

#[test]
fn outputs_are_written_into_the_same_memory_while_shapes_repeat() {
    let engine = compile(&add_model(&["N", "2"], &["N", "2"])).unwrap();
    let mut session = engine.session().unwrap();
    let ones = floats(&[2, 2], &[1.0; 4]);
    session.run(&[ones.clone(), ones.clone()]).unwrap();
    let first = session.run(&[ones.clone(), ones.clone()]).unwrap()[0]
        .as_bytes()
        .as_ptr();
    let twos = floats(&[2, 2], &[2.0; 4]);
    let outputs = session.run(&[ones.clone(), twos]).unwrap();
    assert_eq!(outputs[0], floats(&[2, 2], &[3.0; 4]));
    assert_eq!(outputs[0].as_bytes().as_ptr(), first);
    let row = floats(&[1, 2], &[5.0, 6.0]);
    let outputs = session.run(&[row.clone(), row]).unwrap();
    assert_eq!(outputs[0], floats(&[1, 2], &[10.0, 12.0]));
}

/// Outputs that no kernel computes: an input, a copy of one, a constant, and what the library folds into one.
#[test]
fn outputs_that_nothing_computes_are_those_of_this_run() {
    let all = DataType::Float32;
    let outputs = ["x", "same", "constant", "folded", "flat"];
    let mut model = model(
        vec![value("x", all, &["2"])],
        vec![
            Node::new("Identity", "copy", ["x"], ["same"]),
            Node::new("Add", "fold", ["constant", "constant"], ["folded"]),
            Node::new("Reshape", "view", ["x", "row"], ["flat"]),
        ],
        outputs
            .map(|name| value(name, all, if name == "flat" { &["1", "2"] } else { &["2"] }))
            .into(),
    );
    model
        .graph
        .add_initializer("constant".into(), Tensor::vector(&[7.0f32, 8.0]));
    model
        .graph
        .add_initializer("row".into(), Tensor::vector(&[1i64, 2]));
    let mut session = compile(&model).unwrap().session().unwrap();
    for run in 0..4 {
        let x = [run as f32, -1.0];
        let expected = [x, x, [7.0, 8.0], [14.0, 16.0], x];
        let found = session.run(&[floats(&[2], &x)]).unwrap();
        for ((name, found), expected) in outputs.iter().zip(found).zip(expected) {
            assert_eq!(found.to_f32().unwrap().as_ref(), expected, "{name} in run {run}");
        }
    }
}

#[test]
fn a_kept_output_does_not_change_with_the_next_run() {
    let engine = compile(&add_model(&["2"], &["2"])).unwrap();
    let mut session = engine.session().unwrap();
    let x = floats(&[2], &[1.0, 2.0]);
    let kept = session.run(&[x.clone(), x.clone()]).unwrap()[0].clone();
    let fed_back = session.run(&[kept.clone(), x]).unwrap()[0].clone();
    assert_eq!(kept, floats(&[2], &[2.0, 4.0]));
    assert_eq!(fed_back, floats(&[2], &[3.0, 6.0]));
}

#[test]
fn wrong_inputs_are_named_with_what_was_expected() {
    let engine = compile(&add_model(&["N", "2"], &["N", "2"])).unwrap();
    let mut session = engine.session().unwrap();
    let good = floats(&[3, 2], &[0.0; 6]);
    let mut error = |inputs: &[Tensor]| session.run(inputs).unwrap_err().to_string();
    assert_eq!(
        error(std::slice::from_ref(&good)),
        r#"input "b": it is missing: 2 inputs expected, 1 given"#
    );
    assert_eq!(
        error(&[good.clone(), floats(&[3, 3], &[0.0; 9])]),
        r#"input "b": expected shape [N, 2], given [3, 3]"#
    );
    assert_eq!(
        error(&[good.clone(), floats(&[6], &[0.0; 6])]),
        r#"input "b": expected shape [N, 2], given [6]"#
    );
    assert_eq!(
        error(&[good.clone(), floats(&[1, 2], &[0.0; 2])]),
        r#"input "b": expected shape [N, 2], given [1, 2]: N is 3 in input "a""#
    );
    assert_eq!(
        error(&[good.clone(), Tensor::new(&[3, 2], &[0i64; 6]).unwrap()]),
        r#"input "b": expected float32, given int64"#
    );
    assert!(error(&[good.clone(), good.clone(), good]).starts_with(r#"input "b": it is the last of 2"#));
}

#[test]
fn shapes_that_depend_on_contents_may_change_under_the_same_inputs_shape() {
    let nonzero = model(
        vec![value("x", DataType::Float32, &["4"])],
        vec![Node::new("NonZero", "nonzero", ["x"], ["where"])],
        vec![value("where", DataType::Int64, &["1", "count"])],
    );
    let engine = compile(&nonzero).unwrap();
    let mut session = engine.session().unwrap();
    for (x, expected) in [
        ([1.0, 0.0, 1.0, 0.0], vec![0i64, 2]),
        ([0.0, 0.0, 1.0, 0.0], vec![2]),
        ([1.0, 1.0, 1.0, 1.0], vec![0, 1, 2, 3]),
        ([0.0; 4], vec![]),
        ([0.0, 1.0, 0.0, 1.0], vec![1, 3]),
    ] {
        let outputs = session.run(&[floats(&[4], &x)]).unwrap();
        assert_eq!(outputs[0], Tensor::new(&[1, expected.len()], &expected).unwrap());
    }
}

#[test]
fn every_kind_of_element_passes_through() {
    let strings = vec![b"".to_vec(), "zwölf".into(), b"nul\0inside".to_vec()];
    for tensor in [
        Tensor::strings(&[3], strings).unwrap(),
        Tensor::strings(&[0], vec![]).unwrap(),
        Tensor::bools(&[2], &[true, false]).unwrap(),
        Tensor::vector(&[f16::from_f32(1.5), f16::NAN]),
        Tensor::vector(&[half::bf16::from_f32(2.0)]),
        Tensor::vector(&[u64::MAX]),
        Tensor::scalar(3i8),
        Tensor::zeros(DataType::Float64, &[2, 0, 3]).unwrap(),
    ] {
        let info = |name: &str| ValueInfo::tensor(name, tensor.dtype(), Shape::known(tensor.dims()));
        let identity = model(
            vec![info("x")],
            vec![Node::new("Identity", "identity", ["x"], ["y"])],
            vec![info("y")],
        );
        let engine = compile(&identity).unwrap();
        let mut session = engine.session().unwrap();
        for _ in 0..2 {
            assert_eq!(session.run(std::slice::from_ref(&tensor)).unwrap()[0], tensor);
        }
    }
}

#[test]
fn four_bit_integers_go_in_and_out() {
    let mut model = model(
        vec![value("x", DataType::Int4, &["3"])],
        vec![
            Node::new("DequantizeLinear", "dequantize", ["x", "scale"], ["float"]),
            Node::new("QuantizeLinear", "quantize", ["float", "scale", "zero"], ["y"]),
        ],
        vec![value("y", DataType::Int4, &["3"])],
    );
    let zero = Tensor::from_bytes(DataType::Int4, &[], &[0]).unwrap();
    model
        .graph
        .add_initializer("scale".into(), Tensor::scalar(0.5f32));
    model.graph.add_initializer("zero".into(), zero);
    let mut session = compile(&model).unwrap().session().unwrap();
    let tensor = Tensor::from_bytes(DataType::Int4, &[3], &[0x7f, 0x08]).unwrap();
    for _ in 0..2 {
        assert_eq!(session.run(std::slice::from_ref(&tensor)).unwrap()[0], tensor);
    }
}

#[test]
fn values_that_are_not_tensors_are_refused_when_compiling() {
    let tensor = value("x", DataType::Float32, &["2"]);
    let mut sequence = tensor.clone();
    sequence.name = "s".into();
    sequence.ty = ValueType::Sequence(Box::new(tensor.ty.clone()));
    let sequence = model(
        vec![tensor],
        vec![Node::new("SequenceConstruct", "pack", ["x"], ["s"])],
        vec![sequence],
    );
    let error = compile(&sequence).err().unwrap().to_string();
    assert_eq!(
        error,
        r#"cpu cannot compile the model: output "s" is a sequence; only tensors can go in and out of an engine"#
    );
}

/// y = x · w with weights large enough to be handed over by reference.
fn matmul_model() -> (Model, Tensor) {
    let weights: Vec<f32> = (0..64 * 64).map(|i| (i % 7) as f32 - 3.0).collect();
    let mut matmul = model(
        vec![value("x", DataType::Float32, &["N", "64"])],
        vec![Node::new("MatMul", "matmul", ["x", "w"], ["y"])],
        vec![value("y", DataType::Float32, &["N", "64"])],
    );
    matmul
        .graph
        .add_initializer("w".into(), floats(&[64, 64], &weights));
    let mut y = vec![0f32; 64];
    for (i, w) in weights.iter().enumerate() {
        y[i % 64] += w;
    }
    (matmul, floats(&[1, 64], &y))
}

#[test]
fn weights_outlive_the_model_they_came_from() {
    for optimize in [true, false] {
        let (model, expected) = matmul_model();
        let options = CompileOptions {
            optimize,
            ..CompileOptions::default()
        };
        let engine = CpuBackend::new()
            .unwrap()
            .compile(ModelSource::Model(&model), &options)
            .unwrap();
        drop(model);
        let mut session = engine.session().unwrap();
        let outputs = session.run(&[floats(&[1, 64], &[1.0; 64])]).unwrap();
        assert_eq!(outputs[0], expected);
    }
}

#[test]
fn sessions_of_one_engine_run_at_the_same_time() {
    let (model, expected) = matmul_model();
    let engine = compile(&model).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut session = Arc::clone(&engine).session().unwrap();
            let expected = &expected;
            scope.spawn(move || {
                for _ in 0..50 {
                    assert_eq!(
                        session.run(&[floats(&[1, 64], &[1.0; 64])]).unwrap()[0],
                        *expected
                    );
                }
            });
        }
    });
}

/// A manifest for `add_model(["N", "2"], …)` whose batch goes from 1 to 4.
fn declared() -> edgeopt_models::bundle::Manifest {
    let tensor = |name| {
        serde_json::json!({"name": name, "dtype": "float32",
            "shape": [{"name": "N", "min": 1, "opt": 2, "max": 4}, 2]})
    };
    serde_json::from_value(serde_json::json!({
        "format": "1.0", "name": "add", "version": "1", "precision": "fp32",
        "inputs": [tensor("a"), tensor("b")], "outputs": [],
        "memory": [{"batch": 1, "weights": 0, "activations": 100, "io": 50},
                   {"batch": 4, "weights": 0, "activations": 400, "io": 200}],
        "provenance": {"source": "", "source_sha256": "", "tool": "", "options": {}},
        "members": {},
    }))
    .unwrap()
}

#[test]
fn a_bundles_declared_ranges_and_memory_hold() {
    let add = add_model(&["N", "2"], &["N", "2"]);
    let budget = Budget::new(edgeopt_models::Bytes::mib(64));
    let options = CompileOptions {
        budget: Some(budget.clone()),
        ..CompileOptions::default()
    };
    let backend = CpuBackend::new().unwrap();
    let model = ModelSource::Model(&add);
    let engine = edgeopt_runtime::compile_declared(&declared(), model, &backend, &options).unwrap();
    assert_eq!((engine.memory().activations.0, engine.memory().io.0), (400, 200));
    let mut session = engine.session().unwrap();
    let rows = |n| floats(&[n, 2], &vec![1.0; n * 2]);
    assert_eq!(session.run(&[rows(4), rows(4)]).unwrap()[0].dims(), [4, 2]);
    let error = session.run(&[rows(5), rows(5)]).unwrap_err().to_string();
    assert!(
        error.contains("\"a\"") && error.contains("length 5") && error.contains("1 to 4"),
        "{error}"
    );
    drop(session);
    assert_eq!(budget.available(), budget.limit());
}

#[test]
fn memory_is_reserved_before_loading_and_given_back() {
    let (model, _) = matmul_model();
    let backend = CpuBackend::new().unwrap();
    let compile = |budget: &Budget| {
        let options = CompileOptions {
            budget: Some(budget.clone()),
            ..CompileOptions::default()
        };
        backend.compile(ModelSource::Model(&model), &options)
    };
    let tight = Budget::new(edgeopt_models::Bytes::kib(8));
    let error = compile(&tight).err().unwrap();
    assert!(matches!(error, RuntimeError::Budget(_)), "{error}");
    let budget = Budget::new(edgeopt_models::Bytes::mib(512));
    let engine = compile(&budget).unwrap();
    assert_eq!(budget.available(), budget.limit() - engine.memory().total());
    drop(engine);
    assert_eq!(budget.available(), budget.limit());
}

#[test]
fn what_is_no_model_is_an_error() {
    let backend = CpuBackend::new().unwrap();
    for bytes in [&b""[..], b"garbage", &[0x0a; 40]] {
        assert!(
            backend
                .compile(ModelSource::Bytes(bytes), &CompileOptions::default())
                .is_err()
        );
    }
    let unknown = model(
        vec![value("x", DataType::Float32, &["2"])],
        vec![Node::new("NoSuchOperator", "n", ["x"], ["y"])],
        vec![value("y", DataType::Float32, &["2"])],
    );
    let error = compile(&unknown).err().unwrap().to_string();
    assert!(error.contains("NoSuchOperator"), "{error}");
}
