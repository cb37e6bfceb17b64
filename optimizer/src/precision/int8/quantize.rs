use std::collections::HashMap;

use edgeopt_models::graph::NameGenerator;
use edgeopt_models::{Bytes, DataType, Graph, Model, Node, Tensor, ValueName, ValueType};

use super::plan::{Plan, joined};
use super::weights::{QuantizedWeight, mean_shift, quantize_weight, up_to_half};
use super::{ActivationScale, Int8Options, Int8Report, Placement, QuantizedNode};
use crate::calibrate::CalibrationTable;

/// Inputs of a concatenation whose ranges differ by more than this keep their own scales: with a shared one the
/// smallest would be rounded away.
const WIDEST_SHARED: f32 = 50.0;

/// Why a model cannot be quantized.
#[derive(Debug, thiserror::Error)]
pub enum Int8Error {
    /// Operator set too old.
    #[error("the model uses operator set {opset}; per-channel INT8 needs 13 or newer: raise it first")]
    Opset {
        /// The model's.
        opset: i64,
    },
    /// It has Q/DQ already.
    #[error(
        "{node} shows that the model is quantized already; start from the float model, or keep this one as it is"
    )]
    AlreadyQuantized {
        /// The first such node.
        node: String,
    },
    /// Calibration does not cover a tensor.
    #[error(
        "tensor {tensor:?} is to be quantized, but the calibration table has no range for it; calibrate again with this model"
    )]
    Uncalibrated {
        /// The tensor.
        tensor: String,
    },
    /// A range or weight is no finite number.
    #[error("{what} is not finite")]
    NonFinite {
        /// What.
        what: String,
    },
    /// A constant cannot be read.
    #[error("weight {weight:?}: {source}")]
    Weight {
        /// Its name.
        weight: String,
        /// Why.
        source: edgeopt_models::TensorError,
    },
}

/// The tensors whose ranges [`quantize`] needs: what calibration has to observe.
///
/// # Errors
/// When the model cannot be quantized at all.
pub fn tensors_to_calibrate(model: &Model, options: &Int8Options) -> Result<Vec<ValueName>, Int8Error> {
    check(model)?;
    Ok(Plan::new(&model.graph, options).values(&model.graph))
}

fn check(model: &Model) -> Result<(), Int8Error> {
    let quantizing = |node: &&Node| {
        [
            "QuantizeLinear",
            "DequantizeLinear",
            "QLinearConv",
            "QLinearMatMul",
            "ConvInteger",
            "MatMulInteger",
        ]
        .iter()
        .any(|op| node.op_type == *op)
    };
    if let Some(node) = model.graph.nodes.iter().find(quantizing) {
        return Err(Int8Error::AlreadyQuantized {
            node: node.to_string(),
        });
    }
    if model.opset() < 13 {
        return Err(Int8Error::Opset { opset: model.opset() });
    }
    Ok(())
}

