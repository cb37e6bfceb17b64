//! Output tensors into results, as a manifest's [`Postprocessing`] declares.

use edgeopt_models::bundle::Postprocessing;
use edgeopt_models::{Tensor, TensorError};
use serde::Serialize;

use super::ctc::{self, Text};

/// What a model found in one sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Prediction {
    /// The best classes, best first.
    Classes {
        /// Label and score.
        classes: Vec<Class>,
    },
    /// A text.
    Text(Text),
    /// A vector of length 1, for comparison by cosine.
    Embedding {
        /// Its numbers.
        vector: Vec<f32>,
    },
    /// The outputs' shapes: what to do with them is not declared.
    Raw {
        /// Shape of each output.
        shapes: Vec<Vec<usize>>,
    },
}

/// One class with its score.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Class {
    /// Index in the output.
    pub index: usize,
    /// Name, if the manifest has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Score; a probability if the model's output or the declared softmax makes it one.
    pub score: f32,
}

/// Why outputs cannot be read as declared.
#[derive(Debug, thiserror::Error)]
pub enum PostprocessError {
    /// The first output has another shape than the task needs.
    #[error("{task} needs an output of shape {expected}, the model gives {actual:?}")]
    Shape {
        /// The declared task.
        task: &'static str,
        /// What it needs.
        expected: &'static str,
        /// What is there.
        actual: Vec<usize>,
    },
    /// The first output is not numeric, or there is none.
    #[error("the model's first output cannot be read as numbers: {0}")]
    Type(String),
}

impl From<TensorError> for PostprocessError {
    fn from(error: TensorError) -> Self {
        Self::Type(error.to_string())
    }
}

/// Reads the outputs of a batch of one.
///
/// # Errors
/// When they are not what the declaration says.
pub fn interpret(outputs: &[Tensor], declared: &Postprocessing) -> Result<Prediction, PostprocessError> {
    let first = || {
        outputs
            .first()
            .ok_or_else(|| PostprocessError::Type("there is none".into()))
    };
    match declared {
        Postprocessing::Raw | Postprocessing::TextDetection { .. } => Ok(Prediction::Raw {
            shapes: outputs.iter().map(|output| output.dims().to_vec()).collect(),
        }),
        Postprocessing::Classification {
            softmax,
            top_k,
            labels,
        } => Ok(Prediction::Classes {
            classes: classify(&first()?.to_f32()?, *softmax, *top_k, labels),
        }),
        Postprocessing::Ctc { alphabet } => {
            let output = first()?;
            let [1, _, classes] = output.dims() else {
                return Err(PostprocessError::Shape {
                    task: "text recognition",
                    expected: "[1, steps, classes]",
                    actual: output.dims().to_vec(),
                });
            };
            Ok(Prediction::Text(ctc::greedy(
                &output.to_f32()?,
                *classes,
                alphabet,
            )))
        }
        Postprocessing::Embedding => {
            let values = first()?.to_f32()?;
            let norm = values
                .iter()
                .map(|x| x * x)
                .sum::<f32>()
                .sqrt()
                .max(f32::MIN_POSITIVE);
            Ok(Prediction::Embedding {
                vector: values.iter().map(|x| x / norm).collect(),
            })
        }
    }
}

fn classify(values: &[f32], softmax: bool, top_k: usize, labels: &[String]) -> Vec<Class> {
    let peak = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = values.iter().map(|x| (x - peak).exp()).sum();
    let score = |x: f32| if softmax { (x - peak).exp() / total } else { x };
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
    order
        .into_iter()
        .take(top_k.max(1))
        .map(|index| Class {
            index,
            label: labels.get(index).cloned(),
            score: score(values[index]),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_come_best_first_with_probabilities_that_sum_to_one() {
        let declared = Postprocessing::Classification {
            softmax: true,
            top_k: 3,
            labels: vec!["a".into(), "b".into()],
        };
        let output = Tensor::new(&[1, 3], &[1000f32, 1002.0, 1001.0]).unwrap();
        let Prediction::Classes { classes } = interpret(&[output], &declared).unwrap() else {
            panic!()
        };
        assert_eq!(
            classes.iter().map(|class| class.index).collect::<Vec<_>>(),
            [1, 2, 0]
        );
        assert_eq!(
            (classes[0].label.as_deref(), classes[1].label.as_deref()),
            (Some("b"), None)
        );
        assert!((classes.iter().map(|class| class.score).sum::<f32>() - 1.0).abs() < 1e-5);
    }

    #[test]
    fn outputs_of_another_shape_are_refused() {
        let declared = Postprocessing::Ctc { alphabet: vec![] };
        let error = interpret(&[Tensor::vector(&[1f32])], &declared)
            .unwrap_err()
            .to_string();
        assert!(error.contains("[1, steps, classes]"), "{error}");
        assert!(interpret(&[], &declared).is_err());
    }
}
