use edgeopt_models::bundle::{DetectionFormat, Postprocessing};
use edgeopt_models::{DataType, Tensor};
use proptest::prelude::*;

use super::*;
use crate::pipeline::postprocess::{Prediction, interpret, objects_for_metric};

/// Left, top, right, bottom, score, class.
type Known = ([f32; 4], f32, usize);

const CLASSES: usize = 3;

fn declared(format: DetectionFormat) -> Postprocessing {
    let inside = matches!(
        format,
        DetectionFormat::EndToEnd | DetectionFormat::Separate { .. } | DetectionFormat::Detr { .. }
    );
    Postprocessing::Detection {
        format,
        score_threshold: 0.25,
        iou_threshold: (!inside).then_some(0.45),
        max_detections: 300,
        labels: vec!["a".into(), "b".into(), "c".into()],
    }
}

fn separate(count: bool) -> DetectionFormat {
    DetectionFormat::Separate {
        boxes: "boxes".into(),
        scores: "scores".into(),
        classes: "classes".into(),
        count: count.then(|| "count".into()),
    }
}

/// 42 cells.
fn yolox() -> DetectionFormat {
    DetectionFormat::YoloX {
        width: 64,
        height: 32,
        strides: vec![8, 16, 32],
    }
}

fn detr() -> DetectionFormat {
    DetectionFormat::Detr {
        logits: "logits".into(),
        boxes: "boxes".into(),
        width: 64,
        height: 32,
    }
}

/// A row for every cell of [`yolox`]; the boxes stand in cells of every stride, what is left finds nothing.
fn yolox_rows(known: &[Known]) -> Vec<Vec<f32>> {
    let grids = [(8, 8, 4), (16, 4, 2), (32, 2, 1)];
    let cells = grids.iter().flat_map(|(stride, columns, rows)| {
        (0..columns * rows)
            .map(move |cell| (*stride as f32, (cell % columns) as f32, (cell / columns) as f32))
    });
    let mut rows = Vec::new();
    for (place, (stride, column, row)) in cells.enumerate() {
        let mut values = vec![0.0; 5 + CLASSES];
        // Box n in cell 7 n mod 42: 7 apart, none twice for up to six, the rest beside them.
        let holder = (0..known.len()).find(|n| (n % 6) * 7 + n / 6 == place);
        if let Some(([left, top, right, bottom], score, class)) = holder.map(|n| known[n]) {
            let box_of = [
                (left + right) / 2.0 / stride - column,
                (top + bottom) / 2.0 / stride - row,
                ((right - left) / stride).ln(),
                ((bottom - top) / stride).ln(),
                0.5,
            ];
            values[..5].copy_from_slice(&box_of);
            values[5..].fill(score);
            values[5 + class] = score * 2.0;
        }
        rows.push(values);
    }
    rows
}

