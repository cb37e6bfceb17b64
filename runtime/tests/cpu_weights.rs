//! Where the CPU backend's library finds large weights: in our memory, or in the file that they are mapped from.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use edgeopt_models::graph::Model;
use edgeopt_models::{
    Bytes, DataType, Dim, Graph, MappedFile, MappedPart, Node, Shape, Tensor, ValueInfo, onnx,
};
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::{Backend, CompileOptions, Engine, ModelSource};

const SIDE: usize = 256;

/// y = x · W with W[i, j] = i mod 5, and y for x of ones.
fn matmul() -> (Model, Tensor) {
    let io = |name: &str| {
        let shape: Shape = [Dim::Known(1), Dim::Known(SIDE)].into_iter().collect();
        ValueInfo::tensor(name, DataType::Float32, shape)
    };
    let weights: Vec<f32> = (0..SIDE * SIDE).map(|index| (index / SIDE % 5) as f32).collect();
    let sum: f32 = weights.iter().step_by(SIDE).sum();
    let mut graph = Graph {
        name: "matmul".into(),
        inputs: vec![io("x")],
        nodes: vec![Node::new("MatMul", "matmul", ["x", "w"], ["y"])],
        outputs: vec![io("y")],
        ..Graph::default()
    };
    graph.add_initializer("w".into(), Tensor::new(&[SIDE, SIDE], &weights).unwrap());
    (
        Model::new(graph, 21),
        Tensor::new(&[1, SIDE], &[sum; SIDE]).unwrap(),
    )
}

/// Names that are no places of files: exporters write paths of modules.
#[test]
fn weights_are_found_whatever_they_are_called() {
    for name in ["/model/layer/w", "../w", "a\\b", "/", "wéights", "x y\n"] {
        let (mut model, expected) = matmul();
        let w = model.graph.initializers.shift_remove("w").unwrap();
        model.graph.add_initializer(name.into(), w);
        model.graph.nodes[0].inputs[1] = name.into();
        assert_eq!(run(&compile(ModelSource::Model(&model))), expected, "{name:?}");
        // A second one, which stays in memory while the first is in a file.
        let folder = tempfile::tempdir().unwrap();
        model.graph.spill_constants(folder.path()).unwrap();
        let second = format!("{name}2");
        let ones = Tensor::new(&[SIDE, SIDE], &[1f32; SIDE * SIDE]).unwrap();
        model.graph.add_initializer(second.as_str().into(), ones);
        let node = Node::new("MatMul", "second", ["y", &second], ["z"]);
        model.graph.nodes.push(node);
        model.graph.outputs[0].name = "z".into();
        let engine = compile(ModelSource::Model(&model));
        drop(model);
        assert_eq!(mappings(folder.path()), 1, "{name:?}: the file is used");
        let each = expected.view::<f32>().unwrap()[0] * SIDE as f32;
        assert_eq!(
            run(&engine),
            Tensor::new(&[1, SIDE], &[each; SIDE]).unwrap(),
            "{name:?}"
        );
    }
}

fn compile(source: ModelSource<'_>) -> Arc<dyn Engine> {
    // Without a rearranged copy, which would let the library forget the file.
    let options = CompileOptions {
        frugal: true,
        ..CompileOptions::default()
    };
    CpuBackend::new().unwrap().compile(source, &options).unwrap()
}

fn run(engine: &Arc<dyn Engine>) -> Tensor {
    let mut session = Arc::clone(engine).session().unwrap();
    let ones = Tensor::new(&[1, SIDE], &[1f32; SIDE]).unwrap();
    session.run(&[ones]).unwrap()[0].clone()
}

/// How often files in `folder` are mapped into this process.
fn mappings(folder: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let folder = folder.canonicalize().unwrap();
    maps.lines()
        .filter(|line| line.contains(folder.to_str().unwrap()))
        .count()
}

#[test]
fn weights_in_a_file_are_used_there_and_counted_once() {
    let (mut model, expected) = matmul();
    let from_memory = compile(ModelSource::Model(&model));
    assert_eq!(from_memory.memory().weights, Bytes::from(2 * SIDE * SIDE * 4));
    let folder = tempfile::tempdir().unwrap();
    model.graph.spill_constants(folder.path()).unwrap();
    assert_eq!(mappings(folder.path()), 1);
    let engine = compile(ModelSource::Model(&model));
    drop(model);
    // The model's own mapping is gone; this is the library's.
    assert_eq!(mappings(folder.path()), 1);
    assert_eq!(engine.memory().weights, Bytes::from(SIDE * SIDE * 4));
    assert_eq!(run(&engine), expected);
    assert_eq!(run(&from_memory), expected);
}

#[test]
fn a_file_that_was_replaced_is_not_read_again() {
    let (mut model, expected) = matmul();
    let folder = tempfile::tempdir().unwrap();
    model.graph.spill_constants(folder.path()).unwrap();
    let file = std::fs::read_dir(folder.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let other = folder.path().join("other");
    std::fs::write(&other, vec![0u8; 2 * SIDE * SIDE * 4]).unwrap();
    std::fs::rename(&other, &file).unwrap();
    assert_eq!(run(&compile(ModelSource::Model(&model))), expected);
}

#[test]
fn a_model_inside_a_file_runs_wherever_it_begins() {
    let (model, expected) = matmul();
    let encoded = onnx::write_bytes(&model).unwrap();
    let folder = tempfile::tempdir().unwrap();
    // Weights at multiples of their element's size can be used in place, others not; both must give the same.
    for before in 0..4 {
        let path = folder.path().join(format!("{before}.bundle"));
        let mut content = vec![0u8; before];
        content.extend(&encoded);
        content.extend([0; 512]);
        std::fs::write(&path, content).unwrap();
        let part = MappedPart {
            file: MappedFile::open(&path).unwrap(),
            range: before..before + encoded.len(),
        };
        assert_eq!(run(&compile(ModelSource::Mapped(&part))), expected, "{before}");
    }
    let file = MappedFile::open(&folder.path().join("0.bundle")).unwrap();
    let nowhere = MappedPart {
        range: 0..file.len() + 1,
        file,
    };
    let refused = CpuBackend::new()
        .unwrap()
        .compile(ModelSource::Mapped(&nowhere), &CompileOptions::default());
    assert!(refused.is_err());
}