/// Inserts QuantizeLinear/DequantizeLinear around what is to compute in INT8 and stores weights as INT8.
/// Activations have one scale each, weights one per output channel; biases stay float. On an error the model is
/// unchanged.
///
/// # Errors
/// See [`Int8Error`].
pub fn quantize(
    model: &mut Model,
    table: &CalibrationTable,
    options: &Int8Options,
) -> Result<Int8Report, Int8Error> {
    check(model)?;
    let plan = Plan::new(&model.graph, options);
    let mut report = Int8Report {
        kept: plan.kept.clone(),
        ..Int8Report::default()
    };
    let scales = scales(&plan, &model.graph, table, options, &mut report)?;
    let mut editor = Editor {
        names: NameGenerator::new(model),
        graph: model.graph.clone(),
        prepended: Vec::new(),
    };
    report.weights_before = constants(&model.graph);
    let mut weights: HashMap<(ValueName, Option<usize>), (ValueName, QuantizedWeight)> = HashMap::new();
    for weighted in &plan.weighted {
        let node = &model.graph.nodes[weighted.node];
        report.quantized.push(QuantizedNode {
            node: node.name.clone(),
            op: node.op_type.clone(),
        });
        let (Some(axis), Some(name)) = (weighted.weight, node.input(1)) else {
            continue;
        };
        let Some(weight) = model.graph.constant(name) else {
            continue;
        };
        let key = (name.clone(), axis);
        if !weights.contains_key(&key) {
            let limit = if options.reduce_range { 63 } else { 127 };
            let quantized = quantize_weight(weight, axis, limit, options.half_scales).map_err(|source| {
                Int8Error::Weight {
                    weight: name.to_string(),
                    source,
                }
            })?;
            if quantized.scales.iter().any(|scale| !scale.is_finite()) || quantized_nan(weight) {
                return Err(Int8Error::NonFinite {
                    what: format!("weight {name:?} of {node}"),
                });
            }
            let read = editor.add_weight(name, axis, &quantized);
            weights.insert(key.clone(), (read, quantized));
        }
        let Some((read, quantized)) = weights.get(&key) else {
            continue;
        };
        editor.graph.nodes[weighted.node].inputs[1] = read.clone();
        let means = node
            .input(0)
            .and_then(|input| table.get(input)?.channel_means.as_deref());
        if let Some(means) = means.filter(|_| options.bias_correction)
            && let Some(shift) = shift_of(node, weight, quantized, means)
        {
            report.corrected_biases += usize::from(editor.correct_bias(weighted.node, &shift));
        }
    }
    editor.add_activations(&plan, &scales);
    editor.graph.drop_unused_constants();
    report.weights_after = constants(&editor.graph);
    model.graph = editor.graph;
    model.ir_version = model
        .ir_version
        .max(edgeopt_models::graph::ir_version_for(model.opset()));
    Ok(report)
}

fn quantized_nan(weight: &Tensor) -> bool {
    weight
        .view::<f32>()
        .is_ok_and(|values| values.iter().any(|value| !value.is_finite()))
}

fn constants(graph: &Graph) -> Bytes {
    graph
        .initializers
        .values()
        .map(|tensor| Bytes::from(tensor.as_bytes().len()))
        .sum()
}

/// Convolutions, whose channels stand on axis 0 of the weight and on axis 1 of the input.
fn shift_of(node: &Node, weight: &Tensor, quantized: &QuantizedWeight, means: &[f64]) -> Option<Vec<f64>> {
    if !node.is("Conv") {
        return None;
    }
    let groups = usize::try_from(node.int("group").unwrap_or(1)).ok()?;
    mean_shift(weight, quantized, groups, means)
}

/// Scale and zero point of an activation.
#[derive(Clone, Copy, Debug)]
struct Scale {
    scale: f32,
    /// `None` for symmetric INT8, else the zero point of UINT8.
    zero: Option<u8>,
}

