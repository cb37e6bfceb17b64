//! FP16: the nodes that compute safely in half precision do, with every type explicit in the graph.
//!
//! `choose` decides node by node and keeps a reason for each that stays in float32; [`to_fp16`] rewrites: half
//! weights, and casts only where a value crosses between the two kinds, one for each tensor and direction. Graph inputs
//! and outputs keep their types.

mod choose;
mod constants;
mod simulate;

use std::collections::{HashMap, HashSet};

use edgeopt_models::graph::{NameGenerator, captured_values};
use edgeopt_models::shape_inference::{Bindings, InferenceError, infer};
use edgeopt_models::{DataType, Model, Node, ValueName};
use serde::{Deserialize, Serialize};

use crate::calibrate::CalibrationTable;
use crate::precision::int8::KeptNode;
use choose::{Choice, choose};
use constants::HalfConstants;

pub use simulate::simulate;

/// The largest finite half: 65504.
pub const LARGEST: f32 = 65504.0;

/// How to convert.
#[derive(Clone, Debug)]
pub struct Fp16Options {
    /// Nodes whose calibrated output exceeds this magnitude stay in float32; below 65504, to leave room for inputs that
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

/// Converts the main graph to half precision where that is safe. Subgraphs stay in float32. With `ranges`, nodes whose
/// outputs were seen to be large stay in float32 too.
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
        rewrite(model, &choices, &mut report);
    }
    Ok(report)
}

fn rewrite(model: &mut Model, choices: &[Choice], report: &mut Fp16Report) {
    let mut names = NameGenerator::new(model);
    let float = float_values(model);
    let wanted = read_as_float(model, choices);
    let mut halves: HashMap<ValueName, ValueName> = HashMap::new();
    let mut constants = HalfConstants::default();
    let nodes = std::mem::take(&mut model.graph.nodes);
    let mut rewritten = Vec::with_capacity(nodes.len());
    for (mut node, choice) in nodes.into_iter().zip(choices) {
        if *choice != Choice::Half {
            rewritten.push(node);
            continue;
        }
        for index in 0..node.inputs.len() {
            let input = node.inputs[index].clone();
            if !float.contains(&input) || choose::stays_float(&node, index) {
                continue;
            }
            let half = match halves.get(&input) {
                Some(half) => half.clone(),
                None => {
                    let half = names.fresh(&format!("{input}_fp16"));
                    match model.graph.constant(&input) {
                        Some(tensor) => {
                            let tensor = constants.convert(tensor);
                            model.graph.add_initializer(half.clone(), tensor);
                        }
                        None => {
                            rewritten.push(cast(&mut names, &input, &half, DataType::Float16));
                            report.casts += 1;
                        }
                    }
                    halves.insert(input, half.clone());
                    half
                }
            };
            node.inputs[index] = half;
        }
        let mut back = Vec::new();
        for output in node.outputs.iter_mut().filter(|name| float.contains(*name)) {
            let half = names.fresh(&format!("{output}_fp16"));
            halves.insert(output.clone(), half.clone());
            if wanted.contains(output) {
                back.push(cast(&mut names, &half, output, DataType::Float32));
            }
            *output = half;
        }
        rewritten.push(node);
        report.casts += back.len();
        rewritten.append(&mut back);
    }
    report.flushed_weights = constants.flushed;
    report.clamped_masks = constants.clamped;
    model.graph.nodes = rewritten;
    model.graph.value_types.clear();
    model.graph.drop_unused_constants();
}

fn cast(names: &mut NameGenerator, from: &ValueName, to: &ValueName, dtype: DataType) -> Node {
    let name = names.fresh(&format!("{from}_cast"));
    Node::new("Cast", &name, [from.clone()], [to.clone()]).with("to", i64::from(dtype.to_onnx()))
}

/// Values of the main graph that are float32 tensors.
fn float_values(model: &Model) -> HashSet<ValueName> {
    let graph = &model.graph;
    let produced = graph.nodes.iter().flat_map(|node| &node.outputs);
    graph
        .inputs
        .iter()
        .map(|input| &input.name)
        .chain(graph.initializers.keys())
        .chain(produced)
        .filter(|name| !name.is_omitted())
        .filter(|name| graph.type_of(name).and_then(|ty| ty.dtype()) == Some(DataType::Float32))
        .cloned()
        .collect()
}

/// Values that somebody needs as float32: nodes that stay in it, subgraphs, callers.
fn read_as_float(model: &Model, choices: &[Choice]) -> HashSet<ValueName> {
    let mut wanted: HashSet<ValueName> = model
        .graph
        .outputs
        .iter()
        .map(|output| output.name.clone())
        .collect();
    for (node, choice) in model.graph.nodes.iter().zip(choices) {
        wanted.extend(node.subgraphs().flat_map(captured_values));
        for (index, input) in node.inputs.iter().enumerate() {
            if *choice != Choice::Half || choose::stays_float(node, index) {
                wanted.insert(input.clone());
            }
        }
    }
    wanted
}
