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

/// Photos of 400 × 200 pixels with a red quarter each, and one of 200 × 400 without, under the folder `photos`; labels as a
/// YOLO folder `yolo` and a COCO file `coco.json`.
fn labelled(folder: &Path) {
    std::fs::create_dir(folder.join("photos")).unwrap();
    std::fs::create_dir(folder.join("yolo")).unwrap();
    let (mut images, mut annotations) = (Vec::new(), Vec::new());
    for (id, (left, top)) in [(0, 0), (200, 0), (0, 100), (200, 100)].into_iter().enumerate() {
        let photo = RgbImage::from_fn(400, 200, |x, y| {
            let inside = (left..left + 200).contains(&x) && (top..top + 100).contains(&y);
            Rgb(if inside { [255, 40, 40] } else { [20; 3] })
        });
        photo.save(folder.join(format!("photos/{id}.png"))).unwrap();
        let centre = (f64::from(left + 100) / 400.0, f64::from(top + 50) / 200.0);
        let line = format!("0 {} {} 0.5 0.5\n", centre.0, centre.1);
        std::fs::write(folder.join(format!("yolo/{id}.txt")), line).unwrap();
        images.push(
            serde_json::json!({"id": id, "file_name": format!("{id}.png"), "width": 400, "height": 200}),
        );
        annotations.push(
            serde_json::json!({"id": id, "image_id": id, "category_id": 5, "iscrowd": 0,
            "bbox": [left, top, 200, 100]}),
        );
    }
    RgbImage::from_pixel(200, 400, Rgb([20; 3]))
        .save(folder.join("photos/none.png"))
        .unwrap();
    images.push(serde_json::json!({"id": 9, "file_name": "none.png"}));
    let coco = serde_json::json!({"images": images, "annotations": annotations,
        "categories": [{"id": 5, "name": "red"}]});
    std::fs::write(folder.join("coco.json"), coco.to_string()).unwrap();
}

#[test]
fn a_detectors_mean_average_precision_is_measured_in_the_images_pixels() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    std::fs::write(path("quarters.onnx"), onnx::write_bytes(&model()).unwrap()).unwrap();
    labelled(folder.path());
    let (onnx, edge, photos, report) = (
        path("quarters.onnx"),
        path("quarters.edge"),
        path("photos"),
        path("report.html"),
    );
    let build = |labels: &str, more: &[&str]| -> Vec<String> {
        let labels = path(labels);
        let arguments = [
            "build",
            &onnx,
            "-o",
            &edge,
            "--task",
            "yolov8",
            "--evaluation-data",
            &photos,
        ];
        let arguments = arguments
            .into_iter()
            .chain(["--labels", &labels])
            .chain(more.iter().copied());
        arguments.map(str::to_owned).collect()
    };
    let strings = |arguments: &[String]| -> String {
        succeeds(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for labels in ["yolo", "coco.json"] {
        let json = strings(&build(labels, &["--json", "--report", &report]));
        let built: serde_json::Value = serde_json::from_str(&json).unwrap();
        for candidate in built["candidates"].as_array().unwrap() {
            let score = &candidate["score"];
            assert_eq!(
                (&score["metric"], &score["samples"]),
                (&"mAP@0.5:0.95".into(), &5.into())
            );
            assert_eq!(score["others"][0]["metric"], "mAP@0.5");
            let values = [&score["value"], &score["others"][0]["value"]];
            assert!(
                values
                    .iter()
                    .all(|value| (value.as_f64().unwrap() - 1.0).abs() < 1e-9),
                "{json}"
            );
        }
        let page = std::fs::read_to_string(&report).unwrap();
        assert!(
            page.contains("mAP@0.5:0.95") && page.contains("100.00 %"),
            "{labels}"
        );
    }
    let table = strings(&build("yolo", &["--precision", "fp32"]));
    let header = table.lines().nth(1).unwrap();
    assert!(
        header.contains("mAP@0.5:0.95") && header.contains(" mAP@0.5 "),
        "{table}"
    );

    // A model that finds boxes half as wide: an overlap of one half.
    let mut narrow = model();
    let boxes = [
        8f32, 24.0, 8.0, 24.0, 8.0, 8.0, 24.0, 24.0, 8.0, 8.0, 8.0, 8.0, 16.0, 16.0, 16.0, 16.0,
    ];
    narrow
        .graph
        .initializers
        .insert("boxes".into(), Tensor::new(&[1, 4, 4], &boxes).unwrap());
    std::fs::write(path("narrow.onnx"), onnx::write_bytes(&narrow).unwrap()).unwrap();
    let (narrow, yolo) = (path("narrow.onnx"), path("yolo"));
    let compared = [
        "compare", &onnx, &narrow, "--data", &photos, "--task", "yolov8", "--labels", &yolo,
    ];
    let text = succeeds(&compared);
    assert!(
        text.contains("mAP@0.5: 100.00 % → 100.00 % on 5 samples"),
        "{text}"
    );
    assert!(
        text.contains("mAP@0.5:0.95: 100.00 % → 10.00 % on 5 samples"),
        "{text}"
    );
    let json = succeeds(&[&compared[..], &["--json"]].concat());
    let found: serde_json::Value = serde_json::from_str(&json).unwrap();
    let value = found["scores"]["other"]["value"].as_f64().unwrap();
    assert!((value - 0.1).abs() < 1e-9, "{json}");
}

#[test]
fn labels_of_objects_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    std::fs::write(path("quarters.onnx"), onnx::write_bytes(&model()).unwrap()).unwrap();
    labelled(folder.path());
    std::fs::create_dir(path("other")).unwrap();
    std::fs::write(path("other/x.txt"), "").unwrap();
    std::fs::write(path("labels.csv"), "0.png,0\n").unwrap();
    let refused = |labels: &str, data: &str, expected: &[&str]| {
        let (onnx, edge, labels, data) = (path("quarters.onnx"), path("q.edge"), path(labels), path(data));
        let arguments = [
            "build",
            &onnx,
            "-o",
            &edge,
            "--task",
            "yolov8",
            "--evaluation-data",
            &data,
        ];
        fails(&[&arguments[..], &["--labels", &labels]].concat(), expected);
    };
    refused(
        "other",
        "photos",
        &["other", "no object is known in any of the 5 images", "\"0.png\""],
    );
    refused(
        "labels.csv",
        "photos",
        &["labels.csv", "a folder of YOLO's .txt files or a COCO .json file"],
    );
    std::fs::write(path("yolo/2.txt"), "0 0.5 0.5 0.5 0.5\n1 0.5 0.5 0.5 0.5\n").unwrap();
    refused(
        "yolo",
        "photos",
        &["2.txt, line 2", "class 1 is none of the model's 1 classes"],
    );
    let coco = std::fs::read_to_string(path("coco.json")).unwrap();
    std::fs::write(
        path("turned.json"),
        coco.replace("\"height\":200", "\"height\":300"),
    )
    .unwrap();
    refused("turned.json", "photos", &["\"0.png\" has 400 × 300", "400 × 200"]);
    std::fs::write(path("elsewhere.json"), coco.replace(".png", ".jpg")).unwrap();
    refused(
        "elsewhere.json",
        "photos",
        &["none of its labels belongs to a sample", "\"0.png\""],
    );
    let array = Tensor::zeros(DataType::Float32, &[2, 3, 32, 32]).unwrap();
    let file = std::fs::File::create(path("stack.npz")).unwrap();
    edgeopt_runtime::dataset::write_npz(file, &[("images", &array)]).unwrap();
    refused("yolo", "stack.npz", &["sample \"0\" is no image"]);
}
