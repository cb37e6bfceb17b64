use edgeopt_models::Bytes;
use serde::{Deserialize, Serialize};

/// What quantization did, node by node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Int8Report {
    /// Nodes that now compute in INT8, with their operator.
    pub quantized: Vec<QuantizedNode>,
    /// Weighted nodes that stay in float, and why.
    pub kept: Vec<KeptNode>,
    /// Quantized activations with the scale of one step.
    pub activations: Vec<ActivationScale>,
    /// Things to know that are no errors.
    pub notes: Vec<String>,
    /// All constants before.
    pub weights_before: Bytes,
    /// All constants after.
    pub weights_after: Bytes,
    /// How many biases were corrected.
    pub corrected_biases: usize,
}

/// A node that computes in INT8.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuantizedNode {
    /// Its name.
    pub node: String,
    /// Its operator.
    pub op: String,
}

/// A node that stays in float.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptNode {
    /// Its name.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// Why.
    pub reason: String,
}

/// The scale of an activation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivationScale {
    /// The tensor.
    pub tensor: String,
    /// One step of INT8.
    pub scale: f32,
}
