use edgeopt_models::{Model, Shape, Tensor};

use super::builder::{Builder, batched};

/// What the outputs look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SquareFinder {
    /// [1, 64, 8]
    YoloV5,
    /// [1, 7, 64]
    YoloV8,
}

/// A detector without weights whose results are known: the 64 × 64 image is a grid of 8 × 8 cells, each a box of a cell's
/// size. A cell's score for red, green and blue is how far the mean of that channel is above the mean of all three,
/// twice. Grey is nothing.
pub fn square_finder(format: SquareFinder) -> Model {
    let mut b = Builder::new("square_finder", 1);
    let x = b.image_input(3, 64);
    let pool = [("kernel_shape", [8, 8].into()), ("strides", [8, 8].into())];
    let cells = b.op("AveragePool", &[&x], &pool);
    // Classes by channels: itself less the mean of all.
    let weights: Vec<f32> = (0..9)
        .map(|i| if i % 4 == 0 { 4.0 / 3.0 } else { -2.0 / 3.0 })
        .collect();
    let weights = b.constant(
        "excess",
        Tensor::new(&[3, 3, 1, 1], &weights).expect("nine numbers"),
    );
    let scores = b.op("Conv", &[&cells, &weights], &[]);
    let (zero, one) = (b.scalar("zero", 0.0), b.scalar("one", 1.0));
    let scores = b.op("Clip", &[&scores, &zero, &one], &[]);
    let shape = b.ints("shape", &[1, 3, 64]);
    let scores = b.op("Reshape", &[&scores, &shape], &[]);
    let middle = |place: usize| (place * 8 + 4) as f32;
    let mut boxes: Vec<f32> = (0..64).map(|cell| middle(cell % 8)).collect();
    boxes.extend((0..64).map(|cell| middle(cell / 8)));
    boxes.extend([8.0; 128]);
    let boxes = b.constant(
        "boxes",
        Tensor::new(&[1, 4, 64], &boxes).expect("four rows of 64"),
    );
    let axis = [("axis", 1i64.into())];
    let (output, shape): (_, Shape) = match format {
        SquareFinder::YoloV8 => (b.op("Concat", &[&boxes, &scores], &axis), batched(&[7, 64])),
        SquareFinder::YoloV5 => {
            let objectness = b.constant(
                "objectness",
                Tensor::new(&[1, 1, 64], &[1f32; 64]).expect("64 ones"),
            );
            let all = b.op("Concat", &[&boxes, &objectness, &scores], &axis);
            let turned = b.op("Transpose", &[&all], &[("perm", [0, 2, 1].into())]);
            (turned, batched(&[64, 8]))
        }
    };
    let mut model = b.finish(&[(&output, "output0", shape)]);
    model
        .metadata
        .insert("names".into(), "{0: 'red', 1: 'green', 2: 'blue'}".into());
    model
}
