use edgeopt_models::bundle::{Postprocessing, Precision};
use edgeopt_models::graph::validate::validate;
use edgeopt_models::{Attribute, DataType, Graph, Model, Node, Shape, Tensor, ValueInfo};
use edgeopt_optimizer::accuracy::layer_sqnr;
use edgeopt_optimizer::build::{BuildOptions, Candidate, Data, Progress, make, prepare};
use edgeopt_optimizer::calibrate::{CalibrationOptions, Watched, calibrate, extremes};
use edgeopt_optimizer::precision::fp16::{Fp16Options, simulate, to_fp16, values_to_watch};
use edgeopt_optimizer::precision::int8::{Int8Options, quantize, tensors_to_calibrate};
use edgeopt_runtime::backends::cpu::CpuBackend;
use half::f16;

use crate::support::{against, converted, converted_with, kept, measured, model, noise, ops};

/// Convolutions with what usually stands between them.
fn network() -> Model {
    let nodes = vec![
        Node::new("Conv", "c1", ["x", "w1", "b1"], ["a"]).with("pads", [1i64; 4]),
        Node::new("Relu", "r1", ["a"], ["ar"]),
        Node::new("Conv", "c2", ["ar", "w2"], ["b"]).with("pads", [1i64; 4]),
        Node::new("Add", "skip", ["b", "ar"], ["s"]),
        Node::new("Sigmoid", "gate", ["s"], ["g"]),
        Node::new("Mul", "swish", ["s", "g"], ["m"]),
        Node::new("MaxPool", "pool", ["m"], ["p"])
            .with("kernel_shape", [2i64, 2])
            .with("strides", [2i64, 2]),
        Node::new("GlobalAveragePool", "mean", ["p"], ["v"]),
        Node::new("Flatten", "flatten", ["v"], ["f"]),
        Node::new("Gemm", "fc", ["f", "w3", "b3"], ["y"]),
    ];
    let constants = [
        ("w1", noise(&[16, 3, 3, 3], 0.4)),
        ("b1", noise(&[16], 0.3)),
        ("w2", noise(&[16, 16, 3, 3], 0.2)),
        ("w3", noise(&[16, 20], 0.5)),
        ("b3", noise(&[20], 0.5)),
    ];
    model(&[1, 3, 16, 16], nodes, &constants, &[1, 20])
}

fn images() -> Vec<Vec<Tensor>> {
    [0.5f32, 1.0, 2.0]
        .map(|scale| vec![noise(&[1, 3, 16, 16], scale)])
        .into()
}

#[test]
fn the_half_graph_runs_and_agrees_with_its_simulation() {
    let float = network();
    let (half, report) = converted(float.clone());
    assert!(report.kept.is_empty() && report.casts == 2, "{report:?}");
    let found = measured(&float, &half, &images());
    assert!(found.min_sqnr_db() > 55.0, "{found:?}");
    let simulated = simulate(&half).unwrap();
    let backend = CpuBackend::new().unwrap();
    let layers = layer_sqnr(
        &float,
        &simulated,
        &images(),
        &backend,
        edgeopt_models::Bytes::mib(1),
    )
    .unwrap();
    let names: Vec<&str> = layers.iter().map(|layer| layer.node.as_str()).collect();
    assert_eq!(names, ["c1", "c2", "skip", "fc"]);
    assert!(
        layers.iter().all(|layer| (50.0..100.0).contains(&layer.sqnr_db)),
        "{layers:?}"
    );
}

#[test]
fn extremes_are_those_of_the_values_also_of_none_and_of_infinite_ones() {
    let nodes = vec![
        Node::new("Mul", "mul", ["x", "c"], ["h"]),
        Node::new("Greater", "large", ["x", "two"], ["l"]),
        Node::new("Compress", "pick", ["x", "l"], ["e"]),
        Node::new("Log", "log", ["x"], ["i"]),
        Node::new("Neg", "neg", ["h"], ["y"]),
    ];
    let constants = [
        ("c", Tensor::vector(&[1.0f32, -5.0])),
        ("two", Tensor::scalar(2.0f32)),
    ];
    let float = model(&[2], nodes, &constants, &[2]);
    let samples = vec![
        vec![Tensor::vector(&[0.0f32, 1.0])],
        vec![Tensor::vector(&[0.5f32, 2.0])],
    ];
    let backend = CpuBackend::new().unwrap();
    let tensors = ["x", "h", "e", "i"].map(Into::into);
    let watched = Watched {
        others: &tensors,
        ..Watched::default()
    };
    let mut seen = Vec::new();
    let table = extremes(&float, watched, &samples, &backend, 1, &mut |sample| {
        seen.push(sample)
    })
    .unwrap();
    assert_eq!((seen, table.samples), (vec![0, 1], 2));
    let range = |name: &str| table.get(name).map(|range| (range.min, range.max));
    assert_eq!(range("x"), Some((0.0, 2.0)));
    assert_eq!(range("h"), Some((-10.0, 0.5)));
    assert_eq!(range("e"), Some((0.0, 0.0)));
    assert_eq!(range("i"), Some((f32::NEG_INFINITY, 2f32.ln())));
    let none: Vec<Vec<Tensor>> = Vec::new();
    assert!(extremes(&float, watched, &none, &backend, 1, &mut |_| ()).is_err());
}

