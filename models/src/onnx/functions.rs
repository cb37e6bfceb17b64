//! Functions of a model, put in the place of the nodes that call them.
//!
//! A function is a list of nodes written for names and attributes of its own. A call becomes a copy of them in
//! which inputs and outputs carry the caller's names, every other value a fresh one, and every reference to
//! an attribute the caller's value, or the function's default, or nothing. Functions that nothing calls are
//! dropped. A function written for another version of an operator set than the model's cannot be put in: then
//! all of them stay in the model's `extra`, and validation says so.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use onnx_protobuf::FunctionProto;

use super::attributes::read_attribute;
use super::read::{NodeNames, ReadError, domain, invalid, read_node};
use super::scopes::{definitions, rename, rename_inner};
use super::source::Source;
use crate::graph::NameGenerator;
use crate::{Attribute, Graph, Model, Node, ValueInfo, ValueName, ValueType};

/// Calls within calls, and graphs within graphs, deeper than this are refused: recursion, most likely.
const MAX_DEPTH: usize = 32;

/// Domain, name and overload.
type Key = (String, String, String);

struct Function {
    inputs: Vec<ValueName>,
    outputs: Vec<ValueName>,
    defaults: BTreeMap<String, Attribute>,
    nodes: Vec<Node>,
    /// About how many bytes a copy takes.
    size: u64,
}

struct Inliner {
    functions: HashMap<Key, Function>,
    names: NameGenerator,
    /// Every value defined so far, in any scope.
    defined: HashSet<ValueName>,
    /// Bytes that copies may still take.
    budget: u64,
}

/// Puts the model's functions in the place of their calls, with at most `budget` bytes of copies.
pub(super) fn inline(model: &mut Model, budget: u64) -> Result<(), ReadError> {
    let Some(extra) = model.extra.as_mut().filter(|extra| !extra.functions.is_empty()) else {
        return Ok(());
    };
    let protos = std::mem::take(&mut extra.functions);
    let mut opsets = model.opsets.clone();
    for import in protos.iter().flat_map(|function| &function.opset_import) {
        let version = *opsets
            .entry(domain(import.domain.clone()))
            .or_insert(import.version);
        if version != import.version {
            extra.functions = protos;
            return Ok(());
        }
    }
    let mut functions = HashMap::new();
    for proto in protos {
        let key = (
            domain(proto.domain.clone()),
            proto.name.clone(),
            proto.overload.clone(),
        );
        functions.insert(key, read_function(proto)?);
    }
    let mut inliner = Inliner {
        functions,
        names: NameGenerator::new(model),
        defined: HashSet::new(),
        budget,
    };
    all_definitions(&model.graph, &mut inliner.defined);
    inliner.graph(&mut model.graph, 0, 0)?;
    model.opsets = opsets;
    if model.extra.as_deref() == Some(&Default::default()) {
        model.extra = None;
    }
    Ok(())
}

fn all_definitions(graph: &Graph, defined: &mut HashSet<ValueName>) {
    defined.extend(definitions(graph));
    for subgraph in graph.nodes.iter().flat_map(|node| node.subgraphs()) {
        all_definitions(subgraph, defined);
    }
}

fn read_function(proto: FunctionProto) -> Result<Function, ReadError> {
    let mut source = Source::messages();
    let mut names = NodeNames::default();
    let mut nodes = Vec::with_capacity(proto.node.len());
    for node in proto.node {
        nodes.push(read_node(node, &mut names, &mut source)?);
    }
    let mut defaults = BTreeMap::new();
    for mut attribute in proto.attribute_proto {
        let key = std::mem::take(&mut attribute.name);
        let place = format!("function {:?}, attribute {key:?}", proto.name);
        defaults.insert(key, read_attribute(attribute, &place, &mut source)?.0);
    }
    Ok(Function {
        inputs: proto.input.into_iter().map(Into::into).collect(),
        outputs: proto.output.into_iter().map(Into::into).collect(),
        defaults,
        size: size(&nodes),
        nodes,
    })
}

fn size(nodes: &[Node]) -> u64 {
    let attribute = |attribute: &Attribute| match attribute {
        Attribute::String(text) => text.len() as u64,
        Attribute::Ints(values) => 8 * values.len() as u64,
        Attribute::Floats(values) => 4 * values.len() as u64,
        Attribute::Strings(values) => values.iter().map(|text| 48 + text.len() as u64).sum(),
        Attribute::Other(proto) => 16 * protobuf::Message::compute_size(&**proto),
        _ => 0,
    };
    let node = |node: &Node| {
        let names = node
            .inputs
            .iter()
            .chain(&node.outputs)
            .map(|name| name.len() as u64);
        let names: u64 = names.map(|len| 256 + 4 * len).sum();
        let own: u64 = node.attributes.values().map(|value| 256 + attribute(value)).sum();
        let extra = node.extra.as_deref().map_or(0, protobuf::Message::compute_size);
        let inner: u64 = node.subgraphs().map(graph_size).sum();
        4096 + names + own + inner + 16 * extra
    };
    nodes.iter().map(node).sum()
}

