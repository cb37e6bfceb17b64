//! The zoo's digit classifier with the preset `mnist`, from image files to labels.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use edgeopt_models::onnx;
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::dataset::{Dataset, Labels};
use edgeopt_runtime::pipeline::postprocess::{Outputs, Prediction, interpret};
use edgeopt_runtime::pipeline::presets;
use edgeopt_runtime::{Backend, CompileOptions, ModelSource};

#[test]
fn the_shipped_digits_are_recognized_as_often_as_the_zoo_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/zoo/mnist");
    let model = onnx::read_file(&folder.join("mnist.onnx")).unwrap();
    let (preprocessing, postprocessing) = presets::from_model("mnist", &model).unwrap();
    let engine = CpuBackend::new()
        .unwrap()
        .compile(ModelSource::Model(&model), &CompileOptions::default())
        .unwrap();
    let samples = Dataset::open(
        &folder.join("heldout"),
        engine.inputs(),
        Some(&preprocessing),
        None,
    )
    .unwrap();
    let labels = Labels::read(&folder.join("heldout/labels.csv")).unwrap();
    let mut session = engine.session().unwrap();
    let mut right = 0;
    for sample in samples.iter() {
        let sample = sample.unwrap();
        let outputs = session.run(&sample.inputs).unwrap();
        let outputs = Outputs {
            names: &[],
            tensors: outputs,
            geometry: None,
        };
        let Prediction::Classes { classes } = interpret(&outputs, &postprocessing).unwrap() else {
            panic!("not classes")
        };
        right += usize::from(labels.get(&sample.id) == Some(classes[0].index.to_string().as_str()));
    }
    assert_eq!(samples.len(), 500);
    // 496 are right; one either way leaves room for another order of summation.
    assert!((495..=497).contains(&right), "{right} of 500");
}
