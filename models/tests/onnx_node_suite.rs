//! The ONNX project's own test models: `EDGEOPT_ONNX_TEST_DATA=…/backend/test/data` (of the package `onnx`)
//! `cargo test -p edgeopt-models --test onnx_node_suite -- --ignored`.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

use std::path::{Path, PathBuf};

use edgeopt_models::graph::validate::{OPSETS, validate};
use edgeopt_models::onnx::{read_bytes, read_file, write_bytes};

fn models() -> Vec<PathBuf> {
    fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.path().is_dir() {
                collect(&entry.path(), found);
            } else if entry
                .path()
                .extension()
                .is_some_and(|extension| extension == "onnx")
            {
                found.push(entry.path());
            }
        }
    }
    let folder = std::env::var("EDGEOPT_ONNX_TEST_DATA").expect("EDGEOPT_ONNX_TEST_DATA names the folder");
    let mut found = Vec::new();
    collect(Path::new(&folder), &mut found);
    found.sort();
    assert!(!found.is_empty(), "no models in {folder}");
    found
}

#[test]
#[ignore = "needs the models of the package onnx"]
fn every_model_reads_and_is_the_same_after_writing() {
    let mut failures = Vec::new();
    let paths = models();
    for path in &paths {
        let model = match read_file(path) {
            Ok(model) => model,
            Err(error) => {
                failures.push(format!("{}: {error}", path.display()));
                continue;
            }
        };
        let again = read_bytes(&write_bytes(&model).unwrap()).unwrap();
        if again != model {
            failures.push(format!("{}: differs after writing", path.display()));
        }
        if OPSETS.contains(&model.opset())
            && let Err(error) = validate(&model)
        {
            failures.push(format!("{}: {error}", path.display()));
        }
    }
    eprintln!("{} models, {} failures", paths.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
#[ignore = "needs the models of the package onnx"]
fn raised_models_are_valid_and_the_rest_is_refused_with_words() {
    use edgeopt_models::opset::{OLDEST, raise};
    let (mut raised, mut refused) = (0, Vec::new());
    for path in models() {
        let mut model = read_file(&path).unwrap();
        if model.opset() < OLDEST || validate(&model).is_err() {
            continue;
        }
        match raise(&mut model, 21) {
            Ok(_) => {
                raised += 1;
                validate(&model).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            }
            Err(error) => refused.push(format!("{}: {error}", path.display())),
        }
    }
    eprintln!(
        "{raised} raised, {} refused:\n{}",
        refused.len(),
        refused.join("\n")
    );
    assert!(refused.len() * 100 <= raised, "too many refused");
}
