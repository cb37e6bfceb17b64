use edgeopt_models::Tensor;
use edgeopt_models::bundle::Postprocessing;
use edgeopt_runtime::pipeline::postprocess::{Outputs, Prediction, interpret};
use serde::{Deserialize, Serialize};

use crate::accuracy::{TextAccuracy, TopK};

/// A value of the task's own metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// `top-1 accuracy` or `character accuracy`.
    pub metric: String,
    /// 0..=1.
    pub value: f64,
    /// Samples that had a label.
    pub samples: usize,
}

/// Adds up the task's own metric over samples.
#[derive(Clone, Debug)]
pub struct Scorer<'a> {
    postprocessing: &'a Postprocessing,
    labels: &'a [Option<String>],
    top: TopK,
    text: TextAccuracy,
    samples: usize,
}

impl<'a> Scorer<'a> {
    /// A scorer for outputs read as `postprocessing` says; `labels` belong to the samples in order.
    pub fn new(postprocessing: &'a Postprocessing, labels: &'a [Option<String>]) -> Self {
        Self {
            postprocessing,
            labels,
            top: TopK::default(),
            text: TextAccuracy::default(),
            samples: 0,
        }
    }

    /// Adds the outputs of one sample. Samples without a label are left out; outputs that cannot be read count as
    /// wrong.
    pub fn add(&mut self, sample: usize, outputs: &[Tensor]) {
        let Some(Some(label)) = self.labels.get(sample) else {
            return;
        };
        match self.postprocessing {
            Postprocessing::Classification { labels, .. } => {
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
            Postprocessing::Ctc { .. } => {
                let outputs = Outputs {
                    names: &[],
                    tensors: outputs,
                    geometry: None,
                };
                let text = match interpret(&outputs, self.postprocessing) {
                    Ok(Prediction::Text(text)) => text.text,
                    _ => String::new(),
                };
                self.text.add(label, text.trim());
            }
            _ => return,
        }
        self.samples += 1;
    }

    /// The metric, if any sample had a label and the task has a metric.
    pub fn score(&self) -> Option<Score> {
        let (metric, value) = match self.postprocessing {
            Postprocessing::Classification { .. } => ("top-1 accuracy", self.top.top1()),
            Postprocessing::Ctc { .. } => ("character accuracy", self.text.characters()),
            _ => return None,
        };
        (self.samples > 0).then(|| Score {
            metric: metric.to_owned(),
            value,
            samples: self.samples,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_scored_by_index_or_name_and_unlabelled_samples_are_left_out() {
        let postprocessing = Postprocessing::Classification {
            softmax: false,
            top_k: 1,
            labels: vec!["cat".into(), "dog".into()],
        };
        let labels = [
            Some("dog".to_owned()),
            Some("0".to_owned()),
            None,
            Some("bird".to_owned()),
        ];
        let mut scorer = Scorer::new(&postprocessing, &labels);
        for sample in 0..4 {
            scorer.add(sample, &[Tensor::new(&[1, 2], &[0.1f32, 0.9]).unwrap()]);
        }
        let score = scorer.score().unwrap();
        assert_eq!((score.samples, score.value), (3, 1.0 / 3.0));
        assert_eq!(Scorer::new(&Postprocessing::Raw, &labels).score(), None);
    }
}
