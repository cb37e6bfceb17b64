//! Shape inference against what models say of themselves and against what really runs: every inferred value of
//! whole networks is made an output, run on the CPU backend, and compared.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use edgeopt_models::cost::cost;
use edgeopt_models::shape_inference::{Bindings, infer};
use edgeopt_models::{DataType, Dim, Model, Tensor, ValueInfo, ValueType, onnx};
use edgeopt_optimizer::plan::{PlanError, activations, bound, memory_plan};
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::{Backend, CompileOptions, ModelSource};
use edgeopt_tests::nets;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Bindings that make every open length of the inputs concrete: the batch, then 16 for all else.
fn concrete(model: &Model, batch: usize) -> Bindings {
    let mut bindings = Bindings::default();
    for input in model.graph.required_inputs() {
        let Some(shape) = input.ty.shape() else { continue };
        let dims = shape.iter().enumerate().map(|(axis, dim)| match dim {
            Dim::Known(n) => *n,
            _ if axis == 0 => batch,
            _ => 16,
        });
        bindings.inputs.insert(input.name.to_string(), dims.collect());
    }
    bindings
}

fn named(model: &Model) -> impl Iterator<Item = &str> {
    let outputs = model.graph.nodes.iter().flat_map(|node| &node.outputs);
    outputs
        .filter(|name| !name.is_omitted())
        .map(|name| name.as_str())
}

/// Values of the main graph that are not concrete.
fn open_values(model: &Model) -> Vec<String> {
    named(model)
        .filter(|name| {
            let ty = model.graph.type_of(name);
            ty.and_then(|ty| ty.shape()?.as_known()).is_none()
        })
        .map(str::to_owned)
        .collect()
}

fn input_tensor(info: &ValueInfo) -> Tensor {
    let dims = info.ty.shape().unwrap().as_known().unwrap();
    let mut tensor = Tensor::zeros(info.ty.dtype().unwrap(), &dims).unwrap();
    match tensor.dtype() {
        DataType::Float32 => {
            let values = tensor.view_mut::<f32>().unwrap();
            for (index, value) in values.iter_mut().enumerate() {
                *value = ((index * 7919 % 1000) as f32) / 1000.0;
            }
        }
        DataType::Int64 => tensor.view_mut::<i64>().unwrap().fill(1),
        DataType::Int32 => tensor.view_mut::<i32>().unwrap().fill(1),
        _ => {}
    }
    tensor
}

/// Runs the model with every inferred value as an output; contradictions, and how many values were compared.
fn compare_with_run(backend: &CpuBackend, model: &Model) -> (Vec<String>, usize) {
    let mut watched = model.clone();
    let present: BTreeSet<String> = watched.graph.outputs.iter().map(|o| o.name.to_string()).collect();
    let names: Vec<String> = named(model).map(str::to_owned).collect();
    for name in names.iter().filter(|name| !present.contains(*name)) {
        if let Some(dtype) = model.graph.type_of(name).and_then(|ty| ty.dtype()) {
            watched.graph.outputs.push(ValueInfo {
                name: name.as_str().into(),
                ty: ValueType::Tensor { dtype, shape: None },
                extra: None,
            });
        }
    }
    watched.graph.value_types.clear();
    let options = CompileOptions {
        threads: 2,
        optimize: false,
        ..CompileOptions::default()
    };
    let engine = backend.compile(ModelSource::Model(&watched), &options).unwrap();
    let names: Vec<String> = engine
        .outputs()
        .iter()
        .map(|spec| spec.name.to_string())
        .collect();
    let inputs: Vec<Tensor> = model.graph.required_inputs().map(input_tensor).collect();
    let mut session = engine.session().unwrap();
    let outputs = session.run(&inputs).unwrap();
    let mut contradictions = Vec::new();
    for (name, output) in names.iter().zip(outputs) {
        let ty = model.graph.type_of(name).unwrap();
        if !agrees(&ty, output) {
            contradictions.push(format!(
                "{name}: inferred {ty:?}, ran {} {:?}",
                output.dtype(),
                output.dims()
            ));
        }
    }
    (contradictions, outputs.len())
}

fn agrees(ty: &ValueType, tensor: &Tensor) -> bool {
    ty.dtype().is_none_or(|dtype| dtype == tensor.dtype())
        && ty.shape().is_none_or(|shape| {
            shape.len() == tensor.dims().len()
                && shape
                    .iter()
                    .zip(tensor.dims())
                    .all(|(dim, length)| dim.known().is_none_or(|known| known == *length))
        })
}

