use edgeopt_models::{DataType, Model, Node, Shape, Tensor, ValueInfo};
use edgeopt_optimizer::calibrate::CalibrationTable;
use edgeopt_optimizer::precision::fp16::Fp16Options;

use crate::support::{against, converted, converted_with, kept, measured, model, noise};

fn masked(mask: Tensor) -> Model {
    let nodes = vec![
        Node::new("Add", "mask", ["x", "m"], ["s"]),
        Node::new("Softmax", "softmax", ["s"], ["y"]),
    ];
    model(&[2, 3], nodes, &[("m", mask)], &[2, 3])
}

fn scores() -> Tensor {
    Tensor::new(&[2, 3], &[1.0f32, 50.0, 2.0, -40.0, 30.0, 100.0]).unwrap()
}

#[test]
fn masks_become_the_lowest_half_and_softmax_ignores_them_as_before() {
    let float = masked(Tensor::vector(&[0.0f32, -3.4e38, 0.0]));
    let (half, report) = converted(float.clone());
    assert_eq!((report.converted, report.clamped_masks), (2, 1));
    let found = measured(&float, &half, &vec![vec![scores()]]);
    assert!(found.min_sqnr_db() > 60.0, "{found:?}");
    // Calibration sees the mask in the sum, which does not matter, and large scores, which do.
    let mut ranges = CalibrationTable::default();
    for (name, peak) in [("x", 100.0), ("s", 3.4e38), ("y", 1.0)] {
        ranges.insert(name, peak);
    }
    ranges.ranges.get_mut("s").unwrap().max = 100.0;
    let options = Fp16Options::default();
    let (_, report) = converted_with(float.clone(), &options, Some(&ranges));
    assert_eq!(report.converted, 2);
    ranges.insert("x", 30_000.0);
    let (_, report) = converted_with(float, &options, Some(&ranges));
    assert_eq!(kept(&report), ["mask", "softmax"]);
}

#[test]
fn a_row_without_an_open_entry_keeps_mask_and_softmax_in_float() {
    for mask in [
        Tensor::new(&[2, 3], &[0.0f32, -1e9, 0.0, -1e9, -1e9, -1e9]).unwrap(),
        Tensor::new(&[2, 1], &[0.0f32, -1e9]).unwrap(),
        Tensor::scalar(-1e9f32),
        Tensor::vector(&[0.0f32, -1e9, 1e9]),
    ] {
        let float = masked(mask);
        let (half, report) = converted(float.clone());
        assert_eq!(kept(&report), ["mask", "softmax"]);
        let found = measured(&float, &half, &vec![vec![scores()]]);
        assert!(
            found.non_finite.is_empty() && found.min_sqnr_db() > 60.0,
            "{found:?}"
        );
    }
}

#[test]
fn a_sum_with_a_mask_that_callers_see_is_left_alone() {
    let mut float = masked(Tensor::vector(&[0.0f32, -1e9, 0.0]));
    let seen = ValueInfo::tensor("s", DataType::Float32, Shape::known(&[2, 3]));
    float.graph.outputs.push(seen);
    let (half, report) = converted(float.clone());
    assert_eq!(
        (report.clamped_masks, kept(&report)),
        (0, vec!["mask", "softmax"])
    );
    let found = measured(&float, &half, &vec![vec![scores()]]);
    assert!(found.min_sqnr_db() > 60.0, "{found:?}");
}

/// Where a token is padding (0 in `p`), its score gets −1e9; the last row is padding alone.
#[test]
fn computed_masks_stay_in_float_up_to_the_softmax() {
    let nodes = vec![
        Node::new("Sub", "invert", ["one", "p"], ["i"]),
        Node::new("Mul", "mask", ["i", "low"], ["m"]),
        Node::new("Unsqueeze", "move", ["m", "axis"], ["u"]),
        Node::new("MatMul", "scores", ["x", "w"], ["q"]),
        Node::new("Add", "add", ["q", "u"], ["s"]),
        Node::new("Softmax", "softmax", ["s"], ["a"]),
        Node::new("MatMul", "values", ["a", "w"], ["y"]),
    ];
    let constants = [
        ("one", Tensor::scalar(1.0f32)),
        ("low", Tensor::scalar(-1e9f32)),
        ("axis", Tensor::vector(&[1i64])),
        ("w", noise(&[3, 3], 20.0)),
    ];
    let mut float = model(&[2, 2, 3], nodes, &constants, &[2, 2, 3]);
    float
        .graph
        .inputs
        .push(ValueInfo::tensor("p", DataType::Float32, Shape::known(&[2, 3])));
    let (half, report) = converted(float.clone());
    assert_eq!(kept(&report), ["mask", "move", "add", "softmax"]);
    let padding = Tensor::new(&[2, 3], &[1.0f32, 1.0, 0.0, 0.0, 0.0, 0.0]).unwrap();
    let found = measured(&float, &half, &vec![vec![noise(&[2, 2, 3], 3.0), padding]]);
    assert!(
        found.non_finite.is_empty() && found.min_sqnr_db() > 45.0,
        "{found:?}"
    );
}

