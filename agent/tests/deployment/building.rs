//! Engines that take long to build: what answers meanwhile, what becomes of a build that fails or is not wanted any more.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use edgeopt_agent::deploy::{Event, Keeper};
use edgeopt_agent::protocol::{EngineState, Generation, ModelSource, Phase, ReportedSlot};
use edgeopt_agent::pulse::Pulses;
use edgeopt_agent::serve::{Executors, Server};
use edgeopt_models::Bytes;
use edgeopt_runtime::MemoryUse;
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::memory::Budget;

use super::bundles::{Computes, Made, make};
use super::slow_builder::{Comes, SlowBuilder};
use super::{ask, desire, first, keeper_on, keeper_with, record, server, wait_for};

/// A keeper on a backend that builds engines by `library`, and the CPU as its stand-in.
fn with_stand_in(root: &Path, server: &Server, library: &str, comes: Comes) -> (Keeper, Arc<SlowBuilder>) {
    let builder = Arc::new(SlowBuilder::new(&root.join("engines"), library, comes));
    (keeper_of(root, server, &builder, true, None), builder)
}

pub(crate) fn keeper_of(
    root: &Path,
    server: &Server,
    builder: &Arc<SlowBuilder>,
    stand_in: bool,
    budget: Option<Budget>,
) -> Keeper {
    let executors = Executors {
        stand_in: stand_in.then(|| Arc::new(CpuBackend::new().unwrap()) as _),
        ..Executors::only(Arc::clone(builder) as _)
    };
    keeper_on(root, server, budget, executors)
}

pub(crate) fn version(root: &Path, version: &str, factor: f32) -> Made {
    make(root, version, Computes::Times(factor), Some(factor))
}

pub(crate) fn engine(slot: &ReportedSlot) -> Option<EngineState> {
    slot.engine.as_ref().map(|engine| engine.state)
}

pub(crate) fn on(slot: &ReportedSlot, backend: &str) -> bool {
    slot.backend.as_deref() == Some(backend)
}

pub(crate) fn soon(what: impl Fn() -> bool) {
    let begun = Instant::now();
    while !what() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Enough answers to end a watch.
pub(crate) fn answers(server: &Server, value: f64) {
    for _ in 0..12 {
        assert_eq!(first(&ask(server, [1.0; 4]).unwrap()), value);
    }
}

/// Version 1 answers on an engine that has proven itself.
pub(crate) fn proven(root: &Path, library: &str) {
    let server = server(64);
    let (keeper, builder) = with_stand_in(root, &server, library, Comes::Right);
    builder.open();
    desire(&keeper, 1, &version(root, "1", 2.0));
    wait_for(&keeper, |slot| on(slot, "slow-builder"));
    answers(&server, 2.0);
    wait_for(&keeper, |slot| slot.engine.is_none() && !slot.watched);
}

#[test]
fn the_stand_in_answers_at_once_and_the_switch_loses_no_request() {
    let root = tempfile::tempdir().unwrap();
    let server = server(10_000);
    let (keeper, builder) = with_stand_in(root.path(), &server, "lib 1", Comes::Right);
    desire(&keeper, 1, &version(root.path(), "1", 2.0));
    let slot = wait_for(&keeper, |slot| engine(slot) == Some(EngineState::Building));
    assert_eq!(
        (slot.phase, slot.backend.as_deref()),
        (Phase::Active, Some("cpu"))
    );
    assert_eq!(slot.engine.unwrap().reason, "none was built");
    answers(&server, 2.0);
    // The model itself has behaved; what else there is to judge is its engine.
    wait_for(&keeper, |slot| {
        !slot.watched && engine(slot) == Some(EngineState::Building)
    });
    let (answered, lost, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let (begun, switched) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    match ask(&server, [21.0; 4]) {
                        Ok(answer) if first(&answer) == 42.0 => answered.fetch_add(1, Ordering::Relaxed),
                        _ => lost.fetch_add(1, Ordering::Relaxed),
                    };
                }
            });
        }
        soon(|| answered.load(Ordering::Relaxed) > 100);
        begun.store(answered.load(Ordering::Relaxed), Ordering::Relaxed);
        builder.open();
        wait_for(&keeper, |slot| on(slot, "slow-builder"));
        switched.store(answered.load(Ordering::Relaxed), Ordering::Relaxed);
        wait_for(&keeper, |slot| slot.engine.is_none());
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(lost.load(Ordering::Relaxed), 0);
    assert!(switched.load(Ordering::Relaxed) >= begun.load(Ordering::Relaxed));
    eprintln!(
        "{} answers, {} of them after the switch",
        answered.load(Ordering::Relaxed),
        answered.load(Ordering::Relaxed) - switched.load(Ordering::Relaxed)
    );
    assert_eq!((builder.begun(), builder.kept().len()), (1, 1));
    assert_eq!(record(root.path()).engine, None);
}

