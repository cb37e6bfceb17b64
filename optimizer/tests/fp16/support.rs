use edgeopt_models::graph::validate::validate;
use edgeopt_models::{DataType, Graph, Model, Node, Shape, Tensor, ValueInfo};
use edgeopt_optimizer::accuracy::{Comparison, compare};
use edgeopt_optimizer::calibrate::{CalibrationTable, Samples};
use edgeopt_optimizer::precision::fp16::{Fp16Options, Fp16Report, simulate, to_fp16};
use edgeopt_runtime::backends::cpu::CpuBackend;

/// A model from `x` (float32, `dims`) to `y`.
pub(crate) fn model(
    dims: &[usize],
    nodes: Vec<Node>,
    constants: &[(&str, Tensor)],
    output: &[usize],
) -> Model {
    let mut graph = Graph {
        nodes,
        inputs: vec![ValueInfo::tensor("x", DataType::Float32, Shape::known(dims))],
        outputs: vec![ValueInfo::tensor("y", DataType::Float32, Shape::known(output))],
        ..Graph::default()
    };
    for (name, tensor) in constants {
        graph.add_initializer((*name).into(), tensor.clone());
    }
    Model::new(graph, 19)
}

/// Converts, checks that the result is valid with its outputs as before, and gives it with the report.
pub(crate) fn converted_with(
    mut model: Model,
    options: &Fp16Options,
    ranges: Option<&CalibrationTable>,
) -> (Model, Fp16Report) {
    let outputs = model.graph.outputs.clone();
    let report = to_fp16(&mut model, options, ranges).unwrap();
    validate(&model).unwrap();
    for (after, before) in model.graph.outputs.iter().zip(&outputs) {
        assert_eq!((&after.name, after.ty.dtype()), (&before.name, before.ty.dtype()));
    }
    (model, report)
}

pub(crate) fn converted(model: Model) -> (Model, Fp16Report) {
    converted_with(model, &Fp16Options::default(), None)
}

pub(crate) fn ops(model: &Model) -> Vec<&str> {
    model
        .graph
        .nodes
        .iter()
        .map(|node| node.op_type.as_str())
        .collect()
}

/// Names of the nodes that stay in float32.
pub(crate) fn kept(report: &Fp16Report) -> Vec<&str> {
    report.kept.iter().map(|kept| kept.node.as_str()).collect()
}

pub(crate) fn against(reference: &Model, other: &Model, samples: &dyn Samples) -> Comparison {
    let backend = CpuBackend::new().unwrap();
    compare(reference, other, samples, &backend, 1, &mut |_, _, _| ()).unwrap()
}

/// Compares the float model with the half one as simulated, after making sure that the half graph itself runs and
/// agrees with its simulation.
pub(crate) fn measured(float: &Model, half: &Model, samples: &dyn Samples) -> Comparison {
    let simulated = simulate(half).unwrap();
    validate(&simulated).unwrap();
    let agreement = against(&simulated, half, samples);
    assert!(agreement.min_sqnr_db() > 45.0, "{agreement:?}");
    against(float, &simulated, samples)
}

/// Numbers between −1 and 1 times `scale`, always the same.
pub(crate) fn noise(dims: &[usize], scale: f32) -> Tensor {
    let mut state = 9u64;
    let values: Vec<f32> = (0..dims.iter().product())
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
        })
        .collect();
    Tensor::new(dims, &values).unwrap()
}