/// The boxes as a model of this format would give them, with the outputs' names.
fn encoded(format: &DetectionFormat, known: &[Known]) -> Vec<(String, Tensor)> {
    let rows: Vec<Vec<f32>> = known
        .iter()
        .map(|([left, top, right, bottom], score, class)| {
            let mut row = vec![
                (left + right) / 2.0,
                (top + bottom) / 2.0,
                right - left,
                bottom - top,
            ];
            // The other classes' scores are lower, but not zero.
            let scores = (0..CLASSES).map(|other| if other == *class { *score } else { score / 2.0 });
            match format {
                DetectionFormat::YoloV5 => {
                    row.push(0.5);
                    row.extend(scores.map(|score| score * 2.0));
                }
                DetectionFormat::YoloV8 => row.extend(scores),
                _ => row = vec![*left, *top, *right, *bottom, *score, *class as f32],
            }
            row
        })
        .collect();
    let tensor = |dims: &[usize], values: &[f32]| Tensor::new(dims, values).unwrap();
    let flat = rows.concat();
    let length = rows.first().map_or(6, Vec::len);
    match format {
        DetectionFormat::YoloX { .. } => {
            let rows = yolox_rows(known);
            let dims = [1, rows.len(), 5 + CLASSES];
            vec![("output".into(), tensor(&dims, &rows.concat()))]
        }
        DetectionFormat::Detr { width, height, .. } => {
            let (width, height) = (*width as f32, *height as f32);
            let (mut logits, mut boxes) = (Vec::new(), Vec::new());
            for ([left, top, right, bottom], score, class) in known {
                let logit = |p: f32| (p / (1.0 - p)).ln();
                logits.extend((0..CLASSES).map(|other| if other == *class { logit(*score) } else { -9.0 }));
                boxes.extend([(left + right) / 2.0 / width, (top + bottom) / 2.0 / height]);
                boxes.extend([(right - left) / width, (bottom - top) / height]);
            }
            vec![
                ("logits".into(), tensor(&[1, known.len(), CLASSES], &logits)),
                ("boxes".into(), tensor(&[1, known.len(), 4], &boxes)),
            ]
        }
        DetectionFormat::YoloV8 => {
            let columns: Vec<f32> = (0..length)
                .flat_map(|channel| rows.iter().map(move |row| row[channel]))
                .collect();
            vec![("output0".into(), tensor(&[1, length, rows.len()], &columns))]
        }
        DetectionFormat::Separate { count, .. } => {
            // Padding behind what counts must not be read.
            let pad = if count.is_some() { 2 } else { 0 };
            let of = |columns: std::ops::Range<usize>| -> Vec<f32> {
                let values = rows.iter().flat_map(|row| row[columns.clone()].to_vec());
                values
                    .chain(std::iter::repeat_n(f32::NAN, pad * columns.len()))
                    .collect()
            };
            let boxes = rows.len() + pad;
            let classes: Vec<i64> = known
                .iter()
                .map(|(.., class)| *class as i64)
                .chain(std::iter::repeat_n(-1, pad))
                .collect();
            let mut outputs = vec![
                ("classes".into(), Tensor::new(&[boxes], &classes).unwrap()),
                ("boxes".into(), tensor(&[1, boxes, 4], &of(0..4))),
                ("scores".into(), tensor(&[1, boxes], &of(4..5))),
            ];
            if count.is_some() {
                let count = Tensor::new(&[1, 1], &[rows.len() as i32]).unwrap();
                outputs.push(("count".into(), count));
            }
            outputs
        }
        _ => vec![("output0".into(), tensor(&[1, rows.len(), length], &flat))],
    }
}

fn read(
    outputs: Vec<(String, Tensor)>,
    declared: &Postprocessing,
    geometry: Option<&Geometry>,
) -> Result<Vec<Object>, PostprocessError> {
    let (names, tensors): (Vec<String>, Vec<Tensor>) = outputs.into_iter().unzip();
    let outputs = Outputs {
        names: &names,
        tensors: &tensors,
        geometry,
    };
    match interpret(&outputs, declared)? {
        Prediction::Objects { objects } => Ok(objects),
        other => panic!("{other:?}"),
    }
}

fn formats() -> [DetectionFormat; 7] {
    [
        yolox(),
        detr(),
        DetectionFormat::YoloV5,
        DetectionFormat::YoloV8,
        DetectionFormat::EndToEnd,
        separate(false),
        separate(true),
    ]
}

proptest! {
    #[test]
    fn every_format_gives_the_boxes_that_were_put_in(
        known in prop::collection::vec(
            (0.0..40f32, 0.0..40f32, 4.0..16f32, 4.0..16f32, 0.05..0.49f32, 0..CLASSES), 1..12
        )
    ) {
        // Far apart, so that none hides another.
        let known: Vec<Known> = known
            .into_iter()
            .enumerate()
            .map(|(place, (x, y, w, h, score, class))| {
                let x = x + 100.0 * place as f32;
                ([x, y, x + w, y + h], score, class)
            })
            .collect();
        let mut expected: Vec<&Known> = known.iter().filter(|(_, score, _)| *score >= 0.25).collect();
        expected.sort_by(|a, b| b.1.total_cmp(&a.1));
        for format in formats() {
            let found = read(encoded(&format, &known), &declared(format.clone()), None).unwrap();
            prop_assert_eq!(found.len(), expected.len(), "{:?}", format);
            for (object, (corners, score, class)) in found.iter().zip(&expected) {
                let bounds = object.bounds;
                let actual = [bounds.left, bounds.top, bounds.right, bounds.bottom];
                prop_assert!(actual.iter().zip(corners).all(|(a, b)| (a - b).abs() < 1e-3));
                prop_assert!((object.score - score).abs() < 1e-6);
                prop_assert_eq!(object.class, *class);
                prop_assert_eq!(object.label.as_deref(), Some(["a", "b", "c"][*class]));
            }
        }
    }
}

