//! The command line from end to end on the zoo's digit classifier: what a user following the README does.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn edgeopt(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_edgeopt"))
        .args(arguments)
        .current_dir(root())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs and expects success; gives standard output.
fn succeeds(arguments: &[&str]) -> String {
    let output = edgeopt(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs and expects failure with every one of `expected` in the message.
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

const MODEL: &str = "models/zoo/mnist/mnist.onnx";

fn build<'a>(output: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec![
        "build",
        MODEL,
        "-o",
        output,
        "--task",
        "mnist",
        "--calibration-data",
        "models/zoo/mnist/calibration",
        "--evaluation-data",
        "models/zoo/mnist/heldout",
        "--labels",
        "models/zoo/mnist/heldout/labels.csv",
    ];
    arguments.extend(more);
    arguments
}

#[test]
fn a_float_model_becomes_a_small_signed_bundle_that_is_as_accurate() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let bundle = path("digits.edge");
    let json = succeeds(&build(
        &bundle,
        &["--precision", "int8", "--memory", "256KiB", "--json"],
    ));
    let summary: serde_json::Value = serde_json::from_str(&json).unwrap();
    let candidates = summary["candidates"].as_array().unwrap();
    let precisions: Vec<&str> = candidates
        .iter()
        .map(|c| c["precision"].as_str().unwrap())
        .collect();
    assert_eq!(precisions, ["fp32", "fp16", "int8"]);
    let number = |index: usize, pointer: &str| candidates[index].pointer(pointer).unwrap().as_f64().unwrap();
    // Each step halves the weights, or nearly so, and none costs half a point of accuracy.
    for index in [1, 2] {
        assert!(number(index, "/weights") < 0.55 * number(index - 1, "/weights"));
        assert!(number(index, "/score/value") > number(0, "/score/value") - 0.005);
    }
    assert!(number(0, "/score/value") > 0.985 && number(0, "/memory") > 256.0 * 1024.0);
    assert!(number(2, "/memory") < 256.0 * 1024.0);
    assert!(number(1, "/outputs/0/sqnr_db") > 55.0 && number(2, "/outputs/0/sqnr_db") > 30.0);

    let key = path("fleet");
    succeeds(&["keygen", "--output", &key]);
    fails(&["keygen", "--output", &key], &["never overwritten"]);
    let public = path("fleet.pub");
    fails(&["verify", &bundle, "--key", &public], &["not signed"]);
    succeeds(&["sign", &bundle, "--key", &path("fleet.key")]);
    assert!(succeeds(&["verify", &bundle, "--key", &public]).contains("signed by trusted key"));

    let found = succeeds(&[
        "run",
        &bundle,
        "--input",
        "models/zoo/mnist/heldout",
        "--limit",
        "50",
        "--json",
    ]);
    let labels = std::fs::read_to_string(root().join("models/zoo/mnist/heldout/labels.csv")).unwrap();
    let right = found.lines().filter(|line| {
        let result: serde_json::Value = serde_json::from_str(line).unwrap();
        let digit = result["classes"][0]["index"].to_string();
        labels.contains(&format!("{},{digit}", result["sample"].as_str().unwrap()))
    });
    assert!(right.count() >= 48);

    let compared = succeeds(&[
        "compare",
        MODEL,
        &bundle,
        "--data",
        "models/zoo/mnist/heldout",
        "--layers",
        "3",
    ]);
    assert!(
        compared.contains("logits") && compared.contains("fc1"),
        "{compared}"
    );
    fails(
        &[
            "compare",
            MODEL,
            &bundle,
            "--data",
            "models/zoo/mnist/heldout",
            "--min-sqnr",
            "60",
        ],
        &["below 60"],
    );
    assert!(succeeds(&["bench", &bundle, "--seconds", "0.1"]).contains("median"));
    assert!(succeeds(&["inspect", &bundle]).contains("int8"));

    // The report travels in the bundle, and the golden outputs are what the model gives.
    let unpacked = folder.path().join("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    let status = Command::new("tar")
        .args(["-xf", &bundle, "-C"])
        .arg(&unpacked)
        .status()
        .unwrap();
    assert!(status.success());
    assert!(
        std::fs::read_to_string(unpacked.join("report.html"))
            .unwrap()
            .contains("Where the error comes from")
    );
    assert!(unpacked.join("golden/0-outputs.npz").exists());
}

#[test]
fn what_does_not_fit_is_refused_with_what_would_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path().join("digits.edge");
    let bundle = bundle.to_string_lossy();
    fails(
        &build(&bundle, &["--precision", "fp32", "--memory", "256KiB"]),
        &[
            "needs 478 KiB, limit 256 KiB",
            "weights 414 KiB",
            "this would fit: --precision fp16",
        ],
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_limit_on_memory_holds_while_running_and_ranges_are_declared() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let bundle = path("digits.edge");
    succeeds(&build(
        &bundle,
        &["--precision", "fp32", "--evaluation-samples", "4", "--batch", "3"],
    ));
    let image = "models/zoo/mnist/heldout/0000.png";
    fails(
        &["run", &bundle, "--input", image, "--memory", "1MiB"],
        &[
            "limit 1.00 MiB",
            "backend overhead 24.0 MiB",
            "weights",
            "activations",
        ],
    );
    assert!(succeeds(&["run", &bundle, "--input", image, "--memory", "64MiB"]).contains("0000.png"));
    // The batch has no name of its own in the data; it goes from 1 to what was asked for, and no further.
    fails(
        &["bench", &bundle, "--dim", "N=5", "--seconds", "0.1"],
        &["length 5", "1 to 3", "--batch"],
    );
    fails(
        &build(&path("other.edge"), &["-p", "fp32", "--range", "H=1:2:3"]),
        &["--range H", "no open dimension", "N"],
    );
}

