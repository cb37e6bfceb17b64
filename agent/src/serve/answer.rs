//! What a model says about one input.

use std::time::Instant;

use edgeopt_models::Tensor;
use edgeopt_models::bundle::Postprocessing;
use edgeopt_runtime::pipeline::postprocess::{Outputs, interpret};

use crate::protocol::{Prediction, RawOutput};

/// Raw outputs of more elements are described, not shown: a message is no place for a feature map.
const MOST_VALUES: usize = 4096;

/// A prediction with what is known about it.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The prediction.
    pub prediction: Prediction,
    /// Name of the model that answered.
    pub model: String,
    /// Its version.
    pub version: String,
    /// Milliseconds from input to answer.
    pub latency_ms: f64,
    /// Whether an output holds NaN or an infinity that no golden output of its name holds.
    pub non_finite: bool,
    /// When its input came, or was captured.
    pub received: Instant,
    /// The input's number, where its source counts: a camera's frame.
    pub sequence: Option<u64>,
}

/// Reads outputs as declared; raw ones come with their values.
pub(super) fn predict(outputs: &Outputs<'_>, declared: &Postprocessing) -> Result<Prediction, String> {
    if !matches!(declared, Postprocessing::Raw) {
        let found = interpret(outputs, declared).map_err(|error| error.to_string())?;
        return Ok(Prediction::Read(found));
    }
    let outputs = outputs
        .names
        .iter()
        .zip(outputs.tensors)
        .map(|(name, tensor)| RawOutput {
            name: name.clone(),
            dtype: tensor.dtype(),
            dims: tensor.dims().to_vec(),
            values: copied(tensor),
        });
    Ok(Prediction::Raw(outputs.collect()))
}

/// Elements of its own, for the session writes the next answer where these are.
fn copied(tensor: &Tensor) -> Option<Tensor> {
    (tensor.elements() <= MOST_VALUES)
        .then(|| Tensor::from_bytes(tensor.dtype(), tensor.dims(), tensor.as_bytes()).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use edgeopt_models::bundle::DetectionFormat;
    use edgeopt_runtime::pipeline::Geometry;
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_told_in_pixels_of_the_image() {
        let declared = Postprocessing::Detection {
            format: DetectionFormat::EndToEnd,
            score_threshold: 0.25,
            iou_threshold: None,
            max_detections: 10,
            labels: vec!["cat".into()],
        };
        let rows = [10f32, 20.0, 30.0, 40.0, 0.5, 0.0];
        let geometry = Geometry {
            width: 400,
            height: 200,
            scale: (0.5, 0.5),
            pad: (0.0, 10.0),
        };
        let outputs = Outputs {
            names: &["boxes".to_owned()],
            tensors: &[Tensor::new(&[1, 1, 6], &rows).unwrap()],
            geometry: Some(&geometry),
        };
        let expected = json!({ "kind": "objects", "objects": [{
            "class": 0, "label": "cat", "score": 0.5,
            "box": { "left": 20.0, "top": 20.0, "right": 60.0, "bottom": 60.0 },
        }]});
        assert_eq!(predict(&outputs, &declared).unwrap().to_json().unwrap(), expected);
    }
}
