//! Writes one of the benchmark networks as an ONNX file: `make-net NAME FILE`.

use std::path::Path;

use anyhow::{Context, bail};
use edgeopt_tests::nets;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, file] = arguments.as_slice() else {
        let names: Vec<&str> = nets::NETS.iter().map(|(name, _)| *name).collect();
        bail!("usage: make-net NAME FILE; names: {}", names.join(", "));
    };
    let model = nets::by_name(name).with_context(|| format!("there is no network {name:?}"))?;
    edgeopt_models::onnx::write_file(&model, Path::new(file))?;
    Ok(())
}
