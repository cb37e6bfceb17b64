use std::fmt;
use std::str::FromStr;

use super::histogram::{Bucket, Histogram};

/// How the range of a tensor is chosen from what was seen of it. Values beyond the range are clipped; a
/// smaller range makes finer steps for all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Everything seen: nothing is clipped. One outlier ruins it.
    MinMax,
    /// This percentage of all values, such as 99.99.
    Percentile(f64),
    /// The range whose quantized distribution has the least Kullback–Leibler divergence from the observed one
    /// (Migacz, "8-bit inference with TensorRT", GTC 2017), among those whose squared error is not far from the least.
    Entropy,
    /// The range with the least mean squared error of rounding and clipping together.
    #[default]
    Mse,
}

/// Steps of a symmetric INT8 range on each side of zero.
const LEVELS: f64 = 127.0;
/// Linear bins the entropy method works on.
const LINEAR_BINS: usize = 2048;
/// How much larger than the least possible the squared error of a range chosen by entropy may be.
const WORST_ERROR: f64 = 4.0;
/// Quantization levels the entropy method compares with.
const ENTROPY_LEVELS: usize = 128;

impl Method {
    /// The largest magnitude to represent. `cap` is the largest magnitude to consider at all.
    pub(crate) fn threshold(self, histogram: &Histogram, cap: f64) -> f64 {
        match self {
            Self::MinMax => cap,
            Self::Percentile(percent) => percentile(&histogram.buckets(cap), percent).min(cap),
            Self::Entropy => entropy(&histogram.buckets(cap), cap),
            Self::Mse => least_squares(&histogram.buckets(cap), cap),
        }
    }

    /// Whether the method needs more than minimum and maximum.
    pub(crate) fn needs_histogram(self) -> bool {
        self != Self::MinMax
    }
}

fn percentile(buckets: &[Bucket], percent: f64) -> f64 {
    let total: f64 = buckets.iter().map(|bucket| bucket.count).sum();
    let wanted = total * percent / 100.0;
    let mut below = 0.0;
    for bucket in buckets {
        if below + bucket.count >= wanted {
            return bucket.low + (bucket.high - bucket.low) * (wanted - below) / bucket.count;
        }
        below += bucket.count;
    }
    f64::INFINITY
}

/// Integral over `0..=x` of the squared rounding error with step `step`.
fn rounding_integral(x: f64, step: f64) -> f64 {
    let nearest = (x / step).round();
    let rest = x - nearest * step;
    nearest * step.powi(3) / 12.0 + rest.powi(3) / 3.0
}

/// Squared error of everything when the range is `threshold`, values spread evenly within their bucket.
pub(crate) fn squared_error(buckets: &[Bucket], threshold: f64) -> f64 {
    let step = threshold / LEVELS;
    let error = |bucket: &Bucket| {
        let inside = bucket.high.min(threshold);
        let mut integral = 0.0;
        if inside > bucket.low {
            integral += rounding_integral(inside, step) - rounding_integral(bucket.low, step);
        }
        let clipped = bucket.low.max(threshold);
        if bucket.high > clipped {
            integral += ((bucket.high - threshold).powi(3) - (clipped - threshold).powi(3)) / 3.0;
        }
        bucket.count * integral / (bucket.high - bucket.low)
    };
    buckets.iter().map(error).sum()
}

/// Tries every bucket edge within 12 octaves below the cap: clipping further never pays.
fn least_squares(buckets: &[Bucket], cap: f64) -> f64 {
    let candidates = buckets
        .iter()
        .map(|bucket| bucket.high.min(cap))
        .filter(|edge| *edge > cap / 4096.0);
    let scored = candidates.map(|threshold| (squared_error(buckets, threshold), threshold));
    scored
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(cap, |(_, threshold)| threshold)
}