#[test]
fn calibrated_ranges_keep_overflow_out() {
    let nodes = vec![
        Node::new("MatMul", "up", ["x", "w"], ["h"]),
        Node::new("MatMul", "down", ["h", "v"], ["s"]),
        Node::new("Tanh", "tanh", ["s"], ["y"]),
    ];
    let constants = [("w", noise(&[8, 8], 3000.0)), ("v", noise(&[8, 8], 1e-5))];
    let float = model(&[1, 8], nodes, &constants, &[1, 8]);
    let samples: Vec<Vec<Tensor>> = [10.0f32, 100.0].map(|scale| vec![noise(&[1, 8], scale)]).into();
    let (careless, _) = converted(float.clone());
    let found = against(&float, &simulate(&careless).unwrap(), &samples);
    assert!(!found.non_finite.is_empty(), "{found:?}");
    let backend = CpuBackend::new().unwrap();
    let watched = values_to_watch(&float, &Fp16Options::default()).unwrap();
    let watched = Watched {
        others: &watched,
        ..Watched::default()
    };
    let ranges = extremes(&float, watched, &samples, &backend, 1, &mut |_| ()).unwrap();
    let (half, report) = converted_with(float.clone(), &Fp16Options::default(), Some(&ranges));
    assert_eq!(kept(&report), ["up", "down"]);
    let found = measured(&float, &half, &samples);
    assert!(
        found.non_finite.is_empty() && found.min_sqnr_db() > 55.0,
        "{found:?}"
    );
}

fn quantized() -> (Model, Model) {
    let float = network();
    let backend = CpuBackend::new().unwrap();
    let options = Int8Options {
        quantize_heads: true,
        ..Int8Options::default()
    };
    let tensors = tensors_to_calibrate(&float, &options).unwrap();
    let calibration = CalibrationOptions::default();
    let table = calibrate(
        &float,
        &tensors,
        &images(),
        &backend,
        &calibration,
        &mut |_, _, _| (),
    )
    .unwrap();
    let mut model = float.clone();
    quantize(&mut model, &table, &options).unwrap();
    (float, model)
}

#[test]
fn quantizers_take_half_scales_and_no_cast_stands_between_them_and_their_layers() {
    let (float, int8) = quantized();
    let (half, report) = converted(int8.clone());
    assert!(report.kept.is_empty(), "{:?}", report.kept);
    // The input is quantized as it comes, and the output cast at the end.
    assert_eq!(report.casts, 1, "{:?}", ops(&half));
    let dtype = |name: &str| half.graph.type_of(name).and_then(|ty| ty.dtype());
    for node in &half.graph.nodes {
        let types: Vec<_> = node.inputs.iter().map(|name| dtype(name)).collect();
        if node.is("DequantizeLinear") {
            assert_eq!(
                (types[0], types[1]),
                (Some(DataType::Int8), Some(DataType::Float16))
            );
        } else if node.is("QuantizeLinear") {
            let outside = if &*node.inputs[0] == "x" {
                DataType::Float32
            } else {
                DataType::Float16
            };
            assert_eq!(types[..2], [Some(outside); 2], "{node}");
        }
    }
    let before = against(&float, &int8, &images()).min_sqnr_db();
    let after = measured(&float, &half, &images()).min_sqnr_db();
    assert!(before > 10.0 && after > before - 1.0, "{before} {after}");
    let moved = measured(&int8, &half, &images()).min_sqnr_db();
    assert!(moved > 15.0, "{moved}");
}

