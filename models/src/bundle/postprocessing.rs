use serde::{Deserialize, Serialize};

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

/// What the outputs of an object detector hold, in pixels of the input and probabilities 0..=1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DetectionFormat {
    /// First output [1, boxes, 5 + classes]: centre x, centre y, width, height, objectness, a score per class. The
    /// score of a box is objectness × its best class's.
    #[serde(rename = "yolov5")]
    YoloV5,
    /// First output [1, 4 + classes, boxes]: centre x, centre y, width, height, a score per class. The score of a box
    /// is its best class's. YOLOv8, v9, v11 and v12 export this.
    #[serde(rename = "yolov8")]
    YoloV8,
    /// First output [1, boxes, 6]: left, top, right, bottom, score, class. YOLOv10, YOLO26 and exports with
    /// non-maximum suppression inside have this.
    EndToEnd,
    /// One output each, by name.
    Separate {
        /// `[1, boxes, 4]` or `[boxes, 4]`: left, top, right, bottom.
        boxes: String,
        /// `[1, boxes]` or `[boxes]`.
        scores: String,
        /// `[1, boxes]` or `[boxes]`: indices, of any numeric type.
        classes: String,
        /// One number: how many of the boxes count. Absent if all do.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<String>,
    },
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
enum Length {
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
                self.check_boxes(format, labels.len(), outputs)
            }
        }
    }

    fn check_boxes(
        &self,
        format: &DetectionFormat,
        labels: usize,
        outputs: &[OutputShape<'_>],
    ) -> Result<(), PostprocessingError> {
        let (axis, others) = match format {
            DetectionFormat::YoloV5 => (2, 5),
            DetectionFormat::YoloV8 => (1, 4),
            DetectionFormat::EndToEnd => {
                let output = self.first(outputs)?;
                return self.shaped(output, &[&[Exactly(1), Any, Exactly(6)]], "[1, boxes, 6]");
            }
            DetectionFormat::Separate {
                boxes,
                scores,
                classes,
                count,
            } => {
                self.shaped(
                    self.named(outputs, boxes)?,
                    &[&[Exactly(1), Any, Exactly(4)], &[Any, Exactly(4)]],
                    "[1, boxes, 4] or [boxes, 4]",
                )?;
                for name in [scores, classes] {
                    let output = self.named(outputs, name)?;
                    self.shaped(output, &[&[Exactly(1), Any], &[Any]], "[1, boxes] or [boxes]")?;
                }
                let Some(count) = count else { return Ok(()) };
                return self.shaped(
                    self.named(outputs, count)?,
                    &[&[], &[Exactly(1)], &[Exactly(1), Exactly(1)]],
                    "one number",
                );
            }
        };
        let output = self.first(outputs)?;
        let (shape, expected): ([Length; 3], _) = if axis == 2 {
            ([Exactly(1), Any, AtLeast(others + 1)], "[1, boxes, 5 + classes]")
        } else {
            ([Exactly(1), AtLeast(others + 1), Any], "[1, 4 + classes, boxes]")
        };
        self.shaped(output, &[&shape], expected)?;
        match output.dims.get(axis) {
            Some(Some(length)) if labels > 0 && *length != others + labels => {
                Err(PostprocessingError::Labels {
                    output: output.name.to_owned(),
                    actual: shown(&output.dims),
                    classes: *length - others,
                    labels,
                })
            }
            _ => Ok(()),
        }
    }

    fn first<'o, 'a>(
        &self,
        outputs: &'o [OutputShape<'a>],
    ) -> Result<&'o OutputShape<'a>, PostprocessingError> {
        outputs.first().ok_or_else(|| PostprocessingError::Missing {
            task: self.task(),
            wanted: "the first output".into(),
            there: vec!["none".into()],
        })
    }

    fn named<'o, 'a>(
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

    fn shaped(
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

    fn ranged(
        &self,
        field: &'static str,
        value: f32,
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

fn shown(dims: &[Option<usize>]) -> String {
    let lengths: Vec<String> = dims
        .iter()
        .map(|length| length.map_or_else(|| "?".into(), |length| length.to_string()))
        .collect();
    format!("[{}]", lengths.join(", "))
}
