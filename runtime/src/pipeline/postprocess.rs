//! Output tensors into results, as a manifest's [`Postprocessing`] declares.

use std::borrow::Cow;

use edgeopt_models::bundle::{OutputShape, Postprocessing, PostprocessingError};
use edgeopt_models::{Tensor, TensorError};
use serde::Serialize;

use super::ctc::{self, Text};
use super::detection::{self, Object};
use super::geometry::Geometry;
use super::text_detection::{self, TextRegion};

/// What a model found in one sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Prediction {
    /// The best classes, best first.
    Classes {
        /// Label and score.
        classes: Vec<Class>,
    },
    /// Objects, best first.
    Objects {
        /// Class, score and box.
        objects: Vec<Object>,
    },
    /// A text.
    Text(Text),
    /// Where text stands, in the order of reading.
    TextRegions {
        /// Corners and score.
        regions: Vec<TextRegion>,
    },
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

/// What an engine gave for one sample.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    /// The outputs' names, in the order of the tensors.
    pub names: &'a [String],
    /// A batch of one each.
    pub tensors: &'a [Tensor],
    /// How the image became the input, if there was one. Places found are given in its pixels, otherwise in the
    /// input's.
    pub geometry: Option<&'a Geometry>,
}

impl<'a> Outputs<'a> {
    pub(super) fn first(&self) -> Result<(&'a str, &'a Tensor), PostprocessError> {
        let tensor = self.tensors.first().ok_or(PostprocessError::Nothing)?;
        Ok((self.names.first().map_or("", String::as_str), tensor))
    }

    pub(super) fn named(&self, name: &str) -> Result<&'a Tensor, PostprocessError> {
        let mut named = self.names.iter().zip(self.tensors);
        let found = named.find(|(other, _)| *other == name);
        Ok(found.ok_or(PostprocessError::Nothing)?.1)
    }

    fn shapes(&self) -> Vec<OutputShape<'a>> {
        let shape = |(place, tensor): (usize, &'a Tensor)| OutputShape {
            name: self.names.get(place).map_or("", String::as_str),
            dims: tensor.dims().iter().copied().map(Some).collect(),
        };
        self.tensors.iter().enumerate().map(shape).collect()
    }
}

/// Why outputs cannot be read as declared.
#[derive(Debug, thiserror::Error)]
pub enum PostprocessError {
    /// An output is missing or has another shape than the task needs.
    #[error(transparent)]
    Declared(#[from] PostprocessingError),
    /// The run gave no output.
    #[error("the model gives no output")]
    Nothing,
    /// An output is not numeric.
    #[error("an output cannot be read as numbers: {0}")]
    Type(#[from] TensorError),
    /// A detector computed what is no number; an empty result would hide that.
    #[error(
        "output {output:?} holds NaN or infinity: the model does not work at this precision, or on this input"
    )]
    NotFinite {
        /// Name of the output.
        output: String,
    },
    /// What should be a class or a count is not.
    #[error("output {output:?} holds {value} where a class or a count belongs")]
    Index {
        /// Name of the output.
        output: String,
        /// What is there.
        value: f32,
    },
    /// Boxes that do not belong to the queries.
    #[error("{queries} queries have logits, {boxes} have boxes: the outputs do not belong together")]
    Queries {
        /// Queries with a box.
        boxes: usize,
        /// Queries with logits.
        queries: usize,
    },
    /// Outputs that belong together have different lengths.
    #[error("{boxes} boxes, {scores} scores, {classes} classes: the outputs do not belong together")]
    Counts {
        /// Name of the boxes with their count.
        boxes: String,
        /// Name of the scores with their count.
        scores: String,
        /// Name of the classes with their count.
        classes: String,
    },
}

/// The numbers of an output, none of which is NaN or infinite.
pub(super) fn finite<'a>(name: &str, tensor: &'a Tensor) -> Result<Cow<'a, [f32]>, PostprocessError> {
    let values = tensor.to_f32()?;
    if values.iter().all(|value| value.is_finite()) {
        return Ok(values);
    }
    Err(PostprocessError::NotFinite {
        output: name.to_owned(),
    })
}

