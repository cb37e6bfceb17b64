use std::cell::RefCell;

/// Buckets per octave of magnitude: one bucket is at most 1/128 of its value wide, about one step of INT8 at
/// the top of the range.
const PER_OCTAVE_BITS: u32 = 7;
const SHIFT: u32 = 23 - PER_OCTAVE_BITS;
const BUCKETS: usize = 1 << (8 + PER_OCTAVE_BITS);
/// First bucket of infinities and NaNs.
const NON_FINITE: usize = 255 << PER_OCTAVE_BITS;

thread_local! {
    /// Two tables, because consecutive equal values (zeros after a ReLU) would wait for each other in one.
    static SCRATCH: RefCell<Vec<[u32; BUCKETS]>> = RefCell::new(vec![[0; BUCKETS]; 2]);
}

/// How often each magnitude |x| occurred, in buckets spaced by the bits of the float itself: the relative
/// resolution is the same everywhere, so one value a thousand times larger than the rest costs nothing, the
/// range never has to be known or grown, and one pass over the data suffices.
///
/// Only the occupied span of buckets is stored: typically 20 to 30 octaves, some 30 KiB a tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    first: usize,
    counts: Vec<u64>,
}

/// A bucket: `count` magnitudes in `low..high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bucket {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) count: f64,
}

impl Histogram {
    /// Adds the magnitudes of `values`. Infinities and NaNs are left out: [`super::Statistics`] refuses them.
    pub fn add(&mut self, values: &[f32]) {
        SCRATCH.with_borrow_mut(|tables| {
            let [even, odd] = tables.as_mut_slice() else {
                return;
            };
            // Counts of one part fit in 32 bits.
            for part in values.chunks(1 << 30) {
                let (pairs, rest) = part.as_chunks::<2>();
                for [a, b] in pairs {
                    even[bucket_of(*a) & (BUCKETS - 1)] += 1;
                    odd[bucket_of(*b) & (BUCKETS - 1)] += 1;
                }
                for a in rest {
                    even[bucket_of(*a) & (BUCKETS - 1)] += 1;
                }
                self.take(even);
                self.take(odd);
            }
        });
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.counts.is_empty() {
            return;
        }
        self.cover(other.first, other.first + other.counts.len());
        let start = other.first - self.first;
        for (mine, theirs) in self.counts[start..].iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
    }

    /// How many values were added.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The occupied buckets in rising order, those above `cap` left out.
    pub(crate) fn buckets(&self, cap: f64) -> Vec<Bucket> {
        let occupied = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        occupied
            .map(|(offset, count)| {
                let index = self.first + offset;
                Bucket {
                    low: edge(index),
                    high: edge(index + 1),
                    count: *count as f64,
                }
            })
            .take_while(|bucket| bucket.low <= cap)
            .collect()
    }

    /// The bucket's upper edge at which the fraction `fraction` of all values is at or below it.
    pub(crate) fn quantile(&self, fraction: f64) -> Option<f64> {
        let wanted = (self.total() as f64 * fraction).max(1.0);
        let mut sum = 0u64;
        self.counts.iter().enumerate().find_map(|(offset, count)| {
            sum += count;
            (*count > 0 && sum as f64 >= wanted).then(|| edge(self.first + offset + 1))
        })
    }

    /// Moves the finite counts of `table` here and clears it.
    fn take(&mut self, table: &mut [u32; BUCKETS]) {
        table[NON_FINITE..].fill(0);
        let Some(first) = table.iter().position(|count| *count > 0) else {
            return;
        };
        let end = table
            .iter()
            .rposition(|count| *count > 0)
            .map_or(first, |last| last + 1);
        self.cover(first, end);
        let start = first - self.first;
        for (mine, new) in self.counts[start..].iter_mut().zip(&mut table[first..end]) {
            *mine += u64::from(*new);
            *new = 0;
        }
    }

    /// Grows the stored span to include the buckets `first..end`.
    fn cover(&mut self, first: usize, end: usize) {
        if self.counts.is_empty() {
            self.first = first;
        }
        if first < self.first {
            let missing = self.first - first;
            self.counts.splice(0..0, std::iter::repeat_n(0, missing));
            self.first = first;
        }
        if end > self.first + self.counts.len() {
            self.counts.resize(end - self.first, 0);
        }
    }
}

#[inline]
fn bucket_of(value: f32) -> usize {
    ((value.to_bits() & 0x7fff_ffff) >> SHIFT) as usize
}

/// Lower edge of a bucket.
fn edge(index: usize) -> f64 {
    if index >= NON_FINITE {
        return f64::from(f32::MAX);
    }
    f64::from(f32::from_bits((index as u32) << SHIFT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_at_one_relative_resolution_over_the_whole_range_of_floats() {
        let values: Vec<f32> = (-120..120)
            .map(|e| 1.7 * 2f32.powi(e))
            .flat_map(|x| [x, -x])
            .collect();
        let mut histogram = Histogram::default();
        histogram.add(&values);
        histogram.add(&[0.0, -0.0, f32::NAN, f32::INFINITY]);
        assert_eq!(histogram.total(), values.len() as u64 + 2);
        for bucket in histogram.buckets(f64::INFINITY).iter().skip(1) {
            assert_eq!(bucket.count, 2.0);
            assert!(bucket.high / bucket.low < 1.0 + 1.0 / 127.0);
            let value = bucket.low / 2f64.powi(bucket.low.log2().floor() as i32);
            assert!((1.69..=1.7).contains(&value), "{value}");
        }
    }

    #[test]
    fn merging_equals_adding() {
        let (a, b): (Vec<f32>, Vec<f32>) = (
            (1..999).map(|i| i as f32).collect(),
            (1..99).map(|i| 1e-3 * i as f32).collect(),
        );
        let (mut whole, mut first, mut second) =
            (Histogram::default(), Histogram::default(), Histogram::default());
        whole.add(&[a.clone(), b.clone()].concat());
        first.add(&a);
        second.add(&b);
        first.merge(&second);
        assert_eq!(first, whole);
    }
}
