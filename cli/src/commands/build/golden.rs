use std::io::Cursor;

use edgeopt_models::bundle::Member;
use edgeopt_models::{Model, Tensor};
use edgeopt_runtime::dataset::{Dataset, write_npz};
use edgeopt_runtime::{Backend, CompileOptions, Engine, ModelSource};

/// Samples kept for the self-test.
const GOLDEN: usize = 3;

/// The self-test's members: `golden/<n>-inputs.npz` and the outputs the model gives for them, computed as its graph
/// says.
pub(super) fn members(
    model: &Model,
    samples: &Dataset,
    backend: &dyn Backend,
) -> anyhow::Result<Vec<(String, Member)>> {
    let options = CompileOptions {
        exact_quantization: true,
        ..CompileOptions::default()
    };
    let engine = backend.compile(ModelSource::Model(model), &options)?;
    let names = |specs: &[edgeopt_runtime::TensorSpec]| -> Vec<String> {
        specs.iter().map(|spec| spec.name.to_string()).collect()
    };
    let (inputs, outputs) = (names(engine.inputs()), names(engine.outputs()));
    let mut session = Engine::session(engine)?;
    let mut members = Vec::new();
    for index in 0..samples.len().min(GOLDEN) {
        let sample = samples.sample(index)?;
        members.push((
            format!("golden/{index}-inputs.npz"),
            packed(&inputs, &sample.inputs)?,
        ));
        members.push((
            format!("golden/{index}-outputs.npz"),
            packed(&outputs, session.run(&sample.inputs)?)?,
        ));
    }
    Ok(members)
}

fn packed(names: &[String], tensors: &[Tensor]) -> anyhow::Result<Member> {
    let named: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(tensors).collect();
    let mut bytes = Cursor::new(Vec::new());
    write_npz(&mut bytes, &named)?;
    Ok(Member::Data(bytes.into_inner()))
}
