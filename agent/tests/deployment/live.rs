//! Inputs that are taken when their turn comes, as a camera's frames are.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use edgeopt_agent::pulse::Pulses;
use edgeopt_agent::serve::{
    Answer, Content, Job, LiveInput, LoadedModel, ServeError, Server, ServerOptions, Turns,
};
use edgeopt_models::bundle::{self, Manifest, Member};
use edgeopt_models::{DataType, Graph, Model, Node, Tensor, ValueInfo, onnx};
use edgeopt_runtime::CompileOptions;
use edgeopt_runtime::backends::cpu::CpuBackend;
use image::{Rgb, RgbImage};

use crate::options;

/// y = 2·x on a grey image of two by two pixels.
fn model(folder: &Path) -> LoadedModel {
    let value = |name: &str| {
        let dims = [1, 1, 2, 2].map(edgeopt_models::Dim::Known);
        ValueInfo::tensor(name, DataType::Float32, dims.into_iter().collect())
    };
    let mut graph = Graph {
        name: "twice".into(),
        inputs: vec![value("x")],
        outputs: vec![value("y")],
        ..Graph::default()
    };
    graph.add_initializer("k".into(), Tensor::scalar(2f32));
    graph.nodes.push(Node::new("Mul", "times", ["x", "k"], ["y"]));
    let model = onnx::write_bytes(&Model::new(graph, 21)).unwrap();
    let members = BTreeMap::from([(bundle::MODEL.to_owned(), Member::Data(model))]);
    let tensor = |name| serde_json::json!({"name": name, "dtype": "float32", "shape": [1, 1, 2, 2]});
    let manifest: Manifest = serde_json::from_value(serde_json::json!({
        "format": "1.0", "name": "twice", "version": "1", "precision": "fp32",
        "inputs": [tensor("x")], "outputs": [tensor("y")],
        "preprocessing": {
            "color": "gray", "resize": {"mode": "stretch", "width": 2, "height": 2}, "scale": 1.0,
            "mean": [0.0], "std": [1.0], "layout": "nchw",
        },
        "memory": [{"batch": 1, "weights": 4, "activations": 128, "io": 256}],
        "provenance": {"source": "twice.onnx", "source_sha256": "0".repeat(64), "tool": "test", "options": {}},
        "members": {},
    }))
    .unwrap();
    let path = folder.join("twice.edge");
    bundle::pack(manifest, &members, None, &path).unwrap();
    LoadedModel::load(&path, &CpuBackend::new().unwrap(), &CompileOptions::default()).unwrap()
}

fn server() -> Server {
    let one = ServerOptions {
        workers: 1,
        ..options(4)
    };
    Server::start("main", one, Turns::new(None), &Pulses::default()).unwrap()
}

fn submit(
    server: &Server,
    take: impl FnOnce(Vec<u8>) -> Option<LiveInput> + Send + 'static,
) -> mpsc::Receiver<Result<Answer, ServeError>> {
    let (reply, replies) = mpsc::channel();
    server.submit(Job {
        name: "camera".into(),
        content: Content::Live(Box::new(take)),
        received: Instant::now(),
        reply: Box::new(move |result| reply.send(result).unwrap()),
    });
    replies
}

fn frame(value: u8, sequence: u64, age: Duration) -> Option<LiveInput> {
    Some(LiveInput {
        image: RgbImage::from_pixel(2, 2, Rgb([value; 3])),
        captured: Instant::now() - age,
        sequence,
    })
}

fn wait<T>(replies: &mpsc::Receiver<T>) -> T {
    replies.recv_timeout(Duration::from_secs(10)).unwrap()
}

#[test]
fn a_frame_is_the_one_of_the_moment_and_its_latency_counts_from_its_capture() {
    let folder = tempfile::tempdir().unwrap();
    let server = server();
    server.switch(Arc::new(model(folder.path())));
    // Slowed down: the second input waits a second for its turn.
    server.limit(Some(1.0));
    let newest = Arc::new(AtomicU32::new(1));
    let take = |newest: &Arc<AtomicU32>| {
        let newest = Arc::clone(newest);
        move |_: Vec<u8>| {
            let number = newest.load(Ordering::Relaxed);
            frame(number as u8, number.into(), Duration::from_millis(40))
        }
    };
    let first = submit(&server, take(&newest));
    let answer = wait(&first).unwrap();
    assert_eq!((answer.sequence, crate::first(&answer).round()), (Some(1), 2.0));
    let second = submit(&server, take(&newest));
    newest.store(30, Ordering::Relaxed);
    let answer = wait(&second).unwrap();
    assert_eq!((answer.sequence, crate::first(&answer).round()), (Some(30), 60.0));
    // 40 ms old when it was taken; the second in the queue was no part of it.
    assert!(
        (40.0..700.0).contains(&answer.latency_ms),
        "{}",
        answer.latency_ms
    );
    let since = answer.received.elapsed().as_secs_f64() * 1e3;
    assert!(since >= answer.latency_ms, "{since}");
}

#[test]
fn what_is_withdrawn_is_no_failure_and_holds_nobody_up() {
    let folder = tempfile::tempdir().unwrap();
    let server = server();
    server.switch(Arc::new(model(folder.path())));
    let gone = submit(&server, |_| None);
    assert_eq!(wait(&gone).unwrap_err(), ServeError::Withdrawn);
    let there = submit(&server, |_| frame(4, 7, Duration::ZERO));
    assert_eq!(crate::first(&wait(&there).unwrap()), 8.0);
    let health = server.health();
    assert_eq!((health.answered, health.failed, health.dropped), (1, 0, 0));
    // A decoder that gives up unexpectedly ends its frame and nothing else.
    let broken = submit(&server, |_| panic!("for the test"));
    assert!(matches!(wait(&broken), Err(ServeError::Input(_))));
    let after = submit(&server, |_| frame(5, 8, Duration::ZERO));
    assert_eq!(crate::first(&wait(&after).unwrap()), 10.0);
}

#[test]
fn a_model_that_takes_arrays_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let made = crate::bundles::make(folder.path(), "1", crate::Computes::Times(2.0), Some(2.0));
    let model = LoadedModel::load(
        &made.path,
        &CpuBackend::new().unwrap(),
        &CompileOptions::default(),
    );
    let server = server();
    server.switch(Arc::new(model.unwrap()));
    let error = wait(&submit(&server, |_| frame(1, 1, Duration::ZERO))).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("does not say how an image becomes its input"),
        "{error}"
    );
    assert_eq!(server.health().failed, 1);
}
