use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One answer of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ResultMessage {
    /// Unique for ever. Delivery is at least once: who sees an id again drops the message.
    pub id: String,
    /// Where the input came from: `mqtt`, `http`, `camera`, `sensor/<name>`, or the folder's name; with the input's own name
    /// where it has one.
    pub stream: String,
    /// Name of the model that answered.
    pub model: String,
    /// Its version.
    pub version: String,
    /// Milliseconds since 1970 when the input came in, or was captured by a camera; absent while the device's clock is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
    /// Microseconds since the device was switched on, at the same moment: orders the results of one run even when the
    /// clock jumps.
    pub monotonic_us: u64,
    /// Number of a camera's frame, as its driver counts: it begins again when the camera is opened anew. Absent for other
    /// inputs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// Milliseconds from input to answer.
    pub latency_ms: f64,
    /// What the model's post-processing gives.
    pub prediction: Value,
}
