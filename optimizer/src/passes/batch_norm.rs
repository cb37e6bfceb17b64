use edgeopt_models::graph::{NameGenerator, Uses};
use edgeopt_models::{Graph, Model, Node, Tensor};

use super::{Changes, Context, every_graph};

/// Folds a `BatchNormalization` in inference mode into the `Conv` or `ConvTranspose` that alone feeds it.
/// The folded weights are new constants, so that nodes sharing the old ones are not touched.
pub(super) fn fold(model: &mut Model, _: &Context) -> Changes {
    let mut names = NameGenerator::new(model);
    Changes(every_graph(&mut model.graph, &mut |graph| {
        in_graph(graph, &mut names)
    }))
}

fn in_graph(graph: &mut Graph, names: &mut NameGenerator) -> usize {
    let uses = Uses::new(graph);
    let mut gone = vec![false; graph.nodes.len()];
    for conv in 0..graph.nodes.len() {
        let Some(norm) = graph.nodes[conv]
            .output(0)
            .and_then(|output| uses.sole_reader(output))
            .filter(|reader| reader.input == Some(0))
            .map(|reader| reader.node)
        else {
            continue;
        };
        let Some((weight, bias)) = folded(graph, &graph.nodes[conv], &graph.nodes[norm]) else {
            continue;
        };
        let output = graph.nodes[norm].outputs[0].clone();
        let weight_name = names.fresh(&format!("{}_folded", graph.nodes[conv].inputs[1]));
        let bias_name = names.fresh(&format!("{weight_name}_bias"));
        graph.add_initializer(weight_name.clone(), weight);
        graph.add_initializer(bias_name.clone(), bias);
        let node = &mut graph.nodes[conv];
        node.inputs.truncate(1);
        node.inputs.extend([weight_name, bias_name]);
        node.outputs = vec![output];
        gone[norm] = true;
    }
    graph.remove_nodes(|index| gone[index]);
    gone.iter().filter(|gone| **gone).count()
}

/// Weight and bias of the convolution with the normalization in them, if all is constant and float32:
/// `y = (conv(x) - mean) * s + beta` with `s = scale / sqrt(variance + epsilon)`.
fn folded(graph: &Graph, conv: &Node, norm: &Node) -> Option<(Tensor, Tensor)> {
    let transposed = conv.is("ConvTranspose");
    if !(transposed || conv.is("Conv")) || !norm.is("BatchNormalization") {
        return None;
    }
    if norm.int("training_mode").unwrap_or(0) != 0
        || (1..norm.outputs.len()).any(|i| norm.output(i).is_some())
    {
        return None;
    }
    let floats = |name: &str| {
        graph
            .constant(name)?
            .view::<f32>()
            .ok()
            .map(|view| view.into_owned())
    };
    let weight = graph.constant(conv.input(1)?)?;
    let mut values = floats(conv.input(1)?)?;
    let group = usize::try_from(conv.int("group").unwrap_or(1))
        .ok()
        .filter(|group| *group > 0)?;
    let &[first, second, ref kernel @ ..] = weight.dims() else {
        return None;
    };
    let channels = if transposed {
        second.checked_mul(group)?
    } else {
        first
    };
    let [gamma, beta, mean, variance] =
        [1, 2, 3, 4].map(|index| norm.input(index).and_then(|name| floats(name)));
    let (gamma, beta, mean, variance) = (gamma?, beta?, mean?, variance?);
    let bias = match conv.input(2) {
        Some(name) => floats(name)?,
        None => vec![0.0; channels],
    };
    if channels == 0
        || values.is_empty()
        || first % group != 0
        || [&gamma, &beta, &mean, &variance, &bias]
            .iter()
            .any(|part| part.len() != channels)
    {
        return None;
    }
    let epsilon = f64::from(norm.float("epsilon").unwrap_or(1e-5));
    let scale: Vec<f64> = gamma
        .iter()
        .zip(&variance)
        .map(|(gamma, variance)| f64::from(*gamma) / (f64::from(*variance) + epsilon).sqrt())
        .collect();
    let block: usize = kernel.iter().product();
    for (index, value) in values.iter_mut().enumerate() {
        let channel = if transposed {
            // Weight is (C, M/group, …): input channel c belongs to group c / (C/group).
            let (input, output) = (index / block / second, index / block % second);
            input / (first / group) * second + output
        } else {
            index / block / second
        };
        *value = (f64::from(*value) * scale[channel]) as f32;
    }
    let bias: Vec<f32> = (0..channels)
        .map(|c| ((f64::from(bias[c]) - f64::from(mean[c])) * scale[c] + f64::from(beta[c])) as f32)
        .collect();
    if values.iter().chain(&bias).any(|value| !value.is_finite()) {
        return None;
    }
    Some((Tensor::new(weight.dims(), &values).ok()?, Tensor::vector(&bias)))
}
