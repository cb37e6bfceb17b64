//! A trained transformer (all-MiniLM-L6-v2, `make fetch-test` brings its weights) from weights to similarities.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use edgeopt_models::Model;
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::{Backend, CompileOptions, ModelSource};
use edgeopt_tests::sentences::{Tokenizer, encoder};

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/zoo/minilm")
}

fn model(length: usize) -> Model {
    encoder(&folder().join("model.safetensors"), length)
        .unwrap_or_else(|error| panic!("{error:#}: run `make fetch-test` first"))
}

fn embeddings(length: usize, sentences: &[&str]) -> Vec<Vec<f32>> {
    let tokenizer = Tokenizer::read(&folder().join("vocab.txt")).unwrap();
    let model = model(length);
    let engine = CpuBackend::new()
        .unwrap()
        .compile(ModelSource::Model(&model), &CompileOptions::default())
        .unwrap();
    let mut session = engine.session().unwrap();
    sentences
        .iter()
        .map(|sentence| {
            let outputs = session.run(&tokenizer.inputs(sentence, length).unwrap()).unwrap();
            outputs[0].to_f32().unwrap().into_owned()
        })
        .collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn similarities_are_those_the_model_is_published_with() {
    let found = embeddings(
        16,
        &[
            "That is a happy person",
            "That is a happy dog",
            "That is a very happy person",
            "Today is a sunny day",
        ],
    );
    let similarities: Vec<f32> = found[1..].iter().map(|other| cosine(&found[0], other)).collect();
    for (similarity, published) in similarities.iter().zip([0.6946, 0.9429, 0.2569]) {
        assert!((similarity - published).abs() < 1e-3, "{similarities:?}");
    }
}

#[test]
fn padding_changes_nothing() {
    let sentence = ["The weather is lovely today."];
    let (short, long) = (embeddings(8, &sentence), embeddings(48, &sentence));
    assert!(cosine(&short[0], &long[0]) > 0.999_99);
}

#[test]
fn lengths_without_positions_are_refused() {
    let file = folder().join("model.safetensors");
    assert!(encoder(&file, 0).is_err() && encoder(&file, 513).is_err());
    assert!(encoder(&folder().join("vocab.txt"), 8).is_err());
}
