//! ONNX's own operator tests (onnx 1.16.2, opset up to 21; `make fetch-test` brings them): what plain ONNX Runtime
//! computes right must be right after reading, checking, writing and running through the CPU backend, and after the
//! optimizer's passes.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use edgeopt_models::{DataType, Model, Tensor, ValueType, graph::validate::validate, onnx};
use edgeopt_optimizer::passes::{BackendEvaluator, Context, run_pipeline};
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::{Backend, CompileOptions, ModelSource};
use edgeopt_tests::bare_ort::BareRuntime;

struct Case {
    name: String,
    file: PathBuf,
    sets: Vec<(Vec<Tensor>, Vec<Tensor>)>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/onnx-node")
}

fn numbered(folder: &Path, kind: &str) -> Vec<Tensor> {
    (0..)
        .map(|index| folder.join(format!("{kind}_{index}.pb")))
        .take_while(|path| path.exists())
        .map(|path| onnx::read_tensor_bytes(&std::fs::read(&path).unwrap()).unwrap())
        .collect()
}

fn load(file: PathBuf) -> Case {
    let folder = file.parent().unwrap();
    let mut sets: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    sets.sort();
    Case {
        name: folder.file_name().unwrap().to_string_lossy().into_owned(),
        sets: sets
            .iter()
            .map(|set| (numbered(set, "input"), numbered(set, "output")))
            .collect(),
        file,
    }
}

/// As onnx's own runner compares: |a − b| ≤ 1e-7 + 1e-3·|b| for floats, equality for the rest.
fn same(actual: &[Tensor], expected: &[Tensor]) -> Result<(), String> {
    if actual.len() != expected.len() {
        return Err(format!("{} outputs, not {}", actual.len(), expected.len()));
    }
    for (index, (a, b)) in actual.iter().zip(expected).enumerate() {
        if a.dtype() != b.dtype() || a.dims() != b.dims() {
            return Err(format!("output {index} is {a:?}, not {b:?}"));
        }
        if a == b {
            continue;
        }
        if !matches!(
            a.dtype(),
            DataType::Float32 | DataType::Float64 | DataType::Float16 | DataType::Bfloat16
        ) {
            return Err(format!("output {index} is {a:?}, not {b:?}"));
        }
        let close = |(a, b): (&f32, &f32)| {
            a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-7 + 1e-3 * b.abs()
        };
        let (a, b) = (a.to_f32().unwrap(), b.to_f32().unwrap());
        if let Some(position) = (0..a.len()).find(|i| !close((&a[*i], &b[*i]))) {
            let (a, b) = (a[position], b[position]);
            return Err(format!("output {index}[{position}] is {a}, not {b}"));
        }
    }
    Ok(())
}

fn plain(runtime: &BareRuntime, case: &Case) -> Result<(), String> {
    let bytes = std::fs::read(&case.file).unwrap();
    let run = |inputs: &[Tensor]| -> anyhow::Result<Vec<Tensor>> {
        let session = runtime.load(&bytes, 1)?;
        let outputs = session.run(&session.values(inputs)?)?;
        session.tensors(&outputs)
    };
    for (inputs, expected) in &case.sets {
        same(&run(inputs).map_err(|error| error.to_string())?, expected)?;
    }
    Ok(())
}

/// Runs twice: the first run lets the library allocate where shapes are open, the second writes into our memory.
fn through_backend(backend: &CpuBackend, model: &Model, case: &Case) -> Result<(), String> {
    let options = CompileOptions {
        threads: 1,
        ..CompileOptions::default()
    };
    let engine = backend
        .compile(ModelSource::Model(model), &options)
        .map_err(|error| error.to_string())?;
    let mut session = engine.session().map_err(|error| error.to_string())?;
    for (inputs, expected) in &case.sets {
        for _ in 0..2 {
            let outputs = session.run(inputs).map_err(|error| error.to_string())?;
            same(outputs, expected)?;
        }
    }
    Ok(())
}

fn read_check_rewrite(file: &Path) -> Result<Model, String> {
    let model = onnx::read_file(file).map_err(|error| error.to_string())?;
    // The project works on operator sets from 7 on; older models only pass through the backend.
    if model.opset() >= 7 || !model.opsets.contains_key("") {
        validate(&model).map_err(|error| error.to_string())?;
    }
    let bytes = onnx::write_bytes(&model).map_err(|error| error.to_string())?;
    onnx::read_bytes(&bytes).map_err(|error| error.to_string())
}

fn only_tensors(file: &Path) -> bool {
    let Ok(model) = onnx::read_file(file) else {
        return true;
    };
    let mut values = model.graph.inputs.iter().chain(&model.graph.outputs);
    values.all(|value| matches!(value.ty, ValueType::Tensor { .. }))
}

#[derive(Default)]
struct Totals {
    cases: usize,
    other_than_tensors: usize,
    plain_passes: usize,
    ours_passes: usize,
    optimized_passes: usize,
    lost: Vec<String>,
}

#[test]
fn what_onnx_runtime_computes_stays_right_through_our_hands() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder())
        .unwrap_or_else(|error| panic!("{}: {error}; run `make fetch-test`", folder().display()))
        .map(|entry| entry.unwrap().path().join("model.onnx"))
        .filter(|file| file.is_file())
        .collect();
    files.sort();
    let backend = CpuBackend::new().unwrap();
    let bare = BareRuntime::new(backend.loaded_from()).unwrap();
    let (next, totals) = (AtomicUsize::new(0), Mutex::new(Totals::default()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !only_tensors(file) {
                        let mut totals = totals.lock().unwrap();
                        totals.cases += 1;
                        totals.other_than_tensors += 1;
                        continue;
                    }
                    let case = load(file.clone());
                    let plain = plain(&bare, &case);
                    let ours =
                        read_check_rewrite(file).and_then(|model| through_backend(&backend, &model, &case));
                    let optimized = read_check_rewrite(file).and_then(|mut model| {
                        let evaluator = BackendEvaluator(&backend);
                        let context = Context {
                            evaluator: Some(&evaluator),
                            fold_overridable: false,
                        };
                        run_pipeline(&mut model, &context).map_err(|error| error.to_string())?;
                        through_backend(&backend, &model, &case)
                    });
                    let mut totals = totals.lock().unwrap();
                    totals.cases += 1;
                    totals.optimized_passes += usize::from(optimized.is_ok());
                    if let (Ok(()), Err(problem)) = (&ours, optimized) {
                        totals
                            .lost
                            .push(format!("{} after the passes: {problem}", case.name));
                    }
                    totals.plain_passes += usize::from(plain.is_ok());
                    totals.ours_passes += usize::from(ours.is_ok());
                    if let (Ok(()), Err(problem)) = (plain, ours) {
                        totals.lost.push(format!("{}: {problem}", case.name));
                    }
                }
            });
        }
    });
    let totals = totals.into_inner().unwrap();
    println!(
        "{} cases, {} of them with sequences or optionals; plain ONNX Runtime passes {}, ours {}, after the passes {}",
        totals.cases,
        totals.other_than_tensors,
        totals.plain_passes,
        totals.ours_passes,
        totals.optimized_passes
    );
    assert!(totals.cases > 1000, "only {} cases found", totals.cases);
    assert!(
        totals.plain_passes > 1100,
        "plain ONNX Runtime passes only {}",
        totals.plain_passes
    );
    assert!(totals.lost.is_empty(), "lost:\n{}", totals.lost.join("\n"));
}
