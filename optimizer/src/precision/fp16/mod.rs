//! FP16: the nodes that compute safely in half precision do, with every type explicit in the graph.
//!
//! `choose` decides node by node and keeps a reason for each that stays in float32; [`to_fp16`] rewrites: half
//! weights, and casts only where a value crosses between the two kinds, one for each tensor and direction. Graph inputs
//! and outputs keep their types.
//!
//! What stays in float32, because a GPU that computes in half would give something else:
//!
//! - operators that are not safe in half, sums of many elements, squares, and normalizations that are written out;
//! - nodes whose values were seen to come near half's largest number, given calibrated ranges;
//! - nodes with constants beyond 65504, and what reads their results up to a softmax or another operator whose results
//!   are small. Masks alone are raised to −65504, and only where that changes nothing (see `masks`);
//! - nodes with a constant that is 0 in half, such as an epsilon of 1e-12, and the division that it guards. Epsilons are
//!   never raised to a number that half has: that would change small values silently;
//! - what reads or gives values of unknown type.
//!
//! In a quantized graph, Q/DQ take half scales and with them the type of what is around them (see `quantized`).

mod choose;
mod constants;
mod hazards;
mod masks;
mod normalization;
mod operators;
mod quantized;
mod rewrite;
mod simulate;
mod sums;

use std::collections::HashSet;

use edgeopt_models::shape_inference::{Bindings, InferenceError, infer};
use edgeopt_models::{DataType, Model, ValueName};
use serde::{Deserialize, Serialize};

use crate::calibrate::CalibrationTable;
use crate::precision::int8::KeptNode;
use choose::{Choice, choose};

pub use simulate::simulate;

/// The largest finite half: 65504.
pub const LARGEST: f32 = 65504.0;

/// How to convert.
#[derive(Clone, Debug)]
pub struct Fp16Options {
    /// Nodes with a calibrated input or output that exceeds this magnitude stay in float32; below 65504, to leave room for inputs that
    /// calibration did not see.
    pub range_limit: f32,
    /// Node names to leave in float32; `*` stands for any text.
    pub exclude: Vec<String>,
}

impl Default for Fp16Options {
    fn default() -> Self {
        Self {
            range_limit: 32_768.0,
            exclude: Vec::new(),
        }
    }
}

/// What conversion did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fp16Report {
    /// Nodes that compute in half.
    pub converted: usize,
    /// Nodes that stay in float32, and why.
    pub kept: Vec<KeptNode>,
    /// Casts that had to be added.
    pub casts: usize,
    /// Weights that are not zero but become so in half, over all constants.
    pub flushed_weights: u64,
    /// Constants far below zero (masks) that were raised to the lowest half.
    pub clamped_masks: usize,
}

/// Why a model cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum Fp16Error {
    /// Types do not follow from the graph.
    #[error(transparent)]
    Inference(#[from] InferenceError),
}

/// The values whose ranges [`to_fp16`] needs: what would become half if nothing were known of ranges.
///
/// # Errors
/// When the model contradicts itself.
pub fn values_to_watch(model: &Model, options: &Fp16Options) -> Result<Vec<ValueName>, Fp16Error> {
    let mut model = model.clone();
    infer(&mut model, &Bindings::default())?;
    let choices = choose(&model, options, None);
    let graph = &model.graph;
    let is_float = |name: &&ValueName| {
        !name.is_omitted()
            && !graph.initializers.contains_key(*name)
            && graph.type_of(name).and_then(|ty| ty.dtype()) == Some(DataType::Float32)
    };
    let mut seen = HashSet::new();
    let halves = graph.nodes.iter().zip(&choices);
    Ok(halves
        .filter(|(_, choice)| **choice == Choice::Half)
        .flat_map(|(node, _)| node.inputs.iter().chain(&node.outputs))
        .filter(is_float)
        .filter(|name| seen.insert((*name).clone()))
        .cloned()
        .collect())
}

/// Converts the main graph to half precision where that is safe. Subgraphs stay in float32. With `ranges`, nodes that
/// were seen to read or give large values stay in float32 too.
///
/// # Errors
/// When the model contradicts itself.
pub fn to_fp16(
    model: &mut Model,
    options: &Fp16Options,
    ranges: Option<&CalibrationTable>,
) -> Result<Fp16Report, Fp16Error> {
    infer(model, &Bindings::default())?;
    let choices = choose(model, options, ranges);
    let mut report = Fp16Report::default();
    for (node, choice) in model.graph.nodes.iter().zip(&choices) {
        match choice {
            Choice::Half => report.converted += 1,
            Choice::Float(reason) => report.kept.push(KeptNode {
                node: node.name.clone(),
                op: node.op_type.clone(),
                reason: (*reason).to_owned(),
            }),
            Choice::NotFloat => {}
        }
    }
    if report.converted > 0 {
        rewrite::rewrite(model, &choices, &mut report);
        // The types of before no longer hold.
        model.graph.value_types.clear();
        infer(model, &Bindings::default())?;
    }
    Ok(report)
}
