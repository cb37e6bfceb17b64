//! Outputs that join numbers of different kinds are judged by their parts.

#![allow(clippy::unwrap_used)] // helpers of tests, too

use edgeopt_models::bundle::{DetectionFormat, Postprocessing};
use edgeopt_models::{DataType, Graph, Model, Node, Shape, Tensor, ValueInfo};
use edgeopt_optimizer::accuracy::{CompareError, Comparison, compare, compare_parts};
use edgeopt_optimizer::calibrate::SampleInputs;
use edgeopt_runtime::backends::cpu::CpuBackend;

/// Two boxes of four sides and two classes, `dims` long; its input times `factors`.
fn detector(dims: &[usize], factors: &Tensor) -> Model {
    let mut graph = Graph::default();
    let value = |name: &str| ValueInfo::tensor(name, DataType::Float32, Shape::known(dims));
    graph.inputs.push(value("x"));
    graph.outputs.extend([value("y"), value("z")]);
    graph.add_initializer("factors".into(), factors.clone());
    graph.nodes.push(Node::new("Mul", "mul", ["x", "factors"], ["y"]));
    graph.nodes.push(Node::new("Neg", "neg", ["x"], ["z"]));
    Model::new(graph, 17)
}

fn declared(format: DetectionFormat) -> Postprocessing {
    Postprocessing::Detection {
        format,
        score_threshold: 0.25,
        iou_threshold: Some(0.5),
        max_detections: 10,
        labels: vec![],
    }
}

fn shown(comparison: &Comparison) -> Vec<(String, f64)> {
    let outputs = comparison.outputs.iter();
    outputs
        .map(|output| (output.name.clone(), output.sqnr_db.round()))
        .collect()
}

#[test]
fn scores_that_are_lost_beside_large_boxes_show() {
    let backend = CpuBackend::new().unwrap();
    let yolov8 = (DetectionFormat::YoloV8, [1, 6, 2], [1, 6, 1]);
    let yolov5 = (DetectionFormat::YoloV5, [1, 2, 7], [1, 1, 7]);
    for (format, dims, across) in [yolov8, yolov5] {
        let factors = |score: f32| {
            let mut factors = vec![500f32; 4];
            factors.resize(across.iter().product(), score);
            Tensor::new(&across, &factors).unwrap()
        };
        let (float, other) = (detector(&dims, &factors(1.0)), detector(&dims, &factors(0.5)));
        let count = dims.iter().product::<usize>();
        let samples: Vec<SampleInputs> = vec![vec![Tensor::new(&dims, &vec![1f32; count]).unwrap()]];
        let whole = compare(&float, &other, &samples, &backend, 1, &mut |_, _, _| ()).unwrap();
        assert!(whole.min_sqnr_db() > 50.0, "{whole:?}");
        let parts = declared(format).parts();
        let apart = compare_parts(&float, &other, &samples, &backend, 1, &parts, &mut |_, _, _| ()).unwrap();
        // Half of each score is wrong: 20 log 2 dB.
        let expected = [("y boxes", 200.0), ("y scores", 6.0), ("z", 200.0)];
        assert_eq!(shown(&apart), expected.map(|(name, db)| (name.to_owned(), db)));
        assert!((apart.min_sqnr_db() - 6.02).abs() < 0.01);
    }
    assert_eq!(declared(DetectionFormat::EndToEnd).parts(), []);
    assert_eq!(Postprocessing::Raw.parts(), []);
}

#[test]
fn a_part_that_an_output_does_not_have_is_named() {
    let factors = Tensor::new(&[1, 2], &[1f32, 2.0]).unwrap();
    let model = detector(&[1, 2], &factors);
    let samples: Vec<SampleInputs> = vec![vec![factors]];
    let backend = CpuBackend::new().unwrap();
    let parts = declared(DetectionFormat::YoloV8).parts();
    let error = compare_parts(&model, &model, &samples, &backend, 1, &parts, &mut |_, _, _| ()).unwrap_err();
    assert!(matches!(error, CompareError::Output { .. }));
    assert!(
        error.to_string().contains("\"y scores\"") && error.to_string().contains("[1, 2]"),
        "{error}"
    );
}