/// Where `x` is positive, its score is replaced by the lowest float.
#[test]
fn where_may_raise_one_number_but_not_two() {
    let replaced = |low: Tensor| {
        let nodes = vec![
            Node::new("Greater", "positive", ["x", "zero"], ["c"]),
            Node::new("Where", "mask", ["c", "low", "x"], ["s"]),
            Node::new("Softmax", "softmax", ["s"], ["y"]),
        ];
        let constants = [("zero", Tensor::scalar(0.0f32)), ("low", low)];
        model(&[3, 2], nodes, &constants, &[3, 2])
    };
    // The last row is masked as a whole: even, whatever the lowest number is.
    let samples = vec![vec![
        Tensor::new(&[3, 2], &[1.0f32, -50.0, -1.0, -2.0, 3.0, 7.0]).unwrap(),
    ]];
    let float = replaced(Tensor::scalar(f32::MIN));
    let (half, report) = converted(float.clone());
    assert_eq!((kept(&report), report.clamped_masks), (vec!["positive"], 1));
    let found = measured(&float, &half, &samples);
    assert!(found.min_sqnr_db() > 60.0, "{found:?}");
    let float = replaced(Tensor::vector(&[-1e9f32, -2e9]));
    let (half, report) = converted(float.clone());
    assert_eq!(kept(&report), ["positive", "mask", "softmax"]);
    assert!(measured(&float, &half, &samples).min_sqnr_db() > 60.0);
}

#[test]
fn a_tiny_constant_that_guards_a_division_keeps_it_in_float() {
    let guards: [(&str, Vec<&str>); 3] = [
        ("Add", vec!["sum", "eps"]),
        ("Max", vec!["sum", "eps"]),
        ("Clip", vec!["sum", "eps"]),
    ];
    for (op, inputs) in guards {
        let nodes = vec![
            Node::new("Abs", "abs", ["x"], ["a"]),
            Node::new("ReduceSum", "add up", ["a", "axes"], ["sum"]),
            Node::new(op, "guard", inputs, ["g"]),
            Node::new("Expand", "move", ["g", "shape"], ["e"]),
            Node::new("Div", "divide", ["x", "e"], ["d"]),
            Node::new("Relu", "after", ["d"], ["y"]),
        ];
        let constants = [
            ("axes", Tensor::vector(&[-1i64])),
            ("eps", Tensor::scalar(1e-12f32)),
            ("shape", Tensor::vector(&[2i64, 3])),
        ];
        let float = model(&[2, 3], nodes, &constants, &[2, 3]);
        let (half, report) = converted(float.clone());
        assert_eq!(kept(&report), ["guard", "move", "divide"], "{op}");
        let row = Tensor::new(&[2, 3], &[0.0f32, 0.0, 0.0, 1.0, 2.0, -3.0]).unwrap();
        let found = measured(&float, &half, &vec![vec![row]]);
        assert!(
            found.non_finite.is_empty() && found.min_sqnr_db() > 60.0,
            "{op}: {found:?}"
        );
    }
}

#[test]
fn tiny_constants_that_matter_stay_and_tiny_weights_among_others_do_not() {
    let case = |op: &str, constant: Tensor| {
        let node = Node::new(op, "node", ["x", "c"], ["y"]);
        converted(model(&[2], vec![node], &[("c", constant)], &[2])).1
    };
    assert_eq!(case("Mul", Tensor::scalar(1e-9f32)).converted, 0);
    assert_eq!(case("Div", Tensor::vector(&[1.0f32, 1e-9])).converted, 0);
    let among = case("Add", Tensor::vector(&[1.0f32, 1e-9]));
    assert_eq!((among.converted, among.flushed_weights), (1, 1));
    assert_eq!(case("Add", Tensor::vector(&[0.0f32, 0.0])).converted, 1);
    // The smallest number that half has is as good as an epsilon as any.
    assert_eq!(case("Add", Tensor::scalar(1e-7f32)).converted, 1);
}

#[test]
fn overflow_shows_in_the_simulation() {
    let nodes = vec![
        Node::new("Mul", "up", ["x", "c"], ["h"]),
        Node::new("Mul", "down", ["h", "d"], ["y"]),
    ];
    let constants = [("c", Tensor::scalar(1000.0f32)), ("d", Tensor::scalar(0.001f32))];
    let float = model(&[2], nodes, &constants, &[2]);
    let (half, _) = converted(float.clone());
    let samples = vec![vec![Tensor::vector(&[1.0f32, 100.0])]];
    let simulated = edgeopt_optimizer::precision::fp16::simulate(&half).unwrap();
    let found = against(&float, &simulated, &samples);
    assert_eq!(found.non_finite, [("y".to_owned(), 1)]);
}
