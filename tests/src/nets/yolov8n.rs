use edgeopt_models::{Model, Tensor, ValueName};

use super::builder::{Builder, Conv, batched};

/// YOLOv8n at 640×640 with its detection head (boxes decoded by DFL, class scores by sigmoid), BatchNormalization
/// not folded: 84 rows (centre x and y, width, height, 80 classes) for 8400 cells.
pub(super) fn build() -> Model {
    let mut b = Builder::new("yolov8n", 8);
    let x = b.image_input(3, 640);
    let x = block(&mut b, &x, Conv::new(3, 16, 3).stride(2));
    let x = block(&mut b, &x, Conv::new(16, 32, 3).stride(2));
    let x = c2f(&mut b, &x, 32, 32, 1, true);
    let x = block(&mut b, &x, Conv::new(32, 64, 3).stride(2));
    let p3 = c2f(&mut b, &x, 64, 64, 2, true);
    let x = block(&mut b, &p3, Conv::new(64, 128, 3).stride(2));
    let p4 = c2f(&mut b, &x, 128, 128, 2, true);
    let x = block(&mut b, &p4, Conv::new(128, 256, 3).stride(2));
    let x = c2f(&mut b, &x, 256, 256, 1, true);
    let p5 = sppf(&mut b, &x, 256);

    let up = upsample(&mut b, &p5);
    let x = concat(&mut b, &[&up, &p4]);
    let h4 = c2f(&mut b, &x, 384, 128, 1, false);
    let up = upsample(&mut b, &h4);
    let x = concat(&mut b, &[&up, &p3]);
    let h3 = c2f(&mut b, &x, 192, 64, 1, false);
    let x = block(&mut b, &h3, Conv::new(64, 64, 3).stride(2));
    let x = concat(&mut b, &[&x, &h4]);
    let h4 = c2f(&mut b, &x, 192, 128, 1, false);
    let x = block(&mut b, &h4, Conv::new(128, 128, 3).stride(2));
    let x = concat(&mut b, &[&x, &p5]);
    let h5 = c2f(&mut b, &x, 384, 256, 1, false);

    let mut cells = Vec::new();
    for (feature, channels, side) in [(&h3, 64, 80), (&h4, 128, 40), (&h5, 256, 20)] {
        let boxes = branch(&mut b, feature, channels, 64);
        let classes = branch(&mut b, feature, channels, 80);
        let both = concat(&mut b, &[&boxes, &classes]);
        let shape = b.ints("shape", &[0, 144, side * side]);
        cells.push(b.op("Reshape", &[&both, &shape], &[]));
    }
    let all = b.op(
        "Concat",
        &[&cells[0], &cells[1], &cells[2]],
        &[("axis", 2i64.into())],
    );
    let split = b.ints("split", &[64, 80]);
    let parts = b.op_many("Split", &[&all, &split], &[("axis", 1i64.into())], 2);
    let shape = b.ints("shape", &[0, 4, 16, 8400]);
    let bins = b.op("Reshape", &[&parts[0], &shape], &[]);
    let bins = b.op("Transpose", &[&bins], &[("perm", [0, 2, 1, 3].into())]);
    let bins = b.op("Softmax", &[&bins], &[("axis", 1i64.into())]);
    // The expected distance: bins weighted by their places.
    let places: Vec<f32> = (0..16).map(|place| place as f32).collect();
    let places = b.constant(
        "places",
        Tensor::new(&[1, 16, 1, 1], &places).expect("16 numbers"),
    );
    let distances = b.op("Conv", &[&bins, &places], &[]);
    let shape = b.ints("shape", &[0, 4, 8400]);
    let distances = b.op("Reshape", &[&distances, &shape], &[]);
    let boxes = boxes(&mut b, &distances);
    let scores = b.op("Sigmoid", &[&parts[1]], &[]);
    let output = concat(&mut b, &[&boxes, &scores]);
    b.finish(&[(&output, "output", batched(&[84, 8400]))])
}

