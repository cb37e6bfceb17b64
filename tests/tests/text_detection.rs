//! A real detector (PP-OCRv4, `make fetch-test` brings it) finds the lines of rendered pages: preprocessing, the CPU
//! backend, and regions from the probability map together.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use edgeopt_models::bundle::{Postprocessing, Precision, Preprocessing};
use edgeopt_models::{Model, onnx};
use edgeopt_optimizer::build::{BuildOptions, Data, Progress, make, prepare};
use edgeopt_optimizer::calibrate::SampleInputs;
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::pipeline::postprocess::{Outputs, Prediction, interpret};
use edgeopt_runtime::pipeline::text_detection::TextRegion;
use edgeopt_runtime::pipeline::{preprocess, presets};
use edgeopt_runtime::{Backend, CompileOptions, ModelSource, Session};
use edgeopt_tests::quadrangle::{Matches, Quadrangle};
use edgeopt_tests::text_images::{self, Condition, Page, PlacedLine, Typeface};
use image::RgbImage;

struct Detector {
    preprocessing: Preprocessing,
    postprocessing: Postprocessing,
    session: Box<dyn Session>,
}

fn model() -> Model {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/zoo/ppocr/det.onnx");
    onnx::read_file(&file).unwrap_or_else(|error| panic!("{error}: run `make fetch-test` first"))
}

impl Detector {
    fn of(model: &Model) -> Self {
        let (preprocessing, postprocessing) = presets::from_model("ppocr-det", model).unwrap();
        let engine = CpuBackend::new()
            .unwrap()
            .compile(ModelSource::Model(model), &CompileOptions::default())
            .unwrap();
        Self {
            preprocessing,
            postprocessing,
            session: engine.session().unwrap(),
        }
    }

    fn find(&mut self, image: &RgbImage) -> Vec<TextRegion> {
        let prepared = preprocess::prepare(image, &self.preprocessing).unwrap();
        let outputs = Outputs {
            names: &["map".to_owned()],
            tensors: self.session.run(&[prepared.tensor]).unwrap(),
            geometry: Some(&prepared.geometry),
        };
        match interpret(&outputs, &self.postprocessing).unwrap() {
            Prediction::TextRegions { regions } => regions,
            other => panic!("{other:?}"),
        }
    }
}

fn fonts() -> Vec<Typeface> {
    text_images::find(&[PathBuf::from("/usr/share/fonts/truetype/dejavu")]).unwrap()
}

/// How well the region that covers each line best does so, from the worst; there must be as many regions as lines.
fn overlaps(page: &Page, regions: &[TextRegion]) -> Vec<f32> {
    let found = quadrangles(regions);
    let best = |line: &PlacedLine| {
        found
            .iter()
            .map(|region| region.iou(&line.place))
            .fold(0.0, f32::max)
    };
    let mut overlaps: Vec<f32> = page.lines.iter().map(best).collect();
    overlaps.sort_by(f32::total_cmp);
    assert_eq!(
        found.len(),
        page.lines.len(),
        "{overlaps:?}, regions: {regions:?}"
    );
    overlaps
}

fn quadrangles(regions: &[TextRegion]) -> Vec<Quadrangle> {
    regions.iter().map(|region| Quadrangle(region.corners)).collect()
}

fn pages_are_found(condition: Condition, degrees: &[f32]) {
    let mut detector = Detector::of(&model());
    let fonts = fonts();
    for (number, degrees) in degrees.iter().enumerate() {
        let page = text_images::page(5, number, &fonts, condition, degrees.to_radians());
        assert!(page.lines.len() >= 3);
        let overlaps = overlaps(&page, &detector.find(&page.image));
        println!("page {number}, {degrees}°: {overlaps:.3?}");
        assert!(overlaps[0] >= 0.7, "page {number}: {overlaps:?}");
    }
}

#[test]
fn every_line_of_a_clean_page_is_found() {
    pages_are_found(Condition::Clean, &[0.0; 6]);
}

#[test]
fn every_line_of_a_turned_page_is_found() {
    pages_are_found(Condition::Clean, &[-15.0, -10.0, -4.0, 3.0, 8.0, 15.0]);
}

