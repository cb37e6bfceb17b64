//! What a run costs besides its kernels. Prints tables; see docs/performance.md.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys;
use edgeopt_models::Tensor;

use super::super::device::{CudaDevice, Device, Shared, Stream};
use super::kernels::{Manner, loaded, plan};
use super::{gpu, launch, ok};
use crate::{Engine, Session};

/// An image of 640×640 with three channels of float32.
const IMAGE: usize = 640 * 640 * 3;

/// Median and ninth decile of wall time in microseconds, after warming up.
fn times(runs: usize, mut body: impl FnMut()) -> (f64, f64) {
    (0..runs / 5 + 5).for_each(|_| body());
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            body();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[runs / 2], times[runs * 9 / 10])
}

fn row(what: &str, (median, ninth): (f64, f64)) {
    println!("| {what} | {median:.1} | {ninth:.1} |");
}

/// Median time of the GPU between two events, in microseconds.
fn on_gpu(stream: &Stream, runs: usize, mut body: impl FnMut()) -> f64 {
    let event = || {
        let mut event = std::ptr::null_mut();
        // SAFETY: the place is live.
        ok(unsafe { sys::cuEventCreate(&mut event, 0) });
        event
    };
    let (start, end) = (event(), event());
    let mut times: Vec<f32> = (0..runs + 10)
        .map(|_| {
            let mut milliseconds = 0.0;
            // SAFETY: live events and a live stream.
            unsafe {
                ok(sys::cuEventRecord(start, stream.raw().cast()));
                body();
                ok(sys::cuEventRecord(end, stream.raw().cast()));
                ok(sys::cuEventSynchronize(end));
                ok(sys::cuEventElapsedTime(&mut milliseconds, start, end));
            }
            milliseconds
        })
        .skip(10)
        .collect();
    // SAFETY: made above; nothing uses them any more.
    unsafe {
        ok(sys::cuEventDestroy_v2(start));
        ok(sys::cuEventDestroy_v2(end));
    }
    times.sort_by(f32::total_cmp);
    f64::from(times[runs / 2]) * 1e3
}

fn image() -> Tensor {
    let values: Vec<f32> = (0..IMAGE).map(|index| (index % 251) as f32).collect();
    Tensor::vector(&values)
}

fn write(memory: &Shared, bytes: &[u8]) {
    // SAFETY: the memory is as long as the bytes, and no run is in progress.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.host, bytes.len()) }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_measures_copies_against_mapped_memory() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    let image = image();
    println!("\n| input of 640×640×3 float32 (4.69 MiB) | median µs | 90 % µs |\n|-|-|-|");
    let mut ordinary = vec![0u8; IMAGE * 4];
    row(
        "ordinary memory: written by the host",
        times(300, || {
            ordinary.copy_from_slice(std::hint::black_box(image.as_bytes()));
            std::hint::black_box(&mut ordinary);
        }),
    );
    for (name, device) in [("copied", &gpu.device), ("mapped", &gpu.mapped)] {
        let stream = device.new_stream().unwrap();
        let from = device.allocate_shared(IMAGE * 4).unwrap();
        let to = device.allocate(IMAGE * 4).unwrap();
        let add = || ok(launch(gpu.add_one, from.device, to.address, IMAGE, stream.raw()));
        row(
            &format!("{name}: written by the host"),
            times(300, || write(&from, image.as_bytes())),
        );
        row(
            &format!("{name}: brought to the device, read once by a kernel, waited for"),
            times(300, || {
                device.to_device(&from, &stream).unwrap();
                add();
                device.synchronize(&stream).unwrap();
            }),
        );
        row(
            &format!("{name}: the same and the kernel reads it five times"),
            times(300, || {
                device.to_device(&from, &stream).unwrap();
                (0..5).for_each(|_| add());
                device.synchronize(&stream).unwrap();
            }),
        );
        let copy = on_gpu(&stream, 300, || device.to_device(&from, &stream).unwrap());
        let kernel = on_gpu(&stream, 300, add);
        println!("| {name}: on the GPU, copy {copy:.1} µs, kernel {kernel:.1} µs | | |");
        device.free(to);
        device.free_shared(from);
        device.free_stream(stream);
    }
}

fn session(device: &Arc<CudaDevice>, layers: u8, manner: Manner) -> Box<dyn Session> {
    loaded(device, &plan(layers, manner), None)
        .unwrap()
        .session()
        .unwrap()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_measures_graphs_against_streams() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    println!("\n| one run of n kernels on 1024 numbers | median µs | 90 % µs |\n|-|-|-|");
    for layers in [1u8, 10, 50, 200] {
        let device = &gpu.device;
        let stream = device.new_stream().unwrap();
        let memory = device.allocate(4096).unwrap();
        let enqueue = || {
            for _ in 0..layers {
                ok(launch(
                    gpu.add_one,
                    memory.address,
                    memory.address,
                    1024,
                    stream.raw(),
                ));
            }
        };
        row(
            &format!("{layers} kernels, stream: enqueued, waited for"),
            times(1000, || {
                enqueue();
                device.synchronize(&stream).unwrap();
            }),
        );
        device.begin_capture(&stream).unwrap();
        enqueue();
        let graph = device.end_capture(&stream).unwrap();
        row(
            &format!("{layers} kernels, graph: launched, waited for"),
            times(1000, || {
                device.launch(&graph, &stream).unwrap();
                device.synchronize(&stream).unwrap();
            }),
        );
        let (stream_gpu, graph_gpu) = (
            on_gpu(&stream, 500, enqueue),
            on_gpu(&stream, 500, || device.launch(&graph, &stream).unwrap()),
        );
        println!("| {layers} kernels: on the GPU, stream {stream_gpu:.1} µs, graph {graph_gpu:.1} µs | | |");
        let recording = times(200, || {
            device.begin_capture(&stream).unwrap();
            enqueue();
            let graph = device.end_capture(&stream).unwrap();
            device.free_graph(graph);
        });
        row(
            &format!("{layers} kernels: recorded, made executable, freed"),
            recording,
        );
        device.free_graph(graph);
        device.free(memory);
        device.free_stream(stream);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_measures_runs_of_a_session() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    println!("\n| `Session::run` | median µs | 90 % µs |\n|-|-|-|");
    let small = Tensor::vector(&[0.0f32; 1024]);
    let image = image();
    for (name, device) in [("copied", &gpu.device), ("mapped", &gpu.mapped)] {
        for (what, input) in [("1024 numbers", &small), ("640×640×3 in and out", &image)] {
            for (how, manner) in [("graph", Manner::Plain), ("stream", Manner::Waits)] {
                let mut session = session(device, 50, manner);
                row(
                    &format!("50 kernels, {what}, {name}, {how}"),
                    times(300, || {
                        session.run(std::slice::from_ref(input)).unwrap();
                    }),
                );
            }
        }
    }
}
