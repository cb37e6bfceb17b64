//! What answered before comes back: after a start that gives up a model, and after others had the memory for a while.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use edgeopt_agent::deploy::Keeper;
use edgeopt_agent::protocol::{EngineState, ModelSource, Phase};
use edgeopt_agent::serve::Server;
use edgeopt_models::Bytes;
use edgeopt_runtime::MemoryUse;
use edgeopt_runtime::memory::{Budget, Reservation};

use super::building::{answers, engine, keeper_of, on, proven, soon, version};
use super::bundles::Made;
use super::slow_builder::{Comes, SlowBuilder};
use super::{ask, desire, first, keeper, record, server, wait_for};

/// Version 2 answers and is watched, version 1 answered before.
fn two_versions(root: &Path) -> Made {
    let server = server(64);
    let keeper = keeper(root, &server, None);
    desire(&keeper, 1, &version(root, "1", 2.0));
    wait_for(&keeper, |slot| slot.phase == Phase::Active);
    answers(&server, 2.0);
    wait_for(&keeper, |slot| !slot.watched);
    let two = version(root, "2", 3.0);
    desire(&keeper, 2, &two);
    wait_for(&keeper, |slot| slot.active_version.as_deref() == Some("2"));
    two
}

/// An input that came before the start is answered by version 1.
fn is_answered_by_the_one_before(root: &Path) {
    let server = server(8);
    server.release();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| ask(&server, [1.0; 4]));
        soon(|| server.waiting() == 1);
        let keeper = keeper(root, &server, None);
        assert_eq!(first(&waits.join().unwrap().unwrap()), 2.0);
        wait_for(&keeper, |slot| slot.active_version.as_deref() == Some("1"));
    });
}

