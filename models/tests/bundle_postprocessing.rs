//! What a manifest declares about outputs is held against their shapes.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use edgeopt_models::bundle::{
    DimInfo, MODEL, Manifest, MemberInfo, OutputShape, Postprocessing, PostprocessingError, Precision,
    TensorInfo,
};
use edgeopt_models::{Bytes, DataType};

fn manifest() -> Manifest {
    let model = MemberInfo {
        sha256: "0".repeat(64),
        size: Bytes::mib(1),
    };
    Manifest {
        members: BTreeMap::from([(MODEL.to_owned(), model)]),
        ..Manifest::new("detector", "1", Precision::Fp32)
    }
}

#[test]
fn postprocessing_must_suit_the_outputs() {
    let refused = |shape: Vec<DimInfo>, json: &str| -> Option<String> {
        let mut manifest = manifest();
        manifest.outputs = vec![TensorInfo {
            name: "out".into(),
            dtype: DataType::Float32,
            shape,
        }];
        manifest.postprocessing = serde_json::from_str(json).unwrap();
        manifest.validate().err().map(|error| error.to_string())
    };
    let (fixed, open) = (DimInfo::Fixed, || DimInfo::Open { symbol: "N".into() });
    let yolo = r#"{"task": "detection", "format": "yolov8", "score_threshold": 0.25, "iou_threshold": 0.7,
        "max_detections": 300, "labels": ["cat", "dog"]}"#;
    // Fields that came later have defaults.
    let text = r#"{"task": "text_detection", "threshold": 0.3, "box_threshold": 0.6, "unclip_ratio": 1.5}"#;
    assert_eq!(refused(vec![open(), fixed(6), fixed(8400)], yolo), None);
    assert_eq!(refused(vec![open(), fixed(1), open(), open()], text), None);
    for (shape, json, expected) in [
        (
            vec![open(), fixed(8400), fixed(6)],
            yolo,
            "[?, 8400, 6] has 8396 classes, 2 labels",
        ),
        (
            vec![fixed(6), fixed(8400)],
            yolo,
            "[6, 8400], object detection reads [1, 4 + classes, boxes]",
        ),
        (
            vec![open(), fixed(2), open(), open()],
            text,
            "[?, 2, ?, ?], text detection reads [1, 1, height, width]",
        ),
        (
            vec![open(), fixed(6), open()],
            &yolo.replace("0.25", "25"),
            "score_threshold is 25",
        ),
        (
            vec![open(), fixed(6), open()],
            &yolo.replace("0.7", "-1"),
            "iou_threshold is -1",
        ),
    ] {
        let error = refused(shape, json).unwrap();
        assert!(error.contains(expected), "{error}");
        assert!(
            error.contains("\"out\"") || error.contains("threshold"),
            "{error}"
        );
    }
    let separate = r#"{"task": "detection", "score_threshold": 0.5, "max_detections": 9,
        "format": {"separate": {"boxes": "out", "scores": "p", "classes": "c"}}}"#;
    let error = refused(vec![fixed(1), open(), fixed(4)], separate).unwrap();
    assert!(
        error.contains("reads output \"p\"") && error.contains("are: \"out\""),
        "{error}"
    );
}

#[test]
fn formats_that_declare_the_inputs_size_are_held_against_the_cells() {
    let declared = |format: &str| -> Postprocessing {
        let json = format!(
            r#"{{"task": "detection", "format": {format}, "score_threshold": 0.3, "max_detections": 9}}"#
        );
        serde_json::from_str(&json).unwrap()
    };
    let output = |name: &'static str, dims: &[usize]| OutputShape {
        name,
        dims: dims.iter().copied().map(Some).collect(),
    };
    let yolox = declared(r#"{"yolox": {"width": 416, "height": 416}}"#);
    let suits = [output("out", &[1, 3549, 85])];
    assert_eq!(yolox.check(&suits), Ok(()));
    assert_eq!(yolox.classes(&suits), Some(80));
    let error = yolox
        .check(&[output("out", &[1, 8400, 85])])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("[1, 8400, 85]") && error.contains("416 × 416") && error.contains("3549"),
        "{error}"
    );
    let six = declared(r#"{"yolox": {"width": 640, "height": 320, "strides": [8, 16, 32, 64]}}"#);
    assert_eq!(
        six.check(&[output("out", &[1, 3200 + 800 + 200 + 50, 6])]),
        Ok(())
    );
    for format in [
        r#"{"yolox": {"width": 0, "height": 416}}"#,
        r#"{"yolox": {"width": 416, "height": 416, "strides": [8, 0]}}"#,
        r#"{"yolox": {"width": 420, "height": 416}}"#,
        r#"{"yolox": {"width": 99999999999, "height": 416}}"#,
    ] {
        let error = declared(format).check(&suits).unwrap_err();
        assert!(
            matches!(error, PostprocessingError::Value { .. }),
            "{format}: {error}"
        );
    }
    let detr = declared(r#"{"detr": {"logits": "l", "boxes": "b", "width": 640, "height": 640}}"#);
    let outputs = [output("b", &[1, 300, 4]), output("l", &[1, 300, 80])];
    assert_eq!(detr.check(&outputs), Ok(()));
    assert_eq!(detr.classes(&outputs), Some(80));
    let error = detr.check(&outputs[..1]).unwrap_err().to_string();
    assert!(error.contains("output \"l\""), "{error}");
    // What is written is what was read.
    for declared in [yolox, six, detr] {
        let json = serde_json::to_string(&declared).unwrap();
        assert_eq!(serde_json::from_str::<Postprocessing>(&json).unwrap(), declared);
    }
}
