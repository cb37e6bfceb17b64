use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Method;

/// The ranges of a model's tensors, found by calibration. Serializable, so that it can be kept and reused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrationTable {
    /// The method the thresholds come from.
    pub method: Method,
    /// Samples seen.
    pub samples: u64,
    /// By tensor name.
    pub ranges: BTreeMap<String, TensorRange>,
}

/// The range of one tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorRange {
    /// Smallest value seen.
    pub min: f32,
    /// Largest value seen.
    pub max: f32,
    /// Largest magnitude to represent; 0 when every value was zero.
    pub threshold: f32,
    /// Mean along axis 1, for correcting biases, when it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_means: Option<Vec<f64>>,
}

impl CalibrationTable {
    /// The range of a tensor.
    pub fn get(&self, tensor: &str) -> Option<&TensorRange> {
        self.ranges.get(tensor)
    }

    /// Sets a range from its threshold alone.
    pub fn insert(&mut self, tensor: &str, threshold: f32) {
        let range = TensorRange {
            min: -threshold,
            max: threshold,
            threshold,
            channel_means: None,
        };
        self.ranges.insert(tensor.to_owned(), range);
    }
}
