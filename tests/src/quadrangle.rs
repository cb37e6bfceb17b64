//! Quadrangles and how well found ones match known ones.

/// A convex quadrangle by its corners, clockwise with y downwards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quadrangle(pub [[f32; 2]; 4]);

impl Quadrangle {
    /// Area in pixels.
    pub fn area(&self) -> f32 {
        area(&self.0)
    }

    /// Intersection over union, 0..=1.
    pub fn iou(&self, other: &Self) -> f32 {
        let common = area(&self.cut(other));
        let union = self.area() + other.area() - common;
        if union > 0.0 { common / union } else { 0.0 }
    }

    /// The part inside `other`: cut along each of its sides in turn (Sutherland and Hodgman 1974).
    fn cut(&self, other: &Self) -> Vec<[f32; 2]> {
        let mut left = self.0.to_vec();
        for (a, b) in sides(&other.0) {
            let inside = |p: [f32; 2]| (b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0]);
            let mut kept = Vec::new();
            for (p, q) in sides(&left) {
                let (at_p, at_q) = (inside(p), inside(q));
                if at_p >= 0.0 {
                    kept.push(p);
                }
                if (at_p >= 0.0) != (at_q >= 0.0) {
                    let part = at_p / (at_p - at_q);
                    kept.push([p[0] + part * (q[0] - p[0]), p[1] + part * (q[1] - p[1])]);
                }
            }
            left = kept;
        }
        left
    }
}

fn sides(corners: &[[f32; 2]]) -> impl Iterator<Item = ([f32; 2], [f32; 2])> + '_ {
    let next = corners.iter().cycle().skip(1);
    corners.iter().copied().zip(next.copied())
}

/// Gauss's area formula.
fn area(corners: &[[f32; 2]]) -> f32 {
    let doubled: f32 = sides(corners).map(|(a, b)| a[0] * b[1] - a[1] * b[0]).sum();
    (doubled / 2.0).max(0.0)
}

/// Counts of a comparison, over any number of images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matches {
    /// Known ones that were found.
    pub found: usize,
    /// Known ones.
    pub known: usize,
    /// Everything that was found, right or wrong.
    pub reported: usize,
}

impl Matches {
    /// Adds one image. The pairs that overlap most are matched first, each once, and count from an intersection over
    /// union of `least`.
    pub fn add(&mut self, known: &[Quadrangle], reported: &[Quadrangle], least: f32) {
        let mut pairs: Vec<(f32, usize, usize)> = Vec::new();
        for (i, a) in known.iter().enumerate() {
            pairs.extend(reported.iter().enumerate().map(|(j, b)| (a.iou(b), i, j)));
        }
        pairs.retain(|(iou, ..)| *iou >= least);
        pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (mut known_free, mut reported_free) = (vec![true; known.len()], vec![true; reported.len()]);
        for (_, i, j) in pairs {
            if known_free[i] && reported_free[j] {
                (known_free[i], reported_free[j]) = (false, false);
                self.found += 1;
            }
        }
        self.known += known.len();
        self.reported += reported.len();
    }

    /// Harmonic mean of precision and recall, 0..=1; 1 if there was nothing to find and nothing was found.
    pub fn f_score(&self) -> f64 {
        if self.known + self.reported == 0 {
            return 1.0;
        }
        2.0 * self.found as f64 / (self.known + self.reported) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SQUARE: Quadrangle = Quadrangle([[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0]]);

    fn moved(quadrangle: &Quadrangle, x: f32, y: f32) -> Quadrangle {
        Quadrangle(quadrangle.0.map(|[px, py]| [px + x, py + y]))
    }

    #[test]
    fn overlap_is_common_area_by_united_area() {
        let diamond = Quadrangle([[1.0, 0.0], [2.0, 1.0], [1.0, 2.0], [0.0, 1.0]]);
        for (other, expected) in [
            (SQUARE, 1.0),
            (diamond, 0.5),
            (moved(&SQUARE, 1.0, 0.0), 1.0 / 3.0),
            (moved(&SQUARE, 1.0, 1.0), 1.0 / 7.0),
            (moved(&SQUARE, 2.5, 0.0), 0.0),
        ] {
            assert!((SQUARE.iou(&other) - expected).abs() < 1e-6, "{other:?}");
            assert!((other.iou(&SQUARE) - expected).abs() < 1e-6, "{other:?}");
        }
    }

    #[test]
    fn each_is_matched_once_and_what_is_left_over_counts_against() {
        let mut matches = Matches::default();
        let far = moved(&SQUARE, 10.0, 0.0);
        matches.add(
            &[SQUARE, far],
            &[moved(&SQUARE, 0.1, 0.0), SQUARE, moved(&far, 1.5, 0.0)],
            0.5,
        );
        assert_eq!((matches.found, matches.known, matches.reported), (1, 2, 3));
        assert!((matches.f_score() - 0.4).abs() < 1e-9);
        assert_eq!(Matches::default().f_score(), 1.0);
    }
}
