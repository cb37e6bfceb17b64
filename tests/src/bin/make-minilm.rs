//! Writes the sentence encoder all-MiniLM-L6-v2 as ONNX, and sentences to calibrate and test it with.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Parser;
use edgeopt_runtime::dataset::write_npz;
use edgeopt_tests::sentences::{Tokenizer, encoder, sentence};

/// Writes minilm.onnx, calibration/ and heldout/ with one .npz a sentence.
#[derive(Parser)]
struct Arguments {
    /// Folder with model.safetensors and vocab.txt (models/zoo/fetch.py minilm)
    #[arg(long, default_value = ".cache/zoo/minilm")]
    weights: PathBuf,
    /// Folder to write to; it is created
    #[arg(long)]
    out: PathBuf,
    /// Tokens per sentence
    #[arg(long, default_value_t = 64)]
    length: usize,
    /// Sentences to calibrate with
    #[arg(long, default_value_t = 100)]
    calibration: usize,
    /// Sentences to test with
    #[arg(long, default_value_t = 200)]
    heldout: usize,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let model = encoder(&arguments.weights.join("model.safetensors"), arguments.length)?;
    let tokenizer = Tokenizer::read(&arguments.weights.join("vocab.txt"))?;
    std::fs::create_dir_all(&arguments.out)
        .with_context(|| format!("cannot create {}", arguments.out.display()))?;
    edgeopt_models::onnx::write_file(&model, &arguments.out.join("minilm.onnx"))?;
    for (folder, seed, count) in [
        ("calibration", 1, arguments.calibration),
        ("heldout", 2, arguments.heldout),
    ] {
        samples(
            &arguments.out.join(folder),
            seed,
            count,
            &tokenizer,
            arguments.length,
        )?;
    }
    Ok(())
}

fn samples(
    folder: &Path,
    seed: u64,
    count: usize,
    tokenizer: &Tokenizer,
    length: usize,
) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for number in 0..count {
        let [ids, mask] = tokenizer.inputs(&sentence(seed, number), length)?;
        let path = folder.join(format!("{number:04}.npz"));
        let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        write_npz(file, &[("input_ids", &ids), ("attention_mask", &mask)])
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
