use edgeopt_models::{Attribute, Graph, Model, Node, Tensor};

use super::{Changes, Context, every_graph};

/// Takes initializers out of the graph inputs where no caller may override them: before IR 4, where every
/// initializer had to be listed as an input, or on request.
pub(super) fn fix_initializers(model: &mut Model, context: &Context) -> Changes {
    if model.ir_version >= 4 && !context.fold_overridable {
        return Changes(0);
    }
    let graph = &mut model.graph;
    let before = graph.inputs.len();
    graph
        .inputs
        .retain(|input| !graph.initializers.contains_key(&*input.name));
    // Initializers that are no inputs need IR 4.
    model.ir_version = model.ir_version.max(4);
    Changes(before - graph.inputs.len())
}

/// Turns `Constant` nodes into initializers, whichever attribute holds the value. Those that are graph
/// outputs stay nodes: not every runtime accepts an initializer as an output.
pub(super) fn constant_nodes(model: &mut Model, _: &Context) -> Changes {
    Changes(every_graph(&mut model.graph, &mut in_graph))
}

fn in_graph(graph: &mut Graph) -> usize {
    let mut moved = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if let (Some(tensor), Some(output)) = (value(node), node.output(0))
            && !graph.is_output(output)
        {
            moved.push((index, output.clone(), tensor));
        }
    }
    let count = moved.len();
    let mut gone = vec![false; graph.nodes.len()];
    for (index, name, tensor) in moved {
        gone[index] = true;
        graph.add_initializer(name, tensor);
    }
    graph.remove_nodes(|index| gone[index]);
    count
}

/// The value of a dense `Constant` node.
fn value(node: &Node) -> Option<Tensor> {
    if !node.is("Constant") {
        return None;
    }
    let (name, attribute) = node.attributes.first_key_value()?;
    match (name.as_str(), attribute) {
        ("value", Attribute::Tensor(tensor)) => Some(tensor.clone()),
        ("value_float", Attribute::Float(value)) => Some(Tensor::scalar(*value)),
        ("value_int", Attribute::Int(value)) => Some(Tensor::scalar(*value)),
        ("value_floats", Attribute::Floats(values)) => Some(Tensor::vector(values)),
        ("value_ints", Attribute::Ints(values)) => Some(Tensor::vector(values)),
        ("value_string", Attribute::String(value)) => Tensor::strings(&[], vec![value.clone()]).ok(),
        ("value_strings", Attribute::Strings(values)) => {
            Tensor::strings(&[values.len()], values.clone()).ok()
        }
        _ => None,
    }
}
