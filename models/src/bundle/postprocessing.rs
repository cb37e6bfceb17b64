use serde::{Deserialize, Serialize};

use super::detection::{self, DetectionFormat, OutputPart};
use super::manifest::{DimInfo, TensorInfo};

/// How the outputs become a result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "task", deny_unknown_fields)]
pub enum Postprocessing {
    /// The tensors as they are.
    #[default]
    Raw,
    /// Scores per class; the result is the `top_k` best.
    Classification {
        /// Apply softmax first (the model's output is logits).
        softmax: bool,
        /// How many classes to report.
        top_k: usize,
        /// Names of the classes in the output's order.
        labels: Vec<String>,
    },
    /// Objects in upright boxes.
    Detection {
        /// What the outputs hold.
        format: DetectionFormat,
        /// Boxes of a lower score are dropped.
        score_threshold: f32,
        /// Of two boxes of one class whose intersection over union is above this, the one of the lower score is
        /// dropped (non-maximum suppression). Absent where the model does that itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        iou_threshold: Option<f32>,
        /// Most objects to report, the best first.
        max_detections: usize,
        /// Names of the classes in the output's order; empty where they have none.
        #[serde(default)]
        labels: Vec<String>,
    },
    /// Text recognition: [batch, time, classes], class 0 is CTC's blank, class i is `alphabet[i - 1]`.
    Ctc {
        /// The characters.
        alphabet: Vec<String>,
    },
    /// Text detection by differentiable binarization (DB): the first output is a probability map
    /// [batch, 1, height, width].
    TextDetection {
        /// Pixels above this are text.
        threshold: f32,
        /// Boxes whose mean probability is below this are dropped.
        box_threshold: f32,
        /// How far boxes grow: offset = area × ratio ÷ perimeter.
        unclip_ratio: f32,
        /// Boxes whose shorter side, before it grows, is below this many pixels of the map are dropped.
        #[serde(default = "min_size")]
        min_size: f32,
        /// Most boxes to report.
        #[serde(default = "max_regions")]
        max_regions: usize,
    },
    /// A vector to compare by cosine.
    Embedding,
}

/// What PaddleOCR uses.
fn min_size() -> f32 {
    3.0
}

/// What PaddleOCR uses.
fn max_regions() -> usize {
    1000
}

/// Name and shape of an output; `None` where a length is not known before running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputShape<'a> {
    /// Name in the graph.
    pub name: &'a str,
    /// Lengths.
    pub dims: Vec<Option<usize>>,
}

impl<'a> From<&'a TensorInfo> for OutputShape<'a> {
    fn from(info: &'a TensorInfo) -> Self {
        let known = |dim: &DimInfo| match dim {
            DimInfo::Fixed(length) => Some(*length),
            _ => None,
        };
        Self {
            name: &info.name,
            dims: info.shape.iter().map(known).collect(),
        }
    }
}

/// Why a declaration does not suit the model, or nothing at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostprocessingError {
    /// An output has another shape than the task reads.
    #[error("output {output:?} has shape {actual}, {task} reads {expected}; declare what the model gives")]
    Shape {
        /// Name of the output.
        output: String,
        /// Its shape; `?` for lengths not known before running.
        actual: String,
        /// The declared task.
        task: &'static str,
        /// The shape it reads.
        expected: &'static str,
    },
    /// There is no such output.
    #[error("{task} reads {wanted}; the model's outputs are: {}", there.join(", "))]
    Missing {
        /// The declared task.
        task: &'static str,
        /// What is missing.
        wanted: String,
        /// Names of the outputs.
        there: Vec<String>,
    },
    /// The labels do not belong to the output.
    #[error("output {output:?} of shape {actual} has {classes} classes, {labels} labels are declared")]
    Labels {
        /// Name of the output.
        output: String,
        /// Its shape.
        actual: String,
        /// Classes it has.
        classes: usize,
        /// Labels declared.
        labels: usize,
    },
    /// The boxes are not the cells of the declared grids.
    #[error(
        "output {output:?} has shape {actual}; an input of {width} × {height} pixels with strides {strides:?} has \
         {cells} cells: declare the size and the strides that the model has"
    )]
    Cells {
        /// Name of the output.
        output: String,
        /// Its shape.
        actual: String,
        /// Declared width of the input in pixels.
        width: usize,
        /// Declared height of the input in pixels.
        height: usize,
        /// Declared strides in pixels.
        strides: Vec<usize>,
        /// Cells that all grids have together.
        cells: usize,
    },
    /// A number is out of its range.
    #[error("{task}: {field} is {value}, it must be {range}")]
    Value {
        /// The declared task.
        task: &'static str,
        /// Name of the field.
        field: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        range: &'static str,
    },
}

/// A length that a task asks for.
#[derive(Clone, Copy)]
pub(super) enum Length {
    Any,
    Exactly(usize),
    AtLeast(usize),
}

use Length::{Any, AtLeast, Exactly};