/// The objects that a detector's outputs hold, as many as a measure of accuracy wants: of a score of `score` or more, at
/// most `count`. Doubles are dropped as declared; the declared score and count are of those who use the results, and are
/// left aside. `None` if the task is no object detection.
///
/// # Errors
/// As [`interpret`].
pub fn objects_for_metric(
    outputs: &Outputs<'_>,
    declared: &Postprocessing,
    score: f32,
    count: usize,
) -> Result<Option<Vec<Object>>, PostprocessError> {
    declared.check(&outputs.shapes())?;
    let Postprocessing::Detection {
        format,
        iou_threshold,
        labels,
        ..
    } = declared
    else {
        return Ok(None);
    };
    let limits = detection::Limits {
        score,
        iou: *iou_threshold,
        count,
        labels,
    };
    detection::detect(outputs, format, &limits).map(Some)
}

/// Reads the outputs of a batch of one.
///
/// # Errors
/// When they are not what the declaration says, or a detector's hold NaN or infinity.
pub fn interpret(outputs: &Outputs<'_>, declared: &Postprocessing) -> Result<Prediction, PostprocessError> {
    declared.check(&outputs.shapes())?;
    match declared {
        Postprocessing::Raw => Ok(Prediction::Raw {
            shapes: outputs
                .tensors
                .iter()
                .map(|output| output.dims().to_vec())
                .collect(),
        }),
        Postprocessing::Classification {
            softmax,
            top_k,
            labels,
        } => Ok(Prediction::Classes {
            classes: classify(&outputs.first()?.1.to_f32()?, *softmax, *top_k, labels),
        }),
        Postprocessing::Detection {
            format,
            score_threshold,
            iou_threshold,
            max_detections,
            labels,
        } => {
            let limits = detection::Limits {
                score: *score_threshold,
                iou: *iou_threshold,
                count: *max_detections,
                labels,
            };
            Ok(Prediction::Objects {
                objects: detection::detect(outputs, format, &limits)?,
            })
        }
        Postprocessing::Ctc { alphabet } => {
            let (_, output) = outputs.first()?;
            let classes = output.dims().last().copied().unwrap_or(0);
            let text = ctc::greedy(&output.to_f32()?, classes, alphabet);
            Ok(Prediction::Text(text))
        }
        Postprocessing::TextDetection {
            threshold,
            box_threshold,
            unclip_ratio,
            min_size,
            max_regions,
        } => {
            let (name, output) = outputs.first()?;
            let limits = text_detection::Limits {
                threshold: *threshold,
                box_threshold: *box_threshold,
                unclip_ratio: *unclip_ratio,
                min_size: *min_size,
                count: *max_regions,
            };
            let width = output.dims().last().copied().unwrap_or(0);
            let map = finite(name, output)?;
            Ok(Prediction::TextRegions {
                regions: text_detection::detect(&map, width, &limits, outputs.geometry),
            })
        }
        Postprocessing::Embedding => {
            let values = outputs.first()?.1.to_f32()?;
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

    fn read(output: Tensor, declared: &Postprocessing) -> Result<Prediction, PostprocessError> {
        let outputs = Outputs {
            names: &["scores".to_owned()],
            tensors: &[output],
            geometry: None,
        };
        interpret(&outputs, declared)
    }

    #[test]
    fn classes_come_best_first_with_probabilities_that_sum_to_one() {
        let declared = Postprocessing::Classification {
            softmax: true,
            top_k: 3,
            labels: vec!["a".into(), "b".into()],
        };
        let output = Tensor::new(&[1, 3], &[1000f32, 1002.0, 1001.0]).unwrap();
        let Prediction::Classes { classes } = read(output, &declared).unwrap() else {
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
        let error = read(Tensor::vector(&[1f32]), &declared).unwrap_err().to_string();
        for part in ["\"scores\"", "[1]", "[1, steps, classes]"] {
            assert!(error.contains(part), "{error}");
        }
        let nothing = Outputs {
            names: &[],
            tensors: &[],
            geometry: None,
        };
        assert!(interpret(&nothing, &declared).is_err());
    }
}
