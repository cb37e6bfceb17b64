//! INT8 end to end on ONNX Runtime: calibrate, quantize, compare.

#![allow(clippy::unwrap_used)] // helpers of tests, too

use edgeopt_models::shape_inference::{Bindings, infer};
use edgeopt_models::{Bytes, DataType, Graph, Model, Node, Shape, Tensor, ValueInfo};
use edgeopt_optimizer::accuracy::{compare, layer_sqnr};
use edgeopt_optimizer::calibrate::{
    CalibrationError, CalibrationOptions, CalibrationTable, Method, Watched, calibrate, extremes,
};
use edgeopt_optimizer::precision::int8::{
    Int8Options, Placement, Target, quantize, quantize_to_target, sensitivity, tensors_to_calibrate,
};
use edgeopt_runtime::backends::cpu::CpuBackend;

struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn tensor(&mut self, dims: &[usize], scale: f32) -> Tensor {
        let values: Vec<f32> = (0..dims.iter().product()).map(|_| self.next() * scale).collect();
        Tensor::new(dims, &values).unwrap()
    }
}

/// A residual net with a depthwise layer and a classifier. The batch is symbolic, so shapes are observed.
fn network() -> Model {
    let mut random = Random(7);
    let mut graph = Graph::default();
    let shape = Shape(vec!["N".into(), 3.into(), 16.into(), 16.into()]);
    graph
        .inputs
        .push(ValueInfo::tensor("x", DataType::Float32, shape));
    graph.outputs.push(ValueInfo::tensor(
        "y",
        DataType::Float32,
        Shape(vec!["N".into(), 20.into()]),
    ));
    let convolutions: [(&str, &str, &str, [usize; 4], i64); 4] = [
        ("c1", "x", "a", [16, 3, 3, 3], 1),
        ("c2", "ar", "b", [16, 1, 3, 3], 16),
        ("c3", "br", "c", [16, 16, 1, 1], 1),
        ("c4", "s", "d", [32, 16, 3, 3], 1),
    ];
    for (name, input, output, dims, group) in convolutions {
        let fan: usize = dims[1..].iter().product();
        graph.add_initializer(
            format!("{name}_w").into(),
            random.tensor(&dims, (3.0 / fan as f32).sqrt()),
        );
        graph.add_initializer(format!("{name}_b").into(), random.tensor(&dims[..1], 0.3));
        let pad = (dims[2] / 2) as i64;
        let node = Node::new(
            "Conv",
            name,
            [input.to_owned(), format!("{name}_w"), format!("{name}_b")],
            [output],
        )
        .with("pads", [pad; 4])
        .with("group", group);
        graph.nodes.push(node);
        let next = match name {
            "c1" => Node::new("Relu", "r1", ["a"], ["ar"]),
            "c2" => Node::new("Relu", "r2", ["b"], ["br"]),
            "c3" => Node::new("Add", "add", ["c", "ar"], ["s"]),
            _ => Node::new("Relu", "r4", ["d"], ["dr"]),
        };
        graph.nodes.push(next);
    }
    graph
        .nodes
        .push(Node::new("GlobalAveragePool", "pool", ["dr"], ["p"]));
    graph.nodes.push(Node::new("Flatten", "flatten", ["p"], ["f"]));
    graph.add_initializer("fc_w".into(), random.tensor(&[32, 20], 0.3));
    graph.nodes.push(Node::new("Gemm", "fc", ["f", "fc_w"], ["y"]));
    Model::new(graph, 17)
}

fn samples(count: usize, seed: u64) -> Vec<Vec<Tensor>> {
    let mut random = Random(seed);
    (0..count)
        .map(|_| vec![random.tensor(&[1, 3, 16, 16], 1.0)])
        .collect()
}

#[allow(clippy::ptr_arg)] // a slice is no `dyn Samples`
fn table(
    model: &Model,
    options: &Int8Options,
    method: Method,
    data: &Vec<Vec<Tensor>>,
    memory: Bytes,
) -> CalibrationTable {
    let tensors = tensors_to_calibrate(model, options).unwrap();
    let calibration = CalibrationOptions {
        method,
        tap_memory: memory,
        threads: 1,
    };
    calibrate(
        model,
        &tensors,
        data,
        &CpuBackend::new().unwrap(),
        &calibration,
        &mut |_, _, _| (),
    )
    .unwrap()
}

#[test]
fn every_method_keeps_a_small_network_accurate_even_with_an_outlier_sample() {
    let (model, backend) = (network(), CpuBackend::new().unwrap());
    let mut data = samples(8, 1);
    for round in ["clean", "outlier"] {
        if round == "outlier" {
            data[3][0]
                .view_mut::<f32>()
                .unwrap()
                .iter_mut()
                .for_each(|x| *x *= 1000.0);
        }
        for placement in [Placement::TensorRt, Placement::Cpu] {
            for method in [
                Method::MinMax,
                Method::Percentile(99.99),
                Method::Entropy,
                Method::Mse,
            ] {
                if round == "outlier" && method == Method::MinMax {
                    continue;
                }
                let options = Int8Options {
                    placement,
                    ..Int8Options::default()
                };
                let mut quantized = model.clone();
                let ranges = table(&model, &options, method, &data, Bytes::mib(64));
                let report = quantize(&mut quantized, &ranges, &options).unwrap();
                assert_eq!(report.quantized.len(), 5, "{:?}", report.kept);
                let found =
                    compare(&model, &quantized, &samples(8, 2), &backend, 1, &mut |_, _, _| ()).unwrap();
                assert!(
                    found.min_sqnr_db() > 25.0,
                    "{round} {placement:?} {method}: {:.1} dB",
                    found.min_sqnr_db()
                );
            }
        }
    }
}

