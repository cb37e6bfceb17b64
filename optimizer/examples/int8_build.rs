//! Quantizes a model with one float image input on random data and prints the time and peak memory:
//! `cargo run --release -p edgeopt-optimizer --example int8_build -- model.onnx 128 entropy 3x224x224`.

use std::error::Error;
use std::time::Instant;

use edgeopt_models::Tensor;
use edgeopt_optimizer::calibrate::{
    CalibrationOptions, Method, SampleError, SampleInputs, Samples, calibrate,
};
use edgeopt_optimizer::precision::int8::{Int8Options, quantize, tensors_to_calibrate};
use edgeopt_runtime::backends::cpu::CpuBackend;

/// Seeded noise, made when it is asked for.
struct Noise {
    count: usize,
    dims: Vec<usize>,
}

impl Samples for Noise {
    fn open(&self) -> Result<Box<dyn Iterator<Item = Result<SampleInputs, SampleError>> + '_>, SampleError> {
        let mut state = 1u64;
        let mut next = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 22) as f32 - 2.0
        };
        Ok(Box::new((0..self.count).map(move |_| {
            let values: Vec<f32> = (0..self.dims.iter().product()).map(|_| next()).collect();
            Ok(vec![Tensor::new(&self.dims, &values)?])
        })))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, count, method, shape] = arguments.as_slice() else {
        return Err("usage: int8_build MODEL SAMPLES METHOD CxHxW".into());
    };
    let dims: Result<Vec<usize>, _> = std::iter::once("1")
        .chain(shape.split('x'))
        .map(str::parse)
        .collect();
    let samples = Noise {
        count: count.parse()?,
        dims: dims?,
    };
    let calibration = CalibrationOptions {
        method: method.parse::<Method>()?,
        ..CalibrationOptions::default()
    };
    let start = Instant::now();
    let mut model = edgeopt_models::onnx::read_file(path.as_ref())?;
    let options = Int8Options::default();
    let tensors = tensors_to_calibrate(&model, &options)?;
    let backend = CpuBackend::new()?;
    let table = calibrate(
        &model,
        &tensors,
        &samples,
        &backend,
        &calibration,
        &mut |_, _, _| (),
    )?;
    let calibrated = start.elapsed();
    let report = quantize(&mut model, &table, &options)?;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap_or("VmHWM: unknown");
    println!(
        "{} tensors, {} layers in INT8, calibration {:.2} s, whole {:.2} s, {peak}",
        tensors.len(),
        report.quantized.len(),
        calibrated.as_secs_f64(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}