#[test]
fn boxes_are_mapped_to_the_image_and_cut_at_its_edge() {
    // 200 × 100 pixels, letterboxed into 64 × 64.
    let geometry = Geometry {
        width: 200,
        height: 100,
        scale: (0.32, 0.32),
        pad: (0.0, 16.0),
    };
    let known: [Known; 3] = [
        ([16.0, 24.0, 32.0, 40.0], 0.9, 0),
        ([48.0, 40.0, 80.0, 60.0], 0.8, 1),
        ([0.0, 0.0, 20.0, 15.0], 0.7, 2), // in the border alone
    ];
    for format in formats() {
        let found = read(encoded(&format, &known), &declared(format), Some(&geometry)).unwrap();
        let boxes: Vec<[f32; 4]> = found
            .iter()
            .map(|object| {
                [
                    object.bounds.left,
                    object.bounds.top,
                    object.bounds.right,
                    object.bounds.bottom,
                ]
            })
            .collect();
        let expected = [[50.0, 25.0, 100.0, 75.0], [150.0, 75.0, 200.0, 100.0]];
        assert_eq!(boxes.len(), 2, "{boxes:?}");
        for (actual, expected) in boxes.iter().flatten().zip(expected.iter().flatten()) {
            assert!((actual - expected).abs() < 1e-3, "{boxes:?}");
        }
    }
}

#[test]
fn doubles_of_a_class_are_dropped_where_the_model_left_them() {
    let known: [Known; 4] = [
        ([10.0, 10.0, 30.0, 30.0], 0.8, 0),
        ([11.0, 10.0, 31.0, 30.0], 0.9, 0),
        ([11.0, 11.0, 31.0, 31.0], 0.7, 1),
        ([25.0, 10.0, 45.0, 30.0], 0.6, 0), // overlaps by less than the threshold
    ];
    let scores = |format: DetectionFormat| -> Vec<f32> {
        let found = read(encoded(&format, &known), &declared(format), None).unwrap();
        found.iter().map(|object| object.score).collect()
    };
    assert_eq!(scores(DetectionFormat::YoloV5), [0.9, 0.7, 0.6]);
    assert_eq!(scores(DetectionFormat::YoloV8), [0.9, 0.7, 0.6]);
    assert_eq!(scores(DetectionFormat::EndToEnd), [0.9, 0.8, 0.7, 0.6]);
}

