use edgeopt_models::bundle::OutputAccuracy;

/// The highest SQNR reported, for outputs that are equal bit by bit: JSON has no infinity.
pub const EXACT_DB: f64 = 200.0;

/// Sums from which SQNR, cosine and largest difference follow: fixed size, however many samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    reference: f64,
    other: f64,
    product: f64,
    noise: f64,
    max_abs: f64,
    non_finite: u64,
}

impl Difference {
    /// Adds values of the reference and the other model. Where only the other is infinite or NaN it is counted
    /// and left out of the sums; where the reference is so, the pair is left out.
    pub fn add(&mut self, reference: &[f32], other: &[f32]) {
        for (a, b) in reference.iter().zip(other) {
            let (a, b) = (f64::from(*a), f64::from(*b));
            if !a.is_finite() || !b.is_finite() {
                self.non_finite += u64::from(a.is_finite());
                continue;
            }
            let difference = a - b;
            self.reference += a * a;
            self.other += b * b;
            self.product += a * b;
            self.noise += difference * difference;
            self.max_abs = self.max_abs.max(difference.abs());
        }
    }

    /// Signal to noise ratio in dB: 10·log₁₀(Σ ref² ÷ Σ (ref − other)²), at most [`EXACT_DB`]. With infinite or
    /// NaN values in the other model it is −[`EXACT_DB`].
    pub fn sqnr_db(&self) -> f64 {
        if self.non_finite > 0 {
            return -EXACT_DB;
        }
        if self.noise == 0.0 {
            return EXACT_DB;
        }
        (10.0 * (self.reference / self.noise).log10()).clamp(-EXACT_DB, EXACT_DB)
    }

    /// Cosine similarity; 1 when both are zero.
    pub fn cosine(&self) -> f64 {
        let norm = (self.reference * self.other).sqrt();
        if norm > 0.0 {
            self.product / norm
        } else {
            f64::from(u8::from(self.noise == 0.0))
        }
    }

    /// How many values became infinite or NaN.
    pub fn non_finite(&self) -> u64 {
        self.non_finite
    }

    /// As the manifest carries it.
    pub fn summary(&self, name: &str) -> OutputAccuracy {
        OutputAccuracy {
            name: name.to_owned(),
            sqnr_db: self.sqnr_db(),
            cosine: self.cosine(),
            max_abs: self.max_abs,
        }
    }
}

/// The output that differs most: the lowest SQNR, and before all others one whose SQNR is no number.
pub fn worst_output(outputs: &[OutputAccuracy]) -> Option<&OutputAccuracy> {
    outputs
        .iter()
        .min_by(|a, b| rank(a.sqnr_db).total_cmp(&rank(b.sqnr_db)))
}

/// The SQNR for sorting: whatever the sign of a NaN, it comes first.
pub(crate) fn rank(sqnr_db: f64) -> f64 {
    if sqnr_db.is_nan() {
        f64::NEG_INFINITY
    } else {
        sqnr_db
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_of_noise_is_twenty_decibel() {
        let mut difference = Difference::default();
        difference.add(&[1.0, -1.0], &[1.1, -1.1]);
        assert!((difference.sqnr_db() - 20.0).abs() < 1e-5);
        assert!((difference.cosine() - 1.0).abs() < 1e-12);
        assert!((difference.summary("y").max_abs - 0.1).abs() < 1e-6);
    }

    #[test]
    fn equal_is_finite_and_nan_is_the_worst() {
        let mut difference = Difference::default();
        difference.add(&[0.0, 2.0], &[0.0, 2.0]);
        assert_eq!((difference.sqnr_db(), difference.cosine()), (EXACT_DB, 1.0));
        difference.add(&[f32::NEG_INFINITY], &[f32::NEG_INFINITY]);
        assert_eq!(difference.non_finite(), 0);
        difference.add(&[1.0], &[f32::NAN]);
        assert_eq!((difference.sqnr_db(), difference.non_finite()), (-EXACT_DB, 1));
    }

    #[test]
    fn no_number_is_worse_than_any_number() {
        let output = |name: &str, sqnr_db: f64| OutputAccuracy {
            name: name.to_owned(),
            sqnr_db,
            cosine: 1.0,
            max_abs: 0.0,
        };
        for nan in [f64::NAN, -f64::NAN] {
            let outputs = [output("a", 30.0), output("b", nan), output("c", -EXACT_DB)];
            assert_eq!(
                worst_output(&outputs).map(|output| output.name.as_str()),
                Some("b")
            );
            assert_eq!(
                worst_output(&outputs[..1]).map(|output| output.name.as_str()),
                Some("a")
            );
        }
        assert!(worst_output(&[]).is_none());
    }
}
