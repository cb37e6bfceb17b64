//! What must hold of a model for the rest of the project to work on it.
//!
//! - IR version and standard operator set are ones we know, and every domain in use is imported;
//! - every value is defined once in the whole model (a value of a subgraph does not even share its name with
//!   one of another subgraph), and before it is read; graph outputs are defined;
//! - nodes have an operator and a name of their own in their graph, and stand in topological order;
//! - attributes that all standard operators use alike have their type;
//! - an initializer that is an input as well has the input's type, and no construct is left that we keep
//!   but do not understand (functions, sparse constants).
//!
//! [`read_file`](crate::onnx::read_file) establishes names and order; passes must keep them.

use std::collections::HashSet;
use std::fmt;
use std::ops::RangeInclusive;

use super::known_attributes::expected_attribute;
use super::{Attribute, DEFAULT_DOMAIN, Graph, Model, Node};
use crate::onnx::IR_VERSIONS;
use crate::{Dim, ValueName, ValueType};

/// The versions of the standard operator set that are understood.
pub const OPSETS: RangeInclusive<i64> = 7..=24;

/// At most so many problems are kept; the rest is counted.
const KEPT: usize = 20;

/// One thing that is wrong with a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The node, tensor or part of the model.
    pub place: String,
    /// What is wrong and what to do.
    pub problem: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

/// Everything that is wrong with a model: at least one problem, at most twenty of them in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidateError {
    /// The first problems found.
    pub problems: Vec<Problem>,
    /// How many there are in all.
    pub total: usize,
}

impl fmt::Display for ValidateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        match self.total - self.problems.len() {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl std::error::Error for ValidateError {}

/// Checks what this module's documentation lists.
///
/// # Errors
/// With all problems found.
pub fn validate(model: &Model) -> Result<(), ValidateError> {
    let mut check = Check {
        model,
        problems: Vec::new(),
        total: 0,
        defined: HashSet::new(),
        unimported: HashSet::new(),
    };
    check.versions();
    if model.graph.outputs.is_empty() {
        check.report("model", "its graph has no outputs, so it computes nothing");
    }
    check.graph(&model.graph, &mut Vec::new());
    match check.total {
        0 => Ok(()),
        total => Err(ValidateError {
            problems: check.problems,
            total,
        }),
    }
}

struct Check<'a> {
    model: &'a Model,
    problems: Vec<Problem>,
    total: usize,
    /// Every value defined so far, in any scope.
    defined: HashSet<&'a str>,
    unimported: HashSet<&'a str>,
}

impl<'a> Check<'a> {
    fn report(&mut self, place: impl fmt::Display, problem: impl Into<String>) {
        self.total += 1;
        if self.problems.len() < KEPT {
            self.problems.push(Problem {
                place: place.to_string(),
                problem: problem.into(),
            });
        }
    }

    fn versions(&mut self) {
        let model = self.model;
        if !IR_VERSIONS.contains(&model.ir_version) {
            let (oldest, newest) = (IR_VERSIONS.start(), IR_VERSIONS.end());
            let version = model.ir_version;
            self.report(
                "model",
                format!("IR version {version} is not supported ({oldest} to {newest} are)"),
            );
        }
        if let Some(version) = model.opsets.get(DEFAULT_DOMAIN)
            && !OPSETS.contains(version)
        {
            let (oldest, newest) = (OPSETS.start(), OPSETS.end());
            let hint = if version < oldest {
                "convert it to a newer one where it was made"
            } else {
                "export the model for an older one"
            };
            self.report(
                "model",
                format!("operator set {version} is not supported ({oldest} to {newest} are); {hint}"),
            );
        }
        let functions = model.extra.as_deref().map_or(&[][..], |extra| &extra.functions);
        for function in functions {
            self.report(
                format!("function {:?}", function.name),
                "it is written for another version of an operator set than the model, so that it could not be \
                 put in the place of its calls; export the model without functions",
            );
        }
    }