#[test]
fn after_an_upgrade_of_the_library_a_restart_answers_at_once() {
    let root = tempfile::tempdir().unwrap();
    proven(root.path(), "lib 1");
    let server = server(64);
    let (keeper, builder) = with_stand_in(root.path(), &server, "lib 2", Comes::Right);
    soon(|| keeper.handle().settled());
    let slot = wait_for(&keeper, |slot| engine(slot) == Some(EngineState::Building));
    assert_eq!(slot.engine.unwrap().reason, "built by lib 1, here lib 2");
    assert_eq!(first(&ask(&server, [4.0; 4]).unwrap()), 8.0);
    assert!(
        builder.kept()[0].ends_with("lib 1"),
        "it stays until there is another"
    );
    builder.open();
    wait_for(&keeper, |slot| on(slot, "slow-builder"));
    answers(&server, 2.0);
    wait_for(&keeper, |slot| slot.engine.is_none());
    assert!(matches!(builder.kept().as_slice(), [only] if only.ends_with("lib 2")));
    drop(keeper);
    // The next start finds it.
    let (keeper, builder) = with_stand_in(root.path(), &server, "lib 2", Comes::Right);
    wait_for(&keeper, |slot| on(slot, "slow-builder"));
    assert_eq!(builder.begun(), 0);
}

#[test]
fn a_build_that_fails_leaves_the_stand_in_and_is_not_tried_again_until_something_changes() {
    let root = tempfile::tempdir().unwrap();
    let first_try = server(64);
    let (keeper, builder) = with_stand_in(root.path(), &first_try, "lib 1", Comes::Never);
    builder.open();
    desire(&keeper, 1, &version(root.path(), "1", 2.0));
    let slot = wait_for(&keeper, |slot| engine(slot) == Some(EngineState::Failed));
    assert_eq!(
        (slot.phase, slot.backend.as_deref()),
        (Phase::Active, Some("cpu"))
    );
    let reason = slot.engine.unwrap().reason;
    assert!(
        reason.contains("no tactic was good enough") && reason.contains("`rebuild`"),
        "{reason}"
    );
    answers(&first_try, 2.0);
    wait_for(&keeper, |slot| !slot.watched);
    assert_eq!(builder.begun(), 1);
    // Asked for, it is tried once more.
    keeper.handle().send(Event::RebuildAsked);
    soon(|| builder.begun() == 2);
    wait_for(&keeper, |slot| engine(slot) == Some(EngineState::Failed));
    drop(keeper);
    // Nor after a restart.
    let again = server(64);
    let (keeper, builder) = with_stand_in(root.path(), &again, "lib 1", Comes::Right);
    builder.open();
    wait_for(&keeper, |slot| {
        engine(slot) == Some(EngineState::Failed) && on(slot, "cpu")
    });
    assert_eq!(first(&ask(&again, [4.0; 4]).unwrap()), 8.0);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(builder.begun(), 0);
    drop(keeper);
    // Another library is another matter.
    let (keeper, builder) = with_stand_in(root.path(), &again, "lib 2", Comes::Right);
    builder.open();
    wait_for(&keeper, |slot| on(slot, "slow-builder"));
    answers(&again, 2.0);
    wait_for(&keeper, |slot| slot.engine.is_none());
    assert_eq!(builder.begun(), 1);
}

