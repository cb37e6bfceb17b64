//! Object detectors through the CPU backend: one whose boxes are known, and YOLOv8n's layers with random weights, which
//! show that shapes and declaration fit.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use edgeopt_models::bundle::{Postprocessing, Preprocessing};
use edgeopt_models::{Model, ValueName};
use edgeopt_optimizer::build::prepare;
use edgeopt_optimizer::calibrate::CalibrationTable;
use edgeopt_optimizer::precision::int8::{Int8Options, quantize, tensors_to_calibrate};
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::pipeline::detection::{Bounds, Object};
use edgeopt_runtime::pipeline::postprocess::{Outputs, PostprocessError, Prediction, interpret};
use edgeopt_runtime::pipeline::{preprocess, presets};
use edgeopt_runtime::{Backend, CompileOptions, ModelSource};
use edgeopt_tests::nets::{self, SquareFinder};
use image::{Rgb, RgbImage};

fn run(
    model: &Model,
    image: &RgbImage,
    (preprocessing, postprocessing): &(Preprocessing, Postprocessing),
) -> Result<Vec<Object>, PostprocessError> {
    let engine = CpuBackend::new()
        .unwrap()
        .compile(ModelSource::Model(model), &CompileOptions::default())
        .unwrap();
    let names: Vec<String> = engine
        .outputs()
        .iter()
        .map(|spec| spec.name.to_string())
        .collect();
    let mut session = engine.session().unwrap();
    let prepared = preprocess::prepare(image, preprocessing).unwrap();
    let outputs = Outputs {
        names: &names,
        tensors: session.run(&[prepared.tensor]).unwrap(),
        geometry: Some(&prepared.geometry),
    };
    match interpret(&outputs, postprocessing)? {
        Prediction::Objects { objects } => Ok(objects),
        other => panic!("{other:?}"),
    }
}

/// A grey photo, 256 × 128 pixels, with squares of 32 pixels at these places.
fn photo(squares: &[(u32, u32, [u8; 3])]) -> RgbImage {
    RgbImage::from_fn(256, 128, |x, y| {
        let square = squares
            .iter()
            .find(|(left, top, _)| (*left..left + 32).contains(&x) && (*top..top + 32).contains(&y));
        Rgb(square.map_or([60; 3], |(.., color)| *color))
    })
}

#[test]
fn squares_are_found_where_they_are_in_every_format() {
    let image = photo(&[
        (32, 64, [250, 60, 60]),
        (160, 0, [60, 240, 60]),
        (224, 96, [60, 60, 230]),
    ]);
    for (preset, format) in [("yolov5", SquareFinder::YoloV5), ("yolov8", SquareFinder::YoloV8)] {
        let model = nets::square_finder(format);
        let found = run(&model, &image, &presets::from_model(preset, &model).unwrap()).unwrap();
        let shown: Vec<(&str, Bounds)> = found
            .iter()
            .map(|object| (object.label.as_deref().unwrap(), object.bounds))
            .collect();
        let expected = [("red", 32.0, 64.0), ("green", 160.0, 0.0), ("blue", 224.0, 96.0)];
        assert_eq!(shown.len(), 3, "{preset}: {shown:?}");
        for ((label, bounds), (name, left, top)) in shown.iter().zip(expected) {
            assert_eq!(*label, name);
            let (actual, wanted) = (
                [bounds.left, bounds.top, bounds.right, bounds.bottom],
                [left, top, left + 32.0, top + 32.0],
            );
            let near = actual.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 0.01);
            assert!(near, "{preset}: {label} at {bounds:?}");
        }
        assert!(
            run(&model, &photo(&[]), &presets::from_model(preset, &model).unwrap())
                .unwrap()
                .is_empty()
        );
    }
}

#[test]
fn the_wrong_format_is_refused_with_the_output_and_its_shape() {
    let model = nets::square_finder(SquareFinder::YoloV5);
    let error = run(
        &model,
        &photo(&[]),
        &presets::from_model("yolov8", &model).unwrap(),
    )
    .unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("\"output0\"") && message.contains("[1, 64, 8]"),
        "{message}"
    );
}

#[test]
fn yolov8n_gives_what_its_preset_declares() {
    let model = nets::by_name("yolov8n").unwrap();
    let (preprocessing, mut postprocessing) = presets::from_model("yolov8", &model).unwrap();
    let Postprocessing::Detection {
        labels,
        max_detections,
        ..
    } = &mut postprocessing
    else {
        panic!()
    };
    // Random weights find boxes everywhere.
    *max_detections = 20;
    *labels = (0..80).map(|class| format!("class {class}")).collect();
    let image = photo(&[(32, 64, [250, 60, 60])]);
    let declared = (preprocessing, postprocessing);
    let found = run(&model, &image, &declared).unwrap();
    assert!(!found.is_empty() && found.len() <= 20, "{}", found.len());
    for object in &found {
        let Bounds {
            left,
            top,
            right,
            bottom,
        } = object.bounds;
        assert!(0.0 <= left && left < right && right <= 256.0, "{object:?}");
        assert!(0.0 <= top && top < bottom && bottom <= 128.0, "{object:?}");
        assert!(
            (0.25..=1.0).contains(&object.score) && object.class < 80,
            "{object:?}"
        );
        assert_eq!(object.label, Some(format!("class {}", object.class)));
    }
    let (preprocessing, _) = declared;
    let (_, wrong) = presets::preset("yolov10").unwrap();
    let error = run(&model, &image, &(preprocessing, wrong))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("[1, 84, 8400], object detection reads [1, boxes, 6]"),
        "{error}"
    );
}

#[test]
fn int8_leaves_the_last_convolutions_of_yolov8n_and_what_joins_them_in_float() {
    let model = nets::by_name("yolov8n").unwrap();
    let mut prepared = prepare(model, &BTreeMap::new(), &CpuBackend::new().unwrap())
        .unwrap()
        .model;
    let options = Int8Options::default();
    let mut table = CalibrationTable::default();
    for tensor in tensors_to_calibrate(&prepared, &options).unwrap() {
        table.insert(&tensor, 1.0);
    }
    let report = quantize(&mut prepared, &table, &options).unwrap();
    // Boxes and classes of three grids.
    let heads = report
        .kept
        .iter()
        .filter(|kept| kept.reason == "the last convolution before an output");
    assert_eq!(heads.count(), 6, "{:?}", report.kept);
    assert_eq!(report.kept.len(), 7, "{:?}", report.kept);
    // Boxes of hundreds of pixels and scores up to 1 are one tensor at the end: one scale would leave nothing of scores.
    let graph = &prepared.graph;
    let before = |value: &ValueName| &graph.nodes[graph.producer(value).unwrap()];
    let join = before(&graph.outputs[0].name);
    assert_eq!(join.op_type, "Concat");
    let inputs: Vec<&str> = join
        .inputs
        .iter()
        .map(|input| before(input).op_type.as_str())
        .collect();
    assert_eq!(inputs, ["Mul", "Sigmoid"]);
}
