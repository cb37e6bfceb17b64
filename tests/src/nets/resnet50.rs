use edgeopt_models::{Model, ValueName};

use super::builder::{Builder, Conv, batched};

/// ResNet-50 v1.5 (He et al. 2016; the stride in the 3×3 convolution), 224×224, BatchNormalization not folded.
pub(super) fn build() -> Model {
    let mut b = Builder::new("resnet50", 50);
    let x = b.image_input(3, 224);
    let x = conv_bn_relu(&mut b, &x, Conv::new(3, 64, 7).stride(2));
    let pool = [
        ("kernel_shape", [3, 3].into()),
        ("strides", [2, 2].into()),
        ("pads", [1, 1, 1, 1].into()),
    ];
    let mut x = b.op("MaxPool", &[&x], &pool);
    let mut channels = 64;
    for (stage, blocks) in [3, 4, 6, 3].into_iter().enumerate() {
        let width = 64 << stage;
        for block in 0..blocks {
            let stride = if block == 0 && stage > 0 { 2 } else { 1 };
            x = bottleneck(&mut b, &x, channels, width, stride);
            channels = width * 4;
        }
    }
    let x = b.op("GlobalAveragePool", &[&x], &[]);
    let x = b.op("Flatten", &[&x], &[]);
    let logits = b.gemm(&x, channels, 1000);
    b.finish(&[(&logits, "logits", batched(&[1000]))])
}

fn conv_bn_relu(b: &mut Builder, x: &ValueName, conv: Conv) -> ValueName {
    let x = b.conv(x, conv);
    let x = b.batch_norm(&x, conv.output, 1.0);
    b.op("Relu", &[&x], &[])
}

fn bottleneck(b: &mut Builder, x: &ValueName, input: usize, width: usize, stride: usize) -> ValueName {
    let y = conv_bn_relu(b, x, Conv::new(input, width, 1));
    let y = conv_bn_relu(b, &y, Conv::new(width, width, 3).stride(stride));
    let y = b.conv(&y, Conv::new(width, width * 4, 1));
    let y = b.batch_norm(&y, width * 4, 0.2);
    let skip = if input == width * 4 && stride == 1 {
        x.clone()
    } else {
        let skip = b.conv(x, Conv::new(input, width * 4, 1).stride(stride));
        b.batch_norm(&skip, width * 4, 1.0)
    };
    let sum = b.op("Add", &[&y, &skip], &[]);
    b.op("Relu", &[&sum], &[])
}
