//! Mean average precision of object detectors by COCO's definition, number for number what its reference program
//! (`pycocotools`) computes.

use std::collections::BTreeMap;

use edgeopt_runtime::dataset::KnownObject;
use edgeopt_runtime::pipeline::detection::{Bounds, Object};

/// Objects found that count, in an image and class: the best of them.
pub const MOST_DETECTIONS: usize = 100;

/// Overlaps (intersection over union) from which an object counts as found: 0.5, 0.55 … 0.95.
const OVERLAPS: usize = 10;

/// Recalls at which precision is read: 0, 0.01 … 1.
const RECALLS: usize = 101;

/// Collects what was found in images and what is known to be there.
#[derive(Clone, Debug, Default)]
pub struct AveragePrecision {
    images: usize,
    classes: BTreeMap<usize, Class>,
}

/// One class over all images.
#[derive(Clone, Debug, Default)]
struct Class {
    /// Known objects, without crowds.
    known: usize,
    found: Vec<Found>,
}

/// An object found; a bit for each overlap.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    score: f32,
    /// It is a known object's.
    right: u16,
    /// It lies in a crowd: neither right nor wrong.
    aside: u16,
}

/// The mean over the classes that have known objects, 0..=1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanAveragePrecision {
    /// With an overlap of 0.5.
    pub at_50: f64,
    /// Mean over the overlaps 0.5, 0.55 … 0.95: COCO's primary metric.
    pub at_50_to_95: f64,
}

impl AveragePrecision {
    /// Adds an image. `found` comes best first; boxes of both are in pixels of the image.
    pub fn add(&mut self, known: &[KnownObject], found: &[Object]) {
        self.images += 1;
        let mut images: BTreeMap<usize, (Vec<&KnownObject>, Vec<&Object>)> = BTreeMap::new();
        for object in known {
            images.entry(object.class).or_default().0.push(object);
        }
        for object in found {
            images.entry(object.class).or_default().1.push(object);
        }
        for (class, (mut known, mut found)) in images {
            // Crowds last, everything else in its order.
            known.sort_by_key(|object| object.crowd);
            found.sort_by(|a, b| b.score.total_cmp(&a.score));
            found.truncate(MOST_DETECTIONS);
            let class = self.classes.entry(class).or_default();
            class.known += known.iter().filter(|object| !object.crowd).count();
            class.found.extend(matched(&known, &found));
        }
    }

    /// Images added.
    pub fn images(&self) -> usize {
        self.images
    }

    /// The metric; `None` if no object is known.
    pub fn mean(&self) -> Option<MeanAveragePrecision> {
        let classes: Vec<[f64; OVERLAPS]> = self
            .classes
            .values()
            .filter(|class| class.known > 0)
            .map(Class::average_precisions)
            .collect();
        if classes.is_empty() {
            return None;
        }
        let at_50 = classes.iter().map(|class| class[0]).sum::<f64>();
        let all = classes.iter().flatten().sum::<f64>();
        Some(MeanAveragePrecision {
            at_50: at_50 / classes.len() as f64,
            at_50_to_95: all / (classes.len() * OVERLAPS) as f64,
        })
    }
}

/// Gives each object found, best first, the known one it overlaps most, if by enough and if no better one has it. Only
/// what matches no object may lie in a crowd, and any number may lie in one.
fn matched(known: &[&KnownObject], found: &[&Object]) -> Vec<Found> {
    let overlaps: Vec<Vec<f64>> = found
        .iter()
        .map(|found| known.iter().map(|known| overlap(&found.bounds, known)).collect())
        .collect();
    let mut results: Vec<Found> = found
        .iter()
        .map(|found| Found {
            score: found.score,
            ..Found::default()
        })
        .collect();
    for bit in 0..OVERLAPS {
        let mut taken = vec![false; known.len()];
        for (result, overlaps) in results.iter_mut().zip(&overlaps) {
            let mut least = least_overlap(bit).min(1.0 - 1e-10);
            let mut best: Option<usize> = None;
            for (place, (object, overlap)) in known.iter().zip(overlaps).enumerate() {
                if taken[place] && !object.crowd {
                    continue;
                }
                if object.crowd && best.is_some_and(|best| !known[best].crowd) {
                    break;
                }
                // Of equal overlaps the last.
                if *overlap >= least {
                    least = *overlap;
                    best = Some(place);
                }
            }
            let Some(best) = best else { continue };
            taken[best] = true;
            if known[best].crowd {
                result.aside |= 1 << bit;
            } else {
                result.right |= 1 << bit;
            }
        }
    }
    results
}

/// As the reference program's `numpy.linspace(0.5, 0.95, 10)` rounds them.
fn least_overlap(bit: usize) -> f64 {
    if bit + 1 == OVERLAPS {
        return 0.95;
    }
    0.5 + bit as f64 * ((0.95 - 0.5) / (OVERLAPS - 1) as f64)
}

/// Intersection over union; in a crowd, the part of the found box that lies in it.
fn overlap(found: &Bounds, known: &KnownObject) -> f64 {
    let sides = |bounds: &Bounds| [bounds.left, bounds.top, bounds.right, bounds.bottom].map(f64::from);
    let (a, b) = (sides(found), sides(&known.bounds));
    let (width, height) = (a[2].min(b[2]) - a[0].max(b[0]), a[3].min(b[3]) - a[1].max(b[1]));
    if width <= 0.0 || height <= 0.0 {
        return 0.0;
    }
    let area = |sides: [f64; 4]| (sides[2] - sides[0]) * (sides[3] - sides[1]);
    let common = width * height;
    let whole = if known.crowd {
        area(a)
    } else {
        area(a) + area(b) - common
    };
    common / whole
}

impl Class {
    /// Per overlap, the mean over 101 recalls of the highest precision at that recall or a higher one.
    fn average_precisions(&self) -> [f64; OVERLAPS] {
        let mut found = self.found.clone();
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
        let mut averages = [0.0; OVERLAPS];
        for (bit, average) in averages.iter_mut().enumerate() {
            *average = average_precision(self.known, &found, 1 << bit);
        }
        averages
    }
}

fn average_precision(known: usize, found: &[Found], bit: u16) -> f64 {
    let (mut right, mut wrong) = (0usize, 0usize);
    let mut curve: Vec<(f64, f64)> = Vec::with_capacity(found.len());
    for found in found {
        if found.right & bit != 0 {
            right += 1;
        } else if found.aside & bit == 0 {
            wrong += 1;
        }
        let precision = right as f64 / ((right + wrong) as f64 + f64::EPSILON);
        curve.push((right as f64 / known as f64, precision));
    }
    let mut highest = 0.0;
    for (_, precision) in curve.iter_mut().rev() {
        highest = f64::max(highest, *precision);
        *precision = highest;
    }
    let sum: f64 = (0..RECALLS)
        .map(|place| {
            let recall = place as f64 * 0.01;
            let reached = curve.partition_point(|(reached, _)| *reached < recall);
            curve.get(reached).map_or(0.0, |(_, precision)| *precision)
        })
        .sum();
    sum / RECALLS as f64
}

#[cfg(test)]
mod tests;