fn scales(
    plan: &Plan,
    graph: &Graph,
    table: &CalibrationTable,
    options: &Int8Options,
    report: &mut Int8Report,
) -> Result<Vec<(ValueName, Scale)>, Int8Error> {
    let values = plan.values(graph);
    let mut ranges: HashMap<ValueName, (f32, f32)> = HashMap::new();
    for value in &values {
        let missing = || Int8Error::Uncalibrated {
            tensor: value.to_string(),
        };
        let range = table.get(value).ok_or_else(missing)?;
        if !range.threshold.is_finite() || range.threshold < 0.0 {
            return Err(Int8Error::NonFinite {
                what: format!("the calibrated range of tensor {value:?}"),
            });
        }
        let limit = range.threshold;
        ranges.insert(
            value.clone(),
            (range.min.clamp(-limit, 0.0), range.max.clamp(0.0, limit)),
        );
    }
    let mut groups: HashMap<usize, Vec<ValueName>> = HashMap::new();
    for (name, group) in joined(&plan.one_scale) {
        groups.entry(group).or_default().push(name);
    }
    for members in groups.values_mut() {
        members.sort();
        let magnitude = |name: &ValueName| {
            ranges
                .get(name)
                .map(|(low, high)| high.max(-low))
                .filter(|m| *m > 0.0)
        };
        let magnitudes: Vec<f32> = members.iter().filter_map(magnitude).collect();
        let widest = magnitudes.iter().copied().fold(0.0, f32::max);
        let narrowest = magnitudes.iter().copied().fold(f32::INFINITY, f32::min);
        if widest > narrowest * WIDEST_SHARED {
            report.notes.push(format!(
                "{} keep their own scales: their ranges differ by a factor of {:.0}",
                members
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join(", "),
                widest / narrowest
            ));
            continue;
        }
        let found = || members.iter().filter_map(|name| ranges.get(name));
        let hull = found().fold((0f32, 0f32), |hull, range| {
            (hull.0.min(range.0), hull.1.max(range.1))
        });
        for name in members.iter() {
            ranges.entry(name.clone()).and_modify(|range| *range = hull);
        }
    }
    report.notes.sort();
    let scaled = values.into_iter().map(|value| {
        let (low, high) = ranges.get(&value).copied().unwrap_or_default();
        let fitted = |scale| {
            if options.half_scales {
                up_to_half(scale)
            } else {
                scale
            }
        };
        let scale = match options.placement {
            Placement::TensorRt => symmetric(high.max(-low), fitted),
            Placement::Cpu => asymmetric(low, high, fitted),
        };
        report.activations.push(ActivationScale {
            tensor: value.to_string(),
            scale: scale.scale,
        });
        (value, scale)
    });
    Ok(scaled.collect())
}

fn symmetric(magnitude: f32, fitted: impl Fn(f32) -> f32) -> Scale {
    let scale = magnitude / 127.0;
    Scale {
        scale: fitted(if scale.is_normal() { scale } else { 1.0 / 127.0 }),
        zero: None,
    }
}

fn asymmetric(low: f32, high: f32, fitted: impl Fn(f32) -> f32) -> Scale {
    let scale = (high - low) / 255.0;
    if !scale.is_normal() {
        return Scale {
            scale: fitted(1.0 / 255.0),
            zero: Some(0),
        };
    }
    let scale = fitted(scale);
    Scale {
        scale,
        zero: Some((-low / scale).round().clamp(0.0, 255.0) as u8),
    }
}

struct Editor {
    names: NameGenerator,
    graph: Graph,
    /// Nodes that read constants only: they go to the front.
    prepended: Vec<Node>,
}

impl Editor {
    fn constant(&mut self, base: &str, tensor: Tensor) -> ValueName {
        let name = self.names.fresh(base);
        self.graph.add_initializer(name.clone(), tensor);
        name
    }

    /// Stores a weight as INT8 behind a DequantizeLinear; returns what its node reads now.
    fn add_weight(
        &mut self,
        name: &ValueName,
        axis: Option<usize>,
        quantized: &QuantizedWeight,
    ) -> ValueName {
        let (scale, zero) = match axis {
            Some(_) => (
                Tensor::vector(&quantized.scales),
                Tensor::vector(&vec![0i8; quantized.scales.len()]),
            ),
            None => (
                Tensor::scalar(quantized.scales.first().copied().unwrap_or(1.0)),
                Tensor::scalar(0i8),
            ),
        };
        let inputs = [
            self.constant(&format!("{name}_int8"), quantized.values.clone()),
            self.constant(&format!("{name}_scale"), scale),
            self.constant(&format!("{name}_zero_point"), zero),
        ];
        let output = self.names.fresh(&format!("{name}_dequantized"));
        let mut node = Node::new(
            "DequantizeLinear",
            &self.names.fresh(&format!("{name}_dequantize")),
            inputs,
            [output.clone()],
        );
        if let Some(axis) = axis {
            node = node.with("axis", axis as i64);
        }
        self.graph
            .value_types
            .extend(self.graph.type_of(name).map(|ty| (output.clone(), ty)));
        self.prepended.push(node);
        output
    }

