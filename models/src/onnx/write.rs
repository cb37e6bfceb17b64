use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use onnx_protobuf::tensor_proto::DataLocation;
use onnx_protobuf::{
    GraphProto, Message, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto,
    ValueInfoProto,
};

use super::attributes::write_attribute;
use super::tensor_proto::tensor_header;
use super::types::write_value_info;
use crate::{Graph, Model, Node, Shape, Tensor, ValueInfo, ValueName, ValueType};

/// Why a model cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file cannot be written.
    #[error("cannot write {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The message cannot be encoded (it is larger than protobuf's 2 GiB).
    #[error("cannot encode the model: {0}; write it to a file with external data")]
    Encode(protobuf::Error),
}

/// Encodes a model, with all weights inside.
///
/// # Errors
/// When the model exceeds protobuf's 2 GiB.
pub fn write_bytes(model: &Model) -> Result<Vec<u8>, WriteError> {
    let mut payload = Payload::default();
    model_proto(model, &mut payload)
        .write_to_bytes()
        .map_err(WriteError::Encode)
}

/// Where a reader finds the data of an initializer that is not in the encoded model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elsewhere {
    /// It is given the data another way.
    Given,
    /// In a file of the folder that the reader looks in.
    File {
        /// The file's name.
        name: String,
        /// Where in it the data begins.
        offset: usize,
    },
}

/// Encodes a model without the data of the initializers in `elsewhere`: they are declared as external data.
///
/// # Errors
/// When the model exceeds protobuf's 2 GiB.
pub fn write_bytes_without(
    model: &Model,
    elsewhere: HashMap<ValueName, Elsewhere>,
) -> Result<Vec<u8>, WriteError> {
    let mut payload = Payload {
        elsewhere,
        ..Payload::default()
    };
    model_proto(model, &mut payload)
        .write_to_bytes()
        .map_err(WriteError::Encode)
}

/// Where tensors' bytes go: into the message, or to places in a file beside it.
#[derive(Default)]
pub(super) struct Payload<'a> {
    external: Option<(&'a str, u64)>,
    /// Initializers of the graph that is written whose bytes go nowhere; subgraphs have none.
    elsewhere: HashMap<ValueName, Elsewhere>,
    /// The tensors that go to the file, with their offsets, in order; and where the file ends.
    pub(super) placed: Vec<(Tensor, u64)>,
    pub(super) end: u64,
}

impl<'a> Payload<'a> {
    /// Initializers of `from` bytes and more go to the file `location`.
    pub(super) fn external(location: &'a str, from: u64) -> Self {
        Self {
            external: Some((location, from)),
            ..Self::default()
        }
    }

    /// A tensor with its data in the message.
    pub(super) fn inline(&mut self, tensor: &Tensor, name: &str, rest: Option<&TensorProto>) -> TensorProto {
        let mut proto = tensor_header(tensor, name, rest);
        proto.raw_data = tensor.as_bytes().to_vec();
        proto
    }

    fn initializer(&mut self, tensor: &Tensor, name: &str, rest: Option<&TensorProto>) -> TensorProto {
        let len = tensor.as_bytes().len() as u64;
        if let Some(elsewhere) = self.elsewhere.get(name) {
            return match elsewhere {
                Elsewhere::Given => external(tensor, name, rest, name, None),
                Elsewhere::File { name: file, offset } => {
                    external(tensor, name, rest, file, Some((*offset as u64, len)))
                }
            };
        }
        let Some((location, _)) = self.external.filter(|(_, from)| len >= (*from).max(1)) else {
            return self.inline(tensor, name, rest);
        };
        // pages for what a runtime maps, cache lines for the rest
        let alignment = if len >= 1 << 16 { 4096 } else { 64 };
        let offset = self.end.next_multiple_of(alignment);
        self.end = offset + len;
        self.placed.push((tensor.clone(), offset));
        external(tensor, name, rest, location, Some((offset, len)))
    }
}

/// A tensor whose data lies in the file `location`, at an offset in bytes and of a length in bytes.
fn external(
    tensor: &Tensor,
    name: &str,
    rest: Option<&TensorProto>,
    location: &str,
    range: Option<(u64, u64)>,
) -> TensorProto {
    let mut proto = tensor_header(tensor, name, rest);
    proto.data_location = DataLocation::EXTERNAL.into();
    proto.external_data = vec![entry("location", location.to_owned())];
    if let Some((offset, length)) = range {
        proto.external_data.push(entry("offset", offset.to_string()));
        proto.external_data.push(entry("length", length.to_string()));
    }
    proto
}

fn entry(key: &str, value: String) -> StringStringEntryProto {
    StringStringEntryProto {
        key: key.to_owned(),
        value,
        ..Default::default()
    }
}

