//! What is in a file is in it after reading and writing, whatever it is.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

use std::collections::BTreeMap;

use edgeopt_models::onnx::{read_bytes, write_bytes};
use onnx_protobuf::attribute_proto::AttributeType;
use onnx_protobuf::tensor_shape_proto::{Dimension, dimension};
use onnx_protobuf::type_proto::{self, Value as TypeValue};
use onnx_protobuf::{
    AttributeProto, GraphProto, Message, ModelProto, NodeProto, OperatorSetIdProto, SparseTensorProto,
    StringStringEntryProto, TensorAnnotation, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto,
};
use proptest::collection::vec;
use proptest::prelude::*;
use protobuf::{SpecialFields, UnknownValue};

/// Unknown fields, as a newer schema has them; `None` most of the time.
fn unknown() -> impl Strategy<Value = SpecialFields> {
    let value = prop_oneof![
        any::<u64>().prop_map(UnknownValue::Varint),
        any::<u32>().prop_map(UnknownValue::Fixed32),
        any::<u64>().prop_map(UnknownValue::Fixed64),
        vec(any::<u8>(), 0..6).prop_map(UnknownValue::LengthDelimited),
    ];
    prop_oneof![
        2 => Just(SpecialFields::default()),
        1 => (500u32..9000, value).prop_map(|(number, value)| {
            let mut fields = SpecialFields::default();
            fields.mut_unknown_fields().add_value(number, value);
            fields
        }),
    ]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z é]{1,8}"]
}

fn entries() -> impl Strategy<Value = Vec<StringStringEntryProto>> {
    let entry = (text(), unknown());
    vec(entry, 0..3).prop_map(|entries| {
        let entry = |(index, (value, special_fields))| StringStringEntryProto {
            key: format!("key{index}"),
            value,
            special_fields,
        };
        entries.into_iter().enumerate().map(entry).collect()
    })
}

fn tensor(name: &'static str) -> impl Strategy<Value = TensorProto> {
    (
        vec(any::<i32>(), 0..700),
        any::<bool>(),
        text(),
        entries(),
        unknown(),
    )
        .prop_map(move |(values, raw, doc_string, metadata_props, special_fields)| {
            let mut proto = TensorProto {
                name: name.into(),
                dims: vec![values.len() as i64],
                data_type: 6,
                doc_string,
                metadata_props,
                special_fields,
                ..Default::default()
            };
            if raw {
                proto.raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            } else {
                proto.int32_data = values;
            }
            proto
        })
}

fn value_type() -> impl Strategy<Value = TypeProto> {
    let dim = (0..4, text(), unknown()).prop_map(|(kind, denotation, special_fields)| Dimension {
        value: match kind {
            0 => None,
            1 => Some(dimension::Value::DimParam("N".into())),
            n => Some(dimension::Value::DimValue(n.into())),
        },
        denotation,
        special_fields,
    });
    let shape = (vec(dim, 0..4), unknown())
        .prop_map(|(dim, special_fields)| TensorShapeProto { dim, special_fields });
    let tensor = (1..20, proptest::option::of(shape), unknown());
    (tensor, 0..4, text(), unknown(), unknown()).prop_map(
        |((elem_type, shape, inner), kind, denotation, outer, special_fields)| {
            let tensor = TypeValue::TensorType(type_proto::Tensor {
                elem_type,
                shape: shape.into(),
                special_fields: inner,
            });
            let element = || TypeProto {
                value: Some(tensor.clone()),
                ..Default::default()
            };
            let value = match kind {
                0 => TypeValue::SequenceType(type_proto::Sequence {
                    elem_type: Some(element()).into(),
                    special_fields: outer,
                }),
                1 => TypeValue::OptionalType(type_proto::Optional {
                    elem_type: Some(element()).into(),
                    special_fields: outer,
                }),
                2 => TypeValue::MapType(type_proto::Map {
                    key_type: 7,
                    value_type: Some(element()).into(),
                    special_fields: outer,
                }),
                _ => tensor,
            };
            TypeProto {
                value: Some(value),
                denotation,
                special_fields,
            }
        },
    )
}

fn value_info(name: &'static str) -> impl Strategy<Value = ValueInfoProto> {
    (proptest::option::of(value_type()), text(), entries(), unknown()).prop_map(
        move |(ty, doc_string, metadata_props, special_fields)| ValueInfoProto {
            name: name.into(),
            type_: ty.into(),
            doc_string,
            metadata_props,
            special_fields,
        },
    )
}

fn attribute(name: &'static str, inner: GraphProto) -> impl Strategy<Value = AttributeProto> {
    (0..9, tensor("in an attribute"), value_type(), text(), unknown()).prop_map(
        move |(kind, tensor, ty, doc_string, special_fields)| {
            let mut proto = AttributeProto {
                name: name.into(),
                doc_string,
                special_fields,
                ..Default::default()
            };
            let kind = match kind {
                0 => {
                    proto.i = 4;
                    AttributeType::INT
                }
                1 => {
                    proto.f = 0.5;
                    AttributeType::FLOAT
                }
                2 => {
                    proto.s = vec![0xff];
                    AttributeType::STRING
                }
                3 => {
                    proto.t = Some(tensor).into();
                    AttributeType::TENSOR
                }
                4 => {
                    proto.g = Some(inner.clone()).into();
                    AttributeType::GRAPH
                }
                5 => {
                    proto.sparse_tensor = Some(SparseTensorProto {
                        values: Some(tensor).into(),
                        ..Default::default()
                    })
                    .into();
                    AttributeType::SPARSE_TENSOR
                }
                6 => {
                    proto.tensors = vec![
                        TensorProto {
                            name: String::new(),
                            ..tensor.clone()
                        },
                        tensor,
                    ];
                    AttributeType::TENSORS
                }
                7 => {
                    proto.tp = Some(ty).into();
                    AttributeType::TYPE_PROTO
                }
                _ => {
                    proto.t = Some(tensor).into();
                    proto.ref_attr_name = "outer".into();
                    AttributeType::TENSOR
                }
            };
            proto.type_ = kind.into();
            proto
        },
    )
}

