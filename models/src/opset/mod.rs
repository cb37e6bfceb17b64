//! Raising models to a newer operator set.
//!
//! Operators change their meaning or signature between versions of the standard operator set. [`raise`] brings
//! a model to one version, so that everything after it knows one form of each operator. `history` lists
//! which operators changed when; an operator that is not listed, and a change that cannot be expressed exactly,
//! is an error, never a guess.

mod history;
mod rewrite;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::RangeInclusive;

use crate::graph::{DEFAULT_DOMAIN, NameGenerator, ir_version_for};
use crate::{Attribute, Graph, Model, Node, Tensor, ValueName, ValueType};
use rewrite::Rewriting;

/// The version models are raised to unless something else is asked for.
pub const DEFAULT_TARGET: i64 = 19;

/// The versions a model can be raised to.
pub const TARGETS: RangeInclusive<i64> = 19..=21;

/// The oldest version a model can be raised from.
pub const OLDEST: i64 = 7;

/// What raising did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The operator set before.
    pub from: i64,
    /// The operator set after.
    pub to: i64,
    /// The nodes that were rewritten, each in words with the version whose change it was.
    pub rewritten: Vec<String>,
}

/// Why a model cannot be raised. It is unchanged then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpsetError {
    /// Another target than [`TARGETS`].
    #[error("models can be raised to operator sets {oldest} to {newest}, not {target}", oldest = TARGETS.start(), newest = TARGETS.end())]
    Target {
        /// What was asked for.
        target: i64,
    },
    /// An operator set from before [`OLDEST`].
    #[error(
        "operator set {0} is too old to be raised ({OLDEST} is the oldest); convert the model where it was made"
    )]
    TooOld(i64),
    /// The model has functions.
    #[error("the model has functions, which are written for their own operator set; inline them first")]
    Functions,
    /// A standard operator that the target does not have.
    #[error("{node}: the standard operator set {version} has no such operator")]
    Unknown {
        /// The node.
        node: String,
        /// The version the model is being raised to.
        version: i64,
    },
    /// A change that cannot be expressed for this node.
    #[error("{node} cannot be raised over operator set {version}: {problem}")]
    Unhandled {
        /// The node.
        node: String,
        /// The version in which the operator changed.
        version: i64,
        /// What stands in the way.
        problem: String,
    },
}

/// Raises `model` to the standard operator set `target` ([`DEFAULT_TARGET`] is a good one). A model that is
/// there already, or beyond, stays as it is. The model must be [valid](crate::graph::validate::validate);
/// types of values help where a form depends on rank or element type, but are not required.
///
/// # Errors
/// When the model or the target is too old or too new, or a node's change cannot be expressed; the model is
/// unchanged then.
pub fn raise(model: &mut Model, target: i64) -> Result<Changes, OpsetError> {
    if !TARGETS.contains(&target) {
        return Err(OpsetError::Target { target });
    }
    let from = model.opsets.get(DEFAULT_DOMAIN).copied().unwrap_or(target);
    let mut changes = Changes {
        from,
        to: target.max(from),
        rewritten: Vec::new(),
    };
    if from >= target {
        return Ok(changes);
    }
    if from < OLDEST {
        return Err(OpsetError::TooOld(from));
    }
    if model
        .extra
        .as_ref()
        .is_some_and(|extra| !extra.functions.is_empty())
    {
        return Err(OpsetError::Functions);
    }
    let mut names = NameGenerator::new(model);
    let mut facts = Facts::default();
    facts.collect(&model.graph);
    let mut graph = model.graph.clone();
    let versions = from + 1..=target;
    raise_graph(&mut graph, &versions, &facts, &mut names, &mut changes.rewritten)?;
    model.graph = graph;
    model.opsets.insert(DEFAULT_DOMAIN.to_owned(), target);
    model.ir_version = model.ir_version.max(ir_version_for(target));
    Ok(changes)
}

/// What rewriting needs to know of values, in all scopes.
#[derive(Default)]
struct Facts {
    types: HashMap<ValueName, ValueType>,
    constants: HashMap<ValueName, Tensor>,
    read: HashSet<ValueName>,
}

impl Facts {
    fn collect(&mut self, graph: &Graph) {
        for info in graph.outputs.iter().chain(&graph.inputs) {
            self.types.insert(info.name.clone(), info.ty.clone());
        }
        self.types.extend(
            graph
                .value_types
                .iter()
                .map(|(name, ty)| (name.clone(), ty.clone())),
        );
        for name in graph.initializers.keys() {
            self.types
                .extend(graph.type_of(name).map(|ty| (name.clone(), ty)));
            self.constants
                .extend(graph.constant(name).map(|tensor| (name.clone(), tensor.clone())));
        }
        self.read
            .extend(graph.outputs.iter().map(|output| output.name.clone()));
        for node in &graph.nodes {
            self.read.extend(node.inputs.iter().cloned());
            if node.is("Constant")
                && let (Some(Attribute::Tensor(value)), Some(output)) =
                    (node.attributes.get("value"), node.output(0))
            {
                self.constants.insert(output.clone(), value.clone());
            }
            node.subgraphs().for_each(|subgraph| self.collect(subgraph));
        }
    }
}

fn raise_graph(
    graph: &mut Graph,
    versions: &RangeInclusive<i64>,
    facts: &Facts,
    names: &mut NameGenerator,
    rewritten: &mut Vec<String>,
) -> Result<(), OpsetError> {
    let nodes = std::mem::take(&mut graph.nodes);
    let mut rewriting = Rewriting::new(facts, names);
    for node in nodes {
        let node = raise_node(node, versions, &mut rewriting, rewritten)?;
        rewriting.finish_node(node);
    }
    let (nodes, constants) = rewriting.finish();
    graph.nodes = nodes;
    graph.initializers.extend(constants);
    for subgraph in graph.nodes.iter_mut().flat_map(|node| node.subgraphs_mut()) {
        raise_graph(subgraph, versions, facts, names, rewritten)?;
    }
    Ok(())
}

fn raise_node(
    mut node: Node,
    versions: &RangeInclusive<i64>,
    rewriting: &mut Rewriting<'_>,
    rewritten: &mut Vec<String>,
) -> Result<Node, OpsetError> {
    if node.domain != DEFAULT_DOMAIN {
        return Ok(node);
    }
    let (mut version, target) = (*versions.start(), *versions.end());
    let unknown = |node: &Node| OpsetError::Unknown {
        node: node.to_string(),
        version: target,
    };
    loop {
        let changed = history::changes(&node.op_type).ok_or_else(|| unknown(&node))?;
        let next = changed
            .iter()
            .copied()
            .find(|change| (version..=target).contains(change));
        let Some(change) = next else {
            let gone = history::REMOVED.contains(&node.op_type.as_str());
            return if gone { Err(unknown(&node)) } else { Ok(node) };
        };
        let before = node.to_string();
        match rewriting.apply(&mut node, change) {
            Ok(true) => rewritten.push(
                Rewritten {
                    node: &before,
                    version: change,
                }
                .to_string(),
            ),
            Ok(false) => {}
            Err(problem) => {
                return Err(OpsetError::Unhandled {
                    node: before,
                    version: change,
                    problem,
                });
            }
        }
        version = change + 1;
    }
}

struct Rewritten<'a> {
    node: &'a str,
    version: i64,
}

impl fmt::Display for Rewritten<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: operator set {}", self.node, self.version)
    }
}
