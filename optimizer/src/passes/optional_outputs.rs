use edgeopt_models::graph::{NameGenerator, Uses};
use edgeopt_models::{Graph, Model, Node, Tensor, ValueName};

use super::{Changes, Context, every_graph};

/// The first output of each operator that may be left out.
fn first_optional(node: &Node) -> Option<usize> {
    Some(match node.op_type.as_str() {
        _ if !node.domain.is_empty() => return None,
        "LSTM" | "GRU" | "RNN" => 0,
        "MaxPool" | "Dropout" | "LayerNormalization" => 1,
        _ => return None,
    })
}

/// Leaves out optional outputs that nobody reads, and computes the mask of an inference-time `Dropout` (operator
/// set 12 and later: all true) without it, so that the `Dropout` can go.
pub(super) fn drop_unread(model: &mut Model, _: &Context) -> Changes {
    let opset = model.opset();
    let mut names = NameGenerator::new(model);
    Changes(every_graph(&mut model.graph, &mut |graph| {
        let masks = if opset >= 12 { masks(graph, &mut names) } else { 0 };
        masks + unread(graph)
    }))
}

fn unread(graph: &mut Graph) -> usize {
    let uses = Uses::new(graph);
    let mut count = 0;
    for node in &mut graph.nodes {
        let Some(first) = first_optional(node) else {
            continue;
        };
        // A node none of whose outputs is read is dead code as a whole.
        if node
            .outputs
            .iter()
            .all(|output| output.is_omitted() || uses.is_dead(output))
        {
            continue;
        }
        for output in node.outputs.iter_mut().skip(first) {
            if !output.is_omitted() && uses.is_dead(output) {
                *output = ValueName::from("");
                count += 1;
            }
        }
        while node.outputs.last().is_some_and(ValueName::is_omitted) {
            node.outputs.pop();
        }
    }
    count
}

fn masks(graph: &mut Graph, names: &mut NameGenerator) -> usize {
    let uses = Uses::new(graph);
    let found: Vec<usize> = (0..graph.nodes.len())
        .filter(|index| {
            let node = &graph.nodes[*index];
            let training = node
                .input(2)
                .is_some_and(|name| graph.constant(name).is_none_or(|mode| mode.as_bytes() != [0]));
            let read = node.output(1).is_some_and(|mask| !uses.is_dead(mask));
            node.is("Dropout") && read && !training && node.input(0).is_some()
        })
        .collect();
    for index in found.iter().rev() {
        let Ok(yes) = Tensor::bools(&[1], &[true]) else {
            continue;
        };
        let node = &mut graph.nodes[*index];
        let (input, mask) = (node.inputs[0].clone(), node.outputs[1].clone());
        node.outputs.truncate(1);
        // Dropped are the ratio and the mode as well, which is off.
        node.inputs.truncate(1);
        let shape = names.fresh(&format!("{mask}_shape"));
        let fill = names.fresh(&format!("{mask}_fill"));
        let shape_node = Node::new("Shape", &shape, [input], [shape.clone()]);
        let fill_node = Node::new("ConstantOfShape", &fill, [shape], [mask]).with("value", yes);
        graph.nodes.splice(*index..*index, [shape_node, fill_node]);
    }
    found.len()
}
