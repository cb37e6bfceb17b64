use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::postprocessing::{Length, OutputShape, Postprocessing, PostprocessingError, shown};

use Length::{Any, AtLeast, Exactly};

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
    /// First output [1, cells, 5 + classes], as YOLOX exports it: x and y of the centre from the cell's corner and
    /// logarithms of width and height, in strides; objectness and a score per class, which are probabilities. Cells stand
    /// stride by stride, row by row. The score of a box is objectness × its best class's. What YOLOX exports with
    /// `--decode_in_inference` is [`Self::YoloV5`]'s.
    #[serde(rename = "yolox")]
    YoloX {
        /// Width of the input in pixels.
        width: usize,
        /// Height of the input in pixels.
        height: usize,
        /// Pixels from cell to cell of each grid, in the output's order.
        #[serde(default = "yolox_strides")]
        strides: Vec<usize>,
    },
    /// One output each, by name, as RT-DETR, D-FINE and Deformable DETR export them: every pair of a query and a class is
    /// a detection, its score the logit's sigmoid.
    Detr {
        /// `[1, queries, classes]`: a logit each, no class for "nothing".
        logits: String,
        /// `[1, queries, 4]`: centre x, centre y, width, height as parts of the input's size, 0..=1.
        boxes: String,
        /// Width of the input in pixels.
        width: usize,
        /// Height of the input in pixels.
        height: usize,
    },
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

/// The strides of YOLOX's models but its P6 ones.
fn yolox_strides() -> Vec<usize> {
    vec![8, 16, 32]
}

/// Where a format's classes are counted: name of the output (the first if there is none), axis, and what else stands on
/// that axis.
fn classes_axis(format: &DetectionFormat) -> Option<(Option<&str>, usize, usize)> {
    match format {
        DetectionFormat::YoloV5 | DetectionFormat::YoloX { .. } => Some((None, 2, 5)),
        DetectionFormat::YoloV8 => Some((None, 1, 4)),
        DetectionFormat::Detr { logits, .. } => Some((Some(logits), 2, 0)),
        DetectionFormat::EndToEnd | DetectionFormat::Separate { .. } => None,
    }
}

/// Numbers of one kind in an output that joins several: some places of one axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPart {
    /// What they are.
    pub name: &'static str,
    /// The axis.
    pub axis: usize,
    /// Places on it; what lies behind its end does not exist.
    pub places: Range<usize>,
}

/// The parts of the first output, where it joins boxes and scores.
pub(super) fn parts(format: &DetectionFormat) -> Vec<OutputPart> {
    match classes_axis(format) {
        Some((None, axis, _)) => [("boxes", 0..4), ("scores", 4..usize::MAX)]
            .map(|(name, places)| OutputPart { name, axis, places })
            .into(),
        _ => Vec::new(),
    }
}

/// How many classes the outputs have a place for, where they tell.
pub(super) fn classes(format: &DetectionFormat, outputs: &[OutputShape<'_>]) -> Option<usize> {
    let (name, axis, others) = classes_axis(format)?;
    let output = match name {
        Some(name) => outputs.iter().find(|output| output.name == name)?,
        None => outputs.first()?,
    };
    output.dims.get(axis).copied()??.checked_sub(others)
}

/// Holds the outputs' shapes against the format and the number of labels; 0 labels are none.
pub(super) fn check(
    task: &Postprocessing,
    format: &DetectionFormat,
    labels: usize,
    outputs: &[OutputShape<'_>],
) -> Result<(), PostprocessingError> {
    match format {
        DetectionFormat::YoloV5 | DetectionFormat::YoloX { .. } => {
            let shape = [Exactly(1), Any, AtLeast(6)];
            task.shaped(task.first(outputs)?, &[&shape], "[1, boxes, 5 + classes]")?;
        }
        DetectionFormat::YoloV8 => {
            let shape = [Exactly(1), AtLeast(5), Any];
            task.shaped(task.first(outputs)?, &[&shape], "[1, 4 + classes, boxes]")?;
        }
        DetectionFormat::EndToEnd => {
            let shape = [Exactly(1), Any, Exactly(6)];
            return task.shaped(task.first(outputs)?, &[&shape], "[1, boxes, 6]");
        }
        DetectionFormat::Separate {
            boxes,
            scores,
            classes,
            count,
        } => {
            task.shaped(
                task.named(outputs, boxes)?,
                &[&[Exactly(1), Any, Exactly(4)], &[Any, Exactly(4)]],
                "[1, boxes, 4] or [boxes, 4]",
            )?;
            for name in [scores, classes] {
                let output = task.named(outputs, name)?;
                task.shaped(output, &[&[Exactly(1), Any], &[Any]], "[1, boxes] or [boxes]")?;
            }
            let Some(count) = count else { return Ok(()) };
            return task.shaped(
                task.named(outputs, count)?,
                &[&[], &[Exactly(1)], &[Exactly(1), Exactly(1)]],
                "one number",
            );
        }
        DetectionFormat::Detr { logits, boxes, .. } => {
            let shape = [Exactly(1), Any, AtLeast(1)];
            task.shaped(task.named(outputs, logits)?, &[&shape], "[1, queries, classes]")?;
            let shape = [Exactly(1), Any, Exactly(4)];
            task.shaped(task.named(outputs, boxes)?, &[&shape], "[1, queries, 4]")?;
        }
    }
    check_size(task, format, outputs)?;
    let named = classes_axis(format).and_then(|(name, ..)| name);
    let output = match named {
        Some(name) => task.named(outputs, name)?,
        None => task.first(outputs)?,
    };
    match classes(format, outputs) {
        Some(classes) if labels > 0 && classes != labels => Err(PostprocessingError::Labels {
            output: output.name.to_owned(),
            actual: shown(&output.dims),
            classes,
            labels,
        }),
        _ => Ok(()),
    }
}

/// The declared size of the input, and the cells that follow from it.
fn check_size(
    task: &Postprocessing,
    format: &DetectionFormat,
    outputs: &[OutputShape<'_>],
) -> Result<(), PostprocessingError> {
    let (DetectionFormat::YoloX { width, height, .. } | DetectionFormat::Detr { width, height, .. }) = format
    else {
        return Ok(());
    };
    for (field, length) in [("width", *width), ("height", *height)] {
        task.ranged(field, length, (1..=LONGEST).contains(&length), "within 1..=65536")?;
    }
    let DetectionFormat::YoloX { strides, .. } = format else {
        return Ok(());
    };
    let divides = |stride: &usize| *stride > 0 && width % stride == 0 && height % stride == 0;
    let range = "numbers that divide width and height";
    task.ranged(
        "strides",
        format!("{strides:?}"),
        strides.iter().all(divides),
        range,
    )?;
    let cells = strides
        .iter()
        .map(|stride| (width / stride) * (height / stride))
        .sum();
    let output = task.first(outputs)?;
    match output.dims.get(1) {
        Some(Some(actual)) if *actual != cells => Err(PostprocessingError::Cells {
            output: output.name.to_owned(),
            actual: shown(&output.dims),
            width: *width,
            height: *height,
            strides: strides.clone(),
            cells,
        }),
        _ => Ok(()),
    }
}

/// Longest side of an input in pixels: far above any, and products stay small.
const LONGEST: usize = 65_536;
