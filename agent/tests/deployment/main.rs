//! Deployments and serving with the CPU backend: real bundles, real engines, real files.
#![allow(clippy::unwrap_used)]

mod building;
#[allow(
    dead_code,
    reason = "shared with the tests of the daemon, which use other parts"
)]
mod bundles;
mod comes_back;
mod live;
mod power_cut;
mod slow_builder;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bundles::{Computes, Made, input, make, unchecked};
use edgeopt_agent::clock::SystemClock;
use edgeopt_agent::config::{DropPolicy, Priority};
use edgeopt_agent::deploy::{Event, Keeper, SlotRecord};
use edgeopt_agent::download::{Blobs, Fetcher, HttpClient};
use edgeopt_agent::protocol::{Generation, ModelSource, Phase, ReportedSlot, SlotName};
use edgeopt_agent::pulse::Pulses;
use edgeopt_agent::serve::{
    Answer, Content, Executors, Job, LoadedModel, Server, ServerOptions, SlotStage, Submitted, Turns,
    WatchCriteria,
};
use edgeopt_agent::store::{Acceptance, Store};
use edgeopt_models::Bytes;
use edgeopt_models::bundle::Limits;
use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::memory::Budget;
use edgeopt_runtime::{CompileOptions, MemoryUse};

pub(crate) fn options(queue: usize) -> ServerOptions {
    ServerOptions {
        queue,
        drop: DropPolicy::Newest,
        workers: 2,
        batch_wait: Duration::ZERO,
        priority: Priority::Normal,
        hang_after: Duration::from_secs(60),
    }
}

pub(crate) fn server(queue: usize) -> Server {
    Server::start("main", options(queue), Turns::new(None), &Pulses::default()).unwrap()
}

pub(crate) fn keeper(root: &Path, server: &Server, budget: Option<Budget>) -> Keeper {
    let backend = Arc::new(CpuBackend::new().unwrap());
    keeper_on(root, server, budget, Executors::only(backend))
}

pub(crate) fn keeper_on(
    root: &Path,
    server: &Server,
    budget: Option<Budget>,
    executors: Executors,
) -> Keeper {
    keeper_with(root, server, budget, executors, &Pulses::default())
}

pub(crate) fn keeper_with(
    root: &Path,
    server: &Server,
    budget: Option<Budget>,
    executors: Executors,
    pulses: &Pulses,
) -> Keeper {
    let criteria = WatchCriteria {
        answers: 10,
        longest: Duration::from_secs(20),
        ..WatchCriteria::default()
    };
    let stage = SlotStage::new(server.clone(), executors, budget, 1, criteria, pulses);
    let store = Store::open(root, Bytes::ZERO).unwrap();
    let acceptance = Acceptance {
        trust: unchecked(),
        limits: Limits::default(),
    };
    let bundles = Fetcher::new(
        store.clone(),
        acceptance,
        HttpClient::new(None).unwrap(),
        Blobs::new(1, |_, _| {}),
        Arc::new(SystemClock::default()),
    );
    Keeper::start(
        &slot(),
        store,
        Box::new(bundles),
        Box::new(stage),
        Box::new(|| {}),
        pulses,
    )
    .unwrap()
}

pub(crate) fn slot() -> SlotName {
    "main".parse().unwrap()
}

/// The record on disk, while no daemon runs.
pub(crate) fn record(root: &Path) -> SlotRecord {
    let path = root.join("slots/main.json");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    serde_json::from_value(json["slot"].clone()).unwrap()
}

pub(crate) fn desire(keeper: &Keeper, generation: u64, made: &Made) {
    keeper.handle().send(Event::Desired {
        generation: Generation(generation),
        spec: Some(made.spec.clone()),
    });
}

