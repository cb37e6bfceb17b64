//! Writes samples for the Silero voice activity detector at 16 kHz: moments of speech and of noise, each with the
//! state the model has come to by then, and `labels.tsv` with 1 for speech.

use std::fmt::Write as _;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use edgeopt_models::{DataType, Tensor, onnx};
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::dataset::write_npz;
use edgeopt_runtime::{Backend, CompileOptions, ModelSource};
use edgeopt_tests::voice::{FRAME, RATE, clip};

/// Samples of the frame before that the model hears again.
const CONTEXT: usize = 64;
/// Every so many labelled frames one becomes a sample: neighbours are much alike.
const STRIDE: usize = 6;

/// Writes one .npz a moment and labels.tsv; says how often the model agrees.
#[derive(Parser)]
struct Arguments {
    /// The model, with inputs input, state and sr
    #[arg(long, default_value = ".cache/zoo/silero-vad/silero_vad_16k_op15.onnx")]
    model: PathBuf,
    /// Folder to write to; it is created
    #[arg(long)]
    out: PathBuf,
    /// Clips, half of them sentences and half noise
    #[arg(long, default_value_t = 40)]
    clips: usize,
    /// The same seed and espeak-ng give the same samples
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let model = onnx::read_file(&arguments.model)?;
    let engine = CpuBackend::new()?.compile(ModelSource::Model(&model), &CompileOptions::default())?;
    let names: Vec<&str> = engine.inputs().iter().map(|input| input.name.as_str()).collect();
    anyhow::ensure!(
        names == ["input", "state", "sr"],
        "{} has inputs {names:?}, expected input, state and sr",
        arguments.model.display()
    );
    let mut session = Arc::clone(&engine).session()?;
    std::fs::create_dir_all(&arguments.out)
        .with_context(|| format!("cannot create {}", arguments.out.display()))?;
    let (mut labels, mut written, mut agreed, mut labelled) = (String::new(), 0, 0, 0usize);
    for number in 0..arguments.clips {
        let clip = clip(arguments.seed, number)?;
        let mut state = Tensor::zeros(DataType::Float32, &[2, 1, 128])?;
        let mut context = [0f32; CONTEXT];
        for (frame, speech) in clip.samples.chunks_exact(FRAME).zip(&clip.speech) {
            let heard = [&context[..], frame].concat();
            let inputs = [
                Tensor::new(&[1, CONTEXT + FRAME], &heard)?,
                state,
                Tensor::scalar(i64::from(RATE)),
            ];
            let [output, next] = session.run(&inputs)? else {
                anyhow::bail!("the model does not have two outputs");
            };
            let voiced = output
                .to_f32()?
                .first()
                .is_some_and(|probability| *probability > 0.5);
            state = next.clone();
            context.copy_from_slice(&frame[FRAME - CONTEXT..]);
            let Some(speech) = speech else { continue };
            agreed += usize::from(voiced == *speech);
            labelled += 1;
            if labelled % STRIDE != 0 {
                continue;
            }
            let name = format!("{written:05}.npz");
            let path = arguments.out.join(&name);
            let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
            let arrays: Vec<(&str, &Tensor)> = names.iter().copied().zip(&inputs).collect();
            write_npz(file, &arrays).with_context(|| format!("cannot write {}", path.display()))?;
            writeln!(labels, "{name}\t{}", u8::from(*speech))?;
            written += 1;
        }
    }
    let path = arguments.out.join("labels.tsv");
    std::fs::write(&path, labels).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{written} samples; the model agrees in {agreed} of {labelled} labelled frames");
    Ok(())
}
