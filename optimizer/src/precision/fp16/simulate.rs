use std::collections::{HashMap, HashSet};

use edgeopt_models::graph::NameGenerator;
use edgeopt_models::shape_inference::{Bindings, infer};
use edgeopt_models::{DataType, Model, Node, Tensor, ValueName};

use super::Fp16Error;
use super::operators::moves;
use super::rewrite::cast;

/// The half model `converted` computed in float32, with every half result rounded where it arises: ONNX Runtime
/// computes parts of a half graph in float32 without rounding in between, which hides overflow that a GPU would show.
///
/// Each node that computes half numbers (or quantizes) from half numbers reads float32 copies of them and is followed by a cast to
/// half; values beyond 65504 become infinite there. Every value keeps its name and type, so what the model has of half
/// already (inputs, constants, subgraphs) fits as before; subgraphs are computed as the backend does it.
///
/// # Errors
/// When the model contradicts itself.
pub fn simulate(converted: &Model) -> Result<Model, Fp16Error> {
    let mut model = converted.clone();
    infer(&mut model, &Bindings::default())?;
    let halves: HashSet<ValueName> = {
        let graph = &model.graph;
        let values = graph
            .nodes
            .iter()
            .flat_map(|node| node.inputs.iter().chain(&node.outputs));
        values
            .filter(|name| !name.is_omitted())
            .filter(|name| graph.type_of(name).and_then(|ty| ty.dtype()) == Some(DataType::Float16))
            .cloned()
            .collect()
    };
    let mut names = NameGenerator::new(&model);
    let mut floats: HashMap<ValueName, ValueName> = HashMap::new();
    let mut nodes = Vec::with_capacity(model.graph.nodes.len());
    for mut node in std::mem::take(&mut model.graph.nodes) {
        let is_half = |name: &ValueName| halves.contains(name);
        let computes = node.is("QuantizeLinear") || node.outputs.iter().any(is_half);
        if !computes || !follows_its_inputs(&node) || !node.inputs.iter().any(is_half) {
            nodes.push(node);
            continue;
        }
        for input in node.inputs.iter_mut().filter(|name| halves.contains(*name)) {
            let float = match floats.get(input) {
                Some(float) => float.clone(),
                None => {
                    let float = names.fresh(&format!("{input}_wide"));
                    match model.graph.constant(input).and_then(widened) {
                        Some(tensor) => model.graph.add_initializer(float.clone(), tensor),
                        None => nodes.push(cast(&mut names, input, &float, DataType::Float32)),
                    }
                    floats.insert(input.clone(), float.clone());
                    float
                }
            };
            *input = float;
        }
        let mut rounding = Vec::new();
        for output in node.outputs.iter_mut().filter(|name| halves.contains(*name)) {
            let exact = names.fresh(&format!("{output}_exact"));
            rounding.push(cast(&mut names, &exact, output, DataType::Float16));
            *output = exact;
        }
        nodes.push(node);
        nodes.append(&mut rounding);
    }
    model.graph.nodes = nodes;
    model.graph.drop_unused_constants();
    infer(&mut model, &Bindings::default())?;
    Ok(model)
}

/// Whether the node computes, and float32 inputs in place of half ones make its half outputs float32.
fn follows_its_inputs(node: &Node) -> bool {
    // Their types are given by attributes or by another input.
    const OWN: [&str; 6] = [
        "Cast",
        "CastLike",
        "EyeLike",
        "RandomNormalLike",
        "RandomUniformLike",
        "Bernoulli",
    ];
    node.domain.is_empty()
        && !OWN.contains(&node.op_type.as_str())
        && !moves(node)
        && node.subgraphs().next().is_none()
}

fn widened(tensor: &Tensor) -> Option<Tensor> {
    Tensor::new(tensor.dims(), &tensor.to_f32().ok()?).ok()
}