pub(super) fn model_proto(model: &Model, payload: &mut Payload<'_>) -> ModelProto {
    let mut proto: ModelProto = start_from(&model.extra);
    proto.ir_version = model.ir_version;
    proto.producer_name.clone_from(&model.producer);
    let imports = std::mem::take(&mut proto.opset_import);
    proto.opset_import = model
        .opsets
        .iter()
        .map(|(domain, version)| {
            let rest = imports.iter().find(|import| import.domain == *domain);
            OperatorSetIdProto {
                domain: domain.clone(),
                version: *version,
                ..rest.cloned().unwrap_or_default()
            }
        })
        .collect();
    let entries = std::mem::take(&mut proto.metadata_props);
    proto.metadata_props = model
        .metadata
        .iter()
        .map(|(key, value)| {
            let rest = entries.iter().find(|entry| entry.key == *key);
            StringStringEntryProto {
                key: key.clone(),
                value: value.clone(),
                ..rest.cloned().unwrap_or_default()
            }
        })
        .collect();
    let mut graph = write_graph(&model.graph, payload);
    if model.ir_version < 4 {
        list_constants_as_inputs(&model.graph, &mut graph);
    }
    proto.graph = Some(graph).into();
    proto
}

/// Up to IR version 3 every initializer must be an input as well.
fn list_constants_as_inputs(graph: &Graph, proto: &mut GraphProto) {
    let inputs: HashSet<&str> = graph.inputs.iter().map(|input| &*input.name).collect();
    for (name, tensor) in graph
        .initializers
        .iter()
        .filter(|(name, _)| !inputs.contains(&***name))
    {
        let info = ValueInfo::tensor(name.clone(), tensor.dtype(), Shape::known(tensor.dims()));
        proto.input.push(write_value_info(&info, None));
    }
}

fn start_from<M: Message + Default + Clone>(extra: &Option<Box<M>>) -> M {
    extra.as_deref().cloned().unwrap_or_default()
}

pub(super) fn write_graph(graph: &Graph, payload: &mut Payload<'_>) -> GraphProto {
    let mut proto: GraphProto = start_from(&graph.extra);
    proto.name.clone_from(&graph.name);
    // Names are of this graph: a subgraph's constant of the same name is another one.
    let elsewhere = std::mem::take(&mut payload.elsewhere);
    proto.node = graph.nodes.iter().map(|node| write_node(node, payload)).collect();
    payload.elsewhere = elsewhere;
    let value_info = |info: &ValueInfo| write_value_info(info, info.extra.as_deref());
    proto.input = graph.inputs.iter().map(value_info).collect();
    proto.output = graph.outputs.iter().map(value_info).collect();
    let rests = std::mem::take(&mut proto.initializer);
    let rests: HashMap<&str, &TensorProto> = rests.iter().map(|rest| (&*rest.name, rest)).collect();
    proto.initializer = graph
        .initializers
        .iter()
        .map(|(name, tensor)| payload.initializer(tensor, name, rests.get(&**name).copied()))
        .collect();
    let rests = std::mem::take(&mut proto.value_info);
    let rests: HashMap<&str, &ValueInfoProto> = rests.iter().map(|rest| (&*rest.name, rest)).collect();
    let mut types: Vec<(&ValueName, &ValueType)> = graph.value_types.iter().collect();
    types.sort_by_key(|(name, _)| *name);
    proto.value_info = types
        .into_iter()
        .map(|(name, ty)| {
            let info = ValueInfo {
                name: name.clone(),
                ty: ty.clone(),
                extra: None,
            };
            write_value_info(&info, rests.get(&**name).copied())
        })
        .collect();
    proto
}

fn write_node(node: &Node, payload: &mut Payload<'_>) -> NodeProto {
    let mut proto: NodeProto = start_from(&node.extra);
    proto.op_type.clone_from(&node.op_type);
    proto.domain.clone_from(&node.domain);
    proto.name.clone_from(&node.name);
    proto.input = node.inputs.iter().map(ToString::to_string).collect();
    proto.output = node.outputs.iter().map(ToString::to_string).collect();
    let rests = std::mem::take(&mut proto.attribute);
    proto.attribute = node
        .attributes
        .iter()
        .map(|(name, value)| {
            let rest = rests.iter().find(|rest| rest.name == *name);
            write_attribute(name, value, rest, payload)
        })
        .collect();
    proto
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Attribute;

    #[test]
    fn what_is_elsewhere_is_the_graphs_own_and_no_subgraphs_of_the_same_name() {
        let mut inner = Graph::default();
        inner
            .initializers
            .insert("w".into(), Tensor::vector(&[1f32, 2.0]));
        let mut graph = Graph::default();
        graph
            .initializers
            .insert("w".into(), Tensor::vector(&[3f32, 4.0]));
        let mut node = Node::new("If", "if", ["condition"], ["y"]);
        node.attributes
            .insert("then_branch".into(), Attribute::Graph(Box::new(inner)));
        graph.nodes.push(node);
        let elsewhere = HashMap::from([("w".into(), Elsewhere::Given)]);
        let encoded = write_bytes_without(&Model::new(graph, 21), elsewhere).unwrap();
        let graph = ModelProto::parse_from_bytes(&encoded).unwrap().graph;
        assert!(graph.initializer[0].raw_data.is_empty());
        let inner = &graph.node[0].attribute[0].g.initializer[0];
        assert_eq!(inner.raw_data, Tensor::vector(&[1f32, 2.0]).as_bytes());
        assert!(inner.external_data.is_empty());
    }
}
