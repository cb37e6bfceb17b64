//! Sessions over the real device, with kernels of ours in the place of TensorRT's.

use std::process::Command;
use std::sync::Arc;

use edgeopt_models::{Bytes, Tensor};

use super::super::device::CudaDevice;
use super::kernels::{ENQUEUED, Manner, loaded, plan};
use super::{POOLS, gpu};
use crate::memory::Budget;
use crate::{Engine, Session};

fn input(length: usize, first: f32) -> Tensor {
    let values: Vec<f32> = (0..length).map(|index| first + (index % 1000) as f32).collect();
    Tensor::vector(&values)
}

/// Runs once and compares every number.
fn run(session: &mut dyn Session, length: usize, first: f32, layers: u8) {
    let results = session.run(&[input(length, first)]).unwrap();
    assert_eq!(results[0], input(length, first + f32::from(layers)));
}

fn opened(device: &Arc<CudaDevice>, layers: u8, manner: Manner) -> Box<dyn Session> {
    let engine = loaded(device, &plan(layers, manner), None).unwrap();
    engine.session().unwrap()
}

fn enqueued() -> u64 {
    ENQUEUED.replace(0)
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_session_is_right_while_shapes_change_and_while_they_repeat() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    for device in [&gpu.device, &gpu.mapped] {
        let mut session = opened(device, 3, Manner::Plain);
        enqueued();
        for (length, first) in [
            (4, 0.5),
            (1000, 2.0),
            (0, 0.0),
            (7, -1.0),
            (300_000, 9.0),
            (1, 1.0),
        ] {
            for repeated in 0..5 {
                run(&mut *session, length, first + repeated as f32, 3);
            }
            assert_eq!(enqueued(), 2, "one run, one recording, three launches");
        }
        for length in 2..21 {
            run(&mut *session, length, 3.0, 3);
        }
        assert_eq!(enqueued(), 19, "shapes that do not repeat are not recorded");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_session_that_cannot_be_recorded_runs_on_any_thread() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    for (device, manner) in [
        (&gpu.device, Manner::Waits),
        (&gpu.device, Manner::Plain),
        (&gpu.mapped, Manner::Waits),
        (&gpu.mapped, Manner::Plain),
    ] {
        let mut session = opened(device, 2, manner);
        for round in 0..4 {
            run(&mut *session, 5000, round as f32, 2);
        }
        // The same shapes again, each time on a thread that CUDA does not know; the last one ends the session.
        for round in 0..3 {
            let moved = std::thread::spawn(move || {
                run(&mut *session, 5000, 10.0 + round as f32, 2);
                session
            });
            session = moved.join().unwrap();
        }
        std::thread::spawn(move || drop(session)).join().unwrap();
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_session_reserves_what_it_takes() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    let mib = 1 << 18;
    for device in [&gpu.device, &gpu.mapped] {
        let before = gpu.free_bytes();
        let budget = Budget::new(Bytes::mib(100));
        let engine = loaded(device, &plan(2, Manner::Plain), Some(budget.clone())).unwrap();
        let mut session = Arc::clone(&engine).session().unwrap();
        run(&mut *session, 32 * mib, 0.0, 2);
        assert_eq!(budget.available(), Bytes(Bytes::mib(100 - 3 * 32).0 - 3));
        let held = before - gpu.free_bytes();
        let expected = if Arc::ptr_eq(device, &gpu.device) { 96 } else { 32 };
        assert!(
            (expected << 20..(expected + 8) << 20).contains(&held),
            "{held} bytes of the GPU"
        );
        let error = session.run(&[input(40 * mib, 0.0)]).unwrap_err().to_string();
        println!("{error}");
        assert!(error.contains("needs 120 MiB, limit 100 MiB"), "{error}");
        assert!(
            before - gpu.free_bytes() < 8 << 20,
            "what is not reserved is not held"
        );
        run(&mut *session, 16 * mib, 1.0, 2);
        let mut second = engine.session().unwrap();
        let error = second.run(&[input(20 * mib, 0.0)]).unwrap_err().to_string();
        assert!(error.contains("already held"), "{error}");
        drop(session);
        run(&mut *second, 20 * mib, 0.0, 2);
        drop(second);
        assert_eq!(budget.available(), budget.limit());
        assert!(before.abs_diff(gpu.free_bytes()) < POOLS);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_session_goes_on_after_it_ran_out_of_memory() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    let mut session = opened(&gpu.device, 2, Manner::Devours);
    for _ in 0..3 {
        run(&mut *session, 2, 1.0, 2);
        run(&mut *session, 2, 4.0, 2);
        let error = session.run(&[input(3, 0.0)]).unwrap_err().to_string();
        assert!(
            error.contains("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (out of memory): 256 TiB were asked for"),
            "{error}"
        );
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_engine_that_is_damaged_is_refused() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    for damaged in [&b"K"[..], b"X\x01\x00", b""] {
        let error = loaded(&gpu.device, damaged, None).err().unwrap().to_string();
        assert!(
            error.contains("refused the engine: magicTag == kEXPECTED_MAGIC_TAG failed"),
            "{error}"
        );
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_sessions_run_side_by_side() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    for device in [&gpu.device, &gpu.mapped] {
        let engine = loaded(device, &plan(4, Manner::Plain), None).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8usize {
                let engine = Arc::clone(&engine);
                scope.spawn(move || {
                    let mut sessions: Vec<_> =
                        (0..4).map(|_| Arc::clone(&engine).session().unwrap()).collect();
                    for round in 0..200 {
                        for (index, session) in sessions.iter_mut().enumerate() {
                            // Each shape five times: run, recorded, launched; other threads take memory meanwhile.
                            let length = 1 + (thread * 97 + index * 31 + round / 5 * 1009) % 20_000;
                            run(&mut **session, length, (thread * 10 + index) as f32, 4);
                        }
                    }
                });
            }
        });
    }
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_sessions_leave_nothing_behind() {
    let (gpu, _alone) = (gpu(), gpu().alone());
    for device in [&gpu.device, &gpu.mapped] {
        let engine = loaded(device, &plan(2, Manner::Plain), None).unwrap();
        let mut shifting = Arc::clone(&engine).session().unwrap();
        let mut round = |count: usize| {
            let mut session = Arc::clone(&engine).session().unwrap();
            for _ in 0..3 {
                run(&mut *session, 20_000, 1.0, 2);
            }
            // Shapes that change: new memory and a new recording each time.
            for _ in 0..3 {
                run(&mut *shifting, 1 + count % 3000, 1.0, 2);
            }
        };
        (0..500).for_each(&mut round);
        let before = (gpu.free_bytes(), resident());
        (0..10_000).for_each(&mut round);
        let after = (gpu.free_bytes(), resident());
        println!(
            "10 000 sessions and 30 000 runs of another: {} B of GPU memory, {} B resident more",
            before.0 as i64 - after.0 as i64,
            after.1 as i64 - before.1 as i64
        );
        // Less than 840 bytes a round would be.
        assert!(before.0.abs_diff(after.0) <= POOLS);
        assert!(after.1.saturating_sub(before.1) <= 8 << 20);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn gpu_fault_of_a_kernel_is_told_and_ends_no_process() {
    // The fault makes the context useless for the rest of the process, so it gets one of its own.
    const CHILD: &str = "EDGEOPT_TEST_FAULT";
    if std::env::var_os(CHILD).is_none() {
        let name =
            "backends::tensorrt::gpu_tests::sessions::gpu_fault_of_a_kernel_is_told_and_ends_no_process";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned();
        assert!(
            child.status.success(),
            "{said}{}",
            String::from_utf8_lossy(&child.stderr)
        );
        assert!(said.contains("1 passed"), "{said}");
        return;
    }
    let mut session = opened(&gpu().device, 1, Manner::Writes);
    let error = session.run(&[input(100, 0.0)]).unwrap_err().to_string();
    println!("{error}");
    assert!(
        error.contains("tensorrt failed while running the model")
            && error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"),
        "{error}"
    );
    // Every later call says so too, and ending the session does not hang.
    assert!(session.run(&[input(100, 0.0)]).is_err());
    drop(session);
    assert!(gpu().device.memory().is_err());
}