    /// Subtracts `shift` from the node's constant bias, or gives it one. Biases that are no constants stay.
    fn correct_bias(&mut self, node: usize, shift: &[f64]) -> bool {
        let name = self.graph.nodes[node].input(2).cloned();
        let bias = match &name {
            None => vec![0f32; shift.len()],
            Some(name) => match self.graph.constant(name).map(Tensor::view::<f32>) {
                Some(Ok(bias)) if bias.len() == shift.len() => bias.into_owned(),
                _ => return false,
            },
        };
        let corrected: Vec<f32> = bias
            .iter()
            .zip(shift)
            .map(|(b, s)| (f64::from(*b) - s) as f32)
            .collect();
        if corrected.iter().any(|value| !value.is_finite()) {
            return false;
        }
        let base = name.map_or_else(
            || format!("{}_bias", self.graph.nodes[node].name),
            |name| name.to_string(),
        );
        let name = self.constant(&format!("{base}_corrected"), Tensor::vector(&corrected));
        let inputs = &mut self.graph.nodes[node].inputs;
        inputs.resize(inputs.len().max(3), ValueName::omitted());
        inputs[2] = name;
        true
    }

    /// One QuantizeLinear and DequantizeLinear for each value, read by all edges of the plan.
    fn add_activations(&mut self, plan: &Plan, scales: &[(ValueName, Scale)]) {
        let mut zeros: HashMap<Option<u8>, ValueName> = HashMap::new();
        let mut reads: HashMap<ValueName, ValueName> = HashMap::new();
        let mut after: HashMap<Option<usize>, Vec<Node>> = HashMap::new();
        let producers: HashMap<ValueName, usize> = {
            let nodes = self.graph.nodes.iter().enumerate();
            nodes
                .flat_map(|(index, node)| node.outputs.iter().map(move |name| (name.clone(), index)))
                .collect()
        };
        for (value, Scale { scale, zero }) in scales {
            let zero_name = match zeros.get(zero) {
                Some(name) => name.clone(),
                None => {
                    let tensor = zero.map_or_else(|| Tensor::scalar(0i8), Tensor::scalar);
                    let name = self.constant("activation_zero_point", tensor);
                    zeros.insert(*zero, name.clone());
                    name
                }
            };
            let scale = self.constant(&format!("{value}_scale"), Tensor::scalar(*scale));
            let quantized = self.names.fresh(&format!("{value}_quantized"));
            let output = self.names.fresh(&format!("{value}_dequantized"));
            let parameters = [scale, zero_name];
            let mut node = |op: &str, suffix: &str, from: &ValueName, to: &ValueName| {
                let inputs = std::iter::once(from).chain(&parameters).cloned();
                Node::new(
                    op,
                    &self.names.fresh(&format!("{value}_{suffix}")),
                    inputs,
                    [to.clone()],
                )
            };
            let pair = [
                node("QuantizeLinear", "quantize", value, &quantized),
                node("DequantizeLinear", "dequantize", &quantized, &output),
            ];
            if let Some(ty) = self.graph.type_of(value) {
                let dtype = if zero.is_some() {
                    DataType::Uint8
                } else {
                    DataType::Int8
                };
                let shape = ty.shape().cloned();
                self.graph
                    .value_types
                    .insert(quantized, ValueType::Tensor { dtype, shape });
                self.graph.value_types.insert(output.clone(), ty);
            }
            after
                .entry(producers.get(value).copied())
                .or_default()
                .extend(pair);
            reads.insert(value.clone(), output);
        }
        for (node, input) in &plan.edges {
            let slot = self
                .graph
                .nodes
                .get_mut(*node)
                .and_then(|node| node.inputs.get_mut(*input));
            if let Some(slot) = slot
                && let Some(read) = reads.get(slot)
            {
                *slot = read.clone();
            }
        }
        let mut nodes = std::mem::take(&mut self.prepended);
        nodes.extend(after.remove(&None).unwrap_or_default());
        for (index, node) in std::mem::take(&mut self.graph.nodes).into_iter().enumerate() {
            nodes.push(node);
            nodes.extend(after.remove(&Some(index)).unwrap_or_default());
        }
        self.graph.nodes = nodes;
    }
}
