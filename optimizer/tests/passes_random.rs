//! Random small networks compute the same after the passes.
#![allow(clippy::unwrap_used)]

use edgeopt_models::graph::validate::validate;
use edgeopt_models::{DataType, Graph, Model, Node, Shape, Tensor, ValueInfo};
use edgeopt_optimizer::passes::{BackendEvaluator, Context, run_pipeline};
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::{Backend, CompileOptions, ModelSource};
use proptest::prelude::*;

/// Builds a network layer by layer on a value of shape (1, channels, height, width).
struct Net {
    graph: Graph,
    value: String,
    dims: [usize; 4],
    seed: u64,
}

impl Net {
    fn new(seed: u64) -> Self {
        let dims = [1, 3, 6, 3];
        let mut graph = Graph {
            name: "random".into(),
            ..Graph::default()
        };
        graph
            .inputs
            .push(ValueInfo::tensor("x", DataType::Float32, Shape::known(&dims)));
        Self {
            graph,
            value: "x".into(),
            dims,
            seed,
        }
    }

    fn numbers(&mut self, dims: &[usize], low: f32) -> Tensor {
        let values: Vec<f32> = (0..dims.iter().product())
            .map(|_| {
                self.seed = self
                    .seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(99_991);
                low + (self.seed >> 40) as f32 / (1u64 << 24) as f32
            })
            .collect();
        Tensor::new(dims, &values).unwrap()
    }

    fn constant(&mut self, tensor: Tensor) -> String {
        let name = format!("k{}", self.graph.initializers.len());
        self.graph.add_initializer(name.as_str().into(), tensor);
        name
    }

    /// Adds a node that reads the present value and `others`, with `edit` on it.
    fn push(&mut self, op: &str, others: &[String], edit: impl FnOnce(Node) -> Node) {
        let output = format!("v{}", self.graph.nodes.len());
        let inputs = [vec![self.value.clone()], others.to_vec()].concat();
        let node = Node::new(
            op,
            &format!("n{}", self.graph.nodes.len()),
            inputs,
            [output.clone()],
        );
        self.graph.nodes.push(edit(node));
        self.value = output;
    }

    fn layer(&mut self, kind: usize, choice: usize) {
        let [_, channels, height, width] = self.dims;
        match kind {
            0 | 1 => {
                let wider = 1 + choice % 4;
                let transposed = kind == 1;
                let shape = if transposed {
                    [channels, wider, 1, 1]
                } else {
                    [wider, channels, 1, 1]
                };
                let weight = self.numbers(&shape, -0.5);
                let weight = self.constant(weight);
                self.push(
                    if transposed { "ConvTranspose" } else { "Conv" },
                    &[weight],
                    |node| node,
                );
                self.dims[1] = wider;
            }
            2 => {
                let parameters: Vec<String> = [0.5, -0.5, -0.5, 0.5]
                    .map(|low| {
                        let tensor = self.numbers(&[channels], low);
                        self.constant(tensor)
                    })
                    .into();
                self.push("BatchNormalization", &parameters, |node| node);
            }
            3 => {
                let shapes: [&[usize]; 6] = [
                    &[],
                    &[1],
                    &[channels, 1, 1],
                    &[1, channels, 1, 1],
                    &[width],
                    &[1, 1, height, 1],
                ];
                let tensor = self.numbers(shapes[choice % 6], 0.5);
                let constant = self.constant(tensor);
                let op = ["Mul", "Add", "Sub", "Div"][choice / 6 % 4];
                self.push(op, &[constant], |mut node| {
                    if choice / 24 % 2 == 1 {
                        node.inputs.swap(0, 1);
                    }
                    node
                });
            }
            4 => {
                let (before, after) = ((choice % 3) as i64, (choice / 3 % 2) as i64);
                let pads = self.constant(Tensor::vector(&[0, 0, before, 0, 0, 0, after, 0]));
                self.push("Pad", &[pads], |node| node);
                self.dims[2] += (before + after) as usize;
            }
            5 => {
                let perms = [[0, 1, 2, 3], [0, 1, 3, 2], [0, 2, 1, 3], [0, 3, 1, 2]];
                let perm = perms[choice % 4];
                self.dims = perm.map(|axis: i64| self.dims[axis as usize]);
                self.push("Transpose", &[], |node| node.with("perm", perm));
            }
            6 => {
                let flat = self.constant(Tensor::vector(&[-1i64]));
                self.push("Reshape", &[flat], |node| node);
                let shape = self.constant(Tensor::vector(&self.dims.map(|dim| dim as i64)));
                self.push("Reshape", &[shape], |node| node);
            }
            7 => {
                let axis = 2 + choice % 2;
                let [start, end, axis_name] = [0, i64::MAX - (choice % 3) as i64, axis as i64]
                    .map(|n| self.constant(Tensor::vector(&[n])));
                self.push("Slice", &[start, end, axis_name], |node| node);
            }
            8 => {
                let twice = self.value.clone();
                self.push("Add", &[twice], |node| node);
            }
            _ => self.push(
                ["Relu", "Identity", "Dropout", "Sigmoid"][choice % 4],
                &[],
                |node| node,
            ),
        }
    }

    fn model(mut self) -> Model {
        self.graph.outputs.push(ValueInfo::tensor(
            self.value.as_str(),
            DataType::Float32,
            Shape::known(&self.dims),
        ));
        Model::new(self.graph, 19)
    }
}

fn run(backend: &CpuBackend, model: &Model, input: &Tensor) -> Vec<f32> {
    let options = CompileOptions {
        threads: 1,
        ..CompileOptions::default()
    };
    let engine = backend.compile(ModelSource::Model(model), &options).unwrap();
    let mut session = engine.session().unwrap();
    session.run(std::slice::from_ref(input)).unwrap()[0]
        .to_f32()
        .unwrap()
        .into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_networks_compute_the_same(
        layers in proptest::collection::vec((0usize..10, 0usize..48), 1..14),
        seed in any::<u64>(),
    ) {
        let backend = CpuBackend::new().unwrap();
        let mut net = Net::new(seed);
        for (kind, choice) in &layers {
            net.layer(*kind, *choice);
        }
        let input = net.numbers(&[1, 3, 6, 3], -0.5);
        let mut model = net.model();
        validate(&model).unwrap();
        let expected = run(&backend, &model, &input);
        let before = model.graph.nodes.len();
        let evaluator = BackendEvaluator(&backend);
        run_pipeline(&mut model, &Context { evaluator: Some(&evaluator), fold_overridable: false }).unwrap();
        let actual = run(&backend, &model, &input);
        // A batch normalization alone becomes two nodes.
        prop_assert!(model.graph.nodes.len() <= 2 * before);
        let largest = expected.iter().fold(1e-3f32, |largest, value| largest.max(value.abs()));
        prop_assert_eq!(actual.len(), expected.len());
        for (a, b) in actual.iter().zip(&expected) {
            let same = a.to_bits() == b.to_bits() || (a - b).abs() <= 1e-4 * largest;
            prop_assert!(same, "{} is not {} in {:?}", a, b, layers);
        }
    }
}