fn check(name: &str, mut model: Model, batch: usize, open_allowed: usize) {
    let bindings = concrete(&model, batch);
    model.graph.value_types.clear();
    infer(&mut model, &bindings).unwrap();
    let open = open_values(&model);
    assert!(
        open.len() <= open_allowed,
        "{name}: {} open, first {:?}",
        open.len(),
        open.first()
    );
    let (contradictions, compared) = compare_with_run(&CpuBackend::new().unwrap(), &model);
    println!("{name}: {compared} values compared, {} open", open.len());
    assert!(contradictions.is_empty(), "{name}: {contradictions:#?}");
    assert!(compared >= model.graph.outputs.len(), "{name}");
}

#[test]
fn resnet50_is_concrete_and_right() {
    check("resnet50", nets::by_name("resnet50").unwrap(), 2, 0);
}

/// Published numbers: 4.09 GMACs and 25.6 million parameters; 0.30 GMACs and 3.5 million.
#[test]
fn costs_are_the_published_ones() {
    for (name, macs, parameters) in [("resnet50", 4.09e9, 25.5e6), ("mobilenet_v2", 0.300e9, 3.5e6)] {
        let mut model = nets::by_name(name).unwrap();
        let bindings = concrete(&model, 1);
        infer(&mut model, &bindings).unwrap();
        let cost = cost(&model);
        println!("{name}: {:?} MACs, {} parameters", cost.macs, cost.parameters);
        assert!(
            (cost.macs.unwrap() as f64 / macs - 1.0).abs() < 0.01,
            "{name}: {:?}",
            cost.macs
        );
        assert!(
            (cost.parameters as f64 / parameters - 1.0).abs() < 0.02,
            "{name}: {}",
            cost.parameters
        );
        let plan = memory_plan(&model, 1, &Bindings::default()).unwrap();
        let detail = activations(&model).unwrap();
        println!("{name}: {plan:?}, lower bound {}", detail.lower_bound);
        assert!(detail.lower_bound <= detail.peak);
    }
}

