use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use onnx_protobuf::{GraphProto, Message, ModelProto, NodeProto, OperatorSetIdProto};

use super::attributes::read_attribute;
use super::functions::inline;
use super::scopes::normalize;
use super::source::{Source, open};
use super::tensor_proto::read_tensor;
use super::types::read_value_info;
use super::wire::WireError;
use crate::graph::DEFAULT_DOMAIN;
use crate::{Graph, MappedPart, Model, Node, Tensor};

/// The IR versions that can be read.
pub const IR_VERSIONS: RangeInclusive<i64> = 3..=13;

/// From this IR version on an initializer need not be a graph input, and one that is an input is its default.
const DEFAULTS_FROM_IR: i64 = 4;

/// Why a file is not a model we can work on.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be opened or read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The bytes are not a well-formed protobuf message, or one made to exhaust memory.
    #[error("not an ONNX model: {0}")]
    Wire(#[from] WireError),
    /// The bytes are not a protobuf message.
    #[error("not an ONNX model: {0}")]
    Decode(protobuf::Error),
    /// A required part is missing or contradicts another.
    #[error("{place}: {problem}")]
    Invalid {
        /// The node, tensor or field.
        place: String,
        /// What is wrong and what to do.
        problem: String,
    },
}

pub(super) fn invalid(place: impl Into<String>, problem: impl Into<String>) -> ReadError {
    ReadError::Invalid {
        place: place.into(),
        problem: problem.into(),
    }
}

/// Reads a model from a file.
///
/// The file is mapped and weights (tensors of 1 KiB and more) stay in it, so that reading takes memory for
/// the model's structure only (see [`memory_bound`](super::memory_bound)); external data is mapped likewise, from
/// regular files inside the model's folder. **The files must not be truncated or rewritten in place while
/// the model or one of its tensors is alive** (replacing them by renaming, as [`write_file`](super::write_file)
/// does, is fine).
///
/// What is changed on the way, so that later steps need not care:
/// - nodes get a name that is unique in their graph and stand in topological order;
/// - values of subgraphs that shadow an outer value or repeat a name of a sibling subgraph are renamed;
/// - the domain `ai.onnx` becomes `""`;
/// - calls of the model's functions are replaced by the functions' nodes, if those are written for the
///   model's own operator sets;
/// - up to IR version 3 every initializer had to be listed as an input too: there it is a constant, and
///   is taken off the main graph's inputs (writing puts it back). From IR version 4 on such an initializer
///   is a default that callers may override, and stays an input.
///
/// # Errors
/// When the file cannot be read or is not a well-formed ONNX model.
pub fn read_file(path: &Path) -> Result<Model, ReadError> {
    let map = open(path).map_err(|source| ReadError::Io {
        path: path.into(),
        source,
    })?;
    let (structure, source) = Source::mapped(&map, Some(path))?;
    read(structure, source)
}

/// Reads a model that is a part of a mapped file, such as a bundle; as [`read_file`], but external data is an error.
///
/// # Errors
/// When the part is not a well-formed ONNX model.
pub fn read_mapped(part: &MappedPart) -> Result<Model, ReadError> {
    let (structure, source) = Source::mapped(part, None)?;
    read(structure, source)
}

/// Reads a model from memory; as [`read_file`], but the weights are copied, and external data is an error.
///
/// # Errors
/// When the bytes are not a well-formed ONNX model.
pub fn read_bytes(bytes: &[u8]) -> Result<Model, ReadError> {
    let (structure, source) = Source::memory(bytes)?;
    read(structure, source)
}

/// Reads a single tensor: the content of a `.pb` file as ONNX's test data has them.
///
/// # Errors
/// When the bytes are not a well-formed tensor with its data inside.
pub fn read_tensor_bytes(bytes: &[u8]) -> Result<Tensor, ReadError> {
    // As the only initializer of a model, so that it passes the same checks before it is parsed.
    let model = nested(MODEL_GRAPH, &nested(GRAPH_INITIALIZER, bytes));
    let (structure, mut source) = Source::memory(&model)?;
    let mut proto = ModelProto::parse_from_bytes(&structure).map_err(ReadError::Decode)?;
    let tensors = proto
        .graph
        .as_mut()
        .map(|graph| std::mem::take(&mut graph.initializer));
    let tensor = tensors
        .into_iter()
        .flatten()
        .next()
        .ok_or_else(|| invalid("tensor", "there is none"))?;
    let name = tensor.name.clone();
    Ok(read_tensor(tensor, &name, &mut source)?.0)
}

/// Keys of `ModelProto.graph` and `GraphProto.initializer` on the wire.
const MODEL_GRAPH: u8 = 7 << 3 | 2;
const GRAPH_INITIALIZER: u8 = 5 << 3 | 2;

/// `bytes` as a length-delimited field.
fn nested(key: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = Vec::with_capacity(bytes.len() + 11);
    field.push(key);
    let mut len = bytes.len();
    while len > 127 {
        field.push(len as u8 | 128);
        len >>= 7;
    }
    field.push(len as u8);
    field.extend_from_slice(bytes);
    field
}

