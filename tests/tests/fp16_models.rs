//! FP16 of real models: how close it is to float, and that the half graph itself, run by ONNX Runtime, agrees with the
//! simulation that it is judged by.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use edgeopt_models::bundle::{Postprocessing, Precision};
use edgeopt_models::{Model, Tensor, onnx};
use edgeopt_optimizer::accuracy::compare;
use edgeopt_optimizer::build::{BuildOptions, Data, Prepared, Progress, make, prepare};
use edgeopt_optimizer::calibrate::SampleInputs;
use edgeopt_runtime::TensorSpec;
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::dataset::Dataset;
use edgeopt_runtime::pipeline::{preprocess, presets};
use edgeopt_tests::sentences::{Tokenizer, encoder};
use edgeopt_tests::text_images::{self, Condition};

struct Quiet;

impl Progress for Quiet {
    fn stage(&self, _: &str, _: Option<u64>) {}
    fn at(&self, _: u64) {}
}

/// Decibel of the model in one precision against the original, and of its graph as it stands, run by ONNX Runtime.
fn measure(
    model: Model,
    options: &BuildOptions,
    (calibration, samples): (&Vec<SampleInputs>, &Vec<SampleInputs>),
) -> (f64, f64) {
    let backend = CpuBackend::new().unwrap();
    let prepared: Prepared = prepare(model, &Default::default(), &backend).unwrap();
    let data = Data {
        calibration: Some(calibration),
        calibration_len: calibration.len(),
        evaluation: Some(samples),
        evaluation_len: samples.len(),
        labels: Vec::new(),
        postprocessing: &Postprocessing::Raw,
    };
    let mut candidate = make(&prepared, options, &data, &backend, &Quiet).unwrap();
    candidate.evaluate(&prepared, &data, &backend, &Quiet).unwrap();
    let mut none = |_: usize, _: &[Tensor], _: &[Tensor]| ();
    let run = compare(
        &prepared.original,
        &candidate.model,
        samples,
        &backend,
        0,
        &mut none,
    )
    .unwrap();
    let (simulated, run) = (candidate.min_sqnr_db().unwrap(), run.min_sqnr_db());
    println!(
        "{} (rest half: {}): {simulated:.2} dB simulated, {run:.2} dB run; weights {}, {} kept, notes {:?}",
        candidate.precision,
        options.half_rest,
        candidate.weights(),
        candidate.kept.len(),
        candidate.notes
    );
    for kept in &candidate.kept {
        println!("  {} {:?}: {}", kept.op, kept.node, kept.reason);
    }
    (simulated, run)
}

fn digits(folder: &str, count: usize) -> (Model, Vec<SampleInputs>) {
    let zoo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/zoo/mnist");
    let model = onnx::read_file(&zoo.join("mnist.onnx")).unwrap();
    let (preprocessing, _) = presets::from_model("mnist", &model).unwrap();
    let inputs: Vec<TensorSpec> = model
        .graph
        .required_inputs()
        .map(|input| TensorSpec::of(input).unwrap())
        .collect();
    let data = Dataset::open(&zoo.join(folder), &inputs, Some(&preprocessing), Some(count)).unwrap();
    let samples = data.iter().map(|sample| sample.unwrap().inputs).collect();
    (model, samples)
}

/// The recognizer with rendered lines, `seed` apart for calibration and evaluation.
fn lines(seed: u64, count: usize) -> (Model, Vec<SampleInputs>) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/zoo/ppocr/rec.onnx");
    let model = onnx::read_file(&file).unwrap_or_else(|error| panic!("{error}: run `make fetch-test` first"));
    let (preprocessing, _) = presets::from_model("ppocr-rec", &model).unwrap();
    let fonts = text_images::find(&[PathBuf::from("/usr/share/fonts/truetype/dejavu")]).unwrap();
    let samples = (0..count)
        .map(|number| {
            let line = text_images::line(seed, number, &fonts, Condition::Clean).unwrap();
            vec![preprocess::prepare(&line.image, &preprocessing).unwrap().tensor]
        })
        .collect();
    (model, samples)
}

/// The sentence encoder, whose attention has masks for the padding behind short sentences.
fn sentences(texts: &[&str]) -> (Model, Vec<SampleInputs>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/zoo/minilm");
    let model = encoder(&folder.join("model.safetensors"), 16)
        .unwrap_or_else(|error| panic!("{error:#}: run `make fetch-test` first"));
    let tokenizer = Tokenizer::read(&folder.join("vocab.txt")).unwrap();
    let inputs = texts
        .iter()
        .map(|text| tokenizer.inputs(text, 16).unwrap().to_vec());
    (model, inputs.collect())
}

#[test]
fn sentences_in_half_are_nearly_exact_with_and_without_padding() {
    let (model, samples) = sentences(&[
        "That is a happy person",
        "Today is a sunny day",
        "The quick brown fox jumps over the lazy dog and then it sleeps for a long while",
        "Yes",
    ]);
    let (_, calibration) = sentences(&["A plane is taking off.", "No"]);
    let (simulated, run) = measure(
        model,
        &BuildOptions::new(Precision::Fp16),
        (&calibration, &samples),
    );
    assert!(simulated > 45.0 && run > 45.0);
}

#[test]
fn digits_in_half_are_nearly_exact() {
    let (model, samples) = digits("heldout", 500);
    let (_, calibration) = digits("calibration", 100);
    let data = (&calibration, &samples);
    let (simulated, run) = measure(model, &BuildOptions::new(Precision::Fp16), data);
    assert!(simulated > 60.0 && run > 60.0);
}

#[test]
fn text_in_half_is_nearly_exact() {
    let (model, samples) = lines(11, 20);
    let (_, calibration) = lines(12, 20);
    let (simulated, run) = measure(
        model,
        &BuildOptions::new(Precision::Fp16),
        (&calibration, &samples),
    );
    assert!(simulated > 45.0 && run > 45.0);
}

/// Half around INT8 costs next to nothing beside INT8 itself.
#[test]
fn digits_in_int8_are_as_good_with_half_around_it() {
    let (model, samples) = digits("heldout", 500);
    let (_, calibration) = digits("calibration", 100);
    let mut options = BuildOptions::new(Precision::Int8);
    let (half, run) = measure(model.clone(), &options, (&calibration, &samples));
    options.half_rest = false;
    let (float, _) = measure(model, &options, (&calibration, &samples));
    assert!(half > float - 1.0 && run > float - 1.0 && float > 30.0);
}

#[test]
fn text_in_int8_is_as_good_with_half_around_it() {
    let (model, samples) = lines(11, 40);
    let (_, calibration) = lines(12, 20);
    let mut options = BuildOptions::new(Precision::Int8);
    let (half, run) = measure(model.clone(), &options, (&calibration, &samples));
    options.half_rest = false;
    let (float, _) = measure(model, &options, (&calibration, &samples));
    // Whether a blurred time step tips over decides single decibels, in both directions.
    assert!(half > float - 2.0 && run > float - 2.0 && float > 12.0);
}
