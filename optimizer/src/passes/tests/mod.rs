//! The passes on small graphs.

mod constants;
mod nodes;
mod weights;

use edgeopt_models::{DataType, Graph, Model, Node, Shape, Tensor, ValueInfo, ValueType};

use super::{Context, run_pipeline};

fn model(nodes: Vec<Node>, outputs: &[&str], constants: Vec<(&str, Tensor)>) -> Model {
    let float = |name: &str| ValueInfo {
        name: name.into(),
        ty: ValueType::Tensor {
            dtype: DataType::Float32,
            shape: None,
        },
        extra: None,
    };
    let mut graph = Graph {
        name: "g".into(),
        nodes,
        ..Graph::default()
    };
    graph.inputs = vec![float("x")];
    graph.outputs = outputs.iter().map(|name| float(name)).collect();
    for (name, tensor) in constants {
        graph.add_initializer(name.into(), tensor);
    }
    Model::new(graph, 17)
}

fn ops(mut model: Model) -> (Model, Vec<String>) {
    run_pipeline(&mut model, &Context::default()).unwrap();
    let ops = model
        .graph
        .nodes
        .iter()
        .map(|node| node.op_type.clone())
        .collect();
    (model, ops)
}

fn same_results(before: &Model, after: &Model, inputs: &[Tensor]) {
    use edgeopt_runtime::{Backend, CompileOptions, ModelSource};
    let cpu = edgeopt_runtime::backends::cpu::CpuBackend::new().unwrap();
    let [expected, actual] = [before, after].map(|model| {
        let engine = cpu
            .compile(ModelSource::Model(model), &CompileOptions::default())
            .unwrap();
        engine.session().unwrap().run(inputs).unwrap().to_vec()
    });
    assert_eq!(expected.len(), actual.len());
    for (expected, actual) in expected.iter().zip(&actual) {
        assert_eq!(expected.dims(), actual.dims());
        let (expected, actual) = (expected.to_f32().unwrap(), actual.to_f32().unwrap());
        for (e, a) in expected.iter().zip(&*actual) {
            assert!(
                (e - a).abs() <= 1e-5 * e.abs().max(1.0),
                "{expected:?} became {actual:?}"
            );
        }
    }
}

/// Counts evaluations of the CPU backend.
struct Counting(edgeopt_runtime::backends::cpu::CpuBackend, std::cell::Cell<usize>);

impl Counting {
    fn new() -> Self {
        Self(
            edgeopt_runtime::backends::cpu::CpuBackend::new().unwrap(),
            std::cell::Cell::new(0),
        )
    }
}

impl super::Evaluator for Counting {
    fn evaluate(&self, model: &Model) -> Result<Vec<Tensor>, String> {
        self.1.set(self.1.get() + 1);
        super::BackendEvaluator(&self.0).evaluate(model)
    }
}

fn folded(mut model: Model) -> (Model, Vec<String>, usize) {
    let evaluator = Counting::new();
    let context = Context {
        evaluator: Some(&evaluator),
        ..Context::default()
    };
    run_pipeline(&mut model, &context).unwrap();
    let ops = model
        .graph
        .nodes
        .iter()
        .map(|node| node.op_type.clone())
        .collect();
    (model, ops, evaluator.1.get())
}

fn norm(name: &str, input: &str, output: &str) -> Node {
    Node::new("BatchNormalization", name, [input, "s", "b", "m", "v"], [output]).with("epsilon", 0.0)
}

/// Two channels: scale 3/√4 and 4/√1, so factors 1.5 and 4.
fn parameters(weight: Tensor) -> Vec<(&'static str, Tensor)> {
    vec![
        ("w", weight),
        ("s", Tensor::vector(&[3f32, 4.0])),
        ("b", Tensor::vector(&[1f32, 2.0])),
        ("m", Tensor::vector(&[2f32, 1.0])),
        ("v", Tensor::vector(&[4f32, 1.0])),
    ]
}
