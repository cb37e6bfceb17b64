use edgeopt_models::{Model, ValueName};

use super::builder::{Builder, Conv, batched};

/// MobileNetV2 (Sandler et al. 2018), width 1.0, 224×224, BatchNormalization not folded.
pub(super) fn build() -> Model {
    let mut b = Builder::new("mobilenet_v2", 2);
    let x = b.image_input(3, 224);
    let mut x = conv_bn_relu6(&mut b, &x, Conv::new(3, 32, 3).stride(2));
    let mut channels = 32;
    // expansion, output channels, repeats, stride of the first
    for (expansion, output, repeats, stride) in [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ] {
        for repeat in 0..repeats {
            let stride = if repeat == 0 { stride } else { 1 };
            x = inverted_residual(&mut b, &x, channels, output, expansion, stride);
            channels = output;
        }
    }
    let x = conv_bn_relu6(&mut b, &x, Conv::new(channels, 1280, 1));
    let x = b.op("GlobalAveragePool", &[&x], &[]);
    let x = b.op("Flatten", &[&x], &[]);
    let logits = b.gemm(&x, 1280, 1000);
    b.finish(&[(&logits, "logits", batched(&[1000]))])
}

fn conv_bn_relu6(b: &mut Builder, x: &ValueName, conv: Conv) -> ValueName {
    let x = b.conv(x, conv);
    let x = b.batch_norm(&x, conv.output, 1.0);
    let (low, high) = (b.scalar("zero", 0.0), b.scalar("six", 6.0));
    b.op("Clip", &[&x, &low, &high], &[])
}

fn inverted_residual(
    b: &mut Builder,
    x: &ValueName,
    input: usize,
    output: usize,
    expansion: usize,
    stride: usize,
) -> ValueName {
    let hidden = input * expansion;
    let mut y = x.clone();
    if expansion != 1 {
        y = conv_bn_relu6(b, &y, Conv::new(input, hidden, 1));
    }
    y = conv_bn_relu6(b, &y, Conv::new(hidden, hidden, 3).stride(stride).depthwise());
    y = b.conv(&y, Conv::new(hidden, output, 1));
    y = b.batch_norm(&y, output, 1.0);
    if stride == 1 && input == output {
        b.op("Add", &[x, &y], &[])
    } else {
        y
    }
}