#[test]
fn a_build_that_panics_has_failed_and_the_daemon_goes_on() {
    let root = tempfile::tempdir().unwrap();
    let (server, pulses) = (server(64), Pulses::default());
    let builder = SlowBuilder::new(&root.path().join("engines"), "lib 1", Comes::Panic);
    builder.open();
    let executors = Executors {
        stand_in: Some(Arc::new(CpuBackend::new().unwrap())),
        ..Executors::only(Arc::new(builder))
    };
    let keeper = keeper_with(root.path(), &server, None, executors, &pulses);
    desire(&keeper, 1, &version(root.path(), "1", 2.0));
    let slot = wait_for(&keeper, |slot| engine(slot) == Some(EngineState::Failed));
    assert!(slot.engine.unwrap().reason.contains("ended unexpectedly"));
    answers(&server, 2.0);
    std::thread::sleep(Duration::from_millis(10));
    assert_eq!(pulses.overdue(), [], "the watchdog is fed");
}

#[test]
fn an_engine_that_does_not_pass_its_test_never_answers() {
    let root = tempfile::tempdir().unwrap();
    let server = server(64);
    let (keeper, builder) = with_stand_in(root.path(), &server, "lib 1", Comes::Wrong);
    builder.open();
    desire(&keeper, 1, &version(root.path(), "1", 2.0));
    let slot = wait_for(&keeper, |slot| engine(slot) == Some(EngineState::Failed));
    assert!(slot.engine.unwrap().reason.contains("output \"y\" reaches"));
    assert_eq!(
        (slot.phase, slot.backend.as_deref()),
        (Phase::Active, Some("cpu"))
    );
    answers(&server, 2.0);
    assert_eq!(builder.begun(), 1);
}

#[test]
fn an_engine_that_misbehaves_gives_way_to_the_stand_in_of_the_same_version() {
    let root = tempfile::tempdir().unwrap();
    proven(root.path(), "lib 1");
    let server = server(64);
    let (keeper, builder) = with_stand_in(root.path(), &server, "lib 2", Comes::NaN);
    builder.open();
    wait_for(&keeper, |slot| on(slot, "slow-builder"));
    assert!(ask(&server, [-1.0; 4]).unwrap().non_finite);
    let slot = wait_for(&keeper, |slot| {
        engine(slot) == Some(EngineState::Failed) && on(slot, "cpu")
    });
    assert_eq!(
        (slot.phase, slot.active_version.as_deref()),
        (Phase::Active, Some("1"))
    );
    assert!(slot.engine.unwrap().reason.contains("NaN"));
    assert_eq!(first(&ask(&server, [-1.0; 4]).unwrap()), -2.0);
    drop(keeper);
    // It is at hand, and is not taken.
    let again = super::server(64);
    let (keeper, builder) = with_stand_in(root.path(), &again, "lib 2", Comes::NaN);
    wait_for(&keeper, |slot| {
        engine(slot) == Some(EngineState::Failed) && on(slot, "cpu")
    });
    assert_eq!(first(&ask(&again, [-1.0; 4]).unwrap()), -2.0);
    assert_eq!((builder.begun(), builder.kept().len()), (0, 1));
}

#[test]
fn removal_and_stopping_cancel_a_build_and_leave_nothing() {
    for removes in [true, false] {
        let root = tempfile::tempdir().unwrap();
        let server = server(64);
        let (keeper, builder) = with_stand_in(root.path(), &server, "lib 1", Comes::Right);
        desire(&keeper, 1, &version(root.path(), "1", 2.0));
        wait_for(&keeper, |slot| engine(slot) == Some(EngineState::Building));
        soon(|| builder.begun() == 1);
        if removes {
            keeper.handle().send(Event::Desired {
                generation: Generation(2),
                spec: None,
            });
            let slot = wait_for(&keeper, |slot| slot.phase == Phase::Absent);
            assert_eq!((slot.engine, slot.backend), (None, None));
        }
        let begun = Instant::now();
        drop(keeper);
        assert!(begun.elapsed() < Duration::from_secs(5));
        soon(|| builder.cancelled() == 1);
        builder.open();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(
            (builder.begun(), builder.kept().len()),
            (1, 0),
            "removes: {removes}"
        );
    }
}

