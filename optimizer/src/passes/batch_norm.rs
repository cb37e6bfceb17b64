use edgeopt_models::graph::{NameGenerator, Uses};
use edgeopt_models::{DataType, Graph, Model, Node, Tensor};

use super::affine::Affine;
use super::known_rank::known_rank;
use super::{Changes, Context, every_graph};

/// Writes each `BatchNormalization` in inference mode that no convolution takes in as `Mul` and `Add` with
/// constants: TensorRT 10.3 has no batch normalization in mixed precision.
pub(super) fn split(model: &mut Model, _: &Context) -> Changes {
    let mut names = NameGenerator::new(model);
    Changes(every_graph(&mut model.graph, &mut |graph| {
        in_graph(graph, &mut names)
    }))
}

fn in_graph(graph: &mut Graph, names: &mut NameGenerator) -> usize {
    let uses = Uses::new(graph);
    let mut parts: Vec<(usize, [Tensor; 2])> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let Some(affine) = Affine::of_batch_norm(graph, node) else {
            continue;
        };
        let Some((rank, DataType::Float32)) = node.input(0).and_then(|x| known_rank(graph, &uses, x)) else {
            continue;
        };
        let mut dims = vec![1; rank.saturating_sub(1).max(1)];
        dims[0] = affine.scale.len();
        let tensor = |values: &[f64]| {
            let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            Tensor::new(&dims, &values)
        };
        if let (2.., Ok(scale), Ok(shift)) = (rank, tensor(&affine.scale), tensor(&affine.shift)) {
            parts.push((index, [scale, shift]));
        }
    }
    for (index, [scale, shift]) in parts.iter().rev() {
        let norm = graph.nodes.remove(*index);
        let base = &norm.outputs[0];
        let product = names.fresh(&format!("{base}_scaled"));
        let [factor, summand] = [("scale", scale), ("shift", shift)].map(|(part, tensor)| {
            let name = names.fresh(&format!("{base}_{part}"));
            graph.add_initializer(name.clone(), tensor.clone());
            name
        });
        let add = names.fresh(&format!("{}_add", norm.name));
        let mul = Node::new(
            "Mul",
            &norm.name,
            [norm.inputs[0].clone(), factor],
            [product.clone()],
        );
        let add = Node::new("Add", &add, [product, summand], [base.clone()]);
        graph.nodes.splice(*index..*index, [mul, add]);
    }
    parts.len()
}