fn graph() -> impl Strategy<Value = GraphProto> {
    let inner = (value_info("inner"), tensor("inner constant"), unknown()).prop_map(
        |(output, initializer, special_fields)| GraphProto {
            node: vec![NodeProto {
                op_type: "Relu".into(),
                name: "relu".into(),
                input: vec!["x".into()],
                output: vec!["inner".into()],
                ..Default::default()
            }],
            output: vec![output],
            initializer: vec![initializer],
            special_fields,
            ..Default::default()
        },
    );
    let node = (inner, text(), entries(), unknown()).prop_flat_map(|(inner, text, entries, unknown)| {
        (
            attribute("a", inner.clone()),
            attribute("b", GraphProto::default()),
        )
            .prop_map(move |(a, b)| NodeProto {
                op_type: "Op".into(),
                name: "node".into(),
                input: vec!["x".into(), String::new(), "w".into()],
                output: vec!["y".into()],
                attribute: vec![b, a],
                doc_string: text.clone(),
                overload: text.clone(),
                metadata_props: entries.clone(),
                special_fields: unknown.clone(),
                ..Default::default()
            })
    });
    let infos = (value_info("x"), value_info("y"), value_info("z"), value_info("a"));
    (
        node,
        infos,
        tensor("w"),
        tensor("v"),
        text(),
        entries(),
        unknown(),
    )
        .prop_map(
            |(node, (x, y, z, a), w, v, doc_string, metadata_props, special_fields)| GraphProto {
                name: "g".into(),
                node: vec![node],
                input: vec![x],
                output: vec![y],
                value_info: vec![z, a],
                sparse_initializer: vec![SparseTensorProto {
                    values: Some(v.clone()).into(),
                    dims: vec![9],
                    ..Default::default()
                }],
                initializer: vec![w, v],
                quantization_annotation: vec![TensorAnnotation {
                    tensor_name: "w".into(),
                    ..Default::default()
                }],
                doc_string,
                metadata_props,
                special_fields,
            },
        )
}

fn model() -> impl Strategy<Value = ModelProto> {
    (4i64..=13, graph(), text(), entries(), unknown(), unknown()).prop_map(
        |(ir_version, graph, doc_string, metadata_props, in_import, special_fields)| {
            let function = onnx_protobuf::FunctionProto {
                name: "f".into(),
                node: graph.node.clone(),
                ..Default::default()
            };
            let training = onnx_protobuf::TrainingInfoProto {
                initialization: Some(graph.clone()).into(),
                ..Default::default()
            };
            ModelProto {
                ir_version,
                graph: Some(graph).into(),
                producer_name: "producer".into(),
                producer_version: doc_string.clone(),
                model_version: 3,
                opset_import: vec![OperatorSetIdProto {
                    domain: String::new(),
                    version: 17,
                    special_fields: in_import,
                }],
                doc_string,
                metadata_props,
                functions: vec![function],
                training_info: vec![training],
                special_fields,
                ..Default::default()
            }
        },
    )
}

/// The one form that is written: raw data for numbers, attributes and types of values by name.
fn canonical(mut proto: ModelProto) -> ModelProto {
    fn tensor(proto: &mut TensorProto) {
        if proto.raw_data.is_empty() {
            let values = std::mem::take(&mut proto.int32_data);
            proto.raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        }
    }
    fn graph(proto: &mut GraphProto) {
        proto.initializer.iter_mut().for_each(tensor);
        let infos: BTreeMap<_, _> = proto
            .value_info
            .drain(..)
            .map(|info| (info.name.clone(), info))
            .collect();
        proto.value_info = infos.into_values().collect();
        for node in &mut proto.node {
            node.attribute.sort_by(|a, b| a.name.cmp(&b.name));
            for attribute in &mut node.attribute {
                if attribute.ref_attr_name.is_empty() {
                    attribute
                        .t
                        .as_mut()
                        .into_iter()
                        .chain(&mut attribute.tensors)
                        .for_each(tensor);
                }
                attribute.g.as_mut().into_iter().for_each(graph);
            }
        }
    }
    graph(proto.graph.as_mut().unwrap());
    proto.functions.clear(); // nothing calls them
    proto
}

#[test]
fn nothing_is_lost() {
    // the generator of whole models needs more stack than a test's thread has
    let check = || {
        proptest!(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) }, |(proto in model())| {
            let model = read_bytes(&proto.write_to_bytes().unwrap()).unwrap();
            let again = read_bytes(&write_bytes(&model).unwrap()).unwrap();
            prop_assert_eq!(&again, &model);
            let written = ModelProto::parse_from_bytes(&write_bytes(&model).unwrap()).unwrap();
            prop_assert_eq!(canonical(written), canonical(proto));
        });
    };
    let thread = std::thread::Builder::new().stack_size(64 << 20);
    thread.spawn(check).unwrap().join().unwrap();
}