#[test]
fn inputs_that_wait_since_the_start_are_answered_by_the_model_that_is_returned_to() {
    let root = tempfile::tempdir().unwrap();
    two_versions(root.path());
    // It is still watched at the fourth start.
    let path = root.path().join("slots/main.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    json["slot"]["starts"] = 3.into();
    fs::write(&path, serde_json::to_vec(&json).unwrap()).unwrap();
    is_answered_by_the_one_before(root.path());
}

#[test]
fn inputs_that_wait_for_a_model_whose_bundle_is_gone_are_answered_by_the_one_before() {
    let root = tempfile::tempdir().unwrap();
    let two = two_versions(root.path());
    let bundle = root.path().join(format!("bundles/{}.edge", two.spec.sha256));
    fs::remove_file(bundle).unwrap();
    is_answered_by_the_one_before(root.path());
}

#[test]
fn inputs_that_wait_for_a_model_that_cannot_be_loaded_are_refused_when_there_is_none_before_it() {
    let root = tempfile::tempdir().unwrap();
    let mut one = version(root.path(), "1", 2.0);
    let away = root.path().join("away.edge");
    fs::rename(&one.path, &away).unwrap();
    // Fetching it anew will not end: one of its servers is away.
    let file = ModelSource::Url(format!("file:{}", away.display()));
    one.spec.sources = vec![ModelSource::Url("http://127.0.0.1:9/1.edge".into()), file];
    {
        let server = server(8);
        let keeper = keeper(root.path(), &server, None);
        desire(&keeper, 1, &one);
        wait_for(&keeper, |slot| slot.phase == Phase::Active);
    }
    for path in [
        away,
        root.path().join(format!("bundles/{}.edge", one.spec.sha256)),
    ] {
        fs::remove_file(path).unwrap();
    }
    let server = server(8);
    server.release();
    let _keeper = keeper(root.path(), &server, None);
    assert_eq!(
        ask(&server, [1.0; 4]).unwrap_err(),
        "no model is active in this slot"
    );
}

fn away(root: &Path, name: &str) -> Made {
    let mut away = version(root, name, 4.0);
    away.spec.sources = vec![ModelSource::Url("http://127.0.0.1:9/away.edge".into())];
    away
}

#[test]
fn a_wish_that_cannot_be_fetched_does_not_end_the_build_that_the_slot_waits_for() {
    let root = tempfile::tempdir().unwrap();
    proven(root.path(), "lib 1");
    let server = server(64);
    let builder = Arc::new(SlowBuilder::new(
        &root.path().join("engines"),
        "lib 2",
        Comes::Right,
    ));
    let keeper = keeper_of(root.path(), &server, &builder, false, None);
    soon(|| builder.begun() == 1);
    desire(&keeper, 2, &away(root.path(), "2"));
    let slot = wait_for(&keeper, |slot| {
        slot.phase == Phase::Downloading && slot.reason.is_some()
    });
    assert_eq!(engine(&slot), Some(EngineState::Building));
    builder.open();
    wait_for(&keeper, |slot| on(slot, "slow-builder"));
    answers(&server, 2.0);
    assert_eq!((builder.begun(), builder.cancelled()), (1, 0));
}

/// The operator has forbidden the stand-in since.
#[test]
fn an_engine_that_misbehaves_answers_on_where_nothing_may_take_its_place() {
    let root = tempfile::tempdir().unwrap();
    proven(root.path(), "lib 1");
    for stand_in in [true, false] {
        let server = server(64);
        let builder = Arc::new(SlowBuilder::new(
            &root.path().join("engines"),
            "lib 2",
            Comes::NaN,
        ));
        builder.open();
        let keeper = keeper_of(root.path(), &server, &builder, stand_in, None);
        wait_for(&keeper, |slot| {
            on(slot, "slow-builder") && engine(slot) == Some(EngineState::Trying)
        });
        if stand_in {
            continue;
        }
        assert!(ask(&server, [-1.0; 4]).unwrap().non_finite);
        wait_for(&keeper, |slot| engine(slot) == Some(EngineState::Failed));
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(first(&ask(&server, [1.0; 4]).unwrap()), 2.0);
        let slot = keeper.handle().report().slot;
        assert_eq!(
            (slot.phase, slot.active_version.as_deref()),
            (Phase::Active, Some("1"))
        );
    }
}

/// All that `budget` still has, but for what a model needs at most.
fn taken_by_others(budget: &Budget) -> Reservation {
    let all = MemoryUse {
        weights: budget.available(),
        ..MemoryUse::default()
    };
    budget.reserve("somebody else", all).unwrap()
}

fn limited(root: &Path, server: &Server, budget: &Budget) -> (Keeper, Arc<SlowBuilder>) {
    let builder = SlowBuilder::new(&root.join("engines"), "lib", Comes::Right);
    let builder = Arc::new(builder.needing(Bytes::mib(20)));
    let keeper = keeper_of(root, server, &builder, true, Some(budget.clone()));
    (keeper, builder)
}

#[test]
fn a_model_that_gave_way_and_finds_no_memory_is_tried_again_also_during_a_download() {
    let root = tempfile::tempdir().unwrap();
    proven(root.path(), "lib");
    let (server, budget) = (server(64), Budget::new(Bytes::mib(40)));
    let (keeper, builder) = limited(root.path(), &server, &budget);
    wait_for(&keeper, |slot| on(slot, "slow-builder"));
    // Version 2 is built in place of version 1.
    desire(&keeper, 2, &version(root.path(), "2", 3.0));
    soon(|| builder.begun() == 1);
    assert!(server.model().is_none());
    let others = taken_by_others(&budget);
    desire(&keeper, 3, &away(root.path(), "3"));
    soon(|| builder.cancelled() == 1);
    let waits = |slot: &edgeopt_agent::protocol::ReportedSlot| slot.phase == Phase::Downloading;
    wait_for(&keeper, |slot| waits(slot));
    assert!(ask(&server, [1.0; 4]).is_err(), "there is no room for it");
    drop(others);
    let slot = wait_for(&keeper, |slot| waits(slot) && on(slot, "slow-builder"));
    assert_eq!(slot.active_version.as_deref(), Some("1"));
    answers(&server, 2.0);
    std::thread::sleep(Duration::from_millis(300));
    assert!(waits(&keeper.handle().report().slot), "the download goes on");
}

#[test]
fn a_model_that_is_loaded_late_is_watched_all_the_same() {
    let root = tempfile::tempdir().unwrap();
    two_versions(root.path());
    let (server, budget) = (server(64), Budget::new(Bytes::mib(40)));
    let others = taken_by_others(&budget);
    let keeper = super::keeper(root.path(), &server, Some(budget));
    wait_for(&keeper, |slot| {
        slot.reason
            .as_ref()
            .is_some_and(|reason| reason.contains("not loaded yet"))
    });
    drop(others);
    wait_for(&keeper, |slot| on(slot, "cpu"));
    std::thread::sleep(Duration::from_millis(500));
    assert!(record(root.path()).watching, "it has not answered yet");
    answers(&server, 3.0);
    wait_for(&keeper, |slot| !slot.watched);
}
