//! Computing what depends on constants only.

mod cone;
mod growth;

use std::collections::HashMap;

use edgeopt_models::graph::DEFAULT_DOMAIN;
use edgeopt_models::{Attribute, Graph, Model, Node, Tensor, ValueName};
use edgeopt_runtime::{Backend, CompileOptions, ModelSource};

use super::{Changes, Context};
use cone::Cone;

/// A folded constant up to this many bytes is always kept; a larger one only if what it was computed from was
/// as large.
const MAX_BYTES: usize = 1 << 20;

/// Evaluations that one round over one graph may take to find out which of its nodes fail.
const MAX_EVALUATIONS: usize = 64;

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
        // One run each: neither threads nor a rewritten graph would pay.
        let options = CompileOptions {
            threads: 1,
            optimize: false,
            ..CompileOptions::default()
        };
        let engine = self
            .0
            .compile(ModelSource::Model(model), &options)
            .map_err(|error| error.to_string())?;
        let mut session = engine.session().map_err(|error| error.to_string())?;
        session
            .run(&[])
            .map(<[Tensor]>::to_vec)
            .map_err(|error| error.to_string())
    }
}

/// Replaces nodes that depend on constants only by their results, in the main graph and in subgraphs. All such
/// nodes of one graph, however many follow each other, are computed in one evaluation.
pub(super) fn fold(model: &mut Model, context: &Context) -> Changes {
    let Some(evaluator) = context.evaluator else {
        return Changes(0);
    };
    let opset = model.opset();
    let fold = Fold { evaluator, opset };
    Changes(fold.in_graph(&mut model.graph, &HashMap::new()))
}

struct Fold<'a> {
    evaluator: &'a dyn Evaluator,
    opset: i64,
}

impl Fold<'_> {
    /// `outer` has the constants of the graphs around this one.
    fn in_graph(&self, graph: &mut Graph, outer: &HashMap<ValueName, Tensor>) -> usize {
        let mut constants = outer.clone();
        for input in &graph.inputs {
            constants.remove(&input.name);
        }
        for node in &graph.nodes {
            for output in &node.outputs {
                constants.remove(output);
            }
        }
        for (name, tensor) in &graph.initializers {
            if graph.is_input(name) {
                constants.remove(name);
            } else {
                constants.insert(name.clone(), tensor.clone());
            }
        }
        let mut changes = 0;
        let cone = Cone::new(graph, &constants);
        if !cone.wanted.is_empty() {
            let (mut values, mut budget) = (HashMap::new(), MAX_EVALUATIONS);
            self.evaluate(graph, &constants, &cone, &cone.wanted, &mut budget, &mut values);
            changes += replace(graph, &cone, values, &mut constants);
        }
        for node in &mut graph.nodes {
            for subgraph in node.subgraphs_mut() {
                changes += self.in_graph(subgraph, &constants);
            }
        }
        changes
    }

    /// Computes the wanted values, and when that fails halves them until those that fail are alone.
    fn evaluate(
        &self,
        graph: &Graph,
        constants: &HashMap<ValueName, Tensor>,
        cone: &Cone,
        wanted: &[ValueName],
        budget: &mut usize,
        values: &mut HashMap<ValueName, Tensor>,
    ) {
        if *budget == 0 || wanted.is_empty() {
            return;
        }
        *budget -= 1;
        let mut small = Model::new(cone.closed(graph, constants, wanted), self.opset);
        // Initializers that are no inputs need IR 4.
        small.ir_version = small.ir_version.max(4);
        let problem = match self.evaluator.evaluate(&small) {
            Ok(results) if results.len() == wanted.len() => {
                values.extend(wanted.iter().cloned().zip(results));
                return;
            }
            Ok(results) => format!("{} results for {} values", results.len(), wanted.len()),
            Err(problem) => problem,
        };
        if let [only] = wanted {
            tracing::warn!("{only:?} depends on constants only but stays unfolded: {problem}");
            return;
        }
        let (left, right) = wanted.split_at(wanted.len() / 2);
        self.evaluate(graph, constants, cone, left, budget, values);
        self.evaluate(graph, constants, cone, right, budget, values);
    }
}

/// Puts computed values into the graph. A node goes when all its values are there or unread; one that makes a
/// graph output becomes a `Constant` node, since not every runtime takes an initializer for an output.
fn replace(
    graph: &mut Graph,
    cone: &Cone,
    mut values: HashMap<ValueName, Tensor>,
    constants: &mut HashMap<ValueName, Tensor>,
) -> usize {
    values.retain(|name, tensor| {
        let bytes = size(tensor);
        bytes <= MAX_BYTES || bytes <= cone.source_bytes(name)
    });
    let mut count = 0;
    let nodes = std::mem::take(&mut graph.nodes);
    for node in nodes {
        let computed = node.outputs.iter().any(|name| values.contains_key(name))
            && node
                .outputs
                .iter()
                .all(|name| values.contains_key(name) || !cone.wanted.contains(name));
        if !computed {
            graph.nodes.push(node);
            continue;
        }
        count += 1;
        for (index, name) in node.outputs.iter().enumerate() {
            let Some(tensor) = values.remove(name) else {
                continue;
            };
            constants.insert(name.clone(), tensor.clone());
            if graph.is_output(name) {
                let mut constant = Node {
                    op_type: "Constant".into(),
                    domain: DEFAULT_DOMAIN.into(),
                    name: node.name.clone(),
                    inputs: Vec::new(),
                    outputs: vec![name.clone()],
                    attributes: [("value".to_owned(), Attribute::Tensor(tensor))].into(),
                    extra: None,
                };
                if index > 0 {
                    constant.name = format!("{}_{index}", node.name);
                }
                graph.nodes.push(constant);
            } else {
                graph.initializers.insert(name.clone(), tensor);
            }
        }
    }
    // What only the computed nodes read is dead now, and goes with the dead code.
    count
}

/// Bytes of a tensor's elements; strings count with their length.
fn size(tensor: &Tensor) -> usize {
    match tensor.as_strings() {
        Some(strings) => strings.iter().map(Vec::len).sum(),
        None => tensor.as_bytes().len(),
    }
}