fn read(structure: Vec<u8>, mut source: Source<'_>) -> Result<Model, ReadError> {
    let mut proto = ModelProto::parse_from_bytes(&structure).map_err(ReadError::Decode)?;
    drop(structure);
    let ir_version = std::mem::take(&mut proto.ir_version);
    if !IR_VERSIONS.contains(&ir_version) {
        let (oldest, newest) = (IR_VERSIONS.start(), IR_VERSIONS.end());
        return Err(invalid(
            "model",
            format!(
                "IR version {ir_version} is not supported ({oldest} to {newest} are); export it again, or convert it"
            ),
        ));
    }
    let graph = proto
        .graph
        .take()
        .ok_or_else(|| invalid("model", "it has no graph"))?;
    let opsets = read_opsets(&mut proto.opset_import)?;
    let metadata = proto
        .metadata_props
        .iter()
        .map(|entry| (entry.key.clone(), entry.value.clone()))
        .collect();
    proto.metadata_props.retain_mut(|entry| {
        entry.value.clear();
        entry.special_fields != Default::default()
    });
    let producer = std::mem::take(&mut proto.producer_name);
    let mut model = Model {
        ir_version,
        opsets,
        producer,
        metadata,
        graph: read_graph(graph, &mut source)?,
        extra: leftover(proto),
    };
    if ir_version < DEFAULTS_FROM_IR {
        let Graph {
            inputs, initializers, ..
        } = &mut model.graph;
        inputs.retain(|input| !initializers.contains_key(&input.name));
    }
    inline(&mut model, source.budget())?;
    normalize(&mut model)?;
    Ok(model)
}

/// Reads the imports; those with unknown fields stay in the list.
fn read_opsets(imports: &mut Vec<OperatorSetIdProto>) -> Result<BTreeMap<String, i64>, ReadError> {
    let mut opsets = BTreeMap::new();
    for import in imports.iter_mut() {
        import.domain = domain(std::mem::take(&mut import.domain));
        let earlier = opsets.insert(import.domain.clone(), import.version);
        if earlier.is_some_and(|earlier| earlier != import.version) {
            return Err(invalid(
                "model",
                format!("it imports two versions of the operator set {:?}", import.domain),
            ));
        }
    }
    imports.retain(|import| import.special_fields != Default::default());
    Ok(opsets)
}

/// What remains of a message after everything modelled was taken out of it.
pub(super) fn leftover<M: Message + PartialEq>(message: M) -> Option<Box<M>> {
    (message != M::default()).then(|| Box::new(message))
}

pub(super) fn domain(text: String) -> String {
    if text == "ai.onnx" {
        DEFAULT_DOMAIN.to_owned()
    } else {
        text
    }
}

pub(super) fn read_graph(mut proto: GraphProto, source: &mut Source<'_>) -> Result<Graph, ReadError> {
    let mut initializers = IndexMap::new();
    for mut tensor in std::mem::take(&mut proto.initializer) {
        let name = std::mem::take(&mut tensor.name);
        if name.is_empty() {
            return Err(invalid(
                format!("graph {:?}", proto.name),
                "an initializer has no name",
            ));
        }
        let (value, rest) = read_tensor(tensor, &name, source)?;
        if initializers.insert(name.as_str().into(), value).is_some() {
            return Err(invalid(format!("initializer {name:?}"), "it is defined twice"));
        }
        if let Some(mut rest) = rest {
            rest.name = name;
            proto.initializer.push(*rest);
        }
    }
    let mut names = NodeNames::default();
    let mut nodes = Vec::with_capacity(proto.node.len());
    for node in std::mem::take(&mut proto.node) {
        nodes.push(read_node(node, &mut names, source)?);
    }
    let mut value_types = HashMap::new();
    for info in std::mem::take(&mut proto.value_info) {
        let info = read_value_info(info);
        if let Some(mut rest) = info.extra {
            rest.name = info.name.to_string();
            proto.value_info.push(*rest);
        }
        value_types.insert(info.name, info.ty);
    }
    // in the order they are written in
    proto.value_info.sort_by(|a, b| a.name.cmp(&b.name));
    let inputs = std::mem::take(&mut proto.input);
    let outputs = std::mem::take(&mut proto.output);
    let name = std::mem::take(&mut proto.name);
    Ok(Graph {
        name,
        nodes,
        inputs: inputs.into_iter().map(read_value_info).collect(),
        outputs: outputs.into_iter().map(read_value_info).collect(),
        initializers,
        value_types,
        extra: leftover(proto),
    })
}

/// Gives each node of a graph a name of its own.
#[derive(Default)]
pub(super) struct NodeNames {
    taken: HashSet<String>,
    counts: HashMap<String, usize>,
}

impl NodeNames {
    fn unique(&mut self, base: String) -> String {
        if self.taken.insert(base.clone()) {
            return base;
        }
        let count = self.counts.entry(base.clone()).or_default();
        loop {
            *count += 1;
            let name = format!("{base}_{count}");
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}

pub(super) fn read_node(
    mut proto: NodeProto,
    names: &mut NodeNames,
    source: &mut Source<'_>,
) -> Result<Node, ReadError> {
    let op_type = std::mem::take(&mut proto.op_type);
    let name = names.unique(match std::mem::take(&mut proto.name) {
        name if name.is_empty() => op_type.clone(),
        name => name,
    });
    let mut attributes = BTreeMap::new();
    for mut attribute in std::mem::take(&mut proto.attribute) {
        let key = std::mem::take(&mut attribute.name);
        let place = format!("{op_type} node {name:?}, attribute {key:?}");
        let (value, rest) = read_attribute(attribute, &place, source)?;
        if let Some(mut rest) = rest {
            rest.name.clone_from(&key);
            proto.attribute.push(*rest);
        }
        if attributes.insert(key, value).is_some() {
            return Err(invalid(place, "it is given twice"));
        }
    }
    proto.attribute.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(Node {
        op_type,
        domain: domain(std::mem::take(&mut proto.domain)),
        name,
        inputs: std::mem::take(&mut proto.input)
            .into_iter()
            .map(Into::into)
            .collect(),
        outputs: std::mem::take(&mut proto.output)
            .into_iter()
            .map(Into::into)
            .collect(),
        attributes,
        extra: leftover(proto),
    })
}