    fn graph(&mut self, graph: &'a Graph, outer: &mut Vec<HashSet<&'a str>>) {
        let mut visible: HashSet<&str> = HashSet::new();
        for input in &graph.inputs {
            if input.name.is_omitted() {
                self.report(Named(graph), "an input has no name");
            } else {
                self.define(&input.name, "input", &mut visible);
            }
            if let Some(tensor) = graph.initializers.get(&input.name) {
                let fits = match &input.ty {
                    ValueType::Tensor { dtype, shape } => {
                        *dtype == tensor.dtype()
                            && shape.as_ref().is_none_or(|shape| {
                                shape.len() == tensor.dims().len()
                                    && shape.iter().zip(tensor.dims()).all(|(dim, len)| match dim {
                                        Dim::Known(n) => n == len,
                                        _ => true,
                                    })
                            })
                    }
                    ValueType::Other(None) => true,
                    _ => false,
                };
                if !fits {
                    self.report(
                        format!("initializer {:?}", &*input.name),
                        format!(
                            "it is {}{:?}, which is not the type of the input it is the default of",
                            tensor.dtype(),
                            tensor.dims()
                        ),
                    );
                }
            }
        }
        for name in graph.initializers.keys().filter(|name| !graph.is_input(name)) {
            self.define(name, "initializer", &mut visible);
        }
        for sparse in graph.extra.iter().flat_map(|extra| &extra.sparse_initializer) {
            let name = sparse.values.as_ref().map_or("", |values| &values.name);
            self.report(
                format!("initializer {name:?}"),
                "sparse constants are not supported; store it dense",
            );
        }
        let later: HashSet<&str> = graph
            .nodes
            .iter()
            .flat_map(|node| node.outputs.iter().map(|name| &**name))
            .collect();
        let mut names = HashSet::new();
        for node in &graph.nodes {
            self.node(node);
            if !names.insert(&*node.name) {
                self.report(node, "another node of the graph has the same name");
            }
            for name in node.inputs.iter().filter(|name| !name.is_omitted()) {
                self.read(node, name, &visible, outer, &later);
            }
            outer.push(std::mem::take(&mut visible));
            for subgraph in node.subgraphs() {
                self.graph(subgraph, outer);
            }
            visible = outer.pop().unwrap_or_default();
            for name in node.outputs.iter().filter(|name| !name.is_omitted()) {
                self.define(name, node, &mut visible);
            }
        }
        for output in &graph.outputs {
            if output.name.is_omitted() {
                self.report(Named(graph), "an output has no name");
            } else if !visible.contains(&*output.name)
                && !outer.iter().any(|scope| scope.contains(&*output.name))
            {
                self.report(
                    Named(graph),
                    format!("nothing computes the output {:?}", &*output.name),
                );
            }
        }
    }

    fn define(&mut self, name: &'a ValueName, place: impl fmt::Display, visible: &mut HashSet<&'a str>) {
        visible.insert(name);
        if !self.defined.insert(name) {
            self.report(
                place,
                format!("the value {:?} is defined more than once in the model", &**name),
            );
        }
    }

    fn read(
        &mut self,
        node: &Node,
        name: &str,
        visible: &HashSet<&str>,
        outer: &[HashSet<&str>],
        later: &HashSet<&str>,
    ) {
        if visible.contains(name) || outer.iter().any(|scope| scope.contains(name)) {
            return;
        }
        let problem = if later.contains(name) {
            format!("it reads {name:?}, which a later node computes: the nodes are not in topological order")
        } else {
            format!("it reads {name:?}, which nothing in scope computes")
        };
        self.report(node, problem);
    }

    fn node(&mut self, node: &'a Node) {
        if node.op_type.is_empty() {
            self.report(format!("node {:?}", node.name), "it has no operator");
        }
        if node.name.is_empty() {
            self.report(node, "it has no name");
        }
        if node.outputs.iter().all(ValueName::is_omitted) {
            self.report(node, "it has no outputs");
        }
        if !self.model.opsets.contains_key(&node.domain) && self.unimported.insert(&node.domain) {
            self.report(
                node,
                format!(
                    "the model does not import the operator set of its domain {:?}",
                    node.domain
                ),
            );
        }
        for (name, value) in &node.attributes {
            if let Attribute::Other(proto) = value
                && !proto.ref_attr_name.is_empty()
            {
                self.report(
                    node,
                    format!("its attribute {name:?} refers to an attribute of a function, but it is in none"),
                );
            } else if node.domain == DEFAULT_DOMAIN
                && let Some(expected) = expected_attribute(&node.op_type, name)
                && !expected.matches(value)
            {
                self.report(node, format!("its attribute {name:?} must be {expected}"));
            }
        }
    }
}

struct Named<'a>(&'a Graph);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "graph {:?}", self.0.name)
    }
}
