//! Broken files: an error or a model, never a panic, and never more memory than promised.
//!
//! One test alone in its process, as it counts what the allocator hands out.

#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use edgeopt_models::graph::validate::validate;
use edgeopt_models::onnx::{memory_bound, read_bytes, read_file, write_bytes};
use edgeopt_models::opset::raise;
use edgeopt_models::{Attribute, DataType, Graph, Model, Node, Shape, Tensor, ValueInfo};

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn took(size: usize) {
    let now = NOW.fetch_add(size, Ordering::Relaxed) + size;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: every call is passed on to the system's allocator with what it was given.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // both may exist while the bytes are moved
        took(size);
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most memory `work` held at once, in bytes.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = work();
    (result, PEAK.load(Ordering::Relaxed).saturating_sub(before) as u64)
}

fn float(name: &str) -> ValueInfo {
    ValueInfo::tensor(name, DataType::Float32, Shape::known(&[2, 2]))
}

fn seeds() -> Vec<Vec<u8>> {
    let branch = |output: &str| Graph {
        name: "branch".into(),
        outputs: vec![float(output)],
        nodes: vec![
            Node::new("Mul", "mul", ["x", "k"], ["inner"]),
            Node::new("Softmax", "soft", ["inner"], [output]).with("axis", 1),
        ],
        initializers: [("k".into(), Tensor::scalar(2f32))].into_iter().collect(),
        ..Graph::default()
    };
    let main = Graph {
        name: "main".into(),
        inputs: vec![float("x")],
        outputs: vec![float("y"), float("z")],
        nodes: vec![
            Node::new("If", "if", ["c"], ["t"])
                .with("then_branch", branch("a"))
                .with("else_branch", branch("b")),
            Node::new("Constant", "const", [""; 0], ["s"]).with("value", Tensor::vector(&[1i64, 2])),
            Node::new("Add", "add", ["t", "w"], ["u"]),
            Node::new("Squeeze", "squeeze", ["u"], ["y"]).with("axes", [0]),
            Node::new("Pad", "pad", ["u"], ["z"])
                .with("pads", [0, 0, 1, 1])
                .with("value", 1.5)
                .with("mode", "constant"),
        ],
        initializers: [
            ("c".into(), Tensor::bools(&[], &[true]).unwrap()),
            ("w".into(), Tensor::new(&[2, 2], &[1f32, 2.0, 3.0, 4.0]).unwrap()),
            ("large".into(), Tensor::vector(&[5f32; 300])),
            (
                "text".into(),
                Tensor::strings(&[2], vec![b"a".to_vec(), vec![]]).unwrap(),
            ),
        ]
        .into_iter()
        .collect(),
        ..Graph::default()
    };
    let mut with_attributes = Model::new(main.clone(), 9);
    with_attributes.metadata.insert("key".into(), "value".into());
    with_attributes.graph.nodes[2]
        .attributes
        .insert("floats".into(), Attribute::Floats(vec![1.0, 2.0]));
    let plain = write_bytes(&Model::new(main, 10)).unwrap();
    // the initializer `w` in typed fields and the initializer `large` in another file
    let mut proto: onnx_protobuf::ModelProto = onnx_protobuf::Message::parse_from_bytes(&plain).unwrap();
    for tensor in &mut proto.graph.as_mut().unwrap().initializer {
        match tensor.name.as_str() {
            "w" => {
                tensor.raw_data.clear();
                tensor.float_data = vec![1.0; 4];
            }
            "large" => {
                tensor.raw_data.clear();
                tensor.data_location = onnx_protobuf::tensor_proto::DataLocation::EXTERNAL.into();
                for (key, value) in [("location", "w.bin"), ("offset", "64"), ("length", "1200")] {
                    let mut entry = onnx_protobuf::StringStringEntryProto::new();
                    (entry.key, entry.value) = (key.into(), value.into());
                    tensor.external_data.push(entry);
                }
            }
            _ => {}
        }
    }
    let external = onnx_protobuf::Message::write_to_bytes(&proto).unwrap();
    vec![
        plain.clone(),
        write_bytes(&with_attributes).unwrap(),
        external,
        with_functions(&plain),
    ]
}

