use std::collections::HashSet;

use edgeopt_models::graph::NameGenerator;
use edgeopt_models::shape_inference::{Bindings, infer};
use edgeopt_models::{DataType, Model, Node, ValueInfo, ValueName, ValueType};

use super::Fp16Error;

/// The half model `converted` with every half result rounded where it arises, computed in float32: ONNX Runtime
/// computes parts of a half graph in float32 without rounding in between, which hides overflow that a GPU would show.
///
/// Half constants become float32 constants of the same value, half nodes float32 nodes followed by a pair of casts to
/// half and back; values beyond 65504 become infinite there.
///
/// # Errors
/// When the model contradicts itself.
pub fn simulate(converted: &Model) -> Result<Model, Fp16Error> {
    let mut model = converted.clone();
    infer(&mut model, &Bindings::default())?;
    let is_half =
        |name: &ValueName| model.graph.type_of(name).and_then(|ty| ty.dtype()) == Some(DataType::Float16);
    let halves: HashSet<ValueName> = model
        .graph
        .nodes
        .iter()
        .flat_map(|node| &node.outputs)
        .filter(|name| !name.is_omitted() && is_half(name))
        .cloned()
        .collect();
    let mut names = NameGenerator::new(&model);
    for tensor in model
        .graph
        .initializers
        .values_mut()
        .filter(|tensor| tensor.dtype() == DataType::Float16)
    {
        if let Ok(values) = tensor.to_f32()
            && let Ok(float) = edgeopt_models::Tensor::new(tensor.dims(), &values)
        {
            *tensor = float;
        }
    }
    let mut nodes = Vec::with_capacity(model.graph.nodes.len());
    for mut node in std::mem::take(&mut model.graph.nodes) {
        let mut rounding = Vec::new();
        for output in node.outputs.iter_mut().filter(|name| halves.contains(*name)) {
            let (exact, half) = (
                names.fresh(&format!("{output}_exact")),
                names.fresh(&format!("{output}_half")),
            );
            rounding.push(cast(&mut names, &exact, &half, DataType::Float16));
            rounding.push(cast(&mut names, &half, output, DataType::Float32));
            *output = exact;
        }
        // What was a cast to half is now one to float32; the rounding behind it does what it did.
        if node.is("Cast") && node.int("to") == Some(i64::from(DataType::Float16.to_onnx())) {
            node = node.with("to", i64::from(DataType::Float32.to_onnx()));
        }
        nodes.push(node);
        nodes.append(&mut rounding);
    }
    model.graph.nodes = nodes;
    model.graph.value_types.clear();
    for ValueInfo { ty, .. } in model.graph.inputs.iter_mut().chain(&mut model.graph.outputs) {
        if let ValueType::Tensor {
            dtype: dtype @ DataType::Float16,
            ..
        } = ty
        {
            *dtype = DataType::Float32;
        }
    }
    Ok(model)
}

fn cast(names: &mut NameGenerator, from: &ValueName, to: &ValueName, dtype: DataType) -> Node {
    let name = names.fresh(&format!("{from}_round"));
    Node::new("Cast", &name, [from.clone()], [to.clone()]).with("to", i64::from(dtype.to_onnx()))
}
