use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits {
    threshold: 0.3,
    box_threshold: 0.6,
    unclip_ratio: 1.5,
    min_size: 3.0,
    count: 1000,
};

/// A map with rectangles of this probability: left, top, width, height.
fn map(width: usize, height: usize, boxes: &[(usize, usize, usize, usize, f32)]) -> Vec<f32> {
    let mut map = vec![0.01; width * height];
    for (left, top, w, h, value) in boxes {
        for row in *top..top + h {
            map[row * width + left..row * width + left + w].fill(*value);
        }
    }
    map
}

fn near(a: [f32; 2], b: [f32; 2]) -> bool {
    (a[0] - b[0]).abs() < 1e-3 && (a[1] - b[1]).abs() < 1e-3
}

#[test]
fn a_block_becomes_a_rectangle_grown_by_the_ratio() {
    let map = map(64, 32, &[(10, 8, 31, 11, 0.9)]);
    let found = detect(&map, 64, &LIMITS, None);
    let [region] = found.as_slice() else {
        panic!("{found:?}")
    };
    // Between the outermost centres: 30 × 10, grown by 300 × 1.5 ÷ 80.
    let by = 5.625;
    let (left, top, right, bottom) = (10.5 - by, 8.5 - by, 40.5 + by, 18.5 + by);
    let expected = [[left, top], [right, top], [right, bottom], [left, bottom]];
    for (corner, expected) in region.corners.iter().zip(expected) {
        assert!(near(*corner, expected), "{region:?}");
    }
    assert!((region.score - 0.9).abs() < 1e-5);
}

#[test]
fn what_is_weak_small_or_too_much_is_dropped() {
    let map = map(
        96,
        64,
        &[
            (4, 4, 20, 8, 0.95),
            (40, 4, 20, 8, 0.7),
            (4, 30, 20, 8, 0.5),  // below the mean asked for
            (40, 30, 20, 3, 0.9), // two pixels between the centres of its edges
            (4, 50, 20, 8, 0.2),  // no text at all
        ],
    );
    let scores = |limits: &Limits| -> Vec<f32> {
        detect(&map, 96, limits, None)
            .iter()
            .map(|region| region.score)
            .collect()
    };
    let near = |scores: &[f32], expected: &[f32]| {
        scores.len() == expected.len() && scores.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5)
    };
    assert!(near(&scores(&LIMITS), &[0.95, 0.7]));
    assert!(near(&scores(&Limits { count: 1, ..LIMITS }), &[0.95]));
    assert!(near(
        &scores(&Limits {
            box_threshold: 0.4,
            min_size: 2.0,
            ..LIMITS
        }),
        &[0.95, 0.7, 0.5, 0.9]
    ));
    assert!(detect(&[], 96, &LIMITS, None).is_empty());
    assert!(detect(&[0.9], 1, &LIMITS, None).is_empty());
}

#[test]
fn regions_come_line_by_line_in_pixels_of_the_image() {
    // The right one of the upper line stands a little higher.
    let map = map(
        128,
        64,
        &[(70, 6, 30, 9, 0.9), (10, 8, 30, 9, 0.8), (40, 40, 30, 9, 0.7)],
    );
    let geometry = Geometry {
        width: 100,
        height: 200,
        scale: (0.5, 0.25),
        pad: (8.0, 0.0),
    };
    let regions = detect(&map, 128, &LIMITS, Some(&geometry));
    let scores: Vec<f32> = regions
        .iter()
        .map(|region| (region.score * 10.0).round())
        .collect();
    assert_eq!(scores, [8.0, 9.0, 7.0]);
    let direct = detect(&map, 128, &LIMITS, None);
    for (region, direct) in regions.iter().zip(&direct) {
        for (corner, [x, y]) in region.corners.iter().zip(direct.corners) {
            let expected = [((x - 8.0) * 2.0).clamp(0.0, 100.0), (y * 4.0).clamp(0.0, 200.0)];
            assert!(near(*corner, expected), "{corner:?} {expected:?}");
        }
    }
}

proptest! {
    /// A rectangle at any angle, drawn as pixels, is found where it was drawn.
    #[test]
    fn a_turned_rectangle_is_found(
        x in 60.0..68f64, y in 60.0..68f64, w in 30.0..80f64, h in 10.0..25f64, degrees in -80.0..80f64
    ) {
        let (sin, cos) = degrees.to_radians().sin_cos();
        let map: Vec<f32> = (0..128 * 128)
            .map(|place| {
                let (dx, dy) = ((place % 128) as f64 + 0.5 - x, (place / 128) as f64 + 0.5 - y);
                let inside = (dx * cos + dy * sin).abs() <= w / 2.0 && (dy * cos - dx * sin).abs() <= h / 2.0;
                if inside { 0.9 } else { 0.0 }
            })
            .collect();
        let found = detect(&map, 128, &Limits { unclip_ratio: 0.0, ..LIMITS }, None);
        prop_assert_eq!(found.len(), 1);
        let [a, b, c, d] = found[0].corners.map(|corner| corner.map(f64::from));
        let centre = [(a[0] + c[0]) / 2.0, (a[1] + c[1]) / 2.0];
        prop_assert!((centre[0] - x).abs() < 1.0 && (centre[1] - y).abs() < 1.0, "{centre:?}");
        let length = |p: [f64; 2], q: [f64; 2]| (p[0] - q[0]).hypot(p[1] - q[1]);
        let (one, other) = (length(a, b), length(a, d));
        let (long, short) = (one.max(other), one.min(other));
        prop_assert!((long - w.max(h)).abs() < 2.0 && (short - w.min(h)).abs() < 2.0, "{long} × {short}");
        prop_assert!((length(a, c) - length(b, d)).abs() < 1e-3);
    }
}
