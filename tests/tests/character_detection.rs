//! A real detector (YOLOX, `make fetch-test` brings it) finds rendered characters whose places are known: mean average
//! precision of the float model, in FP16 and in INT8, from images to the number, as `edgeopt build` computes it.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use edgeopt_models::bundle::Precision;
use edgeopt_models::{Model, onnx};
use edgeopt_optimizer::build::{
    BuildOptions, Candidate, Data, Label, Prepared, Progress, Score, make, prepare,
};
use edgeopt_optimizer::calibrate::SampleInputs;
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::dataset::KnownObject;
use edgeopt_runtime::pipeline::detection::Bounds;
use edgeopt_runtime::pipeline::{preprocess, presets};
use edgeopt_tests::text_images::{self, Scattered};

struct Quiet;

impl Progress for Quiet {
    fn stage(&self, _: &str, _: Option<u64>) {}
    fn at(&self, _: u64) {}
}

fn model() -> Model {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/zoo/ddddocr/det.onnx");
    onnx::read_file(&file).unwrap_or_else(|error| panic!("{error}: run `make fetch-test` first"))
}

fn images(seed: u64, count: usize) -> Vec<Scattered> {
    let fonts = text_images::find(&[PathBuf::from("/usr/share/fonts/truetype/dejavu")]).unwrap();
    (0..count)
        .map(|number| text_images::characters(seed, number, &fonts))
        .collect()
}

/// The model with calibration and evaluation data.
struct Measured {
    prepared: Prepared,
    calibration: Vec<SampleInputs>,
    evaluation: Vec<SampleInputs>,
    labels: Vec<Option<Label>>,
}

impl Measured {
    fn new() -> Self {
        let model = model();
        let (preprocessing, _) = presets::from_model("yolox", &model).unwrap();
        let prepared = |images: &[Scattered]| -> Vec<preprocess::Prepared> {
            let images = images.iter();
            images
                .map(|scattered| preprocess::prepare(&scattered.image, &preprocessing).unwrap())
                .collect()
        };
        let known = images(2, 32);
        let evaluation = prepared(&known);
        let labels = known.iter().zip(&evaluation).map(|(scattered, prepared)| {
            Some(Label::Objects {
                objects: scattered.places.iter().map(|place| object(*place)).collect(),
                geometry: prepared.geometry,
            })
        });
        Self {
            labels: labels.collect(),
            calibration: prepared(&images(1, 12))
                .into_iter()
                .map(|image| vec![image.tensor])
                .collect(),
            evaluation: evaluation.into_iter().map(|image| vec![image.tensor]).collect(),
            prepared: prepare(model, &BTreeMap::new(), &CpuBackend::new().unwrap()).unwrap(),
        }
    }

    fn built(&self, precision: Precision) -> (Candidate, Score) {
        let (_, postprocessing) = presets::from_model("yolox", &self.prepared.original).unwrap();
        let data = Data {
            calibration: Some(&self.calibration),
            calibration_len: self.calibration.len(),
            evaluation: Some(&self.evaluation),
            evaluation_len: self.evaluation.len(),
            labels: self.labels.clone(),
            postprocessing: &postprocessing,
        };
        let backend = CpuBackend::new().unwrap();
        let options = BuildOptions::new(precision);
        let mut candidate = make(&self.prepared, &options, &data, &backend, &Quiet).unwrap();
        candidate
            .evaluate(&self.prepared, &data, &backend, &Quiet)
            .unwrap();
        let score = candidate.score.clone().unwrap();
        let own = precision.to_string();
        for (who, score) in [
            ("fp32", candidate.original_score.as_ref()),
            (own.as_str(), Some(&score)),
        ] {
            let shown = score.iter().flat_map(|score| score.all());
            let shown: Vec<String> = shown
                .map(|(metric, value)| format!("{metric} {value:.4}"))
                .collect();
            println!("{who}: {}", shown.join(", "));
        }
        (candidate, score)
    }
}

fn object(place: [u32; 4]) -> KnownObject {
    let [left, top, right, bottom] = place.map(|side| side as f32);
    KnownObject {
        class: 0,
        bounds: Bounds {
            left,
            top,
            right,
            bottom,
        },
        crowd: false,
    }
}

#[test]
fn in_half_and_in_int8_the_detector_is_nearly_as_precise() {
    let measured = Measured::new();
    let (half, score) = measured.built(Precision::Fp16);
    let float = half.original_score.unwrap();
    let at_50 = |score: &Score| score.all().nth(1).unwrap().1;
    assert!(float.value > 0.45 && at_50(&float) > 0.9, "{float:?}");
    assert!((score.value - float.value).abs() < 0.01, "{score:?}");
    let (int8, score) = measured.built(Precision::Int8);
    assert!(
        float.value - score.value < 0.03 && at_50(&float) - at_50(&score) < 0.03,
        "{score:?}"
    );
    let quantizers = int8
        .model
        .graph
        .nodes
        .iter()
        .filter(|node| node.op_type == "QuantizeLinear");
    assert!(quantizers.count() > 50);
    // Nine convolutions end in boxes, objectness and classes, three for each grid.
    let heads = int8
        .kept
        .iter()
        .filter(|kept| kept.reason == "the last convolution before an output");
    assert_eq!(heads.count(), 9, "{:?}", int8.kept);
}
