//! `CudaDevice` alone.

use cudarc::driver::sys;
use edgeopt_models::Bytes;

use super::super::device::{Device, Shared};
use super::{POOLS, gpu, ok};

/// Writes `first`, `first` + 1, … from the host.
fn fill(memory: &Shared, first: f32) {
    let values: Vec<f32> = (0..memory.bytes / 4).map(|index| first + index as f32).collect();
    // SAFETY: aligned to pages, as long as the values, and no copy of it is in progress.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), memory.host.cast(), values.len()) }
}

/// Compares what the host sees with `first`, `first` + 1, …
fn check(memory: &Shared, first: f32) {
    // SAFETY: as above.
    let values = unsafe { std::slice::from_raw_parts(memory.host.cast::<f32>(), memory.bytes / 4) };
    for (index, value) in values.iter().enumerate() {
        assert_eq!(*value, first + index as f32, "at {index}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_is_described() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    let (free, total) = gpu.device.memory().unwrap();
    println!(
        "{} ({}), {free} of {total} free",
        gpu.device.name(),
        gpu.device.target()
    );
    assert!(!gpu.device.name().is_empty());
    let capability = gpu.device.target().strip_prefix("sm_").unwrap();
    assert!(capability.parse::<u32>().unwrap() >= 72);
    assert!(Bytes::mib(64) < free && free <= total);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_memory_is_taken_and_given_back() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    let before = gpu.free_bytes();
    let memory = gpu.device.allocate(256 << 20).unwrap();
    assert!(memory.address.is_multiple_of(256));
    assert!(before - gpu.free_bytes() >= 256 << 20);
    gpu.device.free(memory);
    assert_eq!(gpu.free_bytes(), before);
    let shared = gpu.device.allocate_shared(64 << 20).unwrap();
    assert!(before - gpu.free_bytes() >= 64 << 20);
    gpu.device.free_shared(shared);
    assert_eq!(gpu.free_bytes(), before);
    // Mapped memory is the host's.
    let shared = gpu.mapped.allocate_shared(64 << 20).unwrap();
    assert!(before - gpu.free_bytes() < 64 << 20);
    gpu.mapped.free_shared(shared);
    for bytes in [0, 1] {
        gpu.device.free(gpu.device.allocate(bytes).unwrap());
        gpu.device.free_shared(gpu.device.allocate_shared(bytes).unwrap());
        gpu.mapped.free_shared(gpu.mapped.allocate_shared(bytes).unwrap());
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_memory_that_is_not_there_is_refused_with_numbers() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    let before = gpu.free_bytes();
    let total = gpu.device.memory().unwrap().1.0 as usize;
    let error = gpu.device.allocate(total + (1 << 30)).unwrap_err();
    println!("{error}");
    assert!(
        error.starts_with("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (out of memory): ")
            && error.contains("were asked for"),
        "{error}"
    );
    for device in [&gpu.device, &gpu.mapped] {
        let error = device.allocate_shared(1 << 46).unwrap_err();
        println!("{error}");
        assert!(
            error.starts_with("cuMemHostAlloc: CUDA_ERROR_") && error.contains("64.0 TiB were asked for"),
            "{error}"
        );
    }
    assert_eq!(gpu.free_bytes(), before);
    gpu.device.free(gpu.device.allocate(1 << 20).unwrap());
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_sees_what_the_host_wrote_and_the_reverse() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    for device in [&gpu.device, &gpu.mapped] {
        let stream = device.new_stream().unwrap();
        for count in [1usize, 255, 257, 1 << 20] {
            let from = device.allocate_shared(count * 4).unwrap();
            let to = device.allocate_shared(count * 4).unwrap();
            fill(&from, 1.0);
            fill(&to, -1.0);
            device.to_device(&from, &stream).unwrap();
            ok(gpu.add_one(from.device, to.device, count, &stream));
            device.to_host(&to, &stream).unwrap();
            device.synchronize(&stream).unwrap();
            check(&to, 2.0);
            device.free_shared(from);
            device.free_shared(to);
        }
        let nothing = device.allocate_shared(0).unwrap();
        device.to_device(&nothing, &stream).unwrap();
        device.to_host(&nothing, &stream).unwrap();
        device.synchronize(&stream).unwrap();
        device.free_shared(nothing);
        device.free_stream(stream);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_replays_what_was_recorded_with_new_contents() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    let count = 10_000;
    for device in [&gpu.device, &gpu.mapped] {
        let stream = device.new_stream().unwrap();
        let from = device.allocate_shared(count * 4).unwrap();
        let to = device.allocate_shared(count * 4).unwrap();
        let between = device.allocate(count * 4).unwrap();
        device.begin_capture(&stream).unwrap();
        device.to_device(&from, &stream).unwrap();
        // SAFETY: memory of that size and a live stream.
        ok(unsafe { sys::cuMemsetD8Async(between.address, 0, between.bytes, stream.raw().cast()) });
        ok(gpu.add_one(from.device, between.address, count, &stream));
        ok(gpu.add_one(between.address, to.device, count, &stream));
        device.to_host(&to, &stream).unwrap();
        let graph = device.end_capture(&stream).unwrap();
        for first in [0.0, 1e4, -3.0] {
            fill(&from, first);
            fill(&to, -1.0);
            device.launch(&graph, &stream).unwrap();
            device.synchronize(&stream).unwrap();
            check(&to, first + 2.0);
        }
        device.free_graph(graph);
        device.free(between);
        device.free_shared(from);
        device.free_shared(to);
        device.free_stream(stream);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_streams_stay_usable_after_a_recording_that_failed() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    let device = &gpu.device;
    let stream = device.new_stream().unwrap();
    let memory = device.allocate_shared(4000).unwrap();
    for _ in 0..3 {
        device.begin_capture(&stream).unwrap();
        let error = device.synchronize(&stream).unwrap_err();
        assert!(error.contains("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"), "{error}");
        let error = device.end_capture(&stream).unwrap_err();
        assert!(error.contains("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"), "{error}");
        fill(&memory, 5.0);
        device.to_device(&memory, &stream).unwrap();
        ok(gpu.add_one(memory.device, memory.device, 1000, &stream));
        device.to_host(&memory, &stream).unwrap();
        device.synchronize(&stream).unwrap();
        check(&memory, 6.0);
    }
    // Taking memory is not recorded: the driver refuses, and says so.
    device.begin_capture(&stream).unwrap();
    let error = device.allocate(1 << 20).map(drop).unwrap_err();
    assert!(error.contains("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"), "{error}");
    assert!(device.end_capture(&stream).is_err());
    device.free_shared(memory);
    device.free_stream(stream);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_objects_can_be_used_from_a_thread_that_cuda_does_not_know() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    let device = &gpu.device;
    let stream = device.new_stream().unwrap();
    let memory = device.allocate_shared(4000).unwrap();
    fill(&memory, 1.0);
    struct Moved<T>(T);
    // SAFETY: none of it is bound to a thread; only the other thread uses it until it ends.
    unsafe impl<T> Send for Moved<T> {}
    let moved = Moved((memory, stream));
    type Step = fn(&super::CudaDevice, &Shared, &super::Stream) -> Result<(), String>;
    let steps: [Step; 5] = [
        |device, _, _| device.allocate(1000).map(|memory| device.free(memory)),
        |device, memory, stream| device.to_device(memory, stream),
        |device, memory, stream| device.to_host(memory, stream),
        |device, _, stream| device.synchronize(stream),
        |device, memory, stream| {
            device.begin_capture(stream)?;
            device.to_device(memory, stream)?;
            let graph = device.end_capture(stream)?;
            device.launch(&graph, stream)?;
            device.free_graph(graph);
            device.synchronize(stream)
        },
    ];
    let Moved((memory, stream)) = steps.into_iter().fold(moved, |moved, step| {
        // A new thread each, so that no step profits from what the one before it set up.
        let next = std::thread::spawn(move || {
            let moved: Moved<(Shared, super::Stream)> = moved;
            step(&super::gpu().device, &moved.0.0, &moved.0.1).unwrap();
            moved
        });
        next.join().unwrap()
    });
    check(&memory, 1.0);
    device.free_shared(memory);
    device.free_stream(stream);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_recording_is_not_disturbed_by_other_threads() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    let before = gpu.free_bytes();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            scope.spawn(move || {
                for round in 0..200 {
                    let device = &gpu.device;
                    let memory = device.allocate_shared(40_000).unwrap();
                    let stream = device.new_stream().unwrap();
                    fill(&memory, f32::from(thread));
                    device.begin_capture(&stream).unwrap();
                    device.to_device(&memory, &stream).unwrap();
                    ok(gpu.add_one(memory.device, memory.device, 10_000, &stream));
                    device.to_host(&memory, &stream).unwrap();
                    let graph = device
                        .end_capture(&stream)
                        .unwrap_or_else(|error| panic!("round {round}: {error}"));
                    device.launch(&graph, &stream).unwrap();
                    device.synchronize(&stream).unwrap();
                    check(&memory, f32::from(thread) + 1.0);
                    device.free_graph(graph);
                    device.free_stream(stream);
                    device.free_shared(memory);
                }
            });
        }
    });
    assert!(gpu.free_bytes().abs_diff(before) <= POOLS);
}
