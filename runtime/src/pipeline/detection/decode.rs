use edgeopt_models::bundle::DetectionFormat;

use super::grid::{self, Cell};
use super::{Bounds, Candidate};
use crate::pipeline::postprocess::{Outputs, PostprocessError, finite};

/// The boxes that reach the score.
pub(super) fn candidates(
    outputs: &Outputs<'_>,
    format: &DetectionFormat,
    least: f32,
) -> Result<Vec<Candidate>, PostprocessError> {
    match format {
        DetectionFormat::YoloV5 => {
            let (name, tensor) = outputs.first()?;
            let values = finite(name, tensor)?;
            let row = tensor.dims().last().copied().unwrap_or(0);
            Ok(yolov5(&values, row, least))
        }
        DetectionFormat::YoloX {
            width,
            height,
            strides,
        } => {
            let (name, tensor) = outputs.first()?;
            let values = finite(name, tensor)?;
            let row = tensor.dims().last().copied().unwrap_or(0);
            Ok(yolox(
                &values,
                row,
                grid::cells((*width, *height), strides),
                least,
            ))
        }
        DetectionFormat::Detr {
            logits,
            boxes,
            width,
            height,
        } => {
            let logit_tensor = outputs.named(logits)?;
            let logits = finite(logits, logit_tensor)?;
            let bounds = finite(boxes, outputs.named(boxes)?)?;
            let classes = logit_tensor.dims().last().copied().unwrap_or(0);
            let queries = logits.len() / classes.max(1);
            let (bounds, _) = bounds.as_chunks::<4>();
            if bounds.len() != queries {
                return Err(PostprocessError::Queries {
                    boxes: bounds.len(),
                    queries,
                });
            }
            Ok(detr(
                &logits,
                classes,
                bounds,
                (*width as f32, *height as f32),
                least,
            ))
        }
        DetectionFormat::YoloV8 => {
            let (name, tensor) = outputs.first()?;
            let values = finite(name, tensor)?;
            let boxes = tensor.dims().last().copied().unwrap_or(0);
            Ok(yolov8(&values, boxes, least))
        }
        DetectionFormat::EndToEnd => {
            let (name, tensor) = outputs.first()?;
            let values = finite(name, tensor)?;
            let (rows, _) = values.as_chunks::<6>();
            rows.iter()
                .filter(|row| row[4] >= least)
                .map(|[left, top, right, bottom, score, class]| {
                    Ok(Candidate {
                        bounds: corners([*left, *top, *right, *bottom]),
                        score: *score,
                        class: index(name, *class)?,
                    })
                })
                .collect()
        }
        DetectionFormat::Separate {
            boxes,
            scores,
            classes,
            count,
        } => {
            let read = |name: &str| Ok::<_, PostprocessError>(outputs.named(name)?.to_f32()?);
            let (bounds, scores_read, classes_read) = (read(boxes)?, read(scores)?, read(classes)?);
            let (bounds, _) = bounds.as_chunks::<4>();
            if bounds.len() != scores_read.len() || bounds.len() != classes_read.len() {
                return Err(PostprocessError::Counts {
                    boxes: format!("{boxes:?} has {}", bounds.len()),
                    scores: format!("{scores:?} has {}", scores_read.len()),
                    classes: format!("{classes:?} has {}", classes_read.len()),
                });
            }
            // What stands behind the boxes that count is padding, with any content.
            let valid = match count {
                Some(name) => index(name, read(name)?.first().copied().unwrap_or(0.0))?,
                None => bounds.len(),
            };
            let mut found = Vec::new();
            for ((bounds, score), class) in bounds
                .iter()
                .zip(scores_read.iter())
                .zip(classes_read.iter())
                .take(valid)
            {
                for (name, value) in [(scores, score)]
                    .into_iter()
                    .chain(bounds.iter().map(|x| (boxes, x)))
                {
                    if !value.is_finite() {
                        return Err(PostprocessError::NotFinite { output: name.clone() });
                    }
                }
                if *score >= least {
                    found.push(Candidate {
                        bounds: corners(*bounds),
                        score: *score,
                        class: index(classes, *class)?,
                    });
                }
            }
            Ok(found)
        }
    }
}

