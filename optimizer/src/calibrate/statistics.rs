use std::collections::BTreeMap;

use super::{Histogram, Method};

/// A sample whose largest magnitude exceeds the median sample's by this factor is an outlier: it still counts
/// for [`Method::MinMax`], but the other methods do not let it widen the range.
const OUTLIER_FACTOR: f64 = 32.0;

/// What is remembered of one tensor over all samples: its size does not depend on their number.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// Smallest value seen.
    pub min: f32,
    /// Largest value seen.
    pub max: f32,
    /// How many values were seen.
    pub values: u64,
    /// Magnitudes of all values; empty for [`Method::MinMax`].
    pub histogram: Histogram,
    /// The largest magnitude of each sample, as a histogram.
    sample_peaks: Histogram,
    /// Sums along axis 1, for correcting biases, apart for each octave of the samples' peaks, so that outlier
    /// samples can be left out once they are known. `None` when there is no such axis or its length varies.
    channels: Option<BTreeMap<u32, ChannelSums>>,
}

#[derive(Clone, Debug, Default)]
struct ChannelSums {
    sums: Vec<f64>,
    values: usize,
}

impl Default for Statistics {
    fn default() -> Self {
        Self {
            min: f32::INFINITY,
            max: f32::NEG_INFINITY,
            values: 0,
            histogram: Histogram::default(),
            sample_peaks: Histogram::default(),
            channels: Some(BTreeMap::new()),
        }
    }
}

/// The tensor has infinities or NaNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonFinite;

impl Statistics {
    /// Adds the values of one sample; `dims` is its shape.
    ///
    /// # Errors
    /// When a value is infinite or NaN; nothing is added then.
    pub fn add(&mut self, values: &[f32], dims: &[usize], method: Method) -> Result<(), NonFinite> {
        let Some((min, max)) = finite_range(values)? else {
            return Ok(());
        };
        self.min = self.min.min(min);
        self.max = self.max.max(max);
        self.values += values.len() as u64;
        self.sample_peaks.add(&[max.max(-min)]);
        if method.needs_histogram() {
            self.histogram.add(values);
        }
        self.add_channels(values, dims, max.max(-min).to_bits() >> 23);
        Ok(())
    }

    /// Adds what a sample was reduced to: its range, and its sums along axis 1 if they are known. Only for methods that
    /// need no histogram.
    pub fn add_reduced(&mut self, min: f32, max: f32, values: u64, sums: Option<&[f32]>) {
        if values == 0 {
            return;
        }
        self.min = self.min.min(min);
        self.max = self.max.max(max);
        self.values += values;
        let peak = max.max(-min);
        self.sample_peaks.add(&[peak]);
        let Some(channels) = &mut self.channels else {
            return;
        };
        let known = channels.values().next().map(|part| part.sums.len());
        match sums {
            Some(sums) if known.is_none_or(|known| known == sums.len()) && !sums.is_empty() => {
                let part = channels.entry(peak.to_bits() >> 23).or_default();
                part.sums.resize(sums.len(), 0.0);
                part.values += values as usize;
                let totals = part.sums.iter_mut().zip(sums);
                totals.for_each(|(total, sum)| *total += f64::from(*sum));
            }
            _ => self.channels = None,
        }
    }

    /// The largest magnitude to represent, by `method`. Zero when every value was zero.
    pub fn threshold(&self, method: Method) -> f32 {
        let peak = self.peak();
        if peak <= 0.0 {
            return 0.0;
        }
        let cap = if method == Method::MinMax {
            peak
        } else {
            self.typical_peak()
        };
        method.threshold(&self.histogram, cap) as f32
    }

    /// The largest magnitude seen.
    pub fn peak(&self) -> f64 {
        f64::from(self.max.max(-self.min)).max(0.0)
    }

    /// The largest magnitude of samples that are no outliers.
    fn typical_peak(&self) -> f64 {
        let median = self.sample_peaks.quantile(0.5).unwrap_or(0.0);
        let typical = self.sample_peaks.buckets(median * OUTLIER_FACTOR);
        let highest = typical.last().map_or(0.0, |bucket| bucket.high);
        if highest > 0.0 {
            highest.min(self.peak())
        } else {
            self.peak()
        }
    }

    /// Mean value along axis 1 (channels of images, features of rows) over samples that are no outliers, when it
    /// is known.
    pub fn channel_means(&self) -> Option<Vec<f64>> {
        let limit = self.sample_peaks.quantile(0.5)? * OUTLIER_FACTOR;
        let typical = self.channels.as_ref()?.iter();
        let typical = typical.filter(|(octave, _)| f64::from(f32::from_bits(**octave << 23)) <= limit);
        let mut total = ChannelSums::default();
        for (_, part) in typical {
            total.sums.resize(part.sums.len(), 0.0);
            total
                .sums
                .iter_mut()
                .zip(&part.sums)
                .for_each(|(total, part)| *total += part);
            total.values += part.values;
        }
        let per_channel = total.values as f64 / total.sums.len() as f64;
        (total.values > 0).then(|| total.sums.iter().map(|sum| sum / per_channel).collect())
    }