/// Spreads the buckets over equal bins of `0..=cap`. Exact zeros are left out: every range represents them.
fn linear_bins(buckets: &[Bucket], cap: f64) -> Vec<f64> {
    let mut bins = vec![0.0; LINEAR_BINS];
    let width = cap / LINEAR_BINS as f64;
    for bucket in buckets.iter().filter(|bucket| bucket.low > 0.0) {
        let high = bucket.high.min(cap);
        let (first, last) = ((bucket.low / width) as usize, (high / width) as usize);
        let span = (high - bucket.low).max(f64::MIN_POSITIVE);
        for (index, bin) in bins.iter_mut().enumerate().take(last + 1).skip(first) {
            let (low, end) = (index as f64 * width, (index + 1) as f64 * width);
            let part = (high.min(end) - bucket.low.max(low)).max(0.0);
            *bin += bucket.count * part / span;
        }
    }
    bins
}

fn entropy(buckets: &[Bucket], cap: f64) -> f64 {
    let bins = linear_bins(buckets, cap);
    let total: f64 = bins.iter().sum();
    if total <= 0.0 {
        return cap;
    }
    // Divergence alone clips without mercy where a few values hold most of the mass (the background of an image):
    // a range is considered only if its squared error stays near the least possible.
    let most = WORST_ERROR * squared_error(buckets, least_squares(buckets, cap));
    let mut best = (f64::INFINITY, LINEAR_BINS);
    let mut kept = bins[..ENTROPY_LEVELS].iter().sum::<f64>();
    for end in ENTROPY_LEVELS..=LINEAR_BINS {
        if end > ENTROPY_LEVELS {
            kept += bins[end - 1];
        }
        if !(end - ENTROPY_LEVELS).is_multiple_of(8) {
            continue;
        }
        let threshold = cap * end as f64 / LINEAR_BINS as f64;
        if squared_error(buckets, threshold) > most {
            continue;
        }
        let divergence = divergence(&bins[..end], kept, total);
        if divergence <= best.0 {
            best = (divergence, end);
        }
    }
    cap * best.1 as f64 / LINEAR_BINS as f64
}

/// KL divergence of `bins` (with everything beyond it counted in its last bin) from its quantized form.
fn divergence(bins: &[f64], kept: f64, total: f64) -> f64 {
    if kept <= 0.0 {
        return f64::INFINITY;
    }
    let outliers = (total - kept).max(0.0);
    let mut sum = 0.0;
    for level in 0..ENTROPY_LEVELS {
        let (first, end) = (
            level * bins.len() / ENTROPY_LEVELS,
            (level + 1) * bins.len() / ENTROPY_LEVELS,
        );
        let merged = &bins[first..end];
        let occupied = merged.iter().filter(|count| **count > 0.0).count();
        let mass: f64 = merged.iter().sum();
        let quantized = mass / occupied.max(1) as f64 / kept;
        for (index, count) in merged.iter().enumerate() {
            let last = first + index + 1 == bins.len();
            let reference = (count + if last { outliers } else { 0.0 }) / total;
            if reference > 0.0 {
                // An empty last bin that must hold the outliers cannot be represented: a large, finite cost.
                let quantized = if *count > 0.0 { quantized } else { 1e-9 };
                sum += reference * (reference / quantized).ln();
            }
        }
    }
    sum
}

/// A text is not the name of a calibration method.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is no calibration method; use minmax, entropy, mse, percentile or percentile:99.9")]
pub struct ParseMethodError(String);

