use std::collections::BTreeSet;

use crate::precision::pattern;

/// For which executor the Q/DQ nodes are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Placement {
    /// TensorRT's rules ("Working with quantized types: explicit quantization" in its developer guide): inputs
    /// of weighted layers, and of a skip connection's Add only the residual side.
    #[default]
    TensorRt,
    /// ONNX Runtime on CPUs executes a layer in INT8 only when its output is quantized too: additionally both
    /// inputs of Add, and pooling and concatenation between quantized layers.
    Cpu,
}

/// How to quantize.
#[derive(Clone, Debug)]
pub struct Int8Options {
    /// Where Q/DQ nodes go.
    pub placement: Placement,
    /// Node names to leave in float; `*` stands for any text.
    pub exclude: Vec<String>,
    /// Exact node names to leave in float (found by the sensitivity search).
    pub exclude_nodes: BTreeSet<String>,
    /// Also quantize the last convolutions before the outputs (heads of detectors), which usually costs much
    /// accuracy and gains little time.
    pub quantize_heads: bool,
    /// Also quantize matrix products of two activations (attention).
    pub quantize_attention: bool,
    /// Shift each bias by the mean error that rounding the weights causes (Nagel et al., "Data-Free Quantization
    /// Through Weight Equalization and Bias Correction", 2019), where the calibration knows channel means.
    pub bias_correction: bool,
    /// Use 7 bits for weights: for x86 CPUs without VNNI, whose 8-bit products may saturate.
    pub reduce_range: bool,
    /// Choose scales that half has, for graphs whose other layers become half.
    pub half_scales: bool,
}

impl Default for Int8Options {
    fn default() -> Self {
        Self {
            placement: Placement::default(),
            exclude: Vec::new(),
            exclude_nodes: BTreeSet::new(),
            quantize_heads: false,
            quantize_attention: false,
            bias_correction: true,
            reduce_range: false,
            half_scales: false,
        }
    }
}

impl Int8Options {
    /// Why the node must stay in float by the user's wish.
    pub(crate) fn excludes(&self, node: &str) -> Option<String> {
        if self.exclude_nodes.contains(node) {
            return Some("excluded: sensitive to quantization".into());
        }
        let pattern = self
            .exclude
            .iter()
            .find(|wanted| pattern::matches(wanted, node))?;
        Some(format!("excluded by {pattern:?}"))
    }
}
