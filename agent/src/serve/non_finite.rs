//! NaN and infinities in outputs. A mask or the logarithm of zero holds them rightly, and then the bundle's golden outputs
//! do, too; elsewhere they are the sign of a model that went wrong.

use std::fmt;

use edgeopt_models::{DataType, Tensor};

/// Which values beside finite ones there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NonFinite {
    nan: bool,
    positive: bool,
    negative: bool,
}

impl NonFinite {
    /// Those in `tensor`; none in types that have none.
    pub(super) fn of(tensor: &Tensor) -> Self {
        let float = matches!(
            tensor.dtype(),
            DataType::Float32 | DataType::Float16 | DataType::Bfloat16 | DataType::Float64
        );
        match tensor.to_f32() {
            Ok(values) if float => {
                values
                    .iter()
                    .filter(|value| !value.is_finite())
                    .fold(Self::default(), |mut found, value| {
                        found.nan |= value.is_nan();
                        found.positive |= *value == f32::INFINITY;
                        found.negative |= *value == f32::NEG_INFINITY;
                        found
                    })
            }
            _ => Self::default(),
        }
    }

    /// What is here and not in `expected`.
    pub(super) fn besides(self, expected: Self) -> Self {
        Self {
            nan: self.nan && !expected.nan,
            positive: self.positive && !expected.positive,
            negative: self.negative && !expected.negative,
        }
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self {
            nan: self.nan || other.nan,
            positive: self.positive || other.positive,
            negative: self.negative || other.negative,
        }
    }

    pub(super) fn any(self) -> bool {
        self != Self::default()
    }
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (self.nan, "NaN"),
            (self.positive, "infinity"),
            (self.negative, "-infinity"),
        ];
        let mut between = "";
        for (_, name) in kinds.iter().filter(|(there, _)| *there) {
            write!(f, "{between}{name}")?;
            between = " and ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(values: &[f32]) -> NonFinite {
        NonFinite::of(&Tensor::vector(values))
    }

    #[test]
    fn nan_and_both_infinities_are_told_apart() {
        assert!(!found(&[1.0, -2.0]).any());
        assert!(!NonFinite::of(&Tensor::vector(&[i64::MAX])).any());
        let all = found(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        assert_eq!(all.to_string(), "NaN and infinity and -infinity");
        let masked = found(&[0.0, f32::NEG_INFINITY]);
        assert_eq!(all.besides(masked).to_string(), "NaN and infinity");
        assert!(!masked.besides(all).any());
        assert_eq!(masked.and(found(&[f32::NAN])).to_string(), "NaN and -infinity");
        let doubles = Tensor::vector(&[f64::INFINITY]);
        assert_eq!(NonFinite::of(&doubles).to_string(), "infinity");
    }
}
