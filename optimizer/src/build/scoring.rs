use edgeopt_models::Tensor;
use edgeopt_models::bundle::Postprocessing;
use edgeopt_runtime::dataset::KnownObject;
use edgeopt_runtime::pipeline::Geometry;
use edgeopt_runtime::pipeline::detection::Object;
use edgeopt_runtime::pipeline::postprocess::{
    Outputs, PostprocessError, Prediction, interpret, objects_for_metric,
};
use serde::{Deserialize, Serialize};

use crate::accuracy::{AveragePrecision, MOST_DETECTIONS, TextAccuracy, TopK};

/// Objects of a lower score are left out of the metric. Precision at high recall needs what no user would want to see, so
/// that the declared threshold does not apply; this one is what evaluations of detectors use.
pub const LEAST_SCORE: f32 = 0.001;

/// What a sample shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Label {
    /// A class, by name or index, or a text.
    Text(String),
    /// Every object in an image.
    Objects {
        /// In pixels of the image.
        objects: Vec<KnownObject>,
        /// How the image became the input.
        geometry: Geometry,
    },
}

/// A value of the task's own metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// `top-1 accuracy`, `character accuracy` or `mAP@0.5:0.95`.
    pub metric: String,
    /// 0..=1.
    pub value: f64,
    /// Samples that had a label.
    pub samples: usize,
    /// Further metrics of the task, which decide nothing: `mAP@0.5`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherMetric>,
}

/// A value beside the task's own metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OtherMetric {
    /// Its name.
    pub metric: String,
    /// 0..=1.
    pub value: f64,
}

impl Score {
    /// Name and value of each metric, the task's own first.
    pub fn all(&self) -> impl Iterator<Item = (&str, f64)> {
        let others = self
            .others
            .iter()
            .map(|other| (other.metric.as_str(), other.value));
        std::iter::once((self.metric.as_str(), self.value)).chain(others)
    }

    /// A metric's value in percent; a dash if it is none of these.
    pub fn shown(&self, metric: &str) -> String {
        let value = self.all().find(|(name, _)| *name == metric);
        value.map_or("–".into(), |(_, value)| format!("{:.2} %", value * 100.0))
    }
}

/// Adds up the task's own metric over samples.
#[derive(Clone, Debug)]
pub struct Scorer<'a> {
    postprocessing: &'a Postprocessing,
    labels: &'a [Option<Label>],
    outputs: Vec<String>,
    top: TopK,
    text: TextAccuracy,
    objects: AveragePrecision,
    samples: usize,
}

impl<'a> Scorer<'a> {
    /// A scorer for outputs of these names, read as `postprocessing` says; `labels` belong to the samples in order.
    pub fn new(
        postprocessing: &'a Postprocessing,
        labels: &'a [Option<Label>],
        outputs: impl IntoIterator<Item = String>,
    ) -> Self {
        Self {
            postprocessing,
            labels,
            outputs: outputs.into_iter().collect(),
            top: TopK::default(),
            text: TextAccuracy::default(),
            objects: AveragePrecision::default(),
            samples: 0,
        }
    }

    /// Adds the outputs of one sample. Samples without a label are left out; outputs with NaN or infinity count as wrong.
    ///
    /// # Errors
    /// When a detector's outputs are not what its declaration says.
    pub fn add(&mut self, sample: usize, outputs: &[Tensor]) -> Result<(), PostprocessError> {
        let Some(Some(label)) = self.labels.get(sample) else {
            return Ok(());
        };
        match (self.postprocessing, label) {
            (Postprocessing::Classification { labels, .. }, Label::Text(label)) => {
                let class = labels
                    .iter()
                    .position(|name| name == label)
                    .or_else(|| label.parse().ok());
                let scores = outputs
                    .first()
                    .and_then(|output| output.to_f32().ok())
                    .unwrap_or_default();
                self.top.add(&scores, class.unwrap_or(usize::MAX));
            }
            (Postprocessing::Ctc { .. }, Label::Text(label)) => {
                let outputs = Outputs {
                    names: &self.outputs,
                    tensors: outputs,
                    geometry: None,
                };
                let text = match interpret(&outputs, self.postprocessing) {
                    Ok(Prediction::Text(text)) => text.text,
                    _ => String::new(),
                };
                self.text.add(label, text.trim());
            }
            (Postprocessing::Detection { .. }, Label::Objects { objects, geometry }) => {
                let found = self.found(outputs, geometry)?;
                self.objects.add(objects, &found);
            }
            _ => return Ok(()),
        }
        self.samples += 1;
        Ok(())
    }