#[test]
fn a_newer_version_and_a_rollback_cancel_a_build() {
    let root = tempfile::tempdir().unwrap();
    proven(root.path(), "lib 1");
    let server = server(64);
    // Version 2 answers on the stand-in while its engine is built: its predecessor's is not at hand any more either.
    let (keeper, builder) = with_stand_in(root.path(), &server, "lib 2", Comes::Right);
    wait_for(&keeper, |slot| {
        engine(slot) == Some(EngineState::Building) && on(slot, "cpu")
    });
    soon(|| builder.begun() == 1);
    desire(&keeper, 2, &version(root.path(), "2", 3.0));
    // What answers goes on while the engine of the new one is built.
    let slot = wait_for(&keeper, |slot| {
        slot.phase == Phase::Verified && slot.engine.is_some()
    });
    assert_eq!(
        (engine(&slot), slot.active_version.as_deref()),
        (Some(EngineState::Building), Some("1"))
    );
    soon(|| builder.begun() == 2 && builder.cancelled() == 1);
    assert_eq!(first(&ask(&server, [1.0; 4]).unwrap()), 2.0);
    // Something newer still: the build of version 2 is given up.
    desire(&keeper, 3, &version(root.path(), "3", 4.0));
    soon(|| builder.begun() == 3 && builder.cancelled() == 2);
    assert_eq!(builder.kept().len(), 1, "that of version 1 by the old library");
    builder.open();
    wait_for(&keeper, |slot| {
        slot.active_version.as_deref() == Some("3") && on(slot, "slow-builder")
    });
    answers(&server, 4.0);
    wait_for(&keeper, |slot| !slot.watched && slot.engine.is_none());
    assert_eq!(builder.kept().len(), 2);
    // Back to version 1, which answers on the stand-in until its engine is there again.
    keeper.handle().send(Event::RollbackAsked);
    wait_for(&keeper, |slot| {
        slot.active_version.as_deref() == Some("1") && on(slot, "slow-builder")
    });
    answers(&server, 2.0);
}

#[test]
fn a_rollback_during_a_build_ends_it() {
    let root = tempfile::tempdir().unwrap();
    proven(root.path(), "lib 1");
    let server = server(64);
    {
        let (keeper, builder) = with_stand_in(root.path(), &server, "lib 1", Comes::Right);
        builder.open();
        desire(&keeper, 2, &version(root.path(), "2", 3.0));
        wait_for(&keeper, |slot| {
            slot.active_version.as_deref() == Some("2") && on(slot, "slow-builder")
        });
        answers(&server, 3.0);
        wait_for(&keeper, |slot| !slot.watched);
    }
    let again = super::server(64);
    let (keeper, builder) = with_stand_in(root.path(), &again, "lib 2", Comes::Right);
    soon(|| builder.begun() == 1);
    keeper.handle().send(Event::RollbackAsked);
    let slot = wait_for(&keeper, |slot| {
        slot.active_version.as_deref() == Some("1") && slot.engine.is_some()
    });
    assert_eq!(
        (engine(&slot), slot.backend.as_deref()),
        (Some(EngineState::Building), Some("cpu"))
    );
    soon(|| builder.begun() == 2 && builder.cancelled() == 1);
    assert_eq!(first(&ask(&again, [1.0; 4]).unwrap()), 2.0);
    builder.open();
    wait_for(&keeper, |slot| on(slot, "slow-builder"));
    assert_eq!(
        builder.kept().len(),
        2,
        "of version 1 the new one, of version 2 the old one"
    );
}