/// Real models of the zoo, as their publishers ship them.
#[test]
fn models_of_the_zoo_are_right() {
    // File, shapes of the inputs, values that stay open because they depend on data or are never fixed.
    type Row = (&'static str, &'static [(&'static str, &'static [usize])], usize);
    let rows: [Row; 6] = [
        ("ppocr/det.onnx", &[("x", &[1, 3, 320, 320])], 0),
        ("ppocr/rec.onnx", &[("x", &[2, 3, 48, 320])], 0),
        ("ppocr/cls.onnx", &[("x", &[2, 3, 48, 192])], 0),
        ("ddddocr/det.onnx", &[], 0),
        ("magika/model.onnx", &[], 0),
        (
            "silero-vad/silero_vad_op18_ifless.onnx",
            &[("input", &[1, 576]), ("state", &[2, 1, 128])],
            0,
        ),
    ];
    let mut failures = Vec::new();
    for (file, shapes, open_allowed) in rows {
        let path = root().join(".cache/zoo").join(file);
        let mut model = onnx::read_file(&path)
            .unwrap_or_else(|error| panic!("{error}; `python3 models/zoo/fetch.py` brings the zoo"));
        let mut bindings = concrete(&model, 1);
        for (name, dims) in shapes {
            bindings.inputs.insert((*name).to_owned(), dims.to_vec());
        }
        model.graph.value_types.clear();
        if let Err(error) = infer(&mut model, &bindings) {
            failures.push(format!("{file}: {error}"));
            continue;
        }
        let open = open_values(&model);
        if open.len() > open_allowed {
            failures.push(format!(
                "{file}: {} open, first {:?}",
                open.len(),
                open.iter().take(3).collect::<Vec<_>>()
            ));
        }
        let (contradictions, compared) = compare_with_run(&CpuBackend::new().unwrap(), &model);
        println!("{file}: {compared} values compared, {} open", open.len());
        failures.extend(contradictions.into_iter().map(|found| format!("{file}: {found}")));
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn mobilenet_v2_is_concrete_and_right() {
    check("mobilenet_v2", nets::by_name("mobilenet_v2").unwrap(), 2, 0);
}

#[test]
fn yolov8n_is_concrete_and_right() {
    check("yolov8n", nets::by_name("yolov8n").unwrap(), 1, 0);
}

#[test]
fn minilm_is_concrete_and_right() {
    check("minilm", nets::by_name("minilm").unwrap(), 2, 0);
}

#[test]
fn mnist_is_concrete_and_right() {
    let model = onnx::read_file(&root().join("models/zoo/mnist/mnist.onnx")).unwrap();
    check("mnist", model, 3, 0);
}

/// ONNX's operator tests say what every output is: with their shapes stripped, inference must say the same or
/// less.
#[test]
fn operator_tests_never_contradict() {
    let folder = root().join(".cache/onnx-node");
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; `python3 models/zoo/fetch.py onnx-node-tests` brings the tests",
            folder.display()
        )
    });
    let (mut matched, mut unknown, mut wrong) = (0, Vec::new(), Vec::new());
    for entry in entries {
        let path = entry.unwrap().path().join("model.onnx");
        let name = path
            .parent()
            .unwrap()
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        let Ok(mut model) = onnx::read_file(&path) else {
            continue;
        };
        let declared: Vec<ValueType> = model.graph.outputs.iter().map(|o| o.ty.clone()).collect();
        model.graph.value_types.clear();
        model
            .graph
            .outputs
            .iter_mut()
            .for_each(|output| output.ty = ValueType::Other(None));
        if let Err(error) = infer(&mut model, &Bindings::default()) {
            wrong.push(format!("{name}: {error}"));
            continue;
        }
        for (output, declared) in model.graph.outputs.iter().zip(&declared) {
            match (&output.ty, declared) {
                (found, ValueType::Tensor { dtype, .. })
                    if found.dtype().is_some_and(|found| found != *dtype) =>
                {
                    wrong.push(format!("{name} {}: {found:?} for {declared:?}", output.name));
                }
                (
                    found,
                    ValueType::Tensor {
                        shape: Some(shape), ..
                    },
                ) => match found.shape() {
                    Some(found) if found.len() != shape.len() => {
                        wrong.push(format!("{name} {}: {found} for {shape}", output.name));
                    }
                    Some(found) => {
                        let mut pairs = found.iter().zip(shape.iter());
                        if pairs
                            .clone()
                            .any(|(a, b)| matches!((a, b), (Dim::Known(a), Dim::Known(b)) if a != b))
                        {
                            wrong.push(format!("{name} {}: {found} for {shape}", output.name));
                        } else if pairs.all(|(a, b)| a.known() == b.known()) {
                            matched += 1;
                        } else {
                            unknown.push(format!("{name} {}: {found} for {shape}", output.name));
                        }
                    }
                    None => unknown.push(format!("{name} {}: {:?} for {shape}", output.name, output.ty)),
                },
                _ => {}
            }
        }
    }
    println!(
        "{matched} match, {} unknown, {} contradict",
        unknown.len(),
        wrong.len()
    );
    if std::env::var_os("EDGEOPT_SHOW_UNKNOWN").is_some() {
        unknown.sort();
        println!("{unknown:#?}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(
        matched > 900,
        "only {matched} of ONNX's operator tests are inferred"
    );
}

/// Activations grow with the batch and no faster; weights do not; the plan's order never takes more than the file's.
#[test]
fn memory_plans_follow_the_batch() {
    for name in ["resnet50", "mobilenet_v2", "yolov8n", "minilm"] {
        let model = nets::by_name(name).unwrap();
        let mut bindings = Bindings::default();
        for input in &model.graph.inputs {
            // Every open length but the batch.
            for dim in input.ty.shape().unwrap().iter().skip(1) {
                if let Dim::Symbol(symbol) = dim {
                    bindings.dims.insert(symbol.to_string(), 128);
                }
            }
        }
        let one = match memory_plan(&model, 1, &bindings) {
            Ok(plan) => plan,
            Err(error) => panic!("{name}: {error}"),
        };
        let plan = activations(&bound(&model, 1, &bindings).unwrap()).unwrap();
        println!(
            "{name}: {} activations, lower bound {}, {} buffers, {} nodes",
            plan.peak,
            plan.lower_bound,
            plan.placements.len(),
            plan.order.len()
        );
        assert_eq!(plan.peak, one.activations, "{name}");
        assert!(
            plan.peak.0 <= plan.lower_bound.0 + plan.lower_bound.0 / 10,
            "{name}: {} wasted",
            plan.peak
        );
        let eight = match memory_plan(&model, 8, &bindings) {
            Ok(plan) => plan,
            // Nets of a fixed batch say so.
            Err(PlanError::Batch { fixed: 1, .. }) => continue,
            Err(error) => panic!("{name}: {error}"),
        };
        assert_eq!(eight.weights, one.weights, "{name}");
        let ratio = eight.activations.0 as f64 / one.activations.0 as f64;
        assert!((7.0..=8.1).contains(&ratio), "{name}: {ratio}");
    }
}