/// Centre, width and height in pixels from the distances of each side to its cell's centre in cells.
fn boxes(b: &mut Builder, distances: &ValueName) -> ValueName {
    let (mut x, mut y, mut strides) = (Vec::new(), Vec::new(), Vec::new());
    for (side, stride) in [(80, 8f32), (40, 16.0), (20, 32.0)] {
        for cell in 0..side * side {
            x.push((cell % side) as f32 + 0.5);
            y.push((cell / side) as f32 + 0.5);
            strides.push(stride);
        }
    }
    let centres = [x, y].concat();
    let centres = b.constant("centres", Tensor::new(&[1, 2, 8400], &centres).expect("two rows"));
    let strides = b.constant("strides", Tensor::new(&[1, 1, 8400], &strides).expect("a row"));
    let split = b.ints("split", &[2, 2]);
    let parts = b.op_many("Split", &[distances, &split], &[("axis", 1i64.into())], 2);
    let top_left = b.op("Sub", &[&centres, &parts[0]], &[]);
    let bottom_right = b.op("Add", &[&centres, &parts[1]], &[]);
    let sum = b.op("Add", &[&top_left, &bottom_right], &[]);
    let half = b.scalar("half", 0.5);
    let middle = b.op("Mul", &[&sum, &half], &[]);
    let size = b.op("Sub", &[&bottom_right, &top_left], &[]);
    let cells = concat(b, &[&middle, &size]);
    b.op("Mul", &[&cells, &strides], &[])
}

/// Convolution, BatchNormalization, SiLU.
fn block(b: &mut Builder, x: &ValueName, conv: Conv) -> ValueName {
    let x = b.conv(x, conv);
    let x = b.batch_norm(&x, conv.output, 1.0);
    let gate = b.op("Sigmoid", &[&x], &[]);
    b.op("Mul", &[&x, &gate], &[])
}

fn concat(b: &mut Builder, values: &[&ValueName]) -> ValueName {
    b.op("Concat", values, &[("axis", 1i64.into())])
}

fn c2f(b: &mut Builder, x: &ValueName, input: usize, output: usize, repeats: usize, skip: bool) -> ValueName {
    let half = output / 2;
    let x = block(b, x, Conv::new(input, output, 1));
    let split = b.ints("split", &[half as i64, half as i64]);
    let mut parts = b.op_many("Split", &[&x, &split], &[("axis", 1i64.into())], 2);
    for _ in 0..repeats {
        let last = parts[parts.len() - 1].clone();
        let y = block(b, &last, Conv::new(half, half, 3));
        let y = block(b, &y, Conv::new(half, half, 3));
        parts.push(if skip { b.op("Add", &[&last, &y], &[]) } else { y });
    }
    let all: Vec<&ValueName> = parts.iter().collect();
    let joined = concat(b, &all);
    block(b, &joined, Conv::new((2 + repeats) * half, output, 1))
}

fn sppf(b: &mut Builder, x: &ValueName, channels: usize) -> ValueName {
    let mut parts = vec![block(b, x, Conv::new(channels, channels / 2, 1))];
    for _ in 0..3 {
        let last = parts[parts.len() - 1].clone();
        let pool = [
            ("kernel_shape", [5, 5].into()),
            ("strides", [1, 1].into()),
            ("pads", [2, 2, 2, 2].into()),
        ];
        parts.push(b.op("MaxPool", &[&last], &pool));
    }
    let all: Vec<&ValueName> = parts.iter().collect();
    let joined = concat(b, &all);
    block(b, &joined, Conv::new(channels * 2, channels, 1))
}

fn upsample(b: &mut Builder, x: &ValueName) -> ValueName {
    let scales = b.constant("scales", Tensor::vector(&[1f32, 1.0, 2.0, 2.0]));
    let attributes = [
        ("mode", "nearest".into()),
        ("coordinate_transformation_mode", "asymmetric".into()),
        ("nearest_mode", "floor".into()),
    ];
    b.op("Resize", &[x, &ValueName::omitted(), &scales], &attributes)
}

/// One of the head's two branches for a feature map.
fn branch(b: &mut Builder, x: &ValueName, channels: usize, output: usize) -> ValueName {
    let x = block(b, x, Conv::new(channels, output, 3));
    let x = block(b, &x, Conv::new(output, output, 3));
    b.conv_bias(&x, Conv::new(output, output, 1))
}