/// The model with the calls of two functions, one of which calls the other, before everything else.
fn with_functions(model: &[u8]) -> Vec<u8> {
    use onnx_protobuf::{FunctionProto, Message, ModelProto, NodeProto, OperatorSetIdProto};
    let node = |domain: &str, op: &str, input: &str, output: &str| NodeProto {
        op_type: op.into(),
        domain: domain.into(),
        input: vec![input.into()],
        output: vec![output.into()],
        ..Default::default()
    };
    let function = |name: &str, nodes: Vec<NodeProto>| FunctionProto {
        name: name.into(),
        domain: "f".into(),
        input: vec!["a".into()],
        output: vec!["b".into()],
        node: nodes,
        ..Default::default()
    };
    let mut proto = ModelProto::parse_from_bytes(model).unwrap();
    proto.opset_import.push(OperatorSetIdProto {
        domain: "f".into(),
        version: 1,
        ..Default::default()
    });
    let graph = proto.graph.as_mut().unwrap();
    graph.node.insert(0, node("f", "F", "x", "called"));
    proto.functions = vec![
        function("F", vec![node("f", "G", "a", "t"), node("f", "G", "t", "b")]),
        function("G", vec![node("", "Relu", "a", "t"), node("", "Neg", "t", "b")]),
    ];
    proto.write_to_bytes().unwrap()
}

/// A small generator of its own (xorshift), so that the same files are tried everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