#[test]
fn shapes_that_are_not_as_declared_are_named() {
    let zeros =
        |name: &str, dims: &[usize]| (name.to_owned(), Tensor::zeros(DataType::Float32, dims).unwrap());
    let cases = [
        (
            DetectionFormat::YoloV5,
            zeros("out", &[1, 8, 25]),
            "[1, 8, 25] has 20 classes, 3 labels",
        ),
        (
            DetectionFormat::YoloV5,
            zeros("out", &[1, 25, 5]),
            "[1, 25, 5], object detection reads [1, boxes, 5 + classes]",
        ),
        (
            DetectionFormat::YoloV8,
            zeros("out", &[2, 7, 10]),
            "[2, 7, 10], object detection reads [1, 4 + classes, boxes]",
        ),
        (
            DetectionFormat::YoloV8,
            zeros("out", &[1, 10, 7]),
            "[1, 10, 7] has 6 classes, 3 labels",
        ),
        (
            DetectionFormat::EndToEnd,
            zeros("out", &[1, 7, 10]),
            "[1, boxes, 6]",
        ),
        (
            yolox(),
            zeros("out", &[1, 43, 8]),
            "[1, 43, 8]; an input of 64 × 32 pixels with strides [8, 16, 32] has 42 cells",
        ),
        (
            DetectionFormat::YoloX {
                width: 60,
                height: 32,
                strides: vec![8, 16],
            },
            zeros("out", &[1, 42, 8]),
            "strides is [8, 16], it must be numbers that divide width and height",
        ),
        (
            detr(),
            zeros("out", &[1, 7, 4]),
            "output \"logits\"; the model's outputs are: \"out\"",
        ),
        (
            separate(false),
            zeros("out", &[1, 7, 4]),
            "output \"boxes\"; the model's outputs are: \"out\"",
        ),
    ];
    for (format, output, expected) in cases {
        let error = read(vec![output], &declared(format.clone()), None)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(expected) && (error.contains("\"out\"") || error.contains("strides is")),
            "{format:?}: {error}"
        );
    }
    let mut outputs = encoded(&separate(false), &[([0.0, 0.0, 4.0, 4.0], 0.5, 1); 2]);
    outputs[0] = zeros("classes", &[5]);
    let error = read(outputs, &declared(separate(false)), None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("\"classes\" has 5") && error.contains("\"boxes\" has 2"),
        "{error}"
    );
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let nan: [Known; 1] = [([0.0, 0.0, 4.0, f32::NAN], 0.5, 1)];
    for format in formats() {
        let error = read(encoded(&format, &nan), &declared(format.clone()), None).unwrap_err();
        assert!(
            matches!(error, PostprocessError::NotFinite { .. }),
            "{format:?}: {error}"
        );
    }
    let mut outputs = encoded(&separate(false), &[([0.0, 0.0, 4.0, 4.0], 0.5, 1)]);
    let (_, classes) = outputs.iter_mut().find(|(name, _)| name == "classes").unwrap();
    *classes = Tensor::new(&[1, 1], &[f32::NAN]).unwrap();
    let error = read(outputs, &declared(separate(false)), None).unwrap_err();
    assert!(matches!(error, PostprocessError::NotFinite { .. }), "{error}");
    let mut outputs = encoded(&detr(), &[([0.0, 0.0, 4.0, 4.0], 0.5, 1); 2]);
    outputs[1].1 = Tensor::new(&[1, 1, 4], &[0.5f32; 4]).unwrap();
    let error = read(outputs, &declared(detr()), None).unwrap_err().to_string();
    assert!(error.contains("2 queries have logits, 1 have boxes"), "{error}");
    let half = Tensor::new(&[1, 1, 6], &[0f32, 0.0, 4.0, 4.0, 0.5, 0.5]).unwrap();
    let error = read(
        vec![("out".into(), half)],
        &declared(DetectionFormat::EndToEnd),
        None,
    )
    .unwrap_err();
    assert!(error.to_string().contains("\"out\" holds 0.5"), "{error}");
    let Postprocessing::Detection { format, labels, .. } = declared(DetectionFormat::YoloV8) else {
        panic!()
    };
    let wrong = Postprocessing::Detection {
        format,
        score_threshold: 25.0,
        iou_threshold: None,
        max_detections: 300,
        labels,
    };
    let error = read(encoded(&DetectionFormat::YoloV8, &nan), &wrong, None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("score_threshold is 25"), "{error}");
}

#[test]
fn every_query_of_a_detr_counts_for_each_class_it_reaches() {
    let logits = Tensor::new(&[1, 1, CLASSES], &[1f32, -5.0, 2.0]).unwrap();
    let boxes = Tensor::new(&[1, 1, 4], &[0.5f32, 0.5, 0.25, 0.5]).unwrap();
    let outputs = vec![("boxes".to_owned(), boxes), ("logits".to_owned(), logits)];
    let found = read(outputs, &declared(detr()), None).unwrap();
    let classes: Vec<usize> = found.iter().map(|object| object.class).collect();
    assert_eq!(classes, [2, 0]);
    let bounds = found[0].bounds;
    assert_eq!(
        [bounds.left, bounds.top, bounds.right, bounds.bottom],
        [24.0, 8.0, 40.0, 24.0]
    );
}

#[test]
fn a_metric_reads_what_the_declared_score_and_count_leave_out_but_drops_doubles_as_declared() {
    let known: [Known; 3] = [
        ([10.0, 10.0, 30.0, 30.0], 0.4, 0),
        ([11.0, 10.0, 31.0, 30.0], 0.1, 0),
        ([50.0, 10.0, 70.0, 30.0], 0.002, 1),
    ];
    let mut postprocessing = declared(DetectionFormat::YoloV8);
    if let Postprocessing::Detection { max_detections, .. } = &mut postprocessing {
        *max_detections = 1;
    }
    let (names, tensors): (Vec<String>, Vec<Tensor>) =
        encoded(&DetectionFormat::YoloV8, &known).into_iter().unzip();
    let outputs = Outputs {
        names: &names,
        tensors: &tensors,
        geometry: None,
    };
    let found = objects_for_metric(&outputs, &postprocessing, 0.001, 100)
        .unwrap()
        .unwrap();
    let scores: Vec<f32> = found.iter().map(|object| object.score).collect();
    assert_eq!(scores, [0.4, 0.002]);
    assert_eq!(
        objects_for_metric(&outputs, &Postprocessing::Raw, 0.001, 100).unwrap(),
        None
    );
}