#[test]
fn chunks_find_the_same_ranges_as_everything_at_once() {
    let (model, options, data) = (network(), Int8Options::default(), samples(5, 3));
    let whole = table(&model, &options, Method::Entropy, &data, Bytes::mib(64));
    let parts = table(&model, &options, Method::Entropy, &data, Bytes(1));
    assert_eq!(whole.samples, 5);
    assert_eq!(
        whole.ranges.keys().collect::<Vec<_>>(),
        parts.ranges.keys().collect::<Vec<_>>()
    );
    for (name, range) in &whole.ranges {
        let other = &parts.ranges[name];
        assert!(
            (range.threshold / other.threshold - 1.0).abs() < 0.02,
            "{name}: {range:?} {other:?}"
        );
    }
}

#[test]
fn what_the_model_reduces_itself_is_what_is_found_in_its_tensors() {
    let (mut model, data) = (network(), samples(5, 7));
    // Sums along axis 1 need to know that there is one.
    infer(&mut model, &Bindings::default()).unwrap();
    let options = Int8Options::default();
    let seen = table(&model, &options, Method::MinMax, &data, Bytes::mib(64));
    let tensors = tensors_to_calibrate(&model, &options).unwrap();
    let watched = Watched {
        calibrated: &tensors,
        ..Watched::default()
    };
    let backend = CpuBackend::new().unwrap();
    let reduced = extremes(&model, watched, &data, &backend, 1, &mut |_| ()).unwrap();
    assert_eq!(
        (seen.samples, seen.ranges.len()),
        (reduced.samples, reduced.ranges.len())
    );
    for (name, range) in &seen.ranges {
        let other = &reduced.ranges[name];
        // The model that reduces itself runs on kernels that add in another order.
        for (seen, reduced) in [
            (range.min, other.min),
            (range.max, other.max),
            (range.threshold, other.threshold),
        ] {
            assert!(
                (seen - reduced).abs() <= 1e-5 * range.threshold,
                "{name}: {seen} {reduced}"
            );
        }
        let (means, others) = (range.channel_means.as_ref(), other.channel_means.as_ref());
        assert_eq!(means.map(Vec::len), others.map(Vec::len), "{name}");
        for (mean, other) in means.into_iter().flatten().zip(others.into_iter().flatten()) {
            assert!((mean - other).abs() < 1e-4, "{name}: {mean} {other}");
        }
    }
}

#[test]
fn values_that_are_not_finite_name_the_tensor_and_the_sample() {
    let model = network();
    let mut data = samples(3, 4);
    data[2][0].view_mut::<f32>().unwrap()[5] = f32::NAN;
    let tensors = tensors_to_calibrate(&model, &Int8Options::default()).unwrap();
    let run = |data: &Vec<Vec<Tensor>>| {
        let options = CalibrationOptions::default();
        calibrate(
            &model,
            &tensors,
            data,
            &CpuBackend::new().unwrap(),
            &options,
            &mut |_, _, _| (),
        )
        .unwrap_err()
    };
    assert!(matches!(
        run(&data),
        CalibrationError::NonFinite { sample: 2, .. }
    ));
    assert!(matches!(run(&Vec::new()), CalibrationError::NoSamples));
    let watched = Watched {
        calibrated: &tensors,
        ..Watched::default()
    };
    let error = extremes(
        &model,
        watched,
        &data,
        &CpuBackend::new().unwrap(),
        1,
        &mut |_| (),
    )
    .unwrap_err();
    assert!(
        matches!(error, CalibrationError::NonFinite { sample: 2, .. }),
        "{error}"
    );
}

fn sqnr(min_sqnr_db: f64) -> Target {
    Target {
        min_sqnr_db,
        parts: Vec::new(),
    }
}

#[test]
fn the_search_finds_the_layer_that_was_ruined() {
    let (mut model, backend, data) = (network(), CpuBackend::new().unwrap(), samples(4, 5));
    // One weight of each channel a thousand times larger than the others, which INT8 rounds to nothing.
    let weight = model
        .graph
        .initializers
        .get_mut("c3_w")
        .unwrap()
        .view_mut::<f32>()
        .unwrap();
    for (index, row) in weight.chunks_mut(16).enumerate() {
        row[index] = 300.0;
    }
    let options = Int8Options {
        bias_correction: false,
        ..Int8Options::default()
    };
    let ranges = table(&model, &options, Method::MinMax, &data, Bytes::mib(64));
    let mut quantized = model.clone();
    quantize(&mut quantized, &ranges, &options).unwrap();
    let base = compare(&model, &quantized, &data, &backend, 1, &mut |_, _, _| ())
        .unwrap()
        .min_sqnr_db();
    let ranking = sensitivity(&model, &quantized, &data, &backend).unwrap();
    assert_eq!(ranking.len(), 6, "five weighted layers and the residual Add");
    let layers = layer_sqnr(&model, &quantized, &data, &backend, Bytes::kib(40)).unwrap();
    assert_eq!(
        layers.iter().map(|layer| &*layer.node).collect::<Vec<_>>(),
        ["c1", "c2", "c3", "add", "c4", "fc"]
    );
    let target = base + 1.0;
    let found = quantize_to_target(&model, &ranges, &options, &data, &backend, &sqnr(target), 8).unwrap();
    assert!(
        found.met && !found.excluded.is_empty(),
        "{base} {:?}",
        found.comparison
    );
    assert!(
        found
            .report
            .kept
            .iter()
            .any(|kept| kept.node == found.excluded[0].node)
    );
    let impossible = quantize_to_target(&model, &ranges, &options, &data, &backend, &sqnr(1e3), 3).unwrap();
    assert!(!impossible.met && impossible.tries == 3);
}
