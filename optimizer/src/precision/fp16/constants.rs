use edgeopt_models::Tensor;
use half::f16;

use super::LARGEST;

/// Rounds constants to half and counts what that does to them.
#[derive(Debug, Default)]
pub(super) struct HalfConstants {
    /// Values that are not zero but become so.
    pub(super) flushed: u64,
    /// Constants with values below the lowest half.
    pub(super) clamped: usize,
}

impl HalfConstants {
    /// The tensor in half, rounded to nearest even. Finite values beyond the range become its ends: only masks have them
    /// here.
    pub(super) fn convert(&mut self, tensor: &Tensor) -> Tensor {
        let Ok(values) = tensor.view::<f32>() else {
            return tensor.clone();
        };
        let mut clamped = false;
        let halves: Vec<f16> = values
            .iter()
            .map(|value| {
                let limited = if value.is_finite() {
                    value.clamp(-LARGEST, LARGEST)
                } else {
                    *value
                };
                clamped |= limited != *value && !value.is_nan();
                let half = f16::from_f32(limited);
                self.flushed += u64::from(half == f16::ZERO && *value != 0.0);
                half
            })
            .collect();
        self.clamped += usize::from(clamped);
        Tensor::new(tensor.dims(), &halves).unwrap_or_else(|_| tensor.clone())
    }
}
