//! Small bundles: y = f(x) on four numbers, with golden samples. Other tests take them from here.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use edgeopt_agent::protocol::{ModelSource, SlotSpec};
use edgeopt_models::bundle::{self, Manifest, Member, SecretKey, Trust};
use edgeopt_models::{DataType, Dim, Graph, Model, Node, Tensor, ValueInfo, onnx};
use edgeopt_runtime::dataset::write_npz;

/// What a model computes.
#[derive(Clone, Copy)]
pub(crate) enum Computes {
    /// y = k·x
    Times(f32),
    /// y = √x: NaN below zero.
    Root,
    /// y = ln(x - 1): minus infinity at one, where a golden input lies, and NaN below.
    LogAboveOne,
    /// y = k·x, and so many multiplications of matrices beside it, each of a million weights.
    Slowly(f32, usize),
}

pub(crate) struct Made {
    pub(crate) path: PathBuf,
    pub(crate) spec: SlotSpec,
}

/// A bundle whose golden outputs say y = `golden`·x for x = 1, 2, 3, 4 (or, if `golden` is `None`, what
/// [`Computes::LogAboveOne`] or [`Computes::Root`] gives).
pub(crate) fn make(folder: &Path, version: &str, computes: Computes, golden: Option<f32>) -> Made {
    make_with(folder, version, computes, golden, 0, None)
}

/// The same with so many bytes more that nobody reads, and signed.
pub(crate) fn make_with(
    folder: &Path,
    version: &str,
    computes: Computes,
    golden: Option<f32>,
    ballast: usize,
    key: Option<&SecretKey>,
) -> Made {
    let value = |name: &str| {
        ValueInfo::tensor(
            name,
            DataType::Float32,
            [Dim::from("N"), Dim::Known(4)].into_iter().collect(),
        )
    };
    let mut graph = Graph {
        name: "small".into(),
        inputs: vec![value("x")],
        outputs: vec![value("y")],
        ..Graph::default()
    };
    match computes {
        Computes::Times(factor) => {
            graph.add_initializer("k".into(), Tensor::scalar(factor));
            graph.nodes.push(Node::new("Mul", "times", ["x", "k"], ["y"]));
        }
        Computes::Slowly(factor, times) => {
            const WIDE: usize = 1024;
            for (name, rows, columns) in [("in", 4, WIDE), ("through", WIDE, WIDE), ("out", WIDE, 4)] {
                let zeros = vec![0f32; rows * columns];
                graph.add_initializer(name.into(), Tensor::new(&[rows, columns], &zeros).unwrap());
            }
            graph.add_initializer("k".into(), Tensor::scalar(factor));
            graph.nodes.push(Node::new("MatMul", "wide", ["x", "in"], ["h0"]));
            for index in 0..times {
                let (from, to) = (format!("h{index}"), format!("h{}", index + 1));
                let name = format!("through{index}");
                graph.nodes.push(Node::new(
                    "MatMul",
                    &name,
                    [from.as_str(), "through"],
                    [to.as_str()],
                ));
            }
            let last = format!("h{times}");
            graph
                .nodes
                .push(Node::new("MatMul", "narrow", [last.as_str(), "out"], ["zero"]));
            graph.nodes.push(Node::new("Mul", "times", ["x", "k"], ["kx"]));
            graph.nodes.push(Node::new("Add", "sum", ["kx", "zero"], ["y"]));
        }
        Computes::LogAboveOne => {
            graph.add_initializer("one".into(), Tensor::scalar(1.0f32));
            graph
                .nodes
                .push(Node::new("Sub", "less", ["x", "one"], ["above"]));
            graph.nodes.push(Node::new("Log", "log", ["above"], ["y"]));
        }
        Computes::Root => graph.nodes.push(Node::new("Sqrt", "root", ["x"], ["y"])),
    }
    let model = onnx::write_bytes(&Model::new(graph, 21)).unwrap();
    let x = [1.0f32, 2.0, 3.0, 4.0];
    let y = x.map(|x| match (golden, computes) {
        (Some(factor), _) => factor * x,
        (None, Computes::LogAboveOne) => (x - 1.0).ln(),
        (None, _) => x.sqrt(),
    });
    let npz = |name: &str, values: &[f32]| {
        let mut bytes = Cursor::new(Vec::new());
        write_npz(&mut bytes, &[(name, &Tensor::new(&[1, 4], values).unwrap())]).unwrap();
        Member::Data(bytes.into_inner())
    };
    let mut members = BTreeMap::from([
        (bundle::MODEL.to_owned(), Member::Data(model)),
        ("golden/0-inputs.npz".to_owned(), npz("x", &x)),
        ("golden/0-outputs.npz".to_owned(), npz("y", &y)),
    ]);
    if ballast > 0 {
        let bytes = (0..ballast).map(|index| (index * index / 7) as u8).collect();
        members.insert("ballast.bin".to_owned(), Member::Data(bytes));
    }
    let tensor = |name| serde_json::json!({"name": name, "dtype": "float32", "shape": [{"name": "N", "min": 1, "opt": 4, "max": 8}, 4]});
    let manifest: Manifest = serde_json::from_value(serde_json::json!({
        "format": "1.0", "name": "small", "version": version, "precision": "fp32",
        "inputs": [tensor("x")], "outputs": [tensor("y")],
        "memory": [{"batch": 8, "weights": 4, "activations": 128, "io": 256}],
        "provenance": {"source": "small.onnx", "source_sha256": "0".repeat(64), "tool": "test", "options": {}},
        "members": {},
    }))
    .unwrap();
    let path = folder.join(format!("{version}.edge"));
    bundle::pack(manifest, &members, key, &path).unwrap();
    let (sha256, size) = bundle::digest_of(std::fs::File::open(&path).unwrap()).unwrap();
    let spec = SlotSpec {
        model: "small".into(),
        version: version.into(),
        sha256,
        size: size.0,
        sources: vec![ModelSource::Url(format!("file:{}", path.display()))],
    };
    Made { path, spec }
}

/// The bytes of an `.npy` with four numbers.
pub(crate) fn input(values: [f32; 4]) -> Vec<u8> {
    let header = format!(
        "{:117}\n",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4), }"
    );
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

pub(crate) fn unchecked() -> Trust {
    Trust::Unchecked
}