#[test]
fn a_layer_left_in_float_or_a_scale_that_half_lacks_keeps_its_quantizers_in_float() {
    let (float, mut int8) = quantized();
    let options = Fp16Options {
        exclude: vec!["c2".into()],
        ..Fp16Options::default()
    };
    let (half, report) = converted_with(int8.clone(), &options, None);
    let reasons: Vec<(&str, &str)> = report
        .kept
        .iter()
        .map(|k| (k.op.as_str(), k.reason.as_str()))
        .collect();
    assert_eq!(
        reasons.iter().filter(|(op, _)| *op == "DequantizeLinear").count(),
        2,
        "{reasons:?}"
    );
    assert!(reasons.contains(&("Conv", "excluded by name")));
    assert!(measured(&float, &half, &images()).min_sqnr_db() > 10.0);
    let scale = int8
        .graph
        .initializers
        .keys()
        .find(|name| name.starts_with("w3_scale"))
        .unwrap()
        .clone();
    for value in int8
        .graph
        .initializers
        .get_mut(&scale)
        .unwrap()
        .view_mut::<f32>()
        .unwrap()
    {
        *value *= 1e-5;
    }
    let (half, report) = converted(int8.clone());
    let reasons: Vec<&str> = report.kept.iter().map(|kept| kept.reason.as_str()).collect();
    assert!(
        reasons.contains(&"quantizes with a scale that is inexact in half"),
        "{reasons:?}"
    );
    assert!(kept(&report).contains(&"fc"), "{:?}", report.kept);
    assert!(measured(&int8, &half, &images()).min_sqnr_db() > 40.0);
    // Before operator set 19, scales are float32.
    let mut old = int8;
    let mut imports = Model::new(Graph::default(), 17);
    std::mem::swap(&mut old.graph, &mut imports.graph);
    let (_, report) = converted(imports);
    assert!(kept(&report).contains(&"c1"), "{:?}", report.kept);
}

/// Half in an input, a constant, a branch and an output already.
fn half_already() -> Model {
    let half = |values: &[f32]| Tensor::vector(&values.iter().map(|v| f16::from_f32(*v)).collect::<Vec<_>>());
    let branch = |name: &str, op: &str| {
        let output = format!("{name}_y");
        Graph {
            name: name.into(),
            nodes: vec![Node::new(op, name, ["h"], [output.clone()])],
            outputs: vec![ValueInfo::tensor(output, DataType::Float16, Shape::known(&[2]))],
            ..Graph::default()
        }
    };
    let choose = Node::new("If", "if", ["c"], ["i"])
        .with("then_branch", Attribute::Graph(Box::new(branch("then", "Neg"))))
        .with("else_branch", Attribute::Graph(Box::new(branch("else", "Abs"))));
    let nodes = vec![
        Node::new("Constant", "constant", [""; 0], ["k"]).with("value", Attribute::Tensor(half(&[0.1, 3.0]))),
        Node::new("Mul", "mul", ["p", "k"], ["h"]),
        Node::new("Cast", "wide", ["h"], ["w"]).with("to", 1i64),
        Node::new("Add", "add", ["w", "x"], ["a"]),
        Node::new("ReduceMax", "max", ["x"], ["m"]).with("keepdims", 0i64),
        Node::new("Greater", "positive", ["m", "zero"], ["c"]),
        choose,
        Node::new("Relu", "relu", ["i"], ["z"]),
        Node::new("Neg", "neg", ["a"], ["y"]),
    ];
    let mut model = model(&[2], nodes, &[("zero", Tensor::scalar(0.0f32))], &[2]);
    let info = |name: &str| ValueInfo::tensor(name, DataType::Float16, Shape::known(&[2]));
    model.graph.inputs.push(info("p"));
    model.graph.outputs.push(info("z"));
    model
}

#[test]
fn a_model_with_half_in_it_is_converted_and_simulated_with_its_types_as_they_were() {
    let float = half_already();
    validate(&float).unwrap();
    let mut half = float.clone();
    let report = to_fp16(&mut half, &Fp16Options::default(), None).unwrap();
    assert!(report.converted >= 2, "{report:?}");
    let given = Tensor::vector(&[f16::from_f32(0.3), f16::from_f32(-7.0)]);
    let samples = vec![vec![Tensor::vector(&[1.0f32, -4.0]), given]];
    for model in [&float, &half] {
        let simulated = simulate(model).unwrap();
        for (after, before) in simulated.graph.inputs.iter().zip(&float.graph.inputs) {
            assert_eq!(after.ty.dtype(), before.ty.dtype());
        }
        let found = measured(&float, model, &samples);
        assert!(found.min_sqnr_db() > 55.0, "{found:?}");
    }
}

