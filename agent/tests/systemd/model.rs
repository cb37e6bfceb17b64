//! A model whose run takes as long as its input says: it counts from zero to x, one turn of a loop for each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use edgeopt_agent::deploy::{Installed, SlotRecord};
use edgeopt_agent::protocol::{Generation, ModelSource, Phase, SlotName, SlotSpec};
use edgeopt_agent::store::Store;
use edgeopt_models::bundle::{self, Limits, Manifest, Member, Trust};
use edgeopt_models::{Bytes, DataType, Dim, Graph, Model, Node, Tensor, ValueInfo, onnx};

/// Packs the bundle.
pub(crate) fn counter(folder: &Path, version: &str) -> PathBuf {
    let value = |name: &str, dtype, dims: &[usize]| {
        ValueInfo::tensor(
            name,
            dtype,
            dims.iter().map(|length| Dim::Known(*length)).collect(),
        )
    };
    let mut body = Graph {
        name: "turn".into(),
        inputs: vec![
            value("turn", DataType::Int64, &[]),
            value("go", DataType::Bool, &[]),
            value("before", DataType::Float32, &[1]),
        ],
        outputs: vec![
            value("go_on", DataType::Bool, &[]),
            value("after", DataType::Float32, &[1]),
        ],
        ..Graph::default()
    };
    body.nodes = vec![
        Node::new("Identity", "same", ["go"], ["go_on"]),
        Node::new("Add", "count", ["before", "one"], ["after"]),
    ];
    let mut graph = Graph {
        name: "counter".into(),
        inputs: vec![value("x", DataType::Float32, &[1])],
        outputs: vec![value("y", DataType::Float32, &[1])],
        ..Graph::default()
    };
    graph.add_initializer("one".into(), Tensor::scalar(1f32));
    graph.add_initializer("zero".into(), Tensor::new(&[1], &[0f32]).unwrap());
    graph.add_initializer("scalar".into(), Tensor::new(&[0], &[] as &[i64]).unwrap());
    graph.nodes = vec![
        Node::new("Cast", "whole", ["x"], ["wholes"]).with("to", 7i64),
        Node::new("Reshape", "first", ["wholes", "scalar"], ["turns"]),
        Node::new("Loop", "loop", ["turns", "", "zero"], ["y"]).with("body", body),
    ];
    let model = onnx::write_bytes(&Model::new(graph, 21)).unwrap();
    let members = BTreeMap::from([(bundle::MODEL.to_owned(), Member::Data(model))]);
    let tensor = |name| serde_json::json!({"name": name, "dtype": "float32", "shape": [1]});
    let manifest: Manifest = serde_json::from_value(serde_json::json!({
        "format": "1.0", "name": "counter", "version": version, "precision": "fp32",
        "inputs": [tensor("x")], "outputs": [tensor("y")],
        "memory": [{"batch": 1, "weights": 16, "activations": 128, "io": 8}],
        "provenance": {"source": "counter.onnx", "source_sha256": "0".repeat(64), "tool": "test", "options": {}},
        "members": {},
    }))
    .unwrap();
    let path = folder.join(format!("counter-{version}.edge"));
    bundle::pack(manifest, &members, None, &path).unwrap();
    path
}

/// Makes the bundle the active model of `slots` in the store at `root`, as if an earlier daemon had put it there. Returns
/// where the store has it.
pub(crate) fn install(path: &Path, root: &Path, slots: &[&str]) -> PathBuf {
    let store = Store::open(root, Bytes::ZERO).unwrap();
    let open = || std::fs::File::open(path).unwrap();
    let (manifest, _) = bundle::read_manifest(open(), &Limits::default(), &Trust::Unchecked).unwrap();
    let (sha256, size) = bundle::digest_of(open()).unwrap();
    let kept = store.bundle_path(sha256.parse().unwrap());
    std::fs::copy(path, &kept).unwrap();
    let spec = SlotSpec {
        model: "counter".into(),
        version: manifest.version,
        sha256,
        size: size.0,
        sources: vec![ModelSource::Url(format!("file:{}", path.display()))],
    };
    for slot in slots {
        let name: SlotName = slot.parse().unwrap();
        let record = SlotRecord {
            generation: Generation(1),
            active: Some(Installed::of(&spec)),
            desired: Some(spec.clone()),
            phase: Phase::Active,
            ..SlotRecord::default()
        };
        store.put_slot(&name, &record).unwrap();
    }
    kept
}

/// The bytes of an `.npy` with one number.
pub(crate) fn input(x: f32) -> Vec<u8> {
    let header = format!(
        "{:117}\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"
    );
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(x.to_le_bytes());
    bytes
}
