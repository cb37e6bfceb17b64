//! Regions of text from the probability map of a detector trained with differentiable binarization (Liao et al. 2020).

mod components;
mod rectangle;

use serde::Serialize;

use super::geometry::Geometry;
use components::{Run, components};
use rectangle::Rectangle;

/// A region of text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TextRegion {
    /// Mean probability of text inside, 0..=1.
    pub score: f32,
    /// x and y of the corners in pixels of the image (of the input tensor where that was no image): top left, top
    /// right, bottom right, bottom left, as the region lies in the image.
    pub corners: [[f32; 2]; 4],
}

/// What is declared.
pub(super) struct Limits {
    /// Pixels above this are text.
    pub(super) threshold: f32,
    /// Least mean probability inside.
    pub(super) box_threshold: f32,
    /// Regions grow by area × ratio ÷ perimeter.
    pub(super) unclip_ratio: f32,
    /// Least shorter side before growing, in pixels of the map.
    pub(super) min_size: f32,
    /// Most regions; those of the highest scores.
    pub(super) count: usize,
}

/// The regions in a map of `width` pixels a row, in the order of reading. The steps and their numbers are those of
/// PaddleOCR: pixels above the threshold that touch make a region, the smallest rectangle around their centres is
/// scored and grown.
pub(super) fn detect(
    map: &[f32],
    width: usize,
    limits: &Limits,
    geometry: Option<&Geometry>,
) -> Vec<TextRegion> {
    let mut found: Vec<(f32, Rectangle)> = components(map, width, limits.threshold)
        .iter()
        .filter_map(|runs| {
            let rectangle = Rectangle::around(&ends(runs))?;
            if rectangle.shorter_side() < f64::from(limits.min_size) {
                return None;
            }
            let score = mean_inside(map, width, &rectangle)?;
            (score >= limits.box_threshold)
                .then(|| (score, rectangle.unclipped(f64::from(limits.unclip_ratio))))
        })
        .collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.truncate(limits.count);
    let regions = found.into_iter().map(|(score, rectangle)| TextRegion {
        score,
        corners: rectangle.corners().map(|[x, y]| match geometry {
            Some(geometry) => geometry.to_image(x as f32, y as f32).into(),
            None => [x as f32, y as f32],
        }),
    });
    in_reading_order(regions.collect())
}

/// Centres of the runs' first and last pixels, between which all others lie.
fn ends(runs: &[Run]) -> Vec<[f64; 2]> {
    let centre = |row: usize, column: usize| [column as f64 + 0.5, row as f64 + 0.5];
    runs.iter()
        .flat_map(|run| [centre(run.row, run.start), centre(run.row, run.end - 1)])
        .collect()
}

/// Mean of the pixels whose centres are inside; `None` if there is none.
fn mean_inside(map: &[f32], width: usize, rectangle: &Rectangle) -> Option<f32> {
    let (mut sum, mut count) = (0f64, 0usize);
    for (row, values) in map.chunks_exact(width.max(1)).enumerate() {
        let Some((first, last)) = rectangle.span(row as f64 + 0.5) else {
            continue;
        };
        // Pixels have their centres at halves; those on the edge itself are inside.
        let first = (first - 0.5 - 1e-6).ceil().max(0.0) as usize;
        let last = (last - 0.5 + 1e-6).floor();
        if last < first as f64 {
            continue;
        }
        let inside = values.get(first..(last as usize + 1).min(width)).unwrap_or(&[]);
        sum += inside.iter().map(|value| f64::from(*value)).sum::<f64>();
        count += inside.len();
    }
    (count > 0).then(|| (sum / count as f64) as f32)
}

/// Line by line from the top, each from the left. A region stands in a line if the taller one of it and the line's
/// highest reaches the other's middle.
fn in_reading_order(mut regions: Vec<TextRegion>) -> Vec<TextRegion> {
    let centre = |region: &TextRegion, axis: usize| {
        region.corners.iter().map(|corner| corner[axis]).sum::<f32>() / 4.0
    };
    let height = |region: &TextRegion| {
        let [top_left, _, _, bottom_left] = region.corners;
        (bottom_left[0] - top_left[0]).hypot(bottom_left[1] - top_left[1])
    };
    regions.sort_by(|a, b| centre(a, 1).total_cmp(&centre(b, 1)));
    let mut rest = regions.as_mut_slice();
    while let Some(first) = rest.first() {
        let (middle, tall) = (centre(first, 1), height(first));
        let same = |region: &&TextRegion| centre(region, 1) - middle < tall.max(height(region)) / 2.0;
        let line = rest.iter().take_while(same).count();
        let (line, others) = rest.split_at_mut(line.max(1));
        line.sort_by(|a, b| centre(a, 0).total_cmp(&centre(b, 0)));
        rest = others;
    }
    regions
}

#[cfg(test)]
mod tests;