impl Postprocessing {
    /// The task's name in messages.
    pub fn task(&self) -> &'static str {
        match self {
            Self::Raw => "no task",
            Self::Classification { .. } => "classification",
            Self::Detection { .. } => "object detection",
            Self::Ctc { .. } => "text recognition",
            Self::TextDetection { .. } => "text detection",
            Self::Embedding => "embedding",
        }
    }

    /// How many classes the model tells apart, if its outputs or the labels tell.
    pub fn classes(&self, outputs: &[OutputShape<'_>]) -> Option<usize> {
        match self {
            Self::Classification { labels, .. } if !labels.is_empty() => Some(labels.len()),
            Self::Classification { .. } => *outputs.first()?.dims.last()?,
            Self::Detection { labels, .. } if !labels.is_empty() => Some(labels.len()),
            Self::Detection { format, .. } => detection::classes(format, outputs),
            _ => None,
        }
    }

    /// The parts of the first output that hold numbers of different kinds, each to be judged by itself: boxes of hundreds
    /// of pixels would outweigh scores up to 1. Empty where it holds one kind.
    pub fn parts(&self) -> Vec<OutputPart> {
        match self {
            Self::Detection { format, .. } => detection::parts(format),
            _ => Vec::new(),
        }
    }

    /// Checks the numbers declared, and that the outputs have the shapes the task reads, as far as they are known.
    ///
    /// # Errors
    /// Naming the output and its shape, or the field.
    pub fn check(&self, outputs: &[OutputShape<'_>]) -> Result<(), PostprocessingError> {
        match self {
            Self::Raw | Self::Classification { .. } | Self::Embedding => Ok(()),
            Self::Ctc { .. } => {
                let output = self.first(outputs)?;
                self.shaped(output, &[&[Exactly(1), Any, AtLeast(1)]], "[1, steps, classes]")
            }
            Self::TextDetection {
                threshold,
                box_threshold,
                unclip_ratio,
                min_size,
                ..
            } => {
                self.fraction("threshold", *threshold)?;
                self.fraction("box_threshold", *box_threshold)?;
                self.not_negative("unclip_ratio", *unclip_ratio)?;
                self.not_negative("min_size", *min_size)?;
                let output = self.first(outputs)?;
                self.shaped(
                    output,
                    &[&[Exactly(1), Exactly(1), Any, Any]],
                    "[1, 1, height, width]",
                )
            }
            Self::Detection {
                format,
                score_threshold,
                iou_threshold,
                labels,
                ..
            } => {
                self.fraction("score_threshold", *score_threshold)?;
                if let Some(threshold) = iou_threshold {
                    self.fraction("iou_threshold", *threshold)?;
                }
                detection::check(self, format, labels.len(), outputs)
            }
        }
    }

    pub(super) fn first<'o, 'a>(
        &self,
        outputs: &'o [OutputShape<'a>],
    ) -> Result<&'o OutputShape<'a>, PostprocessingError> {
        outputs.first().ok_or_else(|| PostprocessingError::Missing {
            task: self.task(),
            wanted: "the first output".into(),
            there: vec!["none".into()],
        })
    }

    pub(super) fn named<'o, 'a>(
        &self,
        outputs: &'o [OutputShape<'a>],
        name: &str,
    ) -> Result<&'o OutputShape<'a>, PostprocessingError> {
        outputs
            .iter()
            .find(|output| output.name == name)
            .ok_or_else(|| PostprocessingError::Missing {
                task: self.task(),
                wanted: format!("output {name:?}"),
                there: outputs
                    .iter()
                    .map(|output| format!("{:?}", output.name))
                    .collect(),
            })
    }

    pub(super) fn shaped(
        &self,
        output: &OutputShape<'_>,
        shapes: &[&[Length]],
        expected: &'static str,
    ) -> Result<(), PostprocessingError> {
        let fits = |(length, wanted): (&Option<usize>, &Length)| match (length, wanted) {
            (None, _) | (_, Any) => true,
            (Some(length), Exactly(wanted)) => length == wanted,
            (Some(length), AtLeast(wanted)) => length >= wanted,
        };
        let suits = shapes
            .iter()
            .any(|shape| shape.len() == output.dims.len() && output.dims.iter().zip(*shape).all(fits));
        if suits {
            return Ok(());
        }
        Err(PostprocessingError::Shape {
            output: output.name.to_owned(),
            actual: shown(&output.dims),
            task: self.task(),
            expected,
        })
    }

    fn fraction(&self, field: &'static str, value: f32) -> Result<(), PostprocessingError> {
        self.ranged(field, value, (0.0..=1.0).contains(&value), "within 0..=1")
    }

    fn not_negative(&self, field: &'static str, value: f32) -> Result<(), PostprocessingError> {
        self.ranged(field, value, value.is_finite() && value >= 0.0, "0 or more")
    }

    pub(super) fn ranged(
        &self,
        field: &'static str,
        value: impl ToString,
        allowed: bool,
        range: &'static str,
    ) -> Result<(), PostprocessingError> {
        if allowed {
            return Ok(());
        }
        Err(PostprocessingError::Value {
            task: self.task(),
            field,
            value: value.to_string(),
            range,
        })
    }
}

pub(super) fn shown(dims: &[Option<usize>]) -> String {
    let lengths: Vec<String> = dims
        .iter()
        .map(|length| length.map_or_else(|| "?".into(), |length| length.to_string()))
        .collect();
    format!("[{}]", lengths.join(", "))
}
