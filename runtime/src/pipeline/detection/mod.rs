//! Objects from the outputs of a detector.

mod decode;
mod grid;
mod suppress;

use edgeopt_models::bundle::DetectionFormat;
use serde::Serialize;

use super::geometry::Geometry;
use super::postprocess::{Outputs, PostprocessError};

pub use suppress::suppress;

/// An object found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Object {
    /// Index of its class.
    pub class: usize,
    /// Name of its class, if the manifest has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Score, 0..=1.
    pub score: f32,
    /// Where it is, in pixels of the image; of the input tensor where that was no image.
    #[serde(rename = "box")]
    pub bounds: Bounds,
}

/// An upright box. Coordinates are continuous: the first pixel reaches from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Bounds {
    pub left: f32,
    pub top: f32,
    pub right: f32,
    pub bottom: f32,
}

impl Bounds {
    /// Width × height; 0 for what is no box.
    pub fn area(&self) -> f32 {
        (self.right - self.left).max(0.0) * (self.bottom - self.top).max(0.0)
    }

    /// Intersection over union, 0..=1; 0 if both are empty.
    pub fn iou(&self, other: &Self) -> f32 {
        let common = Self {
            left: self.left.max(other.left),
            top: self.top.max(other.top),
            right: self.right.min(other.right),
            bottom: self.bottom.min(other.bottom),
        }
        .area();
        let union = self.area() + other.area() - common;
        if union > 0.0 { common / union } else { 0.0 }
    }

    fn to_image(self, geometry: &Geometry) -> Self {
        let (left, top) = geometry.to_image(self.left, self.top);
        let (right, bottom) = geometry.to_image(self.right, self.bottom);
        Self {
            left,
            top,
            right,
            bottom,
        }
    }
}

/// A box with its best class, in pixels of the input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Where it is.
    pub bounds: Bounds,
    /// Score, 0..=1.
    pub score: f32,
    /// Index of the class.
    pub class: usize,
}

/// What is declared beside the format.
pub(super) struct Limits<'a> {
    pub(super) score: f32,
    pub(super) iou: Option<f32>,
    pub(super) count: usize,
    pub(super) labels: &'a [String],
}

/// Reads the outputs, drops doubles, and maps what is left to the image. What lies outside the image is dropped. The
/// outputs' shapes have been checked.
pub(super) fn detect(
    outputs: &Outputs<'_>,
    format: &DetectionFormat,
    limits: &Limits<'_>,
) -> Result<Vec<Object>, PostprocessError> {
    let mut candidates = decode::candidates(outputs, format, limits.score)?;
    candidates.retain(|candidate| candidate.bounds.area() > 0.0);
    let kept = suppress(candidates, limits.iou, limits.count);
    let objects = kept.into_iter().filter_map(|candidate| {
        let bounds = match outputs.geometry {
            Some(geometry) => candidate.bounds.to_image(geometry),
            None => candidate.bounds,
        };
        (bounds.area() > 0.0).then(|| Object {
            class: candidate.class,
            label: limits.labels.get(candidate.class).cloned(),
            score: candidate.score,
            bounds,
        })
    });
    Ok(objects.collect())
}

#[cfg(test)]
mod tests;
