use edgeopt_models::{DataType, Graph, Model, Node, Tensor, ValueInfo, ValueType};
use edgeopt_runtime::{Backend, CompileOptions, ModelSource};

use super::{Changes, Context};

/// Bytes above which a folded constant could cost more than computing it.
const MAX_BYTES: usize = 1 << 20;

/// Computes small models that have no inputs.
pub trait Evaluator {
    /// The outputs of `model`, in order.
    ///
    /// # Errors
    /// What went wrong, for people.
    fn evaluate(&self, model: &Model) -> Result<Vec<Tensor>, String>;
}

/// An evaluator that compiles and runs on a backend.
pub struct BackendEvaluator<'a>(pub &'a dyn Backend);

impl Evaluator for BackendEvaluator<'_> {
    fn evaluate(&self, model: &Model) -> Result<Vec<Tensor>, String> {
        let engine = self
            .0
            .compile(ModelSource::Model(model), &CompileOptions::default())
            .map_err(|error| error.to_string())?;
        let mut session = engine.session().map_err(|error| error.to_string())?;
        session
            .run(&[])
            .map(<[Tensor]>::to_vec)
            .map_err(|error| error.to_string())
    }
}

/// Replaces nodes of the main graph that only read constants by their results, all of one round in one model.
pub(super) fn fold(model: &mut Model, context: &Context) -> Changes {
    let Some(evaluator) = context.evaluator else {
        return Changes(0);
    };
    let graph = &model.graph;
    let mut closed = Graph {
        name: "constants".into(),
        ..Graph::default()
    };
    for node in &graph.nodes {
        if let (Some(dtype), Some(output)) = (result_type(graph, node), node.output(0))
            && !graph.is_output(output)
        {
            for name in &node.inputs {
                if let Some(tensor) = graph.constant(name) {
                    closed.add_initializer(name.clone(), tensor.clone());
                }
            }
            let ty = ValueType::Tensor { dtype, shape: None };
            closed.outputs.push(ValueInfo {
                name: output.clone(),
                ty,
                extra: None,
            });
            closed.nodes.push(node.clone());
        }
    }
    if closed.nodes.is_empty() {
        return Changes(0);
    }
    let names: Vec<_> = closed.outputs.iter().map(|output| output.name.clone()).collect();
    let mut small = Model::new(closed, model.opset());
    small.ir_version = small.ir_version.max(4);
    match evaluator.evaluate(&small) {
        Ok(values) if values.len() == names.len() => {
            let graph = &mut model.graph;
            graph
                .nodes
                .retain(|node| !node.output(0).is_some_and(|output| names.contains(output)));
            let count = names.len();
            graph.initializers.extend(names.into_iter().zip(values));
            Changes(count)
        }
        Ok(values) => {
            tracing::warn!(
                "constants stay unfolded: {} results for {} nodes",
                values.len(),
                names.len()
            );
            Changes(0)
        }
        Err(error) => {
            tracing::warn!("constants stay unfolded: {error}");
            Changes(0)
        }
    }
}

/// Type of the result, if the node reads constants only and its result cannot be large.
fn result_type(graph: &Graph, node: &Node) -> Option<DataType> {
    let inputs: Vec<&Tensor> = node
        .inputs
        .iter()
        .map(|name| graph.constant(name))
        .collect::<Option<_>>()?;
    let first = inputs.first()?;
    let elements = match node.op_type.as_str() {
        _ if !node.domain.is_empty() => return None,
        "Transpose" | "Reshape" | "Squeeze" | "Unsqueeze" | "Cast" | "Slice" | "Neg" | "Sqrt" => {
            first.elements()
        }
        "Concat" => inputs.iter().map(|input| input.elements()).sum(),
        "Add" | "Sub" | "Mul" | "Div" | "Gather" => inputs
            .iter()
            .try_fold(1usize, |product, input| product.checked_mul(input.elements()))?,
        _ => return None,
    };
    // A transposed weight replaces its source; anything else must be small. Eight bytes is the widest type.
    if node.op_type != "Transpose" && elements.checked_mul(8)? > MAX_BYTES {
        return None;
    }
    match node.op_type.as_str() {
        "Cast" => DataType::from_onnx(i32::try_from(node.int("to")?).ok()?),
        _ => Some(first.dtype()),
    }
}