#[test]
fn a_new_version_whose_engine_cannot_be_built_is_refused_and_the_old_one_gets_its_own() {
    let root = tempfile::tempdir().unwrap();
    proven(root.path(), "lib 1");
    let server = server(64);
    let (keeper, builder) = with_stand_in(root.path(), &server, "lib 2", Comes::Never);
    soon(|| builder.begun() == 1);
    desire(&keeper, 2, &version(root.path(), "2", 3.0));
    soon(|| builder.begun() == 2);
    builder.open();
    let slot = wait_for(&keeper, |slot| slot.phase == Phase::Failed);
    assert!(slot.reason.unwrap().contains("its engine cannot be built"));
    assert_eq!(slot.active_version.as_deref(), Some("1"));
    assert_eq!(first(&ask(&server, [1.0; 4]).unwrap()), 2.0);
    // The build that was given up for it is taken up again (and fails here as well).
    soon(|| builder.begun() == 3);
    let slot = wait_for(&keeper, |slot| engine(slot) == Some(EngineState::Failed));
    assert_eq!(
        (slot.phase, slot.backend.as_deref()),
        (Phase::Failed, Some("cpu"))
    );
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(builder.begun(), 3);
}

/// The server of the next version is away, perhaps for days.
#[test]
fn a_download_that_waits_holds_up_neither_the_stand_in_nor_the_engine() {
    let root = tempfile::tempdir().unwrap();
    proven(root.path(), "lib 1");
    let server = server(64);
    let (keeper, builder) = with_stand_in(root.path(), &server, "lib 2", Comes::Right);
    soon(|| builder.begun() == 1);
    let mut away = version(root.path(), "2", 3.0);
    away.spec.sources = vec![ModelSource::Url("http://127.0.0.1:9/2.edge".into())];
    desire(&keeper, 2, &away);
    let waits = |slot: &ReportedSlot| slot.phase == Phase::Downloading && slot.reason.is_some();
    let slot = wait_for(&keeper, |slot| waits(slot));
    assert_eq!(engine(&slot), Some(EngineState::Building));
    builder.open();
    wait_for(&keeper, |slot| waits(slot) && on(slot, "slow-builder"));
    answers(&server, 2.0);
    wait_for(&keeper, |slot| waits(slot) && slot.engine.is_none());
    assert_eq!((builder.begun(), builder.cancelled()), (1, 0));
}

/// What was built for a version that is not wanted any more is not built on while the newer one waits for its server.
#[test]
fn a_newer_wish_ends_the_build_for_the_one_before_at_once() {
    let root = tempfile::tempdir().unwrap();
    proven(root.path(), "lib 1");
    let server = server(64);
    let (keeper, builder) = with_stand_in(root.path(), &server, "lib 1", Comes::Right);
    desire(&keeper, 2, &version(root.path(), "2", 3.0));
    soon(|| builder.begun() == 1);
    let mut away = version(root.path(), "3", 4.0);
    away.spec.sources = vec![ModelSource::Url("http://127.0.0.1:9/3.edge".into())];
    desire(&keeper, 3, &away);
    soon(|| builder.cancelled() == 1);
    let slot = wait_for(&keeper, |slot| {
        slot.phase == Phase::Downloading && slot.reason.is_some()
    });
    assert_eq!(
        (slot.engine, slot.backend.as_deref()),
        (None, Some("slow-builder"))
    );
    assert_eq!(first(&ask(&server, [1.0; 4]).unwrap()), 2.0);
    assert_eq!(builder.kept().len(), 1);
}