pub(crate) fn wait_for(keeper: &Keeper, what: impl Fn(&ReportedSlot) -> bool) -> ReportedSlot {
    let begun = Instant::now();
    loop {
        let report = keeper.handle().report().slot;
        if what(&report) {
            return report;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{report:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn ask(server: &Server, values: [f32; 4]) -> Result<Answer, String> {
    let (reply, answer) = mpsc::channel();
    server.submit(Job {
        name: "test".into(),
        content: Content::Encoded(input(values)),
        received: Instant::now(),
        reply: Box::new(move |result| reply.send(result).unwrap()),
    });
    let answer = answer.recv_timeout(Duration::from_secs(20)).unwrap();
    answer.map_err(|error| error.to_string())
}

fn first(answer: &Answer) -> f64 {
    answer.prediction.to_json().unwrap()["outputs"][0]["values"][0]
        .as_f64()
        .unwrap()
}

#[test]
fn models_replace_each_other_and_bad_ones_never_answer() {
    let root = tempfile::tempdir().unwrap();
    let server = server(64);
    let keeper = keeper(root.path(), &server, None);
    assert_eq!(
        ask(&server, [1.0; 4]).unwrap_err(),
        "no model is active in this slot"
    );

    let one = make(root.path(), "1", Computes::Times(2.0), Some(2.0));
    desire(&keeper, 1, &one);
    wait_for(&keeper, |slot| slot.phase == Phase::Active);
    for _ in 0..10 {
        assert_eq!(first(&ask(&server, [21.0; 4]).unwrap()), 42.0);
    }
    // Watched until ten answers were given; then the second may come.
    let two = make(root.path(), "2", Computes::Times(3.0), Some(3.0));
    desire(&keeper, 2, &two);
    wait_for(&keeper, |slot| slot.active_version.as_deref() == Some("2"));
    for _ in 0..10 {
        let answer = ask(&server, [1.0; 4]).unwrap();
        assert_eq!((first(&answer), answer.version.as_str()), (3.0, "2"));
    }
    std::thread::sleep(Duration::from_millis(300));

    // Outputs that are not the golden ones.
    let wrong = make(root.path(), "3", Computes::Times(9.0), Some(3.0));
    desire(&keeper, 3, &wrong);
    let slot = wait_for(&keeper, |slot| slot.phase == Phase::Failed);
    assert!(
        slot.reason.unwrap().contains("output \"y\" reaches"),
        "the reason names the output"
    );
    assert_eq!(first(&ask(&server, [1.0; 4]).unwrap()), 3.0);

    // Not what was announced.
    let mut lied = make(root.path(), "4", Computes::Times(4.0), Some(4.0));
    lied.spec.sha256 = "0".repeat(64);
    desire(&keeper, 4, &lied);
    let slot = wait_for(&keeper, |slot| {
        slot.phase == Phase::Failed && slot.reason.as_deref().unwrap().contains("announced")
    });
    assert_eq!(slot.active_version.as_deref(), Some("2"));

    // Passes its self-test, then gives NaN: back to the one before.
    let root_of = make(root.path(), "5", Computes::Root, None);
    desire(&keeper, 5, &root_of);
    wait_for(&keeper, |slot| slot.active_version.as_deref() == Some("5"));
    let answer = ask(&server, [-1.0; 4]).unwrap();
    assert!(answer.non_finite);
    let slot = wait_for(&keeper, |slot| {
        slot.phase == Phase::Failed && slot.active_version.as_deref() == Some("2")
    });
    assert!(slot.reason.unwrap().contains("NaN"));
    assert_eq!(first(&ask(&server, [1.0; 4]).unwrap()), 3.0);

    // What no slot needs goes from the store, soon after the report: the active one stays, and the one that was desired.
    let stored = || std::fs::read_dir(root.path().join("bundles")).unwrap().count();
    let begun = Instant::now();
    while stored() > 2 && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(stored(), 2);

    // The same again, and older: nothing happens.
    desire(&keeper, 5, &one);
    desire(&keeper, 1, &one);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(keeper.handle().report().slot.active_version.as_deref(), Some("2"));

    keeper.handle().send(Event::Desired {
        generation: Generation(6),
        spec: None,
    });
    wait_for(&keeper, |slot| slot.phase == Phase::Absent);
    assert!(ask(&server, [1.0; 4]).is_err());
}

#[test]
fn inputs_that_wait_after_a_start_are_refused_when_the_model_is_given_up() {
    let root = tempfile::tempdir().unwrap();
    {
        let server = server(8);
        let keeper = keeper(root.path(), &server, None);
        desire(
            &keeper,
            1,
            &make(root.path(), "1", Computes::Times(2.0), Some(2.0)),
        );
        wait_for(&keeper, |slot| slot.phase == Phase::Active && slot.watched);
    }
    // It is still watched at the fourth start, and there is none before it.
    let path = root.path().join("slots/main.json");
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["slot"]["starts"] = 3.into();
    std::fs::write(&path, serde_json::to_vec(&json).unwrap()).unwrap();
    let server = server(8);
    server.release();
    let keeper = keeper(root.path(), &server, None);
    let error = ask(&server, [1.0; 4]).unwrap_err();
    assert_eq!(error, "no model is active in this slot");
    wait_for(&keeper, |slot| {
        slot.phase == Phase::Failed && slot.active_version.is_none()
    });
}

#[test]
fn a_restart_finds_the_model_that_answered() {
    let root = tempfile::tempdir().unwrap();
    let made = make(root.path(), "1", Computes::Times(2.0), Some(2.0));
    for start in 0..2 {
        let server = server(64);
        let keeper = keeper(root.path(), &server, None);
        if start == 0 {
            desire(&keeper, 1, &made);
        } else {
            // The file it came from is gone; the store has it.
            std::fs::remove_file(&made.path).unwrap();
        }
        wait_for(&keeper, |slot| slot.phase == Phase::Active);
        let begun = Instant::now();
        while server.model().is_none() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(first(&ask(&server, [4.0; 4]).unwrap()), 8.0);
    }
}

/// The server of the next version is away, perhaps for days.
#[test]
fn a_download_that_waits_holds_up_neither_a_watch_nor_a_rollback() {
    let root = tempfile::tempdir().unwrap();
    let server = server(64);
    let keeper = keeper(root.path(), &server, None);
    for (generation, factor) in [(1, 2.0), (2, 3.0)] {
        let version = generation.to_string();
        let made = make(root.path(), &version, Computes::Times(factor), Some(factor));
        desire(&keeper, generation, &made);
        wait_for(&keeper, |slot| slot.active_version.as_ref() == Some(&version));
        if generation == 1 {
            (0..10).for_each(|_| drop(ask(&server, [1.0; 4]).unwrap()));
            wait_for(&keeper, |slot| !slot.watched);
        }
    }
    let mut away = make(root.path(), "3", Computes::Times(4.0), Some(4.0));
    away.spec.sources = vec![ModelSource::Url("http://127.0.0.1:9/3.edge".into())];
    desire(&keeper, 3, &away);
    wait_for(&keeper, |slot| {
        slot.reason.is_some() && slot.phase == Phase::Downloading
    });
    (0..10).for_each(|_| drop(ask(&server, [1.0; 4]).unwrap()));
    wait_for(&keeper, |slot| !slot.watched && slot.phase == Phase::Downloading);
    keeper.handle().send(Event::RollbackAsked);
    wait_for(&keeper, |slot| {
        slot.active_version.as_deref() == Some("1") && slot.phase == Phase::Downloading
    });
    assert_eq!(first(&ask(&server, [1.0; 4]).unwrap()), 2.0);
    // And it is still fetched.
    wait_for(&keeper, |slot| {
        let reason = slot.reason.as_deref().unwrap_or_default();
        reason.contains("127.0.0.1:9")
    });
}

#[test]
fn a_model_for_which_there_is_no_memory_at_a_start_is_not_given_up() {
    let root = tempfile::tempdir().unwrap();
    let made = make(root.path(), "1", Computes::Times(2.0), Some(2.0));
    {
        let server = server(8);
        let keeper = keeper(root.path(), &server, None);
        desire(&keeper, 1, &made);
        wait_for(&keeper, |slot| slot.phase == Phase::Active);
    }
    let before = record(root.path());
    let budget = Budget::new(Bytes::mib(40));
    let others = MemoryUse {
        weights: Bytes::mib(30),
        ..MemoryUse::default()
    };
    let taken = budget.reserve("somebody else", others).unwrap();
    let server = server(8);
    let keeper = keeper(root.path(), &server, Some(budget));
    let slot = wait_for(&keeper, |slot| slot.reason.is_some());
    assert_eq!(
        (slot.phase, slot.active_version.as_deref()),
        (Phase::Active, Some("1"))
    );
    assert!(slot.reason.unwrap().contains("not loaded yet"));
    assert!(keeper.handle().settled());
    assert!(ask(&server, [1.0; 4]).is_err());
    assert_eq!(record(root.path()).active, before.active);
    drop(taken);
    wait_for(&keeper, |slot| slot.reason.is_none());
    assert_eq!(first(&ask(&server, [4.0; 4]).unwrap()), 8.0);
}

#[test]
fn with_memory_for_one_model_only_they_swap_and_inputs_wait() {
    let root = tempfile::tempdir().unwrap();
    let server = server(1000);
    // The CPU backend counts 24 MiB for its library: two do not fit.
    let keeper = keeper(root.path(), &server, Some(Budget::new(Bytes::mib(40))));
    for (generation, factor) in [(1, 2.0), (2, 3.0), (3, 4.0)] {
        let made = make(
            root.path(),
            &generation.to_string(),
            Computes::Times(factor),
            Some(factor),
        );
        desire(&keeper, generation, &made);
        wait_for(&keeper, |slot| {
            slot.active_version == Some(generation.to_string())
        });
        for _ in 0..12 {
            assert_eq!(first(&ask(&server, [1.0; 4]).unwrap()), f64::from(factor));
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    let wrong = make(root.path(), "9", Computes::Times(1.0), Some(5.0));
    desire(&keeper, 9, &wrong);
    wait_for(&keeper, |slot| slot.phase == Phase::Failed);
    assert_eq!(first(&ask(&server, [1.0; 4]).unwrap()), 4.0);
}

#[test]
fn switching_under_load_loses_and_fails_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let backend = CpuBackend::new().unwrap();
    let load = |version: &str, factor: f32| {
        let made = make(folder.path(), version, Computes::Times(factor), Some(factor));
        Arc::new(
            LoadedModel::load(
                &made.path,
                &backend,
                &CompileOptions {
                    threads: 1,
                    ..CompileOptions::default()
                },
            )
            .unwrap(),
        )
    };
    let models = [load("1", 2.0), load("2", 3.0)];
    let server = server(10_000);
    server.switch(Arc::clone(&models[0]));
    let (answered, wrong, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2500 {
                    match ask(&server, [1.0; 4]) {
                        Ok(answer) if first(&answer) == if answer.version == "1" { 2.0 } else { 3.0 } => {
                            answered.fetch_add(1, Ordering::Relaxed);
                        }
                        _ => {
                            wrong.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            for round in 1..=20 {
                std::thread::sleep(Duration::from_millis(5));
                server.switch(Arc::clone(&models[round % 2]));
            }
            done.store(true, Ordering::Relaxed);
        });
    });
    let rate = answered.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64();
    eprintln!("{rate:.0} answers a second with four askers, debug build");
    assert_eq!(
        (answered.load(Ordering::Relaxed), wrong.load(Ordering::Relaxed)),
        (10_000, 0)
    );
    assert!(done.load(Ordering::Relaxed));
}

#[test]
fn a_full_queue_gives_up_what_its_policy_says_and_counts_it() {
    for (drop, first_reply, result) in [
        (DropPolicy::Oldest, "0", Submitted::OldestDropped),
        (DropPolicy::Newest, "3", Submitted::Refused),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let made = make(folder.path(), "1", Computes::Times(2.0), Some(2.0));
        let model = LoadedModel::load(
            &made.path,
            &CpuBackend::new().unwrap(),
            &CompileOptions::default(),
        )
        .unwrap();
        let server = Server::start(
            "main",
            ServerOptions {
                drop,
                workers: 1,
                ..options(3)
            },
            Turns::new(None),
            &Pulses::default(),
        )
        .unwrap();
        server.switch(Arc::new(model));
        // Inputs wait while a model is on its way.
        server.release();
        let (reply, replies) = mpsc::channel();
        let submit = |name: &str| {
            let (reply, name) = (reply.clone(), name.to_owned());
            server.submit(Job {
                name: name.clone(),
                content: Content::Encoded(input([1.0; 4])),
                received: Instant::now(),
                reply: Box::new(move |answer| reply.send((name, answer.is_ok())).unwrap()),
            })
        };
        for name in ["0", "1", "2"] {
            assert_eq!(submit(name), Submitted::Queued);
        }
        assert_eq!(submit("3"), result);
        assert_eq!(
            replies.recv_timeout(Duration::from_secs(5)).unwrap(),
            (first_reply.to_owned(), false)
        );
        assert_eq!(server.health().dropped, 1);
        assert_eq!(server.waiting(), 3);
        let model = LoadedModel::load(
            &made.path,
            &CpuBackend::new().unwrap(),
            &CompileOptions::default(),
        )
        .unwrap();
        server.switch(Arc::new(model));
        for _ in 0..3 {
            assert!(replies.recv_timeout(Duration::from_secs(5)).unwrap().1);
        }
    }
}

#[test]
fn unreadable_inputs_are_refused_by_name_and_hurt_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let made = make(folder.path(), "1", Computes::Times(2.0), Some(2.0));
    let model = LoadedModel::load(
        &made.path,
        &CpuBackend::new().unwrap(),
        &CompileOptions::default(),
    )
    .unwrap();
    let server = server(8);
    server.switch(Arc::new(model));
    for (bytes, part) in [
        (b"junk".to_vec(), "does not say how an image becomes its input"),
        (b"\x93NUMPY\x01\x00".to_vec(), "bad.npy"),
        (b"PK\x03\x04".to_vec(), "bad.npy"),
    ] {
        let (reply, answer) = mpsc::channel();
        server.submit(Job {
            name: "bad.npy".into(),
            content: Content::Encoded(bytes),
            received: Instant::now(),
            reply: Box::new(move |result| reply.send(result).unwrap()),
        });
        let error = answer.recv_timeout(Duration::from_secs(5)).unwrap().unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(first(&ask(&server, [1.0; 4]).unwrap()), 2.0);
    assert_eq!(server.health().failed, 3);
    server.pause(true);
    assert_eq!(ask(&server, [1.0; 4]).unwrap_err(), "the slot is paused");
    server.pause(false);
    assert!(ask(&server, [1.0; 4]).is_ok());
}
