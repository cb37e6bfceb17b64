//! Detectors on the command line: declared, packed, run, drawn.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use edgeopt_models::{Attribute, DataType, Dim, Graph, Model, Node, Shape, Tensor, ValueInfo, onnx};
use image::{Rgb, RgbImage};

fn edgeopt(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_edgeopt"))
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(arguments: &[&str]) -> String {
    let output = edgeopt(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn fails(arguments: &[&str], expected: &[&str]) {
    let output = edgeopt(arguments);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
    for part in expected {
        assert!(
            message.contains(part),
            "{arguments:?}: expected {part:?} in: {message}"
        );
    }
}

/// A YOLOv8 head on a 32 × 32 image with one class: each quarter is a box, its score how much redder than grey it is.
fn model() -> Model {
    let mut graph = Graph {
        name: "quarters".into(),
        ..Graph::default()
    };
    let value = |name: &str, dims: &[usize]| {
        ValueInfo::tensor(
            name,
            DataType::Float32,
            dims.iter().copied().map(Dim::Known).collect::<Shape>(),
        )
    };
    graph.inputs.push(value("images", &[1, 3, 32, 32]));
    graph.outputs.push(value("output0", &[1, 5, 4]));
    let boxes = [
        8f32, 24.0, 8.0, 24.0, // x
        8.0, 8.0, 24.0, 24.0, // y
        16.0, 16.0, 16.0, 16.0, // width
        16.0, 16.0, 16.0, 16.0, // height
    ];
    graph.add_initializer("boxes".into(), Tensor::new(&[1, 4, 4], &boxes).unwrap());
    graph.add_initializer(
        "red".into(),
        Tensor::new(&[1, 3, 1, 1], &[1f32, -0.5, -0.5]).unwrap(),
    );
    graph.add_initializer("shape".into(), Tensor::vector(&[1i64, 1, 4]));
    let sixteen: Attribute = [16, 16].into();
    graph.nodes.extend([
        Node::new("AveragePool", "pool", ["images"], ["pooled"])
            .with("kernel_shape", sixteen.clone())
            .with("strides", sixteen),
        Node::new("Conv", "red", ["pooled", "red"], ["scores"]),
        Node::new("Reshape", "flat", ["scores", "shape"], ["flat"]),
        Node::new("Concat", "join", ["boxes", "flat"], ["output0"]).with("axis", 1i64),
    ]);
    let mut model = Model::new(graph, 17);
    model.metadata.insert("names".into(), "{0: 'red'}".into());
    model
}

#[test]
fn a_detector_is_declared_packed_run_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    std::fs::write(path("quarters.onnx"), onnx::write_bytes(&model()).unwrap()).unwrap();
    // 400 × 200: letterboxed, the upper half of each upper quarter is border.
    let photo = RgbImage::from_fn(400, 200, |x, y| {
        Rgb(if x >= 200 && y < 100 {
            [255, 40, 40]
        } else {
            [20; 3]
        })
    });
    std::fs::create_dir(path("photos")).unwrap();
    photo.save(path("photos/one.png")).unwrap();
    let (onnx, edge, photos) = (path("quarters.onnx"), path("quarters.edge"), path("photos"));

    fails(
        &[
            "build",
            &onnx,
            "-o",
            &edge,
            "--task",
            "yolov5",
            "--precision",
            "fp32",
        ],
        &[
            "yolov5",
            "\"output0\" has shape [1, 5, 4]",
            "[1, boxes, 5 + classes]",
        ],
    );
    succeeds(&[
        "build",
        &onnx,
        "-o",
        &edge,
        "--task",
        "yolov8",
        "--precision",
        "fp32",
    ]);

    let drawn = path("found.png");
    let json = succeeds(&["run", &edge, "--input", &photos, "--draw", &drawn, "--json"]);
    let found: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(found["kind"], "objects");
    let [object] = found["objects"].as_array().unwrap().as_slice() else {
        panic!("{json}")
    };
    assert_eq!((&object["label"], &object["class"]), (&"red".into(), &0.into()));
    let sides = ["left", "top", "right", "bottom"].map(|side| object["box"][side].as_f64().unwrap());
    assert_eq!(sides, [200.0, 0.0, 400.0, 100.0]);
    // Only the lower half of that quarter is image, the other is the border's grey.
    assert!((object["score"].as_f64().unwrap() - 0.5 * 215.0 / 255.0).abs() < 0.02);

    let drawn = image::open(drawn).unwrap().into_rgb8();
    assert_eq!(drawn.dimensions(), (400, 200));
    let changed = |x, y| drawn.get_pixel(x, y) != photo.get_pixel(x, y);
    assert!(changed(200, 50) && changed(300, 100) && changed(399, 50));
    assert!(!changed(100, 50) && !changed(300, 60) && !changed(300, 150));

    let text = succeeds(&["run", &edge, "--input", &photos]);
    assert!(
        text.contains("1 found") && text.contains("200,0–400,100"),
        "{text}"
    );
    photo.save(path("photos/two.png")).unwrap();
    fails(
        &["run", &edge, "--input", &photos, "--draw", &path("found.png")],
        &["2 samples", "folder"],
    );
    fails(
        &["run", &edge, "--input", &photos, "--draw", &photos],
        &["one.png", "over the image itself"],
    );
    assert_eq!(image::open(path("photos/one.png")).unwrap().into_rgb8(), photo);
    succeeds(&["run", &edge, "--input", &photos, "--draw", &path("drawn")]);
    for name in ["drawn/one.png", "drawn/two.png"] {
        assert!(Path::new(&path(name)).is_file(), "{name}");
    }
}