#[test]
fn without_a_stand_in_the_slot_waits_for_its_engine() {
    let root = tempfile::tempdir().unwrap();
    proven(root.path(), "lib 1");
    for (library, stand_in, memory) in [
        ("lib 2", false, None),
        // The CPU takes 24 MiB for itself: beside it there is too little for the build.
        ("lib 3", true, Some(Bytes::mib(40))),
    ] {
        let server = server(64);
        let builder = SlowBuilder::new(&root.path().join("engines"), library, Comes::Right);
        let builder = Arc::new(builder.needing(Bytes::mib(20)));
        let keeper = keeper_of(root.path(), &server, &builder, stand_in, memory.map(Budget::new));
        let slot = wait_for(&keeper, |slot| engine(slot) == Some(EngineState::Building));
        assert_eq!(slot.backend, None);
        soon(|| builder.begun() == 1);
        std::thread::sleep(Duration::from_millis(200));
        assert!(
            !keeper.handle().settled(),
            "the start is not over before it answers"
        );
        assert!(ask(&server, [1.0; 4]).is_err());
        builder.open();
        wait_for(&keeper, |slot| on(slot, "slow-builder"));
        soon(|| keeper.handle().settled());
        answers(&server, 2.0);
        wait_for(&keeper, |slot| slot.engine.is_none());
        assert_eq!(builder.begun(), 1);
    }
    // Nor is there one for a first model; a failure refuses it.
    let empty = tempfile::tempdir().unwrap();
    let server = server(64);
    let builder = Arc::new(SlowBuilder::new(
        &empty.path().join("engines"),
        "lib",
        Comes::Never,
    ));
    let keeper = keeper_of(empty.path(), &server, &builder, false, None);
    desire(&keeper, 1, &version(empty.path(), "1", 2.0));
    wait_for(&keeper, |slot| {
        slot.phase == Phase::Verified && slot.engine.is_some()
    });
    builder.open();
    let slot = wait_for(&keeper, |slot| slot.phase == Phase::Failed);
    assert!(slot.reason.unwrap().contains("no tactic was good enough"));
}

#[test]
fn with_memory_for_one_only_the_engine_takes_the_place_of_the_stand_in() {
    let root = tempfile::tempdir().unwrap();
    let server = server(1000);
    let builder = Arc::new(SlowBuilder::new(
        &root.path().join("engines"),
        "lib",
        Comes::Right,
    ));
    // Room for the stand-in and the build, which takes none, and not for two loaded models.
    let keeper = keeper_of(
        root.path(),
        &server,
        &builder,
        true,
        Some(Budget::new(Bytes::mib(40))),
    );
    desire(&keeper, 1, &version(root.path(), "1", 2.0));
    wait_for(&keeper, |slot| {
        engine(slot) == Some(EngineState::Building) && on(slot, "cpu")
    });
    answers(&server, 2.0);
    builder.open();
    wait_for(&keeper, |slot| on(slot, "slow-builder"));
    answers(&server, 2.0);
}

#[test]
fn a_build_that_fails_makes_room_for_the_stand_in_which_is_never_given_up_for_want_of_memory() {
    let root = tempfile::tempdir().unwrap();
    let builder = |comes| {
        let builder = SlowBuilder::new(&root.path().join("engines"), "lib", comes);
        Arc::new(builder.needing(Bytes::mib(20)))
    };
    let budget = Budget::new(Bytes::mib(40));
    {
        let server = server(64);
        let failing = builder(Comes::Never);
        let keeper = keeper_of(root.path(), &server, &failing, true, Some(budget.clone()));
        desire(&keeper, 1, &version(root.path(), "1", 2.0));
        // Both do not fit …
        let slot = wait_for(&keeper, |slot| slot.engine.is_some());
        assert_eq!((slot.phase, slot.backend), (Phase::Verified, None));
        failing.open();
        // … and the stand-in alone does.
        let slot = wait_for(&keeper, |slot| {
            engine(slot) == Some(EngineState::Failed) && on(slot, "cpu")
        });
        assert_eq!(slot.phase, Phase::Active);
        answers(&server, 2.0);
        wait_for(&keeper, |slot| !slot.watched);
        assert_eq!(failing.begun(), 1);
    }
    // At the next start others hold the memory for a while.
    let others = MemoryUse {
        weights: Bytes::mib(18),
        ..MemoryUse::default()
    };
    let taken = budget.reserve("somebody else", others).unwrap();
    let server = server(64);
    let keeper = keeper_of(root.path(), &server, &builder(Comes::Never), true, Some(budget));
    let slot = wait_for(&keeper, |slot| slot.reason.is_some());
    assert!(slot.reason.unwrap().contains("not loaded yet"));
    assert_eq!(slot.active_version.as_deref(), Some("1"));
    drop(taken);
    wait_for(&keeper, |slot| on(slot, "cpu"));
    assert_eq!(first(&ask(&server, [4.0; 4]).unwrap()), 8.0);
}

