//! TensorRT-RTX's real builder, on machines without a GPU: `make fetch-test` brings the libraries and compiles the
//! plugins. Where they are not there, the tests say so and check nothing.
#![allow(clippy::unwrap_used)]

mod keeping;
mod options;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use edgeopt_models::bundle::{Postprocessing, Precision};
use edgeopt_models::{Bytes, DataType, Dim, Graph, Model, Node, Shape, Tensor, ValueInfo, onnx};
use edgeopt_optimizer::build::{BuildOptions, Data, Progress, make, prepare};
use edgeopt_optimizer::calibrate::SampleInputs;
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::backends::tensorrt::{
    BuildEvents, BuildLimits, BuiltEngine, EngineOptions, InputRange, Library, MemoryWatch, Places, Steps,
    Stop, StopRequest, Stoppable, TensorRtError, build_engine, plan_file,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn places() -> Places {
    Places {
        libraries: vec![root().join(".cache/tensorrt/lib")],
        plugins: vec![root().join(".cache/tensorrt/plugins")],
    }
}

/// TensorRT-RTX, if it was fetched.
fn library() -> Option<Library> {
    if !places().libraries[0].join("libtensorrt_rtx.so.1").exists() {
        eprintln!("TensorRT-RTX is not there (make fetch-test brings it): nothing was checked");
        return None;
    }
    Some(Library::find(None, &places()).unwrap())
}

struct Quiet;

impl Progress for Quiet {
    fn stage(&self, _: &str, _: Option<u64>) {}
    fn at(&self, _: u64) {}
}

/// Numbers between -1 and 1, the same on every machine.
fn noise(dims: &[usize], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let values: Vec<f32> = (0..dims.iter().product())
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect();
    Tensor::new(dims, &values).unwrap()
}

/// The model at a precision, as `edgeopt build` makes it, encoded.
fn built(model: Model, precision: Precision, dims: &[usize]) -> Vec<u8> {
    let backend = CpuBackend::new().unwrap();
    let prepared = prepare(model, &BTreeMap::new(), &backend).unwrap();
    let samples: Vec<SampleInputs> = (0..2).map(|seed| vec![noise(dims, seed)]).collect();
    let data = Data {
        calibration: Some(&samples),
        calibration_len: samples.len(),
        evaluation: None,
        evaluation_len: 0,
        labels: Vec::new(),
        postprocessing: &Postprocessing::Raw,
    };
    let candidate = make(&prepared, &BuildOptions::new(precision), &data, &backend, &Quiet).unwrap();
    candidate.encoded().unwrap()
}

/// A range that allows exactly these lengths and, on the first axis, up to 4.
fn range(input: &str, dims: &[usize]) -> InputRange {
    let mut max = dims.to_vec();
    max[0] = 4;
    InputRange {
        input: input.into(),
        min: dims.to_vec(),
        opt: dims.to_vec(),
        max,
    }
}

fn build(library: &Library, onnx: &[u8], options: &EngineOptions) -> Result<BuiltEngine, TensorRtError> {
    build_engine(
        library,
        onnx,
        options,
        &Stoppable::new(&Steps(None), StopRequest::default()),
    )
}

fn zoo() -> Vec<(&'static str, Option<Model>, &'static str, Vec<usize>)> {
    let file = |path: &str| {
        Some(root().join(path))
            .filter(|path| path.exists())
            .map(|path| onnx::read_file(&path).unwrap())
    };
    vec![
        (
            "mnist",
            file("models/zoo/mnist/mnist.onnx"),
            "image",
            vec![1, 1, 28, 28],
        ),
        (
            "ppocr rec",
            file(".cache/zoo/ppocr/rec.onnx"),
            "x",
            vec![1, 3, 48, 160],
        ),
        (
            "ppocr det",
            file(".cache/zoo/ppocr/det.onnx"),
            "x",
            vec![1, 3, 64, 96],
        ),
        (
            "ppocr cls",
            file(".cache/zoo/ppocr/cls.onnx"),
            "x",
            vec![1, 3, 48, 192],
        ),
        (
            "ddddocr det",
            file(".cache/zoo/ddddocr/det.onnx"),
            "images",
            vec![1, 3, 416, 416],
        ),
        (
            "mobilenet v2",
            edgeopt_tests::nets::by_name("mobilenet_v2"),
            "input",
            vec![1, 3, 224, 224],
        ),
    ]
}

#[test]
fn every_zoo_model_becomes_an_engine_of_the_asked_precision_within_a_limit() {
    let Some(library) = library() else { return };
    for (name, model, _, dims) in zoo() {
        let Some(model) = model else {
            eprintln!("{name} was not fetched");
            continue;
        };
        let input = model.graph.required_inputs().next().unwrap();
        let open = input.ty.shape().is_none_or(|shape| shape.as_known().is_none());
        let input = input.name.to_string();
        for precision in [Precision::Fp16, Precision::Int8] {
            let onnx = built(model.clone(), precision, &dims);
            let options = EngineOptions {
                precision: Some(precision),
                limits: BuildLimits {
                    workspace: Some(Bytes::mib(64)),
                    tactic_memory: Some(Bytes::mib(256)),
                },
                ranges: if open {
                    vec![range(&input, &dims)]
                } else {
                    Vec::new()
                },
                detailed: true,
                ..EngineOptions::default()
            };
            let engine = match build(&library, &onnx, &options) {
                Ok(engine) => engine,
                Err(error) => panic!("{name} {precision}: {error}"),
            };
            let heavy: Vec<_> = engine.layers.iter().filter(|layer| layer.multiplies()).collect();
            let of = |kind: &str| {
                heavy
                    .iter()
                    .filter(|layer| layer.inputs.iter().any(|input| input == kind))
                    .count()
            };
            let (int8, half) = (of("Int8"), of("Half"));
            eprintln!(
                "{name} {precision}: {} KiB, takes {}, {} layers, {} multiply ({int8} INT8, {half} FP16)",
                engine.plan.len() >> 10,
                engine.memory.unwrap().total(),
                engine.layers.len(),
                heavy.len()
            );
            assert!(
                !heavy.is_empty(),
                "{name} {precision}: no layer multiplies: {:?}",
                engine.layers
            );
            // Most layers that multiply have the asked type; those that the optimizer left wide are the rest.
            let asked = if precision == Precision::Int8 { int8 } else { half };
            assert!(2 * asked > heavy.len(), "{name} {precision}: {heavy:#?}");
            // Fused: far fewer layers than nodes.
            let nodes = onnx::read_bytes(&onnx).unwrap().graph.nodes.len();
            assert!(
                engine.layers.len() < nodes,
                "{name} {precision}: {} layers, {nodes} nodes",
                engine.layers.len()
            );
        }
    }
}

fn value(name: &str, dims: &[usize]) -> ValueInfo {
    ValueInfo::tensor(name, DataType::Float32, Shape::known(dims))
}

fn one_node(node: Node, inputs: Vec<ValueInfo>, constants: Vec<(&str, Tensor)>) -> Vec<u8> {
    let output = ValueInfo::tensor(
        "y",
        DataType::Float32,
        [Dim::Unknown; 0].into_iter().collect::<Shape>(),
    );
    let output = ValueInfo {
        ty: edgeopt_models::ValueType::Tensor {
            dtype: DataType::Float32,
            shape: None,
        },
        ..output
    };
    let mut graph = Graph {
        name: "one".into(),
        inputs,
        outputs: vec![output],
        nodes: vec![node],
        ..Graph::default()
    };
    for (name, tensor) in constants {
        graph.add_initializer(name.into(), tensor);
    }
    onnx::write_bytes(&Model::new(graph, 17)).unwrap()
}

#[test]
fn models_that_tensorrt_cannot_take_are_refused_with_the_node() {
    let Some(library) = library() else { return };
    let x = || vec![value("x", &[1, 4, 8, 8])];
    let custom = {
        let mut node = Node::new("MyOwnThing", "the_culprit", ["x"], ["y"]);
        node.domain = "com.example".into();
        node
    };
    let attribute = |mut node: Node, name: &str, value: edgeopt_models::Attribute| {
        node.attributes.insert(name.into(), value);
        node
    };
    let weights = || Tensor::zeros(DataType::Float32, &[4, 5, 3, 3]).unwrap();
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        (
            "an operator of its own",
            one_node(custom, x(), vec![]),
            &["the_culprit", "MyOwnThing", "standard operators"],
        ),
        (
            "weights of another number of channels",
            one_node(
                Node::new("Conv", "the_culprit", ["x", "w"], ["y"]),
                x(),
                vec![("w", weights())],
            ),
            &["the_culprit"],
        ),
        (
            "an axis that does not exist",
            one_node(
                attribute(
                    Node::new("Softmax", "the_culprit", ["x"], ["y"]),
                    "axis",
                    edgeopt_models::Attribute::Int(9),
                ),
                x(),
                vec![],
            ),
            &["the_culprit"],
        ),
        (
            "a zero point that is not zero",
            {
                let mut nodes = Node::new("QuantizeLinear", "the_culprit", ["x", "s", "z"], ["q"]);
                nodes.outputs = vec!["q".into()];
                let mut graph = Graph {
                    name: "q".into(),
                    inputs: x(),
                    outputs: vec![value("y", &[1, 4, 8, 8])],
                    nodes: vec![nodes, Node::new("DequantizeLinear", "dq", ["q", "s", "z"], ["y"])],
                    ..Graph::default()
                };
                graph.add_initializer("s".into(), Tensor::scalar(0.1f32));
                graph.add_initializer("z".into(), Tensor::scalar(5i8));
                onnx::write_bytes(&Model::new(graph, 17)).unwrap()
            },
            &["the_culprit", "symmetric"],
        ),
        (
            "a reshape to another number of elements",
            one_node(
                Node::new("Reshape", "the_culprit", ["x", "s"], ["y"]),
                x(),
                vec![("s", Tensor::vector(&[3i64, 5]))],
            ),
            &["the_culprit"],
        ),
        (
            "concatenation of different shapes",
            one_node(
                attribute(
                    Node::new("Concat", "the_culprit", ["x", "z"], ["y"]),
                    "axis",
                    edgeopt_models::Attribute::Int(1),
                ),
                vec![value("x", &[1, 4, 8, 8]), value("z", &[1, 4, 9, 8])],
                vec![],
            ),
            &["the_culprit"],
        ),
        (
            "an unsupported operator",
            one_node(
                attribute(
                    Node::new("StringNormalizer", "the_culprit", ["x"], ["y"]),
                    "is_case_sensitive",
                    edgeopt_models::Attribute::Int(1),
                ),
                x(),
                vec![],
            ),
            &["the_culprit"],
        ),
        ("junk", b"\x08\x07junk that is no model".to_vec(), &["understand"]),
        (
            "half a model",
            one_node(Node::new("Relu", "r", ["x"], ["y"]), x(), vec![])[..60].to_vec(),
            &[],
        ),
        (
            "a dimension without a range",
            one_node(
                Node::new("Relu", "r", ["x"], ["y"]),
                vec![ValueInfo::tensor(
                    "x",
                    DataType::Float32,
                    [Dim::from("N"), Dim::Known(4)].into_iter().collect(),
                )],
                vec![],
            ),
            &["optimization profile"],
        ),
    ];
    for (what, onnx, expected) in cases {
        let error = build(&library, &onnx, &EngineOptions::default())
            .err()
            .unwrap_or_else(|| panic!("{what} was built"));
        eprintln!("{what}: {error}");
        for part in expected {
            assert!(error.to_string().contains(part), "{what}: {part:?} in {error}");
        }
    }
}