#[test]
fn an_engine_goes_into_the_bundle_or_nothing_is_written() {
    if !root().join(".cache/tensorrt/lib/libtensorrt_rtx.so.1").exists() {
        eprintln!("TensorRT-RTX is not there (make fetch-test brings it): nothing was checked");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let bundle = path("digits.edge");
    let engine = [
        "--engine",
        "tensorrt-rtx",
        "--evaluation-samples",
        "4",
        "--memory",
        "64MiB",
    ];
    let mut arguments = build(&bundle, &["--precision", "int8"]);
    arguments.extend(engine);
    succeeds(&arguments);
    succeeds(&["verify", &bundle, "--unsigned"]);
    let listed = Command::new("tar").args(["-tf", &bundle]).output().unwrap();
    let members = text(&listed.stdout);
    assert!(
        members.contains("engines/tensorrt-rtx-1.7-portable.plan"),
        "{members}"
    );
    // The engine takes far more than the model's own plan; the limit holds for it, too.
    let other = path("other.edge");
    let mut arguments = build(&other, &["--precision", "int8", "--evaluation-samples", "4"]);
    arguments.extend(["--engine", "tensorrt-rtx", "--memory", "4MiB"]);
    fails(
        &arguments,
        &["raise --memory", "of the limit 4.00 MiB, weights take 104 KiB"],
    );
    assert!(!Path::new(&other).exists());
}

#[test]
fn a_report_is_written_whole_and_only_with_its_bundle() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let report = path("report.html");
    let few = [
        "--precision",
        "fp16",
        "--evaluation-samples",
        "20",
        "--report",
        &report,
    ];
    // The bundle cannot be written: its folder is a file.
    std::fs::write(path("file"), "").unwrap();
    fails(&build(&path("file/digits.edge"), &few), &["file/digits.edge"]);
    assert!(!Path::new(&report).exists());
    succeeds(&build(&path("digits.edge"), &few));
    let page = std::fs::read_to_string(&report).unwrap();
    assert!(page.ends_with("</html>") && page.contains("batch 1."));
    // Layers of FP16 are compared, too.
    assert!(page.contains("Where the error comes from") && page.contains("fc1"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn int8_has_fp16_around_it_unless_asked_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let build = |name: &str, more: &[&str]| {
        let bundle = folder.path().join(name).to_string_lossy().into_owned();
        let few = ["--precision", "int8", "--evaluation-samples", "50", "--json"];
        let json = succeeds(&build(&bundle, &[&few[..], more].concat()));
        let summary: serde_json::Value = serde_json::from_str(&json).unwrap();
        let int8 = summary["candidates"][2].clone();
        let number = |pointer: &str| int8.pointer(pointer).unwrap().as_f64().unwrap();
        (number("/memory"), number("/outputs/0/sqnr_db"), bundle)
    };
    let (half, half_db, bundle) = build("half.edge", &[]);
    let (float, float_db, other) = build("float.edge", &["--float32-rest"]);
    assert!(half < float, "{half} {float} bytes");
    assert!(
        half_db > float_db - 2.0 && float_db > 30.0,
        "{half_db} {float_db}"
    );
    let tar = |bundle: &str| {
        let arguments = ["-xOf", bundle, "manifest.json"];
        text(&Command::new("tar").args(arguments).output().unwrap().stdout)
    };
    assert!(tar(&bundle).contains("\"other_layers\": \"fp16\""));
    assert!(tar(&other).contains("\"other_layers\": \"fp32\""));
}

#[test]
fn wrong_input_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    std::fs::write(path("junk.onnx"), b"\x08\x07junk that is no model").unwrap();
    std::fs::write(path("labels.csv"), "nobody.png,3\n").unwrap();
    let out = path("out.edge");
    fails(&["inspect", &path("missing.onnx")], &["missing.onnx"]);
    fails(&["inspect", &path("junk.onnx")], &["junk.onnx"]);
    fails(&["verify", MODEL, "--unsigned"], &["not a bundle", "hint"]);
    fails(
        &["build", MODEL, "-o", &out, "-p", "int8"],
        &["--calibration-data"],
    );
    fails(
        &["build", MODEL, "-o", &out, "--task", "no-such-task"],
        &["no-such-task", "mnist"],
    );
    let heldout = "models/zoo/mnist/heldout";
    fails(
        &["run", MODEL, "--input", heldout],
        &["0000.png", "preprocessing"],
    );
    fails(
        &[
            "build",
            MODEL,
            "-o",
            &out,
            "-t",
            "mnist",
            "-e",
            heldout,
            "-l",
            &path("labels.csv"),
        ],
        &["labels.csv", "0000.png"],
    );
    fails(
        &["run", MODEL, "--input", heldout, "--task", "imagenet"],
        &["input", "image"],
    );
    assert!(!Path::new(&out).exists());
}

#[test]
fn a_missing_library_is_reported_with_every_place_that_was_tried() {
    let output = Command::new(env!("CARGO_BIN_EXE_edgeopt"))
        .args(["bench", MODEL])
        .env("EDGEOPT_ORT_DYLIB", "/nonexistent/libonnxruntime.so")
        .current_dir(root())
        .output()
        .unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        message.contains("/nonexistent/libonnxruntime.so") && message.contains("hint"),
        "{message}"
    );
}