/// With memory for one only, a newer version cannot be built beside the one that answers.
#[test]
fn a_build_that_does_not_fit_beside_what_answers_takes_its_place_and_inputs_wait() {
    for (comes, version_then, value_then) in [(Comes::Right, "2", 3.0), (Comes::Never, "1", 2.0)] {
        let root = tempfile::tempdir().unwrap();
        proven(root.path(), "lib");
        let server = server(64);
        let builder = SlowBuilder::new(&root.path().join("engines"), "lib", comes);
        let builder = Arc::new(builder.needing(Bytes::mib(20)));
        // What answers holds 24 MiB of it.
        let keeper = keeper_of(
            root.path(),
            &server,
            &builder,
            true,
            Some(Budget::new(Bytes::mib(40))),
        );
        wait_for(&keeper, |slot| on(slot, "slow-builder"));
        assert_eq!(first(&ask(&server, [1.0; 4]).unwrap()), 2.0);
        desire(&keeper, 2, &version(root.path(), "2", 3.0));
        soon(|| builder.begun() == 1);
        assert!(server.model().is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| first(&ask(&server, [1.0; 4]).unwrap()));
            soon(|| server.waiting() == 1);
            builder.open();
            assert_eq!(waits.join().unwrap(), value_then, "{comes:?}");
        });
        let ends = |slot: &ReportedSlot| matches!(slot.phase, Phase::Active | Phase::Failed);
        let slot = wait_for(&keeper, |slot| ends(slot) && on(slot, "slow-builder"));
        assert_eq!(slot.active_version.as_deref(), Some(version_then));
    }
}

const FOLDER: &str = "EDGEOPT_TEST_KILLED_BUILD";

/// Not a test of its own: what the killed process does. It builds for ever.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let server = server(8);
    let (keeper, builder) = with_stand_in(Path::new(&folder), &server, "lib 2", Comes::Right);
    soon(|| builder.begun() == 1);
    std::fs::write(Path::new(&folder).join("begun"), b"").unwrap();
    loop {
        assert!(keeper.handle().settled());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills a process while it builds.
fn killed_while_building(root: &Path) {
    let begun = root.join("begun");
    let mut child: Child = Command::new(std::env::current_exe().unwrap())
        .args(["building::child", "--exact", "--nocapture"])
        .env(FOLDER, root)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    soon(|| begun.exists());
    std::fs::remove_file(&begun).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_build_that_a_power_cut_interrupted_begins_again_and_one_that_ends_the_daemon_is_given_up() {
    let root = tempfile::tempdir().unwrap();
    proven(root.path(), "lib 1");
    killed_while_building(root.path());
    {
        let server = server(64);
        let (keeper, builder) = with_stand_in(root.path(), &server, "lib 2", Comes::Right);
        soon(|| builder.begun() == 1);
        assert_eq!(first(&ask(&server, [1.0; 4]).unwrap()), 2.0);
        assert_eq!(record(root.path()).engine.unwrap().starts, 1);
        // A stop that was asked for is held against nobody.
        drop(keeper);
        assert_eq!(record(root.path()).engine.unwrap().starts, 0);
    }
    for _ in 0..3 {
        killed_while_building(root.path());
    }
    let server = server(64);
    let (keeper, builder) = with_stand_in(root.path(), &server, "lib 2", Comes::Right);
    let slot = wait_for(&keeper, |slot| {
        engine(slot) == Some(EngineState::Failed) && on(slot, "cpu")
    });
    assert!(slot.engine.unwrap().reason.contains("the daemon started 3 times"));
    assert_eq!(first(&ask(&server, [1.0; 4]).unwrap()), 2.0);
    assert_eq!(builder.begun(), 0);
    assert!(matches!(builder.kept().as_slice(), [only] if only.ends_with("lib 1")));
}
