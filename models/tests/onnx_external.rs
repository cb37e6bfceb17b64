//! Weights in files beside the model.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

use std::fs::{self, File};
use std::path::Path;

use edgeopt_models::onnx::{
    ExternalData, WriteOptions, read_bytes, read_file, write_bytes, write_file, write_file_with,
};
use edgeopt_models::{Bytes, DataType, Graph, Model, Node, Shape, Tensor, ValueInfo};
use onnx_protobuf::tensor_proto::DataLocation;
use onnx_protobuf::{Message, ModelProto, StringStringEntryProto};

const OUTSIDE: WriteOptions = WriteOptions {
    external_data: ExternalData::From(Bytes(1)),
};

fn model() -> Model {
    let weights: Vec<f32> = (0..20_000).map(|i| i as f32).collect();
    let graph = Graph {
        name: "main".into(),
        inputs: vec![ValueInfo::tensor("x", DataType::Float32, Shape::known(&[20_000]))],
        outputs: vec![ValueInfo::tensor("y", DataType::Float32, Shape::known(&[20_000]))],
        nodes: vec![
            Node::new("Add", "add", ["x", "w"], ["sum"]),
            Node::new("Add", "add2", ["sum", "b"], ["y"]),
        ],
        initializers: [
            ("b".into(), Tensor::scalar(1f32)),
            ("w".into(), Tensor::vector(&weights)),
        ]
        .into_iter()
        .collect(),
        ..Graph::default()
    };
    Model::new(graph, 17)
}

/// A model file whose tensor `w` of `elements` floats claims to lie where `entries` say.
fn write_with_entries(path: &Path, elements: usize, entries: &[(&str, &str)]) {
    let mut proto = ModelProto::parse_from_bytes(&write_bytes(&model()).unwrap()).unwrap();
    let tensor = proto
        .graph
        .as_mut()
        .unwrap()
        .initializer
        .iter_mut()
        .find(|tensor| tensor.name == "w")
        .unwrap();
    tensor.raw_data.clear();
    tensor.dims = vec![elements as i64];
    tensor.data_location = DataLocation::EXTERNAL.into();
    tensor.external_data = entries
        .iter()
        .map(|(key, value)| StringStringEntryProto {
            key: (*key).into(),
            value: (*value).into(),
            ..Default::default()
        })
        .collect();
    fs::write(path, proto.write_to_bytes().unwrap()).unwrap();
}

#[test]
fn weights_outside_come_back_aligned_and_without_leftovers_in_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.onnx");
    write_file_with(&model(), &path, OUTSIDE).unwrap();
    assert!(fs::metadata(&path).unwrap().len() < 1000);
    let read = read_file(&path).unwrap();
    assert_eq!(read, model());
    let proto = ModelProto::parse_from_bytes(&fs::read(&path).unwrap()).unwrap();
    let offsets: Vec<u64> = proto
        .graph
        .initializer
        .iter()
        .map(|t| t.external_data[1].value.parse().unwrap())
        .collect();
    assert_eq!(offsets, [0, 4096]);
    // over the files it was read from: the mapped tensors stay what they are
    write_file_with(&read, &path, OUTSIDE).unwrap();
    assert_eq!(read, model());
    assert_eq!(read_file(&path).unwrap(), model());
    write_file(&read, &path).unwrap();
    assert_eq!(read_file(&path).unwrap(), model());
    let mut names: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["net.onnx", "net.onnx.data"]);
}

#[test]
fn a_failed_write_leaves_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.onnx");
    fs::write(&path, b"old").unwrap();
    // a folder in the way of the data file
    fs::create_dir(folder.path().join("net.onnx.data")).unwrap();
    let error = write_file_with(&model(), &path, OUTSIDE).unwrap_err().to_string();
    assert!(error.contains("net.onnx.data"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
    assert!(write_file(&model(), &folder.path().join("none/net.onnx")).is_err());
}

#[test]
fn what_cannot_be_read_says_which_tensor_and_which_file() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("model");
    fs::create_dir(&inside).unwrap();
    fs::write(folder.path().join("secret"), [0; 400]).unwrap();
    fs::write(inside.join("w.bin"), [0; 400]).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("../secret", inside.join("link")).unwrap();
    let absolute = folder.path().join("secret").display().to_string();
    let path = inside.join("net.onnx");
    let cases: [(&[(&str, &str)], &str); 12] = [
        (
            &[("location", "../secret")],
            "\"../secret\" is not inside the model's folder",
        ),
        (
            &[("location", "sub/../../secret")],
            "is not inside the model's folder",
        ),
        (&[("location", &absolute)], "is not inside the model's folder"),
        (
            &[("location", "link")],
            "\"link\" is a link out of the model's folder",
        ),
        (&[("location", "gone.bin")], "\"gone.bin\" cannot be read in"),
        (&[("location", ".")], "it is not a regular file"),
        (
            &[("location", "w.bin"), ("offset", "4")],
            "400 bytes at offset 4 lie outside \"w.bin\", which has 400 bytes",
        ),
        (
            &[("location", "w.bin"), ("offset", "18446744073709551615")],
            "lie outside",
        ),
        (
            &[("location", "w.bin"), ("length", "396")],
            "ask for 400 bytes, but its external data in \"w.bin\" has length 396",
        ),
        (
            &[("location", "w.bin"), ("offset", "-1")],
            "the offset \"-1\" of its external data is not a number",
        ),
        (&[("location", "")], "no location is given"),
        (&[], "no location is given"),
    ];
    for (entries, expected) in cases {
        write_with_entries(&path, 100, entries);
        let message = read_file(&path).expect_err(expected).to_string();
        assert!(
            message.contains("\"w\"") && message.contains(expected),
            "{message:?} lacks {expected:?}"
        );
    }
    write_with_entries(
        &path,
        100,
        &[("location", "./w.bin"), ("offset", "0"), ("length", "400")],
    );
    assert_eq!(read_file(&path).unwrap().graph.initializers["w"].dims(), [100]);
    let message = read_bytes(&fs::read(&path).unwrap()).unwrap_err().to_string();
    assert!(message.contains("read the model from its file"), "{message}");
}

#[test]
fn data_beyond_two_gigabytes_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.onnx");
    let data = File::create(folder.path().join("big.bin")).unwrap();
    data.set_len(3 << 30).unwrap();
    let offset = (1u64 << 31) + 8192;
    {
        use std::io::{Seek, SeekFrom, Write};
        let mut data = &data;
        data.seek(SeekFrom::Start(offset)).unwrap();
        data.write_all(bytemuck::cast_slice(&[7f32; 4])).unwrap();
    }
    write_with_entries(
        &path,
        4,
        &[("location", "big.bin"), ("offset", &offset.to_string())],
    );
    let read = read_file(&path).unwrap();
    assert_eq!(read.graph.initializers["w"], Tensor::vector(&[7f32; 4]));
}
