//! A real recognizer (PP-OCRv4, `make fetch-test` brings it) reads rendered lines: reading the file, preprocessing,
//! the CPU backend and decoding together.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use edgeopt_models::onnx;
use edgeopt_optimizer::accuracy::TextAccuracy;
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::pipeline::postprocess::{Outputs, Prediction, interpret};
use edgeopt_runtime::pipeline::{preprocess, presets};
use edgeopt_runtime::{Backend, CompileOptions, ModelSource};
use edgeopt_tests::text_images::{self, Condition};

/// How well the recognizer reads rendered lines.
fn read_lines(condition: Condition, lines: usize) -> TextAccuracy {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/zoo/ppocr/rec.onnx");
    let model = onnx::read_file(&file).unwrap_or_else(|error| panic!("{error}: run `make fetch-test` first"));
    let (preprocessing, postprocessing) = presets::from_model("ppocr-rec", &model).unwrap();
    let engine = CpuBackend::new()
        .unwrap()
        .compile(ModelSource::Model(&model), &CompileOptions::default())
        .unwrap();
    let mut session = engine.session().unwrap();
    let fonts = text_images::find(&[PathBuf::from("/usr/share/fonts/truetype/dejavu")]).unwrap();
    let mut accuracy = TextAccuracy::default();
    for number in 0..lines {
        let line = text_images::line(11, number, &fonts, condition).unwrap();
        let input = preprocess::prepare(&line.image, &preprocessing).unwrap().tensor;
        let outputs = session.run(&[input]).unwrap();
        let outputs = Outputs {
            names: &[],
            tensors: outputs,
            geometry: None,
        };
        let Prediction::Text(read) = interpret(&outputs, &postprocessing).unwrap() else {
            panic!("not a text")
        };
        if line.text != read.text {
            println!("{:?} read as {:?}", line.text, read.text);
        }
        accuracy.add(&line.text, &read.text);
    }
    println!(
        "{condition:?}: {:.4} of the characters, {:.4} of the lines",
        accuracy.characters(),
        accuracy.exact()
    );
    accuracy
}

#[test]
fn clean_lines_are_read() {
    let accuracy = read_lines(Condition::Clean, 60).characters();
    assert!(accuracy > 0.95, "{accuracy:.4}");
}

#[test]
fn worn_lines_are_read() {
    let accuracy = read_lines(Condition::Worn, 60).characters();
    assert!(accuracy > 0.9, "{accuracy:.4}");
}
