use serde::Deserialize;

use super::*;

/// What `make_cases.py` writes with the reference program's results.
#[derive(Deserialize)]
struct Case {
    name: String,
    images: Vec<Image>,
    map_50: Option<f64>,
    map_50_95: Option<f64>,
}

#[derive(Deserialize)]
struct Image {
    /// Class, left, top, width, height, crowd.
    known: Vec<[i32; 6]>,
    /// Class, 64 × score, left, top, width, height.
    found: Vec<[i32; 6]>,
}

fn bounds([left, top, width, height]: [i32; 4]) -> Bounds {
    Bounds {
        left: left as f32,
        top: top as f32,
        right: (left + width) as f32,
        bottom: (top + height) as f32,
    }
}

fn known([class, left, top, width, height, crowd]: [i32; 6]) -> KnownObject {
    KnownObject {
        class: class as usize,
        bounds: bounds([left, top, width, height]),
        crowd: crowd != 0,
    }
}

fn found([class, score, left, top, width, height]: [i32; 6]) -> Object {
    Object {
        class: class as usize,
        label: None,
        score: score as f32 / 64.0,
        bounds: bounds([left, top, width, height]),
    }
}

fn measured(images: &[Image]) -> Option<MeanAveragePrecision> {
    let mut metric = AveragePrecision::default();
    for image in images {
        let known: Vec<KnownObject> = image.known.iter().copied().map(known).collect();
        let found: Vec<Object> = image.found.iter().copied().map(found).collect();
        metric.add(&known, &found);
    }
    metric.mean()
}

#[test]
fn it_is_what_the_reference_program_computes() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("cases.json")).unwrap();
    assert_eq!(cases.len(), 13);
    for case in cases {
        let mean = measured(&case.images);
        let expected = case.map_50.zip(case.map_50_95);
        assert_eq!(mean.is_some(), expected.is_some(), "{}", case.name);
        let (Some(mean), Some((at_50, at_50_to_95))) = (mean, expected) else {
            continue;
        };
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(
            near(mean.at_50, at_50) && near(mean.at_50_to_95, at_50_to_95),
            "{}: {mean:?}, expected {at_50} and {at_50_to_95}",
            case.name
        );
    }
}

#[test]
fn all_found_exactly_is_one_and_nothing_found_is_zero() {
    let truth = vec![[0, 10, 10, 20, 20, 0], [4, 50, 10, 20, 20, 0]];
    let exact = vec![[0, 64, 10, 10, 20, 20], [4, 1, 50, 10, 20, 20]];
    let image = |found: Vec<[i32; 6]>| Image {
        known: truth.clone(),
        found,
    };
    let both = |value: f64| MeanAveragePrecision {
        at_50: value,
        at_50_to_95: value,
    };
    let perfect = measured(&[image(exact)]).unwrap();
    assert!((perfect.at_50 - 1.0).abs() < 1e-12 && (perfect.at_50_to_95 - 1.0).abs() < 1e-12);
    assert_eq!(measured(&[image(vec![])]), Some(both(0.0)));
    // Classes swapped, and a class that no image has.
    let wrong = vec![
        [4, 64, 10, 10, 20, 20],
        [0, 64, 50, 10, 20, 20],
        [9, 64, 0, 0, 9, 9],
    ];
    assert_eq!(measured(&[image(wrong)]), Some(both(0.0)));
}
