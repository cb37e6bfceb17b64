//! Written here because what crates offer costs more than it gives: `imageproc` rounds the corners to whole pixels,
//! `geo` brings a whole library of geography.

/// A rectangle at any angle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rectangle {
    centre: [f64; 2],
    /// Direction of one side, of length 1; the other's is this turned by 90°.
    axis: [f64; 2],
    /// Half the length along the axis, and across it.
    half: [f64; 2],
}

impl Rectangle {
    /// The rectangle of the least area that holds all points. One side of it lies along a side of their convex hull
    /// (Freeman and Shapira 1975). `None` without points.
    pub(super) fn around(points: &[[f64; 2]]) -> Option<Self> {
        let hull = convex_hull(points);
        let first = *hull.first()?;
        let sides = hull.iter().zip(hull.iter().cycle().skip(1));
        let rectangles = sides.filter_map(|(a, b)| {
            let (dx, dy) = (b[0] - a[0], b[1] - a[1]);
            let length = dx.hypot(dy);
            (length > 0.0).then(|| Self::along([dx / length, dy / length], &hull))
        });
        // All points are one: there is no side.
        let point = Self {
            centre: first,
            axis: [1.0, 0.0],
            half: [0.0; 2],
        };
        Some(
            rectangles
                .min_by(|a, b| a.area().total_cmp(&b.area()))
                .unwrap_or(point),
        )
    }

    /// The rectangle with this axis that just holds all points.
    fn along(axis: [f64; 2], points: &[[f64; 2]]) -> Self {
        let normal = [-axis[1], axis[0]];
        let extent = |direction: [f64; 2]| {
            points
                .iter()
                .map(|point| point[0] * direction[0] + point[1] * direction[1])
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| {
                    (low.min(at), high.max(at))
                })
        };
        let (left, right) = extent(axis);
        let (top, bottom) = extent(normal);
        let (along, across) = ((left + right) / 2.0, (top + bottom) / 2.0);
        Self {
            centre: [
                axis[0] * along + normal[0] * across,
                axis[1] * along + normal[1] * across,
            ],
            axis,
            half: [(right - left) / 2.0, (bottom - top) / 2.0],
        }
    }

    fn area(&self) -> f64 {
        4.0 * self.half[0] * self.half[1]
    }

    pub(super) fn shorter_side(&self) -> f64 {
        2.0 * self.half[0].min(self.half[1])
    }

    /// Grown on every side by area × `ratio` ÷ perimeter: undoes the shrinking of text that DB's detectors are trained
    /// with (Vatti clipping; the smallest rectangle around its rounded result is this one).
    pub(super) fn unclipped(self, ratio: f64) -> Self {
        let perimeter = 4.0 * (self.half[0] + self.half[1]);
        let by = if perimeter > 0.0 {
            self.area() * ratio / perimeter
        } else {
            0.0
        };
        Self {
            half: self.half.map(|half| half + by),
            ..self
        }
    }

    /// Where the horizontal line at `y` enters and leaves.
    pub(super) fn span(&self, y: f64) -> Option<(f64, f64)> {
        let dy = y - self.centre[1];
        let [cos, sin] = self.axis;
        // |slope × dx + offset| ≤ half, for the directions along and across.
        let strips = [(cos, sin * dy, self.half[0]), (-sin, cos * dy, self.half[1])];
        let (mut first, mut last) = (f64::NEG_INFINITY, f64::INFINITY);
        for (slope, offset, half) in strips {
            let half = half + 1e-9;
            if slope.abs() < 1e-12 {
                if offset.abs() > half {
                    return None;
                }
                continue;
            }
            let (a, b) = ((-half - offset) / slope, (half - offset) / slope);
            first = first.max(a.min(b));
            last = last.min(a.max(b));
        }
        (first <= last).then_some((self.centre[0] + first, self.centre[0] + last))
    }

    /// Top left, top right, bottom right, bottom left: the two leftmost corners are the left ones.
    pub(super) fn corners(&self) -> [[f64; 2]; 4] {
        let [cos, sin] = self.axis;
        let mut corners = [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)].map(|(along, across)| {
            let (along, across) = (along * self.half[0], across * self.half[1]);
            [
                self.centre[0] + cos * along - sin * across,
                self.centre[1] + sin * along + cos * across,
            ]
        });
        corners.sort_by(|a, b| a[0].total_cmp(&b[0]));
        let [a, b, c, d] = corners;
        let upper_first = |a: [f64; 2], b: [f64; 2]| if a[1] <= b[1] { (a, b) } else { (b, a) };
        let ((top_left, bottom_left), (top_right, bottom_right)) = (upper_first(a, b), upper_first(c, d));
        [top_left, top_right, bottom_right, bottom_left]
    }
}