/// Rows of centre x, centre y, width, height, objectness and a score per class.
fn yolov5(values: &[f32], row: usize, least: f32) -> Vec<Candidate> {
    let rows = values.chunks_exact(row.max(1));
    rows.filter_map(|row| {
        let ([x, y, width, height, objectness], scores) = row.split_first_chunk::<5>()?;
        // Classes' scores are at most 1: most rows end here.
        if objectness < &least {
            return None;
        }
        let (class, best) = best(scores)?;
        let score = objectness * best;
        (score >= least).then(|| Candidate {
            bounds: centred([*x, *y, *width, *height]),
            score,
            class,
        })
    })
    .collect()
}

/// As [`yolov5`], the box relative to its cell: centre from the cell's corner and logarithm of the size, in strides
/// (Ge et al., "YOLOX: Exceeding YOLO Series in 2021").
fn yolox(values: &[f32], row: usize, cells: impl Iterator<Item = Cell>, least: f32) -> Vec<Candidate> {
    let rows = values.chunks_exact(row.max(1)).zip(cells);
    rows.filter_map(|(row, cell)| {
        let ([x, y, width, height, objectness], scores) = row.split_first_chunk::<5>()?;
        if objectness < &least {
            return None;
        }
        let (class, best) = best(scores)?;
        let score = objectness * best;
        (score >= least).then(|| Candidate {
            bounds: centred([
                (x + cell.column) * cell.stride,
                (y + cell.row) * cell.stride,
                width.exp() * cell.stride,
                height.exp() * cell.stride,
            ]),
            score,
            class,
        })
    })
    .collect()
}

/// Every pair of a query and a class whose score, the sigmoid of its logit, reaches `least`.
fn detr(
    logits: &[f32],
    classes: usize,
    bounds: &[[f32; 4]],
    (width, height): (f32, f32),
    least: f32,
) -> Vec<Candidate> {
    let queries = logits.chunks_exact(classes.max(1)).zip(bounds);
    let mut found = Vec::new();
    for (logits, [x, y, w, h]) in queries {
        for (class, logit) in logits.iter().enumerate() {
            let score = 1.0 / (1.0 + (-logit).exp());
            if score >= least {
                found.push(Candidate {
                    bounds: centred([x * width, y * height, w * width, h * height]),
                    score,
                    class,
                });
            }
        }
    }
    found
}

/// Columns of centre x, centre y, width, height and a score per class: read row by row, as they lie in memory.
fn yolov8(values: &[f32], boxes: usize, least: f32) -> Vec<Candidate> {
    let mut rows = values.chunks_exact(boxes.max(1));
    let (Some(x), Some(y), Some(width), Some(height)) = (rows.next(), rows.next(), rows.next(), rows.next())
    else {
        return Vec::new();
    };
    let mut best = vec![(f32::NEG_INFINITY, 0); boxes];
    for (class, scores) in rows.enumerate() {
        for (best, score) in best.iter_mut().zip(scores) {
            if *score > best.0 {
                *best = (*score, class);
            }
        }
    }
    let reached = best.iter().enumerate().filter(|(_, (score, _))| *score >= least);
    reached
        .map(|(i, (score, class))| Candidate {
            bounds: centred([x[i], y[i], width[i], height[i]]),
            score: *score,
            class: *class,
        })
        .collect()
}

/// The first of the highest scores.
fn best(scores: &[f32]) -> Option<(usize, f32)> {
    let scores = scores.iter().copied().enumerate();
    scores.reduce(|best, next| if next.1 > best.1 { next } else { best })
}

fn centred([x, y, width, height]: [f32; 4]) -> Bounds {
    corners([
        x - width / 2.0,
        y - height / 2.0,
        x + width / 2.0,
        y + height / 2.0,
    ])
}

fn corners([left, top, right, bottom]: [f32; 4]) -> Bounds {
    Bounds {
        left,
        top,
        right,
        bottom,
    }
}

/// A count or an index that came as a number of any type.
fn index(output: &str, value: f32) -> Result<usize, PostprocessError> {
    // Below 2²⁴, where every whole number has a float.
    if (0.0..16_777_216.0).contains(&value) && value.fract() == 0.0 {
        return Ok(value as usize);
    }
    let output = output.to_owned();
    Err(if value.is_finite() {
        PostprocessError::Index { output, value }
    } else {
        PostprocessError::NotFinite { output }
    })
}
