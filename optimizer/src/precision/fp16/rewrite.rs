use std::collections::{HashMap, HashSet};

use edgeopt_models::graph::{NameGenerator, captured_values};
use edgeopt_models::{DataType, Graph, Model, Node, ValueName};

use super::Fp16Report;
use super::choose::Choice;
use super::constants::HalfConstants;
use super::operators::{gives_float, reads_shape_only, stays_float};

/// Makes the chosen nodes read and give half. A value that becomes half keeps its name, so that layers can be compared
/// by name, unless callers or subgraphs know it under that name as float32.
pub(super) fn rewrite(model: &mut Model, choices: &[Choice], report: &mut Fp16Report) {
    let mut names = NameGenerator::new(model);
    let float = float_values(&model.graph);
    let fixed = fixed_values(&model.graph);
    let wanted = read_as_float(&model.graph, choices);
    let mut constants = HalfConstants::default();
    // For each float32 value of before, what it is called as half, and as float32 if not as before.
    let mut halves: HashMap<ValueName, ValueName> = HashMap::new();
    let mut floats: HashMap<ValueName, ValueName> = HashMap::new();
    let nodes = std::mem::take(&mut model.graph.nodes);
    let mut rewritten = Vec::with_capacity(nodes.len());
    for (mut node, choice) in nodes.into_iter().zip(choices) {
        let half = *choice == Choice::Half;
        for index in 0..node.inputs.len() {
            let input = node.inputs[index].clone();
            if !float.contains(&input) || reads_shape_only(&node) {
                continue;
            }
            if !half || stays_float(&node, index) {
                if let Some(name) = floats.get(&input) {
                    node.inputs[index] = name.clone();
                }
                continue;
            }
            let name = match halves.get(&input) {
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
            node.inputs[index] = name;
        }
        let mut back = Vec::new();
        let outputs = node.outputs.clone();
        for (index, output) in outputs.into_iter().enumerate() {
            if !half || !float.contains(&output) || gives_float(&node, index) {
                continue;
            }
            if fixed.contains(&output) {
                let name = names.fresh(&format!("{output}_fp16"));
                back.push(cast(&mut names, &name, &output, DataType::Float32));
                halves.insert(output, name.clone());
                node.outputs[index] = name;
            } else {
                if wanted.contains(&output) {
                    let name = names.fresh(&format!("{output}_fp32"));
                    back.push(cast(&mut names, &output, &name, DataType::Float32));
                    floats.insert(output.clone(), name);
                }
                halves.insert(output.clone(), output);
            }
        }
        rewritten.push(node);
        report.casts += back.len();
        rewritten.append(&mut back);
    }
    report.flushed_weights = constants.flushed;
    report.clamped_masks = constants.clamped;
    model.graph.nodes = rewritten;
    model.graph.drop_unused_constants();
}

pub(super) fn cast(names: &mut NameGenerator, from: &ValueName, to: &ValueName, dtype: DataType) -> Node {
    let name = names.fresh(&format!("{from}_cast"));
    Node::new("Cast", &name, [from.clone()], [to.clone()]).with("to", i64::from(dtype.to_onnx()))
}

/// Values of the graph that are float32 tensors.
fn float_values(graph: &Graph) -> HashSet<ValueName> {
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

/// Values that callers or subgraphs read by name.
fn fixed_values(graph: &Graph) -> HashSet<ValueName> {
    let captured = graph
        .nodes
        .iter()
        .flat_map(|node| node.subgraphs().flat_map(captured_values));
    let outputs = graph.outputs.iter().map(|output| output.name.clone());
    captured.chain(outputs).collect()
}

/// Values that a node needs as float32.
fn read_as_float(graph: &Graph, choices: &[Choice]) -> HashSet<ValueName> {
    let mut wanted = HashSet::new();
    for (node, choice) in graph.nodes.iter().zip(choices) {
        let inputs = node.inputs.iter().enumerate();
        let float = |index: usize| *choice != Choice::Half || stays_float(node, index);
        wanted.extend(
            inputs
                .filter(|(index, _)| !reads_shape_only(node) && float(*index))
                .map(|(_, name)| name.clone()),
        );
    }
    wanted
}
