use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cbor::{self, CborError};
use super::prediction::Prediction;

/// One answer of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[cfg_attr(test, schemars(rename = "ResultMessage"))]
pub struct ResultMessage<P = Value> {
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
    pub prediction: P,
}

/// How results are written. Their first byte tells which: JSON begins with `{`, a CBOR map with 0xa0 to 0xbf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// Text, for whoever reads it.
    #[default]
    Json,
    /// Smaller, above all for raw outputs, which come in their own type and without loss.
    Cbor,
}

/// Why a result has no written form.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// As JSON.
    #[error("it has no JSON form: {0}")]
    Json(#[from] serde_json::Error),
    /// As CBOR.
    #[error("it has no CBOR form: {0}")]
    Cbor(String),
}

/// Why bytes are no result.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// They are no JSON, or not a result's.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// They begin as CBOR and are not a result's.
    #[error(transparent)]
    Cbor(#[from] CborError),
}

impl ResultMessage<Prediction> {
    /// Writes the message.
    ///
    /// # Errors
    /// See [`EncodeError`].
    pub fn encode(&self, encoding: Encoding) -> Result<Vec<u8>, EncodeError> {
        match encoding {
            Encoding::Json => Ok(serde_json::to_vec(self)?),
            Encoding::Cbor => cbor::write(self).map_err(|error| EncodeError::Cbor(error.to_string())),
        }
    }
}

impl ResultMessage {
    /// The JSON of a result in either encoding: typed arrays become lists of numbers, in which `null` is not finite.
    ///
    /// # Errors
    /// See [`DecodeError`]; whether the fields are those of a result is not checked.
    pub fn json_of(payload: &[u8]) -> Result<Value, DecodeError> {
        Ok(match payload.first() {
            Some(0xa0..=0xbf) => cbor::to_json(payload)?,
            _ => serde_json::from_slice(payload)?,
        })
    }

    /// Reads a result in either encoding.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(serde_json::from_value(Self::json_of(payload)?)?)
    }
}
