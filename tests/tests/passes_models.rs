//! Real models compute the same after the passes: mnist (in the repository) and those `models/zoo/fetch.py ppocr
//! silero-vad magika` brings, as far as they are there.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Instant;

use edgeopt_models::graph::validate::validate;
use edgeopt_models::{DataType, Graph, Model, Tensor, ValueInfo, ValueType, onnx, opset};
use edgeopt_optimizer::passes::{BackendEvaluator, Context, run_pipeline};
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::{Backend, CompileOptions, ModelSource};

/// The file, and lengths for the dimensions it leaves open.
const MODELS: [(&str, &[usize]); 9] = [
    ("models/zoo/mnist/mnist.onnx", &[1, 1, 28, 28]),
    (".cache/zoo/ppocr/det.onnx", &[1, 3, 64, 96]),
    (".cache/zoo/ppocr/cls.onnx", &[1, 3, 48, 192]),
    (".cache/zoo/ppocr/rec.onnx", &[1, 3, 48, 160]),
    (".cache/zoo/ddddocr/det.onnx", &[]),
    (".cache/zoo/silero-vad/silero_vad.onnx", &[1, 512]),
    (".cache/zoo/silero-vad/silero_vad_16k_op15.onnx", &[1, 512]),
    (".cache/zoo/silero-vad/silero_vad_op18_ifless.onnx", &[1, 512]),
    (".cache/zoo/magika/model.onnx", &[1, 2048]),
];

/// A multiplicative generator: the same numbers on every machine.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    fn tensor(&mut self, dtype: DataType, dims: &[usize]) -> Tensor {
        let count = dims.iter().product();
        let mut fraction = || self.next() as f32 / (1u32 << 30) as f32 - 1.0;
        match dtype {
            // An image: noise all over would drive these networks to where they are all but discontinuous.
            DataType::Float32 if dims.len() == 4 => {
                let wave = |index: usize| {
                    let (x, y) = (index % dims[3], index / dims[3]);
                    ((x as f32 / 9.0).sin() + (y as f32 / 7.0).cos()) / 2.0
                };
                Tensor::new(
                    dims,
                    &(0..count)
                        .map(|i| 0.9 * wave(i) + 0.1 * fraction())
                        .collect::<Vec<_>>(),
                )
                .unwrap()
            }
            DataType::Float32 => {
                Tensor::new(dims, &(0..count).map(|_| fraction()).collect::<Vec<_>>()).unwrap()
            }
            // Bytes of a file.
            DataType::Int32 => Tensor::new(
                dims,
                &(0..count).map(|_| (self.next() % 256) as i32).collect::<Vec<_>>(),
            )
            .unwrap(),
            // A sampling rate.
            DataType::Int64 => Tensor::new(dims, &vec![16_000i64; count]).unwrap(),
            other => panic!("no numbers of type {other}"),
        }
    }
}

fn inputs(model: &Model, lengths: &[usize]) -> Vec<Tensor> {
    let mut numbers = Numbers(7);
    model
        .graph
        .required_inputs()
        .enumerate()
        .map(|(index, input)| {
            // The lengths are those of the first input; a state has one entry for each of a batch of one.
            let lengths = if index == 0 { lengths } else { &[] };
            let shape = input.ty.shape().unwrap();
            let dims: Vec<usize> = shape
                .iter()
                .enumerate()
                .map(|(axis, dim)| {
                    dim.known()
                        .unwrap_or_else(|| lengths.get(axis).copied().unwrap_or(1))
                })
                .collect();
            numbers.tensor(input.ty.dtype().unwrap(), &dims)
        })
        .collect()
}

fn run(backend: &CpuBackend, model: &Model, inputs: &[Tensor]) -> Vec<Tensor> {
    let engine = backend
        .compile(
            ModelSource::Model(model),
            &CompileOptions {
                optimize: false,
                ..CompileOptions::default()
            },
        )
        .unwrap();
    engine.session().unwrap().run(inputs).unwrap().to_vec()
}

fn nodes(graph: &Graph) -> usize {
    graph
        .nodes
        .iter()
        .map(|node| 1 + node.subgraphs().map(nodes).sum::<usize>())
        .sum()
}

/// Makes outputs of what goes into a last `Sigmoid`: its result may be all but zero for noise, and hide errors.
fn show_logits(graph: &mut Graph) {
    let last: Vec<usize> = graph
        .outputs
        .iter()
        .filter_map(|output| graph.producer(&output.name))
        .collect();
    for node in last {
        if graph.nodes[node].is("Sigmoid") {
            graph.outputs.push(ValueInfo {
                name: graph.nodes[node].inputs[0].clone(),
                ty: ValueType::Tensor {
                    dtype: DataType::Float32,
                    shape: None,
                },
                extra: None,
            });
        }
    }
}

#[test]
fn real_models_compute_the_same_after_the_passes() {
    // Differences count in parts of the largest element, or of 0.001 where that is smaller.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let backend = CpuBackend::new().unwrap();
    let evaluator = BackendEvaluator(&backend);
    let context = Context {
        evaluator: Some(&evaluator),
        ..Context::default()
    };
    for (file, lengths) in MODELS {
        let path = root.join(file);
        if !path.exists() {
            println!("{file} is not there");
            continue;
        }
        let mut model = onnx::read_file(&path).unwrap();
        show_logits(&mut model.graph);
        let inputs = inputs(&model, lengths);
        let expected = run(&backend, &model, &inputs);
        opset::raise(&mut model, opset::DEFAULT_TARGET).unwrap();
        let (before, start) = (nodes(&model.graph), Instant::now());
        let changes = run_pipeline(&mut model, &context).unwrap();
        let time = start.elapsed();
        validate(&model).unwrap();
        let again = run_pipeline(&mut model, &context).unwrap();
        assert!(
            again.iter().all(|(_, changes)| changes.0 == 0),
            "{file}: {again:?}"
        );
        let actual = run(&backend, &model, &inputs);
        assert_eq!(actual.len(), expected.len());
        let (mut worst, mut scale) = (0f32, 0f32);
        for (a, b) in actual.iter().zip(&expected) {
            assert_eq!((a.dtype(), a.dims()), (b.dtype(), b.dims()), "{file}");
            let (a, b) = (a.to_f32().unwrap(), b.to_f32().unwrap());
            let largest = b.iter().fold(1e-3f32, |largest, value| largest.max(value.abs()));
            let off = a.iter().zip(&*b).fold(0f32, |off, (a, b)| off.max((a - b).abs()));
            assert!(off.is_finite(), "{file}");
            worst = worst.max(off / largest);
            scale = scale.max(largest);
        }
        println!(
            "{file}: {before} nodes, after {}; off by {worst:.1e} of {scale:.1e}; {time:?}",
            nodes(&model.graph)
        );
        let mut left = std::collections::BTreeMap::<&str, usize>::new();
        for node in &model.graph.nodes {
            *left.entry(&node.op_type).or_default() += 1;
        }
        println!("  left: {left:?}");
        for (pass, changes) in changes.iter().filter(|(_, changes)| changes.0 > 0) {
            println!("  {pass}: {}", changes.0);
        }
        assert!(worst <= 1e-4, "{file}: off by {worst}");
    }
}