#[test]
fn a_page_larger_than_the_input_is_found_in_its_own_pixels() {
    let mut detector = Detector::of(&model());
    let page = text_images::page(5, 0, &fonts(), Condition::Clean, 0.0);
    let (width, height) = page.image.dimensions();
    // Larger than the detector's limit, by different factors, neither a multiple of 32.
    let factors = (2.35, 2.55);
    let size = (
        (width as f32 * factors.0) as u32,
        (height as f32 * factors.1) as u32,
    );
    let image = image::imageops::resize(&page.image, size.0, size.1, image::imageops::FilterType::Triangle);
    let regions = detector.find(&image);
    assert_eq!(regions.len(), page.lines.len());
    for line in &page.lines {
        let place = Quadrangle(line.place.0.map(|[x, y]| [x * factors.0, y * factors.1]));
        let best = quadrangles(&regions)
            .iter()
            .map(|region| region.iou(&place))
            .fold(0.0, f32::max);
        assert!(best >= 0.65, "{best} {:?}", line.text);
    }
}

#[test]
fn lines_come_in_the_order_of_reading() {
    let mut detector = Detector::of(&model());
    let page = text_images::page(5, 1, &fonts(), Condition::Clean, 0.0);
    let regions = detector.find(&page.image);
    for (region, line) in quadrangles(&regions).iter().zip(&page.lines) {
        assert!(region.iou(&line.place) > 0.5, "{:?}", line.text);
    }
}

#[test]
fn nothing_is_found_on_an_empty_page() {
    let mut detector = Detector::of(&model());
    for (number, condition) in [Condition::Clean, Condition::Worn, Condition::Worn]
        .into_iter()
        .enumerate()
    {
        let page = text_images::page(3, number, &[], condition, 0.0);
        assert!(page.lines.is_empty());
        let found = detector.find(&page.image);
        assert!(found.is_empty(), "{condition:?}: {found:?}");
    }
}

struct Quiet;

impl Progress for Quiet {
    fn stage(&self, _: &str, _: Option<u64>) {}
    fn at(&self, _: u64) {}
}

/// The detector in INT8, calibrated on pages of another seed.
fn quantized(model: Model, pages: usize) -> Model {
    let (preprocessing, postprocessing) = presets::from_model("ppocr-det", &model).unwrap();
    let fonts = fonts();
    let samples: Vec<SampleInputs> = (0..pages)
        .map(|number| {
            let page = text_images::page(90, number, &fonts, Condition::Worn, 0.05 * (number as f32 - 3.0));
            vec![preprocess::prepare(&page.image, &preprocessing).unwrap().tensor]
        })
        .collect();
    let backend = CpuBackend::new().unwrap();
    let prepared = prepare(model, &BTreeMap::new(), &backend).unwrap();
    let data = Data {
        calibration: Some(&samples),
        calibration_len: samples.len(),
        evaluation: None,
        evaluation_len: 0,
        labels: Vec::new(),
        postprocessing: &postprocessing,
    };
    let options = BuildOptions::new(Precision::Int8);
    let model = make(&prepared, &options, &data, &backend, &Quiet).unwrap().model;
    let quantizers = model
        .graph
        .nodes
        .iter()
        .filter(|node| node.op_type == "QuantizeLinear");
    assert!(quantizers.count() > 50);
    model
}

#[test]
fn in_int8_nearly_as_many_lines_of_worn_pages_are_found() {
    let float = model();
    let mut detectors = [
        ("fp32", Detector::of(&float)),
        ("int8", Detector::of(&quantized(float, 8))),
    ];
    let fonts = fonts();
    let scores = detectors.each_mut().map(|(name, detector)| {
        let mut matches = [0.5, 0.7].map(|least| (least, Matches::default()));
        for number in 0..12 {
            let degrees = [-6.0, -2.0, 0.0, 3.0][number % 4];
            let page = text_images::page(7, number, &fonts, Condition::Worn, f32::to_radians(degrees));
            let known: Vec<Quadrangle> = page.lines.iter().map(|line| line.place).collect();
            let found = quadrangles(&detector.find(&page.image));
            for (least, matches) in &mut matches {
                matches.add(&known, &found, *least);
            }
        }
        for (least, matches) in &matches {
            println!(
                "{name}: F-score {:.4} at an overlap of {least} ({matches:?})",
                matches.f_score()
            );
        }
        matches[1].1.f_score()
    });
    assert!(scores[0] > 0.95 && scores[1] > scores[0] - 0.05, "{scores:?}");
}
