//! What a device says and does while an engine is built: in this process, on a backend that builds as long as the test says.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use edgeopt_agent::daemon::Daemon;
use edgeopt_agent::fleet::{CommandOutcome, Operator, command};
use edgeopt_agent::link::Environment;
use edgeopt_agent::protocol::{Action, CommandReply, CommandState, EngineState, Phase};
use edgeopt_agent::serve::Executors;
use edgeopt_runtime::backends::cpu::CpuBackend;

use crate::OnDrop;
use crate::bundles::{Computes, make};
use crate::device::{Device, Settings, deployed, device, from_file, main_slot, operator};
use crate::observer::Observer;
use crate::slow_builder::{Comes, SlowBuilder};
use crate::support::mosquitto::Mosquitto;
use crate::support::{PATIENCE, eventually};

fn started(unit: &Device, folder: &Path, comes: Comes) -> (Daemon, Arc<SlowBuilder>) {
    let builder = Arc::new(SlowBuilder::new(&folder.join("engines"), "lib 1", comes));
    let executors = Executors {
        stand_in: Some(Arc::new(CpuBackend::new().unwrap())),
        ..Executors::only(Arc::clone(&builder) as _)
    };
    let daemon = Daemon::start_on(executors, &unit.config(), "0.0.0-test", Environment::default()).unwrap();
    unit.until_connected();
    (daemon, builder)
}

fn rebuild(desk: &mut Operator, id: &str) -> CommandReply {
    let action = Action::Rebuild { slot: main_slot() };
    match command(desk, &device(), action, &id.parse().unwrap(), None, PATIENCE).unwrap() {
        CommandOutcome::Replied(reply) => reply,
        CommandOutcome::Silent => panic!("no word about {id}"),
    }
}

#[test]
fn the_device_says_what_answers_and_how_the_build_goes_on_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = Observer::start(broker.port);
    let unit = Device::new(&Settings::new(broker.port));
    let (daemon, builder) = started(&unit, folder.path(), Comes::Right);
    let mut desk = operator(broker.port);
    // The deployment is done when the stand-in answers.
    let made = make(folder.path(), "1", Computes::Times(2.0), Some(2.0));
    deployed(&mut desk, from_file(&made));
    let report = observer.report(|_, slot| slot.engine.is_some());
    assert_eq!(
        (report.phase, report.backend.as_deref()),
        (Phase::Active, Some("cpu"))
    );
    assert_eq!(report.engine.unwrap().state, EngineState::Building);
    let steps = || {
        let slot = &unit.overview().unwrap().slots[&main_slot()];
        slot.build.map_or(0, |build| build.steps)
    };
    let first = steps();
    eventually("the build goes on", || steps() > first);
    let metrics = || unit.http().get("/metrics").unwrap().body;
    let shown = metrics();
    assert!(
        shown.contains("edgeopt_slot_backend{slot=\"main\",backend=\"cpu\"} 1\n"),
        "{shown}"
    );
    assert!(
        !shown.contains("edgeopt_slot_engine_build_seconds{slot=\"main\"} 0\n"),
        "{shown}"
    );
    assert_eq!(daemon.hanging(), []);
    let reply = rebuild(&mut desk, "too-early");
    assert_eq!(reply.state, CommandState::Failed);
    assert!(reply.reason.unwrap().contains("nothing to build again"));

    let (done, answered, after) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _ends = OnDrop(&done);
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let reply = unit.http().predict(21.0).unwrap();
                    assert_eq!((reply.status, reply.number()), (200, 42.0));
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        eventually("the stand-in answers", || answered.load(Ordering::Relaxed) > 20);
        builder.open();
        let on_engine =
            |slot: &edgeopt_agent::protocol::ReportedSlot| slot.backend.as_deref() == Some("slow-builder");
        observer.report(|_, slot| on_engine(slot) && slot.engine.is_none());
        after.store(answered.load(Ordering::Relaxed), Ordering::Relaxed);
        eventually("the engine answers", || {
            answered.load(Ordering::Relaxed) > after.load(Ordering::Relaxed) + 20
        });
    });
    let shown = metrics();
    assert!(
        shown.contains("edgeopt_slot_backend{slot=\"main\",backend=\"slow-builder\"} 1\n"),
        "{shown}"
    );
    assert!(
        shown.contains("edgeopt_slot_engine_build_seconds{slot=\"main\"} 0\n"),
        "{shown}"
    );
    let overview = unit.overview().unwrap();
    let slot = &overview.slots[&main_slot()];
    assert_eq!((slot.failed, slot.dropped), (0, 0));
    daemon.stop(Duration::from_secs(10));
}

#[test]
fn an_engine_that_cannot_be_built_is_reported_and_built_again_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = Observer::start(broker.port);
    let unit = Device::new(&Settings::new(broker.port));
    let (daemon, builder) = started(&unit, folder.path(), Comes::Never);
    builder.open();
    let mut desk = operator(broker.port);
    let made = make(folder.path(), "1", Computes::Times(2.0), Some(2.0));
    deployed(&mut desk, from_file(&made));
    let failed = |slot: &edgeopt_agent::protocol::ReportedSlot| {
        slot.engine
            .as_ref()
            .is_some_and(|engine| engine.state == EngineState::Failed)
    };
    let report = observer.report(|_, slot| failed(slot));
    assert_eq!(
        (report.phase, report.backend.as_deref()),
        (Phase::Active, Some("cpu"))
    );
    let reason = report.engine.unwrap().reason;
    assert!(
        reason.contains("no tactic was good enough") && reason.contains("`rebuild`"),
        "{reason}"
    );
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0);
    let metrics = unit.http().get("/metrics").unwrap().body;
    assert!(
        metrics.contains("edgeopt_slot_engine_failed{slot=\"main\"} 1\n"),
        "{metrics}"
    );
    assert_eq!(builder.begun(), 1);
    assert_eq!(rebuild(&mut desk, "again").state, CommandState::Succeeded);
    eventually("it is built again", || builder.begun() == 2);
    eventually("that fails as well", || {
        unit.overview()
            .is_some_and(|overview| failed(&overview.slots[&main_slot()].reported))
    });
    daemon.stop(Duration::from_secs(10));
}