fn mutate(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(7) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.below(256) as u8,
            2 => bytes.truncate(at.max(1)),
            // lengths and counts: small bytes, made a little larger or smaller, or huge
            3 => bytes[at] = bytes[at].wrapping_add(1),
            4 => bytes[at] = bytes[at].wrapping_sub(1),
            5 => {
                bytes.splice(at..at, [0xff, 0xff, 0xff, 0xff, 0x0f]);
            }
            _ => {
                let end = (at + random.below(40)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
    bytes
}

fn nested(number: u8, inner: &[u8]) -> Vec<u8> {
    let mut outer = vec![number << 3 | 2];
    let mut len = inner.len();
    while len >= 0x80 {
        outer.push(len as u8 | 0x80);
        len >>= 7;
    }
    outer.push(len as u8);
    outer.extend(inner);
    outer
}

type File = fn(usize) -> Vec<u8>;

/// Files made of `count` times one small thing.
fn dense() -> Vec<(&'static str, File)> {
    fn graph(inner: Vec<u8>) -> Vec<u8> {
        [vec![8, 8], nested(7, &inner)].concat()
    }
    fn first_node(inner: Vec<u8>) -> Vec<u8> {
        graph(nested(1, &inner))
    }
    fn attribute(inner: Vec<u8>) -> Vec<u8> {
        first_node(nested(5, &inner))
    }
    vec![
        ("empty nodes", |n| graph([0x0a, 0].repeat(n))),
        ("nodes with an input, an output and an attribute", |n| {
            graph(nested(1, &[0x0a, 0, 0x12, 0, 0x2a, 2, 0xa0, 1]).repeat(n))
        }),
        ("nodes with a graph", |n| {
            graph(nested(1, &nested(5, &[0xa0, 1, 5, 0x32, 0])).repeat(n))
        }),
        ("nodes with a tensor", |n| {
            graph(nested(1, &nested(5, &[0xa0, 1, 4, 0x2a, 5, 0x10, 9, 0x4a, 1, 1])).repeat(n))
        }),
        ("initializers", |n| {
            let tensor = |i: usize| {
                let name = i.to_le_bytes().map(|byte| byte & 15 | 64);
                nested(5, &[vec![0x10, 9, 0x4a, 1, 1, 0x42, 8], name.to_vec()].concat())
            };
            graph((0..n).flat_map(tensor).collect())
        }),
        ("empty inputs", |n| graph([0x5a, 0].repeat(n))),
        ("inputs of a rank", |n| {
            graph(nested(11, &nested(2, &nested(1, &[0x08, 1, 0x12, 4, 0x0a, 0, 0x0a, 0]))).repeat(n))
        }),
        ("a shape of many dimensions", |n| {
            let shape = nested(2, &[0x0a, 3, 0x12, 1, b'a'].repeat(n));
            graph(nested(
                11,
                &nested(2, &nested(1, &[vec![0x08, 1], shape].concat())),
            ))
        }),
        ("types of values", |n| {
            let info = |i: usize| nested(13, &nested(1, &(i as u32).to_le_bytes().map(|byte| byte & 127)));
            graph((0..n).flat_map(info).collect())
        }),
        ("empty input names", |n| first_node([0x0a, 0].repeat(n))),
        ("short input names", |n| first_node([0x0a, 1, b'a'].repeat(n))),
        ("empty attributes", |n| first_node([0x2a, 0].repeat(n))),
        ("integers in an attribute, packed", |n| {
            attribute([vec![0xa0, 1, 7], nested(8, &[1].repeat(n))].concat())
        }),
        ("integers in an attribute, one by one", |n| {
            attribute([0x40, 1].repeat(n))
        }),
        ("strings in an attribute", |n| attribute([0x4a, 0].repeat(n))),
        ("packed 64-bit data", |n| {
            let mut dims = vec![0x08];
            let mut left = n;
            while left >= 0x80 {
                dims.push(left as u8 | 0x80);
                left >>= 7;
            }
            dims.push(left as u8);
            graph(nested(
                5,
                &[vec![0x10, 7, 0x42, 1, b'w'], dims, nested(7, &[1].repeat(n))].concat(),
            ))
        }),
        ("unknown numbers", |n| graph([0xa0, 0x06, 1].repeat(n))),
        ("unknown fields, all different", |n| {
            let field = |i: usize| {
                let key = (1000 + i) << 3;
                vec![
                    key as u8 | 0x80,
                    (key >> 7) as u8 | 0x80,
                    (key >> 14) as u8 & 127,
                    1,
                ]
            };
            graph((0..n.min(200_000)).flat_map(field).collect())
        }),
        ("metadata", |n| [0x72, 0].repeat(n)),
        ("a long name", |n| graph(nested(2, &b"n".repeat(n)))),
    ]
}

#[test]
fn ten_thousand_broken_models_and_some_greedy_ones() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("w.bin"), [0; 1264]).unwrap();
    let path = folder.path().join("net.onnx");
    for (index, seed) in seeds().iter().enumerate() {
        std::fs::write(&path, seed).unwrap();
        let mut model = read_file(&path).unwrap_or_else(|error| panic!("seed {index}: {error}"));
        assert_eq!(validate(&model), Ok(()), "seed {index}");
        raise(&mut model, 19).unwrap();
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let seeds = seeds();
    let (mut read, mut valid) = (0, 0);
    for count in 0..10_000 {
        let bytes = mutate(&seeds[count % seeds.len()], &mut random);
        let bound = memory_bound(bytes.len() as u64);
        // every tenth from a file, where external data is found
        let (result, peak) = if count % 10 == 0 {
            std::fs::write(&path, &bytes).unwrap();
            peak_of(|| read_file(&path))
        } else {
            peak_of(|| read_bytes(&bytes))
        };
        assert!(peak <= bound.0, "file {count}: {peak} bytes, {bound} promised");
        // these files are small, so is what they need
        assert!(peak <= 1 << 20, "file {count}: {peak} bytes");
        let Ok(mut model) = result else { continue };
        read += 1;
        let again = read_bytes(&write_bytes(&model).unwrap());
        if validate(&model).is_ok() {
            valid += 1;
            assert!(again.is_ok(), "file {count}: {}", again.unwrap_err());
            if raise(&mut model, 19).is_ok() {
                assert_eq!(validate(&model), Ok(()), "file {count}");
            }
        }
    }
    assert!(
        read > 500 && valid > 100 && read < 9_500,
        "the mutations are too rough or too tame: {read}, {valid}"
    );
    // weights stay in the file
    let weights = Tensor::zeros(DataType::Float32, &[16 << 20]).unwrap();
    let mut model = read_bytes(&seeds[0]).unwrap();
    model.graph.initializers.insert("heavy".into(), weights);
    edgeopt_models::onnx::write_file(&model, &path).unwrap();
    let (read, peak) = peak_of(|| read_file(&path).unwrap());
    assert_eq!(read, model);
    assert!(peak < 100 << 10, "{peak} bytes for a model of 64 MiB");
    for (name, file) in dense() {
        let mut accepted = 0;
        for count in [10, 12, 14, 17, 19].map(|power| 1 << power) {
            let bytes = file(count);
            let bound = memory_bound(bytes.len() as u64);
            let (result, peak) =
                peak_of(|| read_bytes(&bytes).map(|_| ()).map_err(|error| error.to_string()));
            assert!(peak <= bound.0, "{count} {name}: {peak} bytes, {bound} promised");
            match result {
                // refused before anything was built
                Err(error) if error.contains("of memory") => {
                    assert!(peak <= bytes.len() as u64 * 32, "{count} {name}: {peak} bytes");
                }
                _ => accepted = count,
            }
        }
        assert!(accepted >= 4096, "{name}: more than {accepted} are refused");
    }
}
