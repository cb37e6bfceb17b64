//! Shape and type inference: what is known about every value before a model runs.
//!
//! [`infer`] walks the nodes in order. Each operator has a rule in [`rules`] that derives the types of its outputs
//! from those of its inputs; small integer tensors (shapes, axes, sizes) are also followed by *value*, so that
//! `Shape → Gather → Concat → Reshape` comes out concrete. An operator without a rule has unknown outputs, and
//! inference goes on; what contradicts itself is an error.

mod creation;
mod einsum;
mod elementwise;
mod facts;
mod integers;
mod layout;
mod linear;
mod normalize;
mod pick;
mod recurrent;
mod reduce;
mod resize;
mod rules;
mod window;

use std::collections::{BTreeMap, HashMap};

use crate::{Attribute, Dim, Graph, Model, Shape, ValueName, ValueType};
use facts::{Facts, Op, Scope};

/// Lengths to assume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings {
    /// Length of symbolic dimensions by name.
    pub dims: BTreeMap<String, usize>,
    /// Whole shapes of inputs by name.
    pub inputs: BTreeMap<String, Vec<usize>>,
}

/// What contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InferenceError {
    /// The inputs of a node do not go together.
    #[error("{node}: {problem}")]
    Node {
        /// Operator and name of the node.
        node: String,
        /// Which shapes or attributes, and why.
        problem: String,
    },
    /// A given shape does not fit an input.
    #[error("input {input:?} has shape {declared}, the given shape is {given:?}")]
    Binding {
        /// The input.
        input: String,
        /// Its declared shape.
        declared: String,
        /// What was asked for.
        given: Vec<usize>,
    },
}

/// Derives the type of every value, in the main graph and in subgraphs, into `value_types`; the types of graph outputs
/// become as precise as what was derived. With `bindings`, inputs get the given lengths first, and what the file says
/// about values in between is forgotten where it mentions them.
///
/// # Errors
/// When a node's inputs contradict each other, or a binding contradicts the model.
pub fn infer(model: &mut Model, bindings: &Bindings) -> Result<(), InferenceError> {
    bind(&mut model.graph, bindings)?;
    let opset = model.opset();
    let mut facts = Facts::default();
    infer_graph(&mut model.graph, &mut facts, None, opset)
}

fn bind(graph: &mut Graph, bindings: &Bindings) -> Result<(), InferenceError> {
    if *bindings == Bindings::default() {
        return Ok(());
    }
    for info in &mut graph.inputs {
        let ValueType::Tensor { shape, .. } = &mut info.ty else {
            continue;
        };
        if let Some(given) = bindings.inputs.get(info.name.as_str()) {
            let fits = shape.as_ref().is_none_or(|shape| {
                shape.len() == given.len()
                    && shape
                        .iter()
                        .zip(given)
                        .all(|(dim, length)| dim.known().is_none_or(|known| known == *length))
            });
            if !fits {
                return Err(InferenceError::Binding {
                    input: info.name.to_string(),
                    declared: shape.as_ref().map_or_else(String::new, ToString::to_string),
                    given: given.clone(),
                });
            }
            *shape = Some(Shape::known(given));
        } else if let Some(shape) = shape {
            substitute(shape, &bindings.dims);
        }
    }
    // What a file says of other values may rest on lengths that were just fixed.
    graph.value_types.clear();
    for info in &mut graph.outputs {
        if let ValueType::Tensor {
            shape: Some(shape), ..
        } = &mut info.ty
        {
            substitute(shape, &bindings.dims);
        }
    }
    Ok(())
}

fn substitute(shape: &mut Shape, dims: &BTreeMap<String, usize>) {
    for dim in shape.iter_mut() {
        if let Dim::Symbol(name) = dim
            && let Some(length) = dims.get(&**name)
        {
            *dim = Dim::Known(*length);
        }
    }
}

fn infer_graph(
    graph: &mut Graph,
    facts: &mut Facts,
    outer: Option<&Scope<'_>>,
    opset: i64,
) -> Result<(), InferenceError> {
    for input in &graph.inputs {
        if !graph.initializers.contains_key(&input.name) {
            facts.set_type(&input.name, input.ty.clone());
        }
    }
    for (name, tensor) in &graph.initializers {
        facts.set_type(
            name,
            ValueType::tensor(tensor.dtype(), Shape::known(tensor.dims())),
        );
    }
    // Nodes are taken out while they are looked at, so that their subgraphs can be changed.
    let mut nodes = std::mem::take(&mut graph.nodes);
    let mut result = Ok(());
    for node in &mut nodes {
        let scope = Scope { graph, outer };
        let mut branches = Vec::new();
        for subgraph in node.subgraphs_mut() {
            result = infer_graph(subgraph, facts, Some(&scope), opset);
            if result.is_err() {
                break;
            }
            branches.push(
                subgraph
                    .outputs
                    .iter()
                    .map(|output| output.ty.clone())
                    .collect::<Vec<_>>(),
            );
        }
        if result.is_err() {
            break;
        }
        let op = Op {
            node,
            facts,
            scope: &scope,
            opset,
            branches,
        };
        let derived = match rules::apply(&op) {
            Ok(derived) => derived,
            Err(problem) => {
                result = Err(InferenceError::Node {
                    node: node.to_string(),
                    problem,
                });
                break;
            }
        };
        let value = integers::follow(&op);
        for (output, ty) in node.outputs.iter().zip(derived) {
            if let (false, Some(ty)) = (output.is_omitted(), ty) {
                let known = graph.value_types.get(output);
                facts.set_type(output, merged(ty, known));
            }
        }
        if let (true, Some(Attribute::Tensor(tensor)), Some(output)) =
            (node.is("Constant"), node.attributes.get("value"), node.output(0))
        {
            facts.set_constant(output, tensor.clone());
        }
        if let (Some(value), Some(output)) = (value, node.output(0)) {
            facts.set_value(output, value);
        }
    }
    graph.nodes = nodes;
    result?;
    let outputs = graph
        .nodes
        .iter()
        .flat_map(|node| &node.outputs)
        .filter(|name| !name.is_omitted());
    let derived: HashMap<ValueName, ValueType> = outputs
        .filter_map(|name| Some((name.clone(), facts.type_of(name)?.clone())))
        .collect();
    for output in &mut graph.outputs {
        if let Some(ty) = facts.type_of(&output.name) {
            output.ty = merged(ty.clone(), Some(&output.ty));
        }
    }
    graph.value_types.extend(derived);
    Ok(())
}

/// The derived type, with lengths it leaves open taken from what the file says.
fn merged(derived: ValueType, declared: Option<&ValueType>) -> ValueType {
    let (
        ValueType::Tensor { dtype, shape },
        Some(ValueType::Tensor {
            dtype: other,
            shape: known,
        }),
    ) = (&derived, declared)
    else {
        return derived;
    };
    if dtype != other {
        return derived;
    }
    let shape = match (shape, known) {
        (None, known) => known.clone(),
        (Some(shape), Some(known)) if shape.len() == known.len() => Some(
            shape
                .iter()
                .zip(known.iter())
                .map(|(derived, known)| match (derived, known) {
                    (Dim::Unknown, known) => known.clone(),
                    (Dim::Symbol(_), Dim::Known(length)) => Dim::Known(*length),
                    _ => derived.clone(),
                })
                .collect(),
        ),
        (shape, _) => shape.clone(),
    };
    ValueType::Tensor { dtype: *dtype, shape }
}

#[cfg(test)]
mod tests;