fn graph_size(graph: &Graph) -> u64 {
    let values =
        graph.inputs.len() + graph.outputs.len() + graph.initializers.len() + graph.value_types.len();
    let extra = graph.extra.as_deref().map_or(0, protobuf::Message::compute_size);
    4096 + 1024 * values as u64 + 16 * extra + size(&graph.nodes)
}

impl Inliner {
    /// Replaces the calls in `graph`, which lies within `nesting` graphs and `calls` calls.
    fn graph(&mut self, graph: &mut Graph, nesting: usize, calls: usize) -> Result<(), ReadError> {
        if nesting > MAX_DEPTH {
            let problem = format!("functions put graphs into it more than {MAX_DEPTH} deep");
            return Err(invalid(format!("graph {:?}", graph.name), problem));
        }
        let nodes = std::mem::take(&mut graph.nodes);
        graph.nodes = self.nodes(nodes, nesting, calls)?;
        Ok(())
    }

    fn nodes(&mut self, nodes: Vec<Node>, nesting: usize, calls: usize) -> Result<Vec<Node>, ReadError> {
        let mut expanded = Vec::with_capacity(nodes.len());
        for mut node in nodes {
            for subgraph in node.subgraphs_mut() {
                self.graph(subgraph, nesting + 1, calls)?;
            }
            match self.call(&node)? {
                None => expanded.push(node),
                Some(_) if calls >= MAX_DEPTH => {
                    let problem =
                        format!("it calls functions more than {MAX_DEPTH} deep, or one that calls itself");
                    return Err(invalid(node.to_string(), problem));
                }
                Some(copy) => expanded.extend(self.nodes(copy, nesting, calls + 1)?),
            }
        }
        Ok(expanded)
    }

    /// The nodes that take the place of `node`, if it calls a function.
    fn call(&mut self, node: &Node) -> Result<Option<Vec<Node>>, ReadError> {
        let overload = node.extra.as_ref().map_or("", |extra| &extra.overload);
        let key = (node.domain.clone(), node.op_type.clone(), overload.to_owned());
        let Some(function) = self.functions.get(&key) else {
            return Ok(None);
        };
        self.budget = self.budget.checked_sub(function.size).ok_or_else(|| {
            let problem = "putting functions in the place of their calls takes more memory than a file of this size needs";
            invalid(node.to_string(), problem)
        })?;
        let info = |name: &ValueName| ValueInfo {
            name: name.clone(),
            ty: ValueType::Other(None),
            extra: None,
        };
        let mut body = Graph {
            inputs: function.inputs.iter().map(info).collect(),
            outputs: function.outputs.iter().map(info).collect(),
            nodes: function.nodes.clone(),
            ..Graph::default()
        };
        let given = function.inputs.len();
        if node.inputs.len() > given || node.outputs.len() > body.outputs.len() {
            let outputs = body.outputs.len();
            let problem =
                format!("it calls a function of {given} inputs and {outputs} outputs with more of them");
            return Err(invalid(node.to_string(), problem));
        }
        for inner in &mut body.nodes {
            refer(inner, node, &function.defaults);
            inner.name = self
                .names
                .fresh(&format!("{}_{}", node.name, inner.name))
                .to_string();
        }
        // what subgraphs define must not capture the caller's names
        rename_inner(&mut body, &mut self.defined, &mut self.names);
        let mut renamed = HashMap::new();
        for (index, input) in function.inputs.iter().enumerate() {
            let actual = node.inputs.get(index).cloned().unwrap_or_else(ValueName::omitted);
            renamed.insert(input.clone(), actual);
        }
        let mut copies = Vec::new();
        for (index, output) in body.outputs.iter().enumerate() {
            let Some(actual) = node.output(index) else {
                continue;
            };
            if renamed.contains_key(&output.name) {
                // an input, or an output that has a name already
                copies.push((output.name.clone(), actual.clone()));
            } else {
                renamed.insert(output.name.clone(), actual.clone());
            }
        }
        for name in definitions(&body) {
            if let Entry::Vacant(entry) = renamed.entry(name) {
                let fresh = self.names.fresh(&format!("{}_{}", node.name, entry.key()));
                self.defined.insert(fresh.clone());
                entry.insert(fresh);
            }
        }
        rename(&mut body, &renamed, true);
        for (from, to) in copies {
            let from = renamed.get(&from).cloned().unwrap_or(from);
            let name = self.names.fresh(&format!("{}_copy", node.name));
            body.nodes.push(Node::new("Identity", &name, [from], [to]));
        }
        Ok(Some(body.nodes))
    }
}

/// Gives references to attributes in `inner` and its subgraphs the values of the call.
fn refer(inner: &mut Node, call: &Node, defaults: &BTreeMap<String, Attribute>) {
    inner.attributes.retain(|_, value| {
        let reference = match value {
            Attribute::Other(proto) if !proto.ref_attr_name.is_empty() => proto.ref_attr_name.as_str(),
            _ => return true,
        };
        let actual = call.attributes.get(reference).or_else(|| defaults.get(reference));
        match actual.cloned() {
            Some(actual) => {
                *value = actual;
                true
            }
            None => false,
        }
    });
    for node in inner.subgraphs_mut().flat_map(|graph| &mut graph.nodes) {
        refer(node, call, defaults);
    }
}