    fn found(&self, outputs: &[Tensor], geometry: &Geometry) -> Result<Vec<Object>, PostprocessError> {
        let outputs = Outputs {
            names: &self.outputs,
            tensors: outputs,
            geometry: Some(geometry),
        };
        match objects_for_metric(&outputs, self.postprocessing, LEAST_SCORE, MOST_DETECTIONS) {
            Ok(found) => Ok(found.unwrap_or_default()),
            // The comparison tells of such values by itself.
            Err(PostprocessError::NotFinite { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// The metric, if the task has one and the labels of the samples allow to compute it.
    pub fn score(&self) -> Option<Score> {
        let mut others = Vec::new();
        let (metric, value) = match self.postprocessing {
            Postprocessing::Classification { .. } => ("top-1 accuracy", self.top.top1()),
            Postprocessing::Ctc { .. } => ("character accuracy", self.text.characters()),
            Postprocessing::Detection { .. } => {
                let mean = self.objects.mean()?;
                others.push(OtherMetric {
                    metric: "mAP@0.5".to_owned(),
                    value: mean.at_50,
                });
                ("mAP@0.5:0.95", mean.at_50_to_95)
            }
            _ => return None,
        };
        (self.samples > 0).then(|| Score {
            metric: metric.to_owned(),
            value,
            samples: self.samples,
            others,
        })
    }
}

#[cfg(test)]
mod tests {
    use edgeopt_models::bundle::DetectionFormat;
    use edgeopt_runtime::pipeline::detection::Bounds;

    use super::*;

    #[test]
    fn classes_are_scored_by_index_or_name_and_unlabelled_samples_are_left_out() {
        let postprocessing = Postprocessing::Classification {
            softmax: false,
            top_k: 1,
            labels: vec!["cat".into(), "dog".into()],
        };
        let text = |label: &str| Some(Label::Text(label.to_owned()));
        let labels = [text("dog"), text("0"), None, text("bird")];
        let mut scorer = Scorer::new(&postprocessing, &labels, ["scores".to_owned()]);
        for sample in 0..4 {
            let scores = Tensor::new(&[1, 2], &[0.1f32, 0.9]).unwrap();
            scorer.add(sample, &[scores]).unwrap();
        }
        let score = scorer.score().unwrap();
        assert_eq!((score.samples, score.value), (3, 1.0 / 3.0));
        assert_eq!(Scorer::new(&Postprocessing::Raw, &labels, []).score(), None);
    }

    fn detection() -> Postprocessing {
        Postprocessing::Detection {
            format: DetectionFormat::EndToEnd,
            score_threshold: 0.5,
            iou_threshold: None,
            max_detections: 1,
            labels: vec![],
        }
    }

    /// An image of 200 × 100 pixels, letterboxed into 100 × 100.
    fn image(objects: &[(usize, [f32; 4])]) -> Option<Label> {
        let object = |(class, [left, top, right, bottom]): &(usize, [f32; 4])| KnownObject {
            class: *class,
            bounds: Bounds {
                left: *left,
                top: *top,
                right: *right,
                bottom: *bottom,
            },
            crowd: false,
        };
        Some(Label::Objects {
            objects: objects.iter().map(object).collect(),
            geometry: Geometry {
                width: 200,
                height: 100,
                scale: (0.5, 0.5),
                pad: (0.0, 25.0),
            },
        })
    }

    #[test]
    fn objects_are_scored_in_pixels_of_the_image_whatever_threshold_is_declared() {
        let labels = [image(&[
            (0, [20.0, 10.0, 60.0, 50.0]),
            (1, [100.0, 0.0, 200.0, 100.0]),
        ])];
        let score = |rows: &[[f32; 6]]| {
            let declared = detection();
            let mut scorer = Scorer::new(&declared, &labels, ["out".to_owned()]);
            let tensor = Tensor::new(&[1, rows.len(), 6], rows.as_flattened()).unwrap();
            scorer.add(0, &[tensor]).unwrap();
            scorer.score().unwrap()
        };
        // The first is where it belongs, the second a tenth too narrow: found at overlaps up to 0.9. Both below the
        // declared threshold, and more than the one object the user asks for.
        let found = score(&[
            [10.0, 30.0, 30.0, 50.0, 0.002, 0.0],
            [50.0, 25.0, 95.0, 75.0, 0.01, 1.0],
        ]);
        let shown: Vec<(&str, f64)> = found.all().collect();
        assert_eq!(shown[0].0, "mAP@0.5:0.95");
        assert!((shown[0].1 - 0.95).abs() < 1e-9, "{shown:?}");
        assert_eq!((shown[1].0, (shown[1].1 * 1e9).round()), ("mAP@0.5", 1e9));
        // In the input's pixels they would be elsewhere.
        let elsewhere = score(&[[20.0, 10.0, 60.0, 50.0, 0.9, 0.0]]);
        assert_eq!((elsewhere.value, elsewhere.samples), (0.0, 1));
        let broken = score(&[[f32::NAN, 30.0, 30.0, 50.0, 0.9, 0.0]]);
        assert_eq!(broken.value, 0.0);
    }

    #[test]
    fn a_detector_that_is_not_as_declared_is_an_error_and_nothing_known_is_no_score() {
        let labels = [image(&[])];
        let declared = detection();
        let mut scorer = Scorer::new(&declared, &labels, ["out".to_owned()]);
        let wrong = Tensor::new(&[1, 1, 7], &[0f32; 7]).unwrap();
        let error = scorer.add(0, &[wrong]).unwrap_err().to_string();
        assert!(error.contains("\"out\" has shape [1, 1, 7]"), "{error}");
        scorer
            .add(0, &[Tensor::new(&[1, 0, 6], &[0f32; 0]).unwrap()])
            .unwrap();
        assert_eq!(scorer.score(), None);
    }
}
