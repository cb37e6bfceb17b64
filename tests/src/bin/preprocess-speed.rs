//! What it takes to turn an encoded image into an input tensor: `preprocess-speed IMAGE PRESET [RUNS]`. Prints one JSON
//! object with the medians in milliseconds of decoding and of preparing; `tests/bench/preprocess.py` sets OpenCV beside it.

use std::time::Instant;

use anyhow::{Context, bail};
use edgeopt_runtime::pipeline::preprocess::{decode_bytes, prepare};
use edgeopt_runtime::pipeline::presets::preset;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, name, rest @ ..] = arguments.as_slice() else {
        bail!("usage: preprocess-speed IMAGE PRESET [RUNS]");
    };
    let runs: usize = rest.first().map_or(Ok(50), |text| text.parse())?;
    let (preprocessing, _) = preset(name).with_context(|| format!("there is no preset {name:?}"))?;
    let encoded = std::fs::read(file).with_context(|| file.clone())?;

    let (mut decoding, mut preparing) = (Vec::new(), Vec::new());
    for _ in 0..runs.max(1) {
        let start = Instant::now();
        let image = decode_bytes(&encoded)?;
        decoding.push(start.elapsed());
        let start = Instant::now();
        std::hint::black_box(prepare(&image, &preprocessing)?);
        preparing.push(start.elapsed());
    }
    let median = |mut times: Vec<std::time::Duration>| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e3
    };
    println!(
        "{{\"decode_ms\": {:.3}, \"prepare_ms\": {:.3}}}",
        median(decoding),
        median(preparing)
    );
    Ok(())
}
