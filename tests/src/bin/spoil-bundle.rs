//! Makes a bundle that should never run, to see that it does not: `spoil-bundle MODE IN.edge OUT.edge VERSION`.
//!
//! `weights` changes numbers of the model, so that it is a valid one that computes something else: its self-test fails.
//! `nan` makes it answer NaN, and takes its golden samples away, so that only its answers show it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use edgeopt_models::bundle::{self, Limits, Member, Trust};
use edgeopt_models::graph::NameGenerator;
use edgeopt_models::{Bytes, DataType, Model, Node, Tensor, onnx};

const MODEL_LIMIT: Bytes = Bytes::mib(1024);

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, from, to, version] = arguments.as_slice() else {
        bail!("usage: spoil-bundle weights|nan IN.edge OUT.edge VERSION");
    };
    let open = || File::open(from).with_context(|| format!("cannot open {from}"));
    let (mut manifest, _) = bundle::verify(open()?, &Limits::default(), &Trust::Unchecked)?;
    let mut model = onnx::read_bytes(&bundle::read_member(open()?, bundle::MODEL, MODEL_LIMIT)?)?;
    match mode.as_str() {
        "weights" => spoil_weights(&mut model)?,
        "nan" => answer_nan(&mut model)?,
        other => bail!("there is no way {other:?} to spoil a bundle; there are `weights` and `nan`"),
    }
    let mut members = BTreeMap::new();
    for name in manifest.members.keys() {
        if name == bundle::MODEL || (mode == "nan" && name.starts_with("golden/")) {
            continue;
        }
        let bytes = bundle::read_member(open()?, name, MODEL_LIMIT)?;
        members.insert(name.clone(), Member::Data(bytes));
    }
    members.insert(bundle::MODEL.to_owned(), Member::Data(onnx::write_bytes(&model)?));
    manifest.members.clear();
    manifest.version.clone_from(version);
    bundle::pack(manifest, &members, None, Path::new(to))?;
    println!("{to}: version {version}, spoilt by `{mode}`");
    Ok(())
}

/// Turns the sign of every second number of the large constants round.
fn spoil_weights(model: &mut Model) -> anyhow::Result<()> {
    let large = |(_, tensor): &(&_, &Tensor)| tensor.elements() > 64;
    let names: Vec<_> = model
        .graph
        .initializers
        .iter()
        .filter(large)
        .map(|(name, _)| name.clone())
        .collect();
    let mut spoilt = 0;
    for name in names {
        let Some(tensor) = model.graph.initializers.get(&name) else {
            continue;
        };
        let mut bytes = tensor.as_bytes().to_vec();
        match tensor.dtype() {
            DataType::Int8 => bytes
                .iter_mut()
                .step_by(2)
                .for_each(|byte| *byte = byte.wrapping_neg()),
            // The sign is the highest bit of the last byte.
            DataType::Float16 => bytes
                .chunks_mut(2)
                .step_by(2)
                .for_each(|number| number[1] ^= 0x80),
            DataType::Float32 => bytes
                .chunks_mut(4)
                .step_by(2)
                .for_each(|number| number[3] ^= 0x80),
            _ => continue,
        }
        let tensor = Tensor::from_bytes(tensor.dtype(), tensor.dims(), &bytes)?;
        model.graph.add_initializer(name, tensor);
        spoilt += 1;
    }
    ensure!(spoilt > 0, "the model has no weights");
    Ok(())
}

/// Computes the first output `y` as `Log(y - y - 1)` of what it was.
fn answer_nan(model: &mut Model) -> anyhow::Result<()> {
    let mut names = NameGenerator::new(model);
    let graph = &mut model.graph;
    let output = graph.outputs.first().context("the model has no output")?;
    ensure!(
        output.ty.dtype() == Some(DataType::Float32),
        "the first output is not float32"
    );
    let output = output.name.clone();
    let [was, zero, below, one] = ["was", "zero", "below_zero", "one"].map(|base| names.fresh(base));
    graph.replace_reads(&output, &was);
    for place in graph.nodes.iter_mut().flat_map(|node| &mut node.outputs) {
        if *place == output {
            *place = was.clone();
        }
    }
    graph.add_initializer(one.clone(), Tensor::scalar(1.0f32));
    graph.nodes.extend([
        Node::new("Sub", "spoilt_zero", [was.clone(), was], [zero.clone()]),
        Node::new("Sub", "spoilt_below", [zero, one], [below.clone()]),
        Node::new("Log", "spoilt_nan", [below], [output]),
    ]);
    Ok(())
}