struct Quiet;

impl Progress for Quiet {
    fn stage(&self, _: &str, _: Option<u64>) {}
    fn at(&self, _: u64) {}
}

fn built(
    float: &Model,
    calibration: &[Vec<Tensor>],
    evaluation: &[Vec<Tensor>],
    options: &BuildOptions,
) -> Candidate {
    let backend = CpuBackend::new().unwrap();
    let prepared = prepare(float.clone(), &Default::default(), &backend).unwrap();
    let (calibration, evaluation) = (calibration.to_vec(), evaluation.to_vec());
    let data = Data {
        calibration: Some(&calibration),
        calibration_len: calibration.len(),
        evaluation: Some(&evaluation),
        evaluation_len: evaluation.len(),
        labels: Vec::new(),
        postprocessing: &Postprocessing::Raw,
    };
    let mut candidate = make(&prepared, options, &data, &backend, &Quiet).unwrap();
    candidate.evaluate(&prepared, &data, &backend, &Quiet).unwrap();
    candidate
}

#[test]
fn a_build_calibrates_what_becomes_half() {
    let nodes = vec![
        Node::new("MatMul", "up", ["x", "w"], ["h"]),
        Node::new("Tanh", "tanh", ["h"], ["t"]),
        Node::new("MatMul", "last", ["t", "v"], ["y"]),
    ];
    let constants = [("w", noise(&[8, 8], 3000.0)), ("v", noise(&[8, 8], 1.0))];
    let float = model(&[1, 8], nodes, &constants, &[1, 8]);
    let samples = vec![vec![noise(&[1, 8], 100.0)]];
    let candidate = built(&float, &samples, &samples, &BuildOptions::new(Precision::Fp16));
    let names: Vec<&str> = candidate.kept.iter().map(|kept| kept.node.as_str()).collect();
    assert_eq!(names, ["up", "tanh"], "{:?}", candidate.kept);
    assert!(candidate.min_sqnr_db().unwrap() > 55.0, "{:?}", candidate.outputs);
}

#[test]
fn half_around_int8_is_taken_only_if_the_target_is_still_met() {
    let halves = |candidate: &Candidate| {
        let tensors = candidate.model.graph.initializers.values();
        tensors
            .filter(|tensor| tensor.dtype() == DataType::Float16)
            .count()
    };
    // What stands beside the network fits half on the calibration data, and not on the larger data it meets later.
    let mut float = network();
    if let Some(last) = float.graph.nodes.last_mut() {
        last.outputs[0] = "z".into();
    }
    float.graph.nodes.extend([
        Node::new("Mul", "up", ["x", "large"], ["u"]),
        Node::new("Mul", "down", ["u", "small"], ["d"]),
        Node::new("ReduceMax", "peak", ["d", "axes"], ["k"]).with("keepdims", 0i64),
        Node::new("Add", "join", ["z", "k"], ["y"]),
    ]);
    for (name, value) in [("large", 15_000.0f32), ("small", 1.0 / 15_000.0)] {
        float.graph.add_initializer(name.into(), Tensor::scalar(value));
    }
    float
        .graph
        .add_initializer("axes".into(), Tensor::vector(&[1i64, 2, 3]));
    let larger = vec![vec![noise(&[1, 3, 16, 16], 5.0)]];
    let mut options = BuildOptions::new(Precision::Int8);
    options.int8.quantize_heads = true;
    options.max_tries = 1;
    let half = built(&float, &images(), &larger, &options);
    assert!(halves(&half) > 0 && half.kept.is_empty(), "{:?}", half.kept);
    assert!(half.min_sqnr_db().unwrap() < 0.0, "{:?}", half.outputs);
    options.min_sqnr_db = Some(1.0);
    let missed = built(&float, &images(), &larger, &options);
    assert_eq!(halves(&missed), 0);
    assert!(missed.notes[0].contains("stay in float32"), "{:?}", missed.notes);
    assert!(missed.min_sqnr_db().unwrap() > 1.0, "{:?}", missed.outputs);
    let met = built(&float, &images(), &images(), &options);
    assert!(halves(&met) > 0 && met.notes.is_empty(), "{:?}", met.notes);
}
