//! INT8 kernels of the CPU backend against the exact arithmetic of the Q/DQ graph.
#![allow(clippy::unwrap_used)]

use edgeopt_models::{DataType, Graph, Model, Node, Shape, Tensor, ValueInfo};
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::{Backend, CompileOptions, ModelSource};

const OUTPUT_SCALE: f32 = 64.0;

/// x → Q → DQ → `op` with s8 weights → Q → DQ → y, all zero points 0.
fn quantized(op: &str, x: &[usize], w: &[usize], weight: impl Fn(usize) -> i8) -> Model {
    let mut graph = Graph {
        inputs: vec![ValueInfo::tensor("x", DataType::Float32, Shape::known(x))],
        outputs: vec![ValueInfo {
            name: "y".into(),
            ty: edgeopt_models::ValueType::Tensor {
                dtype: DataType::Float32,
                shape: None,
            },
            extra: None,
        }],
        ..Graph::default()
    };
    let weights: Vec<i8> = (0..w.iter().product()).map(weight).collect();
    graph.add_initializer("w".into(), Tensor::new(w, &weights).unwrap());
    graph.add_initializer("one".into(), Tensor::scalar(1f32));
    graph.add_initializer("y_scale".into(), Tensor::scalar(OUTPUT_SCALE * 127.0));
    graph.add_initializer("zero".into(), Tensor::scalar(0i8));
    graph.nodes = vec![
        Node::new("QuantizeLinear", "q_x", ["x", "one", "zero"], ["x_q"]),
        Node::new("DequantizeLinear", "dq_x", ["x_q", "one", "zero"], ["x_f"]),
        Node::new("DequantizeLinear", "dq_w", ["w", "one", "zero"], ["w_f"]),
        Node::new(op, "op", ["x_f", "w_f"], ["sum"]),
        Node::new("QuantizeLinear", "q_y", ["sum", "y_scale", "zero"], ["y_q"]),
        Node::new("DequantizeLinear", "dq_y", ["y_q", "y_scale", "zero"], ["y"]),
    ];
    Model::new(graph, 17)
}

fn run(model: &Model, x: &Tensor, exact_quantization: bool) -> Vec<f32> {
    let options = CompileOptions {
        exact_quantization,
        ..CompileOptions::default()
    };
    let engine = CpuBackend::new()
        .unwrap()
        .compile(ModelSource::Model(model), &options)
        .unwrap();
    let mut session = engine.session().unwrap();
    session.run(std::slice::from_ref(x)).unwrap()[0]
        .to_f32()
        .unwrap()
        .to_vec()
}

/// Neighbouring products of the largest size overflow 16 bits, which kernels for processors without VNNI add in.
#[test]
fn the_largest_weights_and_activations_do_not_saturate_on_the_way() {
    let shapes: [(&str, &[usize], &[usize]); 3] = [
        ("MatMul", &[4, 64], &[64, 32]),
        ("Conv", &[1, 64, 6, 6], &[32, 64, 1, 1]),
        ("Conv", &[1, 16, 6, 6], &[32, 16, 3, 3]),
    ];
    type Weight = fn(usize) -> i8;
    let weights: [(&str, Weight); 3] = [
        ("all 127", |_| 127),
        ("all −127", |_| -127),
        ("mixed", |i| if i % 5 < 3 { 127 } else { -127 }),
    ];
    for (op, x, w) in shapes {
        for (name, weight) in weights {
            let model = quantized(op, x, w, weight);
            let elements: Vec<f32> = (0..x.iter().product())
                .map(|i: usize| if i.is_multiple_of(7) { -128.0 } else { 127.0 })
                .collect();
            let input = Tensor::new(x, &elements).unwrap();
            let (fused, exact) = (run(&model, &input, false), run(&model, &input, true));
            let lsb = OUTPUT_SCALE * 127.0;
            for (fused, exact) in fused.iter().zip(&exact) {
                assert!(
                    (fused - exact).abs() <= lsb,
                    "{op} {w:?} {name}: {fused}, exactly {exact}"
                );
            }
            assert!(
                exact.iter().any(|y| *y != 0.0),
                "{op} {w:?} {name}: nothing was computed"
            );
        }
    }
}

/// The unsigned rewrite changes no value: pairs alone give what the Q/DQ arithmetic says.
#[test]
fn quantizing_and_back_keeps_every_value() {
    let x: Vec<f32> = (-200..200).map(|i| i as f32 * 0.75).collect();
    let mut graph = Graph {
        inputs: vec![ValueInfo::tensor("x", DataType::Float32, Shape::known(&[400]))],
        outputs: vec![ValueInfo::tensor("y", DataType::Float32, Shape::known(&[400]))],
        ..Graph::default()
    };
    graph.add_initializer("scale".into(), Tensor::scalar(0.5f32));
    graph.add_initializer("zero".into(), Tensor::scalar(-7i8));
    graph.nodes = vec![
        Node::new("QuantizeLinear", "q", ["x", "scale", "zero"], ["x_q"]),
        Node::new("DequantizeLinear", "dq", ["x_q", "scale", "zero"], ["y"]),
    ];
    let y = run(&Model::new(graph, 17), &Tensor::vector(&x), false);
    for (x, y) in x.iter().zip(y) {
        let q = ((x / 0.5).round_ties_even() - 7.0).clamp(-128.0, 127.0);
        assert_eq!(y, (q + 7.0) * 0.5, "of {x}");
    }
}

/// ONNX Runtime's own kernel for half cuts fractions off.
#[test]
fn half_numbers_are_quantized_by_rounding_to_even() {
    use half::f16;
    let dims = [1, 1, 2, 4];
    let half = |values: &[f32]| -> Vec<f16> { values.iter().map(|value| f16::from_f32(*value)).collect() };
    let mut graph = Graph {
        inputs: vec![ValueInfo::tensor("x", DataType::Float16, Shape::known(&dims))],
        outputs: vec![ValueInfo::tensor("y", DataType::Float16, Shape::known(&dims))],
        ..Graph::default()
    };
    graph.add_initializer("scale".into(), Tensor::scalar(f16::from_f32(0.5)));
    graph.add_initializer("zero".into(), Tensor::scalar(0i8));
    graph.nodes = vec![
        Node::new("QuantizeLinear", "q", ["x", "scale", "zero"], ["q"]),
        Node::new("DequantizeLinear", "dq", ["q", "scale", "zero"], ["y"]),
    ];
    let model = Model::new(graph, 19);
    let x = Tensor::new(&dims, &half(&[0.4, -0.4, 0.25, 0.75, -0.75, 0.2, 63.4, -100.0])).unwrap();
    let expected = [0.5, -0.5, 0.0, 1.0, -1.0, 0.0, 63.5, -64.0];
    for exact in [false, true] {
        assert_eq!(run(&model, &x, exact), expected);
    }
}