    fn add_channels(&mut self, values: &[f32], dims: &[usize], octave: u32) {
        let Some(channels) = &mut self.channels else {
            return;
        };
        let inner = dims.get(2..).unwrap_or_default().iter().product::<usize>();
        let known = channels.values().next().map(|part| part.sums.len());
        let count = match dims {
            [_, count, ..] if known.is_none_or(|known| known == *count) && inner > 0 => *count,
            _ => {
                self.channels = None;
                return;
            }
        };
        let part = channels.entry(octave).or_default();
        part.sums.resize(count, 0.0);
        part.values += values.len();
        for (index, row) in values.chunks_exact(inner).enumerate() {
            part.sums[index % count] += sum(row);
        }
    }
}

/// Sum in sixteen lanes, so that the compiler uses vector registers.
fn sum(values: &[f32]) -> f64 {
    let mut total = 0.0;
    for part in values.chunks(4096) {
        let (blocks, rest) = part.as_chunks::<16>();
        let mut lanes = [0f32; 16];
        for block in blocks {
            for (lane, value) in lanes.iter_mut().zip(block) {
                *lane += value;
            }
        }
        total += f64::from(lanes.iter().sum::<f32>() + rest.iter().sum::<f32>());
    }
    total
}

/// Smallest and largest value, `None` for no values.
fn finite_range(values: &[f32]) -> Result<Option<(f32, f32)>, NonFinite> {
    let mut lanes = ([f32::INFINITY; 16], [f32::NEG_INFINITY; 16], [false; 16]);
    let (blocks, rest) = values.as_chunks::<16>();
    let mut take = |block: &[f32; 16]| {
        for (i, value) in block.iter().enumerate() {
            lanes.0[i] = if *value < lanes.0[i] { *value } else { lanes.0[i] };
            lanes.1[i] = if *value > lanes.1[i] { *value } else { lanes.1[i] };
            lanes.2[i] |= value.to_bits() & 0x7f80_0000 == 0x7f80_0000;
        }
    };
    blocks.iter().for_each(&mut take);
    if let Some(first) = rest.first() {
        let mut block = [*first; 16];
        block[..rest.len()].copy_from_slice(rest);
        take(&block);
    }
    if lanes.2.contains(&true) {
        return Err(NonFinite);
    }
    let min = lanes.0.into_iter().fold(f32::INFINITY, f32::min);
    let max = lanes.1.into_iter().fold(f32::NEG_INFINITY, f32::max);
    Ok((!values.is_empty()).then_some((min, max)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(scale: f32) -> Vec<f32> {
        (0..4096)
            .map(|i| scale * ((i * 37 % 4096) as f32 / 2048.0 - 1.0))
            .collect()
    }

    #[test]
    fn one_sample_or_one_value_a_thousand_times_larger_does_not_widen_the_range() {
        for method in [Method::Percentile(99.99), Method::Entropy, Method::Mse] {
            let mut whole = Statistics::default();
            let mut single = Statistics::default();
            for i in 0..8 {
                let scale = if i == 3 { 1000.0 } else { 1.0 };
                whole.add(&sample(scale), &[1, 4096], method).unwrap();
                let mut values = sample(1.0);
                values[5] *= scale;
                single.add(&values, &[1, 4096], method).unwrap();
            }
            for statistics in [whole, single] {
                let threshold = statistics.threshold(method);
                assert!((0.8..=1.1).contains(&threshold), "{method}: {threshold}");
                assert!(statistics.threshold(Method::MinMax) > 900.0);
            }
        }
    }

    #[test]
    fn large_activations_in_every_sample_are_kept_by_min_max_and_are_no_outlier_samples() {
        let mut statistics = Statistics::default();
        for i in 0..8 {
            statistics
                .add(&sample(1.0 + i as f32), &[1, 4096], Method::Mse)
                .unwrap();
        }
        assert!(statistics.threshold(Method::Mse) > 6.0);
        assert_eq!(statistics.threshold(Method::MinMax), 8.0);
    }

    #[test]
    fn a_value_that_is_not_finite_is_refused_wherever_it_stands() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for position in [0, 15, 16, 36] {
                let mut values = vec![1.0; 37];
                values[position] = bad;
                let mut statistics = Statistics::default();
                assert_eq!(statistics.add(&values, &[37], Method::Mse), Err(NonFinite));
                assert_eq!(statistics.values, 0);
            }
        }
    }

    #[test]
    fn zeros_and_nothing_have_the_threshold_zero() {
        let mut statistics = Statistics::default();
        statistics.add(&[], &[0], Method::Entropy).unwrap();
        assert_eq!(statistics.threshold(Method::Entropy), 0.0);
        statistics.add(&[0.0; 9], &[9], Method::Entropy).unwrap();
        for method in [
            Method::MinMax,
            Method::Percentile(99.0),
            Method::Entropy,
            Method::Mse,
        ] {
            assert_eq!(statistics.threshold(method), 0.0);
        }
    }

    #[test]
    fn channel_means_are_along_axis_one_and_given_up_when_it_varies() {
        let mut statistics = Statistics::default();
        statistics
            .add(&[1.0, 3.0, 10.0, 30.0], &[1, 2, 2], Method::MinMax)
            .unwrap();
        statistics.add(&[2.0, 20.0], &[1, 2, 1], Method::MinMax).unwrap();
        assert_eq!(statistics.channel_means(), Some(vec![2.0, 20.0]));
        statistics.add(&[1e6, 1e6], &[1, 2, 1], Method::MinMax).unwrap();
        assert_eq!(
            statistics.channel_means(),
            Some(vec![2.0, 20.0]),
            "an outlier sample"
        );
        statistics.add(&[1.0; 3], &[1, 3], Method::MinMax).unwrap();
        assert_eq!(statistics.channel_means(), None);
    }
}