fn digits() -> (Vec<u8>, EngineOptions) {
    let model = onnx::read_file(&root().join("models/zoo/mnist/mnist.onnx")).unwrap();
    let options = EngineOptions {
        ranges: vec![range("image", &[1, 1, 28, 28])],
        ..EngineOptions::default()
    };
    (onnx::write_bytes(&model).unwrap(), options)
}

#[test]
fn a_workspace_that_is_too_small_is_said_to_be_so() {
    let Some(library) = library() else { return };
    let (onnx, mut options) = digits();
    options.limits.workspace = Some(Bytes(1));
    let error = build(&library, &onnx, &options).unwrap_err();
    assert!(
        matches!(
            error,
            TensorRtError::Workspace {
                workspace: Bytes(1),
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("raise --memory"), "{error}");
}

/// Counts events and cancels at a step.
struct Counting {
    steps: AtomicU32,
    cancel_at: u32,
    open: Mutex<Vec<String>>,
}

impl BuildEvents for Counting {
    fn phase_begins(&self, phase: &str, parent: Option<&str>, _: u32) {
        let mut open = self.open.lock().unwrap();
        assert!(
            parent.is_none_or(|parent| open.iter().any(|phase| phase == parent)),
            "{phase} in {parent:?}"
        );
        open.push(phase.to_owned());
    }
    fn step_done(&self, _: &str, _: u32) -> bool {
        self.steps.fetch_add(1, Ordering::Relaxed) + 1 < self.cancel_at
    }
    fn phase_ends(&self, phase: &str) {
        let mut open = self.open.lock().unwrap();
        let at = open.iter().rposition(|other| other == phase).unwrap();
        open.remove(at);
    }
}

#[test]
fn a_build_tells_its_progress_and_can_be_cancelled() {
    let Some(library) = library() else { return };
    let (onnx, options) = digits();
    for (cancel_at, cancelled) in [(u32::MAX, false), (2, true)] {
        let counting = Counting {
            steps: AtomicU32::new(0),
            cancel_at,
            open: Mutex::default(),
        };
        let result = build_engine(
            &library,
            &onnx,
            &options,
            &Stoppable::new(&counting, StopRequest::default()),
        );
        assert!(counting.steps.load(Ordering::Relaxed) >= 2);
        if cancelled {
            let error = result.unwrap_err();
            assert!(matches!(error, TensorRtError::Stopped(Stop::Asked)), "{error}");
        } else {
            assert!(!result.unwrap().plan.is_empty());
            assert!(counting.open.lock().unwrap().is_empty());
        }
    }
}

#[test]
fn a_build_stops_before_memory_runs_out() {
    let Some(library) = library() else { return };
    let (onnx, options) = digits();
    let stop = StopRequest::default();
    // A machine that claims to have 100 MiB left, of which 200 must stay.
    let watch = MemoryWatch::start(Bytes::mib(200), stop.clone(), || Some(Bytes::mib(100)));
    while stop.reason().is_none() {
        std::thread::yield_now();
    }
    let error = build_engine(&library, &onnx, &options, &Stoppable::new(&Steps(None), stop))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("only 100 MiB of memory was left") && error.contains("200 MiB"),
        "{error}"
    );
    drop(watch);
}

#[test]
fn plugins_of_another_family_are_refused_in_words_and_never_used() {
    let Some(_) = library() else { return };
    let plugins = places().plugins[0].clone();
    let folder = tempfile::tempdir().unwrap();
    for other in ["rtx_1.3", "rtx_1.4", "trt_11.4"] {
        let name = format!("libedgeopt_tensorrt_{other}.so");
        std::fs::copy(plugins.join(&name), folder.path().join(&name)).unwrap();
    }
    // One that lies about its family in its name is found out by what it says itself.
    std::fs::copy(
        plugins.join("libedgeopt_tensorrt_trt_11.4.so"),
        folder.path().join("libedgeopt_tensorrt_rtx_1.6.so"),
    )
    .unwrap();
    let wrong = Places {
        plugins: vec![folder.path().into()],
        ..places()
    };
    let error = Library::find(None, &wrong).unwrap_err().to_string();
    assert_eq!(error.matches("laid out differently").count(), 4, "{error}");
    assert!(
        error.contains("there is no plugin for TensorRT-RTX 1.7"),
        "{error}"
    );
    let nowhere = Places {
        libraries: vec![folder.path().into()],
        ..places()
    };
    let error = Library::find(None, &nowhere).unwrap_err().to_string();
    assert!(error.contains("no libnvinfer or libtensorrt_rtx"), "{error}");
}

#[test]
fn a_timing_cache_goes_from_build_to_build_and_junk_does_no_harm() {
    let Some(library) = library() else { return };
    let (onnx, mut options) = digits();
    let first = build(&library, &onnx, &options).unwrap();
    options.timing_cache = first.timing_cache;
    assert!(options.timing_cache.is_some());
    assert!(!build(&library, &onnx, &options).unwrap().plan.is_empty());
    options.timing_cache = Some(b"junk".to_vec());
    assert!(!build(&library, &onnx, &options).unwrap().plan.is_empty());
}

#[test]
fn an_engine_keeps_its_key_on_disk() {
    let Some(library) = library() else { return };
    let (onnx, options) = digits();
    let engine = build(&library, &onnx, &options).unwrap();
    assert_eq!(engine.tensors[0], ("image".to_owned(), vec![-1, 1, 28, 28]));
    let key = plan_file::EngineKey::new(
        &onnx,
        library.identity.to_string(),
        "portable".into(),
        &options.limits,
    )
    .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("digits.plan");
    plan_file::write(&path, &key, &engine.plan).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(plan_file::decode_for(&bytes, &key), Ok(&engine.plan[..]));
    // The library's own file is refused before the library sees it.
    assert!(plan_file::decode(&engine.plan).is_err());
}
