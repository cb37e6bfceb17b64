use edgeopt_models::{Tensor, TensorError};
use half::f16;

/// A weight in INT8 with one scale per channel of `axis` (or one for all).
pub(super) struct QuantizedWeight {
    pub(super) values: Tensor,
    pub(super) scales: Vec<f32>,
}

/// Symmetric quantization to `-limit..=limit`. A channel of zeros, or of numbers too small for a scale, has
/// scale 1. With `half_scales`, scales are numbers that half has.
pub(super) fn quantize_weight(
    weight: &Tensor,
    axis: Option<usize>,
    limit: i8,
    half_scales: bool,
) -> Result<QuantizedWeight, TensorError> {
    let values = weight.view::<f32>()?;
    let dims = weight.dims();
    let (channels, inner) = channel_layout(dims, axis);
    let mut peaks = vec![0f32; channels];
    for (index, block) in values.chunks(inner.max(1)).enumerate() {
        let peak = &mut peaks[index % channels.max(1)];
        *peak = block.iter().fold(*peak, |peak, value| peak.max(value.abs()));
    }
    let scale = |peak: &f32| {
        let scale = peak / f32::from(limit);
        match scale.is_normal() {
            true if half_scales => up_to_half(scale),
            true => scale,
            false => 1.0,
        }
    };
    let scales: Vec<f32> = peaks.iter().map(scale).collect();
    let mut quantized = Vec::with_capacity(values.len());
    for (index, block) in values.chunks(inner.max(1)).enumerate() {
        let scale = scales[index % channels.max(1)];
        let limit = f32::from(limit);
        quantized.extend(
            block
                .iter()
                .map(|value| (value / scale).round_ties_even().clamp(-limit, limit) as i8),
        );
    }
    Ok(QuantizedWeight {
        values: Tensor::new(dims, &quantized)?,
        scales,
    })
}

/// The smallest half that is no smaller than the scale, so that the range still fits; the scale itself where half ends.
pub(super) fn up_to_half(scale: f32) -> f32 {
    let nearest = f16::from_f32(scale);
    let half = if nearest.to_f32() < scale {
        f16::from_bits(nearest.to_bits() + 1)
    } else {
        nearest
    };
    if half.is_finite() { half.to_f32() } else { scale }
}

/// Number of channels, and how many consecutive values belong to one.
fn channel_layout(dims: &[usize], axis: Option<usize>) -> (usize, usize) {
    match axis.and_then(|axis| Some((*dims.get(axis)?, dims.get(axis + 1..)?))) {
        Some((channels, inner)) => (channels, inner.iter().product()),
        None => (1, dims.iter().product()),
    }
}

/// How much the rounding of a `[out, in / groups, kernel…]` weight (channels on axis 0) shifts each output on
/// average, for inputs with these channel means: Σ (Ŵ − W)·E\[x\].
pub(super) fn mean_shift(
    weight: &Tensor,
    quantized: &QuantizedWeight,
    groups: usize,
    means: &[f64],
) -> Option<Vec<f64>> {
    let original = weight.view::<f32>().ok()?;
    let rounded = quantized.values.view::<i8>().ok()?;
    let [out, per_group, kernel @ ..] = weight.dims() else {
        return None;
    };
    let kernel: usize = kernel.iter().product();
    if groups == 0 || means.len() != per_group * groups || out % groups != 0 || kernel * per_group == 0 {
        return None;
    }
    let rows = original
        .chunks_exact(per_group * kernel)
        .zip(rounded.chunks_exact(per_group * kernel));
    let shift = rows
        .zip(&quantized.scales)
        .enumerate()
        .map(|(channel, ((original, rounded), scale))| {
            let group = channel / (out / groups);
            let means = &means[group * per_group..][..*per_group];
            let inputs = original
                .chunks_exact(kernel)
                .zip(rounded.chunks_exact(kernel))
                .zip(means);
            inputs
                .map(|((original, rounded), mean)| {
                    let errors = original.iter().zip(rounded);
                    mean * errors
                        .map(|(w, q)| f64::from(f32::from(*q) * scale) - f64::from(*w))
                        .sum::<f64>()
                })
                .sum::<f64>()
        });
    Some(shift.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_channel_uses_its_whole_range_and_zero_channels_have_scale_one() {
        let weight = Tensor::new(&[3, 2], &[0.9f32, -2.0, 0.0, 0.0, 1e-8, 4e-9]).unwrap();
        let quantized = quantize_weight(&weight, Some(0), 127, false).unwrap();
        assert_eq!(*quantized.values.view::<i8>().unwrap(), [57, -127, 0, 0, 127, 51]);
        assert_eq!(quantized.scales, [2.0 / 127.0, 1.0, 1e-8 / 127.0]);
        let by_column = quantize_weight(&weight, Some(1), 127, false).unwrap();
        assert_eq!(*by_column.values.view::<i8>().unwrap(), [127, -127, 0, 0, 0, 0]);
        let seven_bits = quantize_weight(&weight, None, 63, false).unwrap();
        assert_eq!(*seven_bits.values.view::<i8>().unwrap(), [28, -63, 0, 0, 0, 0]);
    }

    #[test]
    fn the_mean_shift_is_the_mean_error_of_the_outputs() {
        let weight = Tensor::new(&[2, 1, 2], &[1.0f32, 0.503, 2.0, -0.77]).unwrap();
        let quantized = quantize_weight(&weight, Some(0), 127, false).unwrap();
        let shift = mean_shift(&weight, &quantized, 2, &[10.0, 100.0]).unwrap();
        let error = |q: f64, scale: f64, w: f64| q * scale - w;
        assert!((shift[0] - 10.0 * error(64.0, 1.0 / 127.0, 0.503)).abs() < 1e-4);
        assert!((shift[1] - 100.0 * error(-49.0, 2.0 / 127.0, -0.77)).abs() < 1e-4);
        assert_eq!(mean_shift(&weight, &quantized, 2, &[1.0]), None);
    }

    #[test]
    fn scales_go_up_to_the_next_half_and_the_numbers_with_them() {
        assert_eq!(up_to_half(1.0), 1.0);
        assert_eq!(up_to_half(1.0001), 1.0 + 2f32.powi(-10));
        assert_eq!(up_to_half(1e-9), 2f32.powi(-24));
        assert_eq!(up_to_half(65_504.5), 65_504.5);
        // The scale of the last channel is three steps of the smallest half, rounded up from 2.6.
        let weight = Tensor::new(&[2, 2], &[0.5f32, -1.0, 2e-5, 1e-5]).unwrap();
        let quantized = quantize_weight(&weight, Some(0), 127, true).unwrap();
        assert_eq!(quantized.scales[1], 3.0 * 2f32.powi(-24));
        assert_eq!(&*quantized.values.view::<i8>().unwrap(), [63, -127, 112, 56]);
    }
}