/// The corners of the convex hull in order, without points on its sides (Andrew's monotone chain, 1979).
fn convex_hull(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let mut points = points.to_vec();
    points.sort_by(|a, b| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
    points.dedup();
    if points.len() < 3 {
        return points;
    }
    let half = |points: &mut dyn Iterator<Item = &[f64; 2]>| {
        let mut chain: Vec<[f64; 2]> = Vec::new();
        for point in points {
            while let [.., a, b] = chain.as_slice() {
                let turn = (b[0] - a[0]) * (point[1] - a[1]) - (b[1] - a[1]) * (point[0] - a[0]);
                if turn > 0.0 {
                    break;
                }
                chain.pop();
            }
            chain.push(*point);
        }
        // The last point begins the other half.
        chain.pop();
        chain
    };
    let mut hull = half(&mut points.iter());
    hull.extend(half(&mut points.iter().rev()));
    hull
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn points() -> impl Strategy<Value = Vec<[f64; 2]>> {
        let point = (-20i8..20, -20i8..20).prop_map(|(x, y)| [f64::from(x), f64::from(y)]);
        prop::collection::vec(point, 1..30)
    }

    proptest! {
        #[test]
        fn the_rectangle_holds_all_points_and_none_turned_otherwise_is_smaller(points in points()) {
            let rectangle = Rectangle::around(&points).unwrap();
            for [x, y] in &points {
                let (first, last) = rectangle.span(*y).unwrap();
                prop_assert!((first - 1e-6..=last + 1e-6).contains(x), "{x} {y} in {rectangle:?}");
            }
            for degree in 0..180 {
                let angle = f64::from(degree).to_radians();
                let other = Rectangle::along([angle.cos(), angle.sin()], &points);
                prop_assert!(rectangle.area() <= other.area() + 1e-6, "{rectangle:?} {other:?}");
            }
        }

        #[test]
        fn corners_turn_clockwise_and_enclose_the_area(points in points(), ratio in 0.0..3f64) {
            let tight = Rectangle::around(&points).unwrap();
            let grown = tight.unclipped(ratio);
            let corners = grown.corners();
            let sides = corners.iter().zip(corners.iter().cycle().skip(1));
            let doubled: f64 = sides.map(|(a, b)| a[0] * b[1] - a[1] * b[0]).sum();
            // With y downwards, clockwise is positive.
            prop_assert!((doubled / 2.0 - grown.area()).abs() < 1e-6, "{corners:?}");
            let offset = (grown.shorter_side() - tight.shorter_side()) / 2.0;
            let perimeter = 4.0 * (tight.half[0] + tight.half[1]);
            prop_assert!((offset * perimeter - ratio * tight.area()).abs() < 1e-6);
        }
    }

    #[test]
    fn a_line_of_points_and_a_single_one_have_no_area() {
        let line = Rectangle::around(&[[0.0, 0.0], [2.0, 2.0], [1.0, 1.0]]).unwrap();
        assert!(line.area().abs() < 1e-9 && (line.half[0] - 2f64.sqrt()).abs() < 1e-9);
        assert_eq!(
            Rectangle::around(&[[3.0, 4.0]]).unwrap().corners(),
            [[3.0, 4.0]; 4]
        );
        assert_eq!(Rectangle::around(&[]), None);
    }
}
