//! What a manifest declares about outputs is held against their shapes.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use edgeopt_models::bundle::{DimInfo, MODEL, Manifest, MemberInfo, Precision, TensorInfo};
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