impl FromStr for Method {
    type Err = ParseMethodError;
    fn from_str(text: &str) -> Result<Self, ParseMethodError> {
        let lower = text.to_ascii_lowercase();
        Ok(match lower.as_str() {
            "minmax" | "min-max" => Self::MinMax,
            "entropy" => Self::Entropy,
            "mse" => Self::Mse,
            "percentile" => Self::Percentile(99.99),
            other => {
                let percent = other.strip_prefix("percentile:").and_then(|p| p.parse().ok());
                match percent {
                    Some(percent) if percent > 0.0 && percent <= 100.0 => Self::Percentile(percent),
                    _ => return Err(ParseMethodError(text.to_owned())),
                }
            }
        })
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MinMax => f.pad("minmax"),
            Self::Percentile(percent) => f.pad(&format!("percentile:{percent}")),
            Self::Entropy => f.pad("entropy"),
            Self::Mse => f.pad("mse"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deterministic values of a normal distribution (sum of twelve uniforms).
    fn normal(n: usize) -> Vec<f32> {
        let mut state = 1u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        (0..n)
            .map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0)
            .collect()
    }

    fn histogram(values: &[f32]) -> Histogram {
        let mut histogram = Histogram::default();
        histogram.add(values);
        histogram
    }

    fn brute_force_error(values: &[f32], threshold: f64) -> f64 {
        let step = threshold / LEVELS;
        let error = |x: &f32| {
            let x = f64::from(*x);
            (x - (x / step).round().clamp(-LEVELS, LEVELS) * step).powi(2)
        };
        values.iter().map(error).sum()
    }

    #[test]
    fn the_error_of_a_histogram_is_the_error_of_its_values() {
        let values = normal(200_000);
        let buckets = histogram(&values).buckets(f64::INFINITY);
        for threshold in [0.5, 1.0, 2.0, 4.0, 6.0] {
            let (fast, exact) = (
                squared_error(&buckets, threshold),
                brute_force_error(&values, threshold),
            );
            assert!((fast / exact - 1.0).abs() < 0.03, "{threshold}: {fast} {exact}");
        }
    }

    #[test]
    fn mse_is_within_a_percent_of_the_best_threshold_there_is() {
        let values = normal(50_000);
        let found = brute_force_error(&values, Method::Mse.threshold(&histogram(&values), 6.0));
        let best = (40..240)
            .map(|i| brute_force_error(&values, f64::from(i) * 0.025))
            .fold(f64::MAX, f64::min);
        assert!(found < best * 1.01, "{found} {best}");
    }

    #[test]
    fn percentile_is_the_sorted_value() {
        let values = normal(100_000);
        let mut sorted: Vec<f32> = values.iter().map(|x| x.abs()).collect();
        sorted.sort_by(f32::total_cmp);
        for percent in [50.0, 90.0, 99.0, 99.9] {
            let exact = f64::from(sorted[(percent / 100.0 * 1e5) as usize]);
            let found = Method::Percentile(percent).threshold(&histogram(&values), 100.0);
            assert!((found / exact - 1.0).abs() < 0.02, "{percent}: {found} {exact}");
        }
    }

    #[test]
    fn entropy_keeps_a_uniform_range_whole_and_clips_a_sparse_tail() {
        let uniform: Vec<f32> = (0..100_000).map(|i| i as f32 / 1e5).collect();
        assert!(Method::Entropy.threshold(&histogram(&uniform), 1.0) > 0.9);
        let mut tail = normal(100_000);
        tail.push(40.0);
        let threshold = Method::Entropy.threshold(&histogram(&tail), 40.0);
        assert!((2.0..8.0).contains(&threshold), "{threshold}");
    }

    #[test]
    fn entropy_does_not_clip_a_digit_off_its_background() {
        // Normalized pixels: four fifths background at one value, strokes spread far beyond it.
        let mut values = vec![-0.42f32; 8000];
        values.extend((0..2000).map(|i| -0.42 + 3.24 * (i as f32 / 2000.0)));
        let threshold = Method::Entropy.threshold(&histogram(&values), 2.82);
        assert!(threshold > 2.0, "{threshold}");
    }

    #[test]
    fn names_round_trip() {
        for method in [
            Method::MinMax,
            Method::Entropy,
            Method::Mse,
            Method::Percentile(99.9),
        ] {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        assert!("percentile:0".parse::<Method>().is_err());
        assert!("kl".parse::<Method>().unwrap_err().to_string().contains("kl"));
    }
}
