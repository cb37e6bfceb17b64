//! Rollouts to devices whose messages the tests write, over a broker in this process.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::broker::EmbeddedBroker;
use crate::protocol::{
    BlobRequest, DesiredState, DeviceId, Generation, ModelSource, Phase, ReportedSlot, ReportedState,
    SlotName, SlotSpec, Topic,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn connect(broker: &EmbeddedBroker) -> Operator {
    let access = Access {
        host: "127.0.0.1".into(),
        port: Some(broker.address().port()),
        ..Access::default()
    };
    Operator::connect(&access).unwrap()
}

fn name<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap()
}

fn spec(version: &str) -> SlotSpec {
    SlotSpec {
        model: "m".into(),
        version: version.into(),
        sha256: "ab".into(),
        size: 1,
        sources: vec![ModelSource::Url("file:/m.edge".into())],
    }
}

fn desired(generation: u64, slots: &[(&str, &str)]) -> DesiredState {
    DesiredState {
        generation: Generation(generation),
        slots: slots
            .iter()
            .map(|(slot, version)| (name(slot), spec(version)))
            .collect(),
    }
}

fn reported(generation: u64, slots: &[(&str, Phase)]) -> ReportedState {
    let slot = |phase| ReportedSlot {
        phase,
        active_version: (phase == Phase::Active).then(|| "2".into()),
        reason: (phase == Phase::Failed).then(|| "no room".into()),
        ..ReportedSlot::default()
    };
    ReportedState {
        generation: Generation(generation),
        slots: slots
            .iter()
            .map(|(own, phase)| (name(own), slot(*phase)))
            .collect(),
    }
}

/// The other side: a connection that plays devices and other operators.
struct Fleet(Operator);

impl Fleet {
    fn new(broker: &EmbeddedBroker) -> Self {
        let mut operator = connect(broker);
        operator.subscribe("edgeopt/v1/+/desired").unwrap();
        operator.subscribe("edgeopt/v1/+/blob/+/chunk").unwrap();
        Self(operator)
    }

    fn say(&mut self, device: &str, topic: &Topic, message: &impl serde::Serialize) {
        let json = serde_json::to_vec(message).unwrap();
        self.0
            .publish(&topic.of(&name(device)), json, *topic != blob())
            .unwrap();
        self.0.settle().unwrap();
    }

    fn report(&mut self, device: &str, generation: u64, slots: &[(&str, Phase)]) {
        self.say(device, &Topic::Reported, &reported(generation, slots));
    }

    /// Waits until a message comes under a topic.
    fn hears(&mut self, topic: &str) -> Vec<u8> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(heard) = self.0.next(Duration::from_millis(100)).unwrap()
                && heard.topic == topic
            {
                return heard.payload;
            }
        }
        panic!("nothing came under {topic}");
    }

    fn is_asked(&mut self, device: &str) -> DesiredState {
        let topic = Topic::Desired.of(&name(device));
        serde_json::from_slice(&self.hears(&topic)).unwrap()
    }
}

fn blob() -> Topic {
    Topic::BlobRequest(name("b"))
}

fn rollout(devices: &[&str]) -> Rollout<'static> {
    Rollout {
        devices: devices.iter().map(|device| name(device)).collect(),
        slot: name("main"),
        change: Change::Install(spec("2")),
        blob: None,
        wave: devices.len(),
        failures: devices.len(),
        patience: Duration::from_secs(8),
        watched: false,
        forget_other_slots: false,
    }
}

/// Rolls out while `fleet` plays its part, told of each step.
fn play(
    broker: &EmbeddedBroker,
    rollout: &Rollout<'_>,
    fleet: impl FnOnce(&mut Fleet, &Receiver<(DeviceId, DeviceProgress)>) + Send,
) -> RolloutEnd {
    let (mut operator, mut others) = (connect(broker), Fleet::new(broker));
    let (steps, seen) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || fleet(&mut others, &seen));
        roll_out(&mut operator, rollout, &mut |device, step| {
            // Nobody listens any more once the fleet has played.
            let _ = steps.send((device.clone(), step.clone()));
        })
        .unwrap()
    })
}

fn broker() -> EmbeddedBroker {
    EmbeddedBroker::start("127.0.0.1:0".parse().unwrap()).unwrap()
}

#[test]
fn a_device_under_way_is_heard_while_the_next_one_is_looked_at() {
    let broker = broker();
    let folder = tempfile::tempdir().unwrap();
    let (content, _) = crate::store::tests::bundle("2", 1000, None);
    let path = folder.path().join("m.edge");
    std::fs::write(&path, content).unwrap();
    let bundle = BundleFile::open(&path).unwrap();
    let mut rollout = rollout(&["a", "b", "c"]);
    rollout.blob = Some((name("b"), &bundle));
    rollout.wave = 2;
    let request = BlobRequest {
        sha256: bundle.sha256.clone(),
        offset: 0,
        length: 100,
        chunks: 1,
    };
    let end = play(&broker, &rollout, |fleet, steps| {
        assert_eq!(fleet.is_asked("a").generation, Generation(1));
        assert_eq!(fleet.is_asked("b").generation, Generation(1));
        // Now `c` takes the place of `a`, and for half a second its kept messages are awaited.
        fleet.report("a", 1, &[("main", Phase::Active)]);
        while steps.recv().unwrap().1 != DeviceProgress::Done {}
        fleet.say("b", &blob(), &request);
        fleet.hears("edgeopt/v1/b/blob/b/chunk");
        fleet.report("b", 1, &[("main", Phase::Failed)]);
        fleet.is_asked("c");
        fleet.report("c", 1, &[("main", Phase::Active)]);
    });
    assert_eq!(end.done, [name("a"), name("c")]);
    assert_eq!(
        end.failed,
        BTreeMap::from([(name("b"), Failure::Refused("no room".into()))])
    );
}

#[test]
fn a_failure_stops_devices_that_were_not_asked_yet() {
    let broker = broker();
    let mut rollout = rollout(&["a", "b", "c", "a"]);
    (rollout.wave, rollout.failures) = (2, 0);
    let end = play(&broker, &rollout, |fleet, steps| {
        fleet.is_asked("a");
        fleet.is_asked("b");
        fleet.report("a", 1, &[("main", Phase::Active)]);
        while steps.recv().unwrap().1 != DeviceProgress::Done {}
        fleet.report("b", 1, &[("main", Phase::Failed)]);
    });
    assert_eq!((end.done, end.untouched), (vec![name("a")], vec![name("c")]));
    assert_eq!(end.failed.len(), 1);
}

#[test]
fn a_device_of_which_the_broker_has_lost_slots_is_not_asked() {
    let broker = broker();
    let mut fleet = Fleet::new(&broker);
    let holds = [
        ("main", Phase::Active),
        ("second", Phase::Active),
        ("third", Phase::Downloading),
        ("empty", Phase::Absent),
        ("attic", Phase::Failed),
    ];
    fleet.report("lost", 7, &holds);
    fleet.report("stale", 7, &holds);
    fleet.say("stale", &Topic::Desired, &desired(6, &[("third", "1")]));
    // What is desired says that the others are to be empty; the device only has not come that far.
    fleet.report("behind", 7, &holds);
    fleet.say("behind", &Topic::Desired, &desired(8, &[("main", "1")]));
    let mut wanted = rollout(&["lost", "stale", "behind"]);
    let end = play(&broker, &wanted, |fleet, steps| {
        while steps.recv().unwrap().1 != DeviceProgress::Asked(Generation(9)) {}
        fleet.report("behind", 9, &[("main", Phase::Active)]);
    });
    assert_eq!(end.done, [name("behind")]);
    let emptied = |slots: &[&str]| Failure::WouldEmpty(slots.iter().map(|slot| name(slot)).collect());
    assert_eq!(
        end.failed,
        BTreeMap::from([
            (name("lost"), emptied(&["second", "third"])),
            (name("stale"), emptied(&["second"]))
        ])
    );
    // Nothing was asked of it: the broker still keeps nothing.
    let views = survey(
        &mut connect(&broker),
        Some(&name("lost")),
        Duration::from_millis(300),
    )
    .unwrap();
    assert_eq!(views[&name::<DeviceId>("lost")].desired, None);

    wanted.devices = vec![name("lost")];
    wanted.forget_other_slots = true;
    let end = play(&broker, &wanted, |fleet, _| {
        assert_eq!(fleet.is_asked("lost"), desired(8, &[("main", "2")]));
        fleet.report("lost", 8, &[("main", Phase::Active)]);
    });
    assert_eq!(end.done, [name("lost")]);
}

#[test]
fn a_device_that_is_further_than_the_broker_knows_is_asked_again() {
    let broker = broker();
    let end = play(&broker, &rollout(&["a", "b", "c"]), |fleet, _| {
        for device in ["a", "b", "c"] {
            assert_eq!(fleet.is_asked(device).generation, Generation(1));
        }
        fleet.report("a", 41, &[("main", Phase::Active)]);
        assert_eq!(fleet.is_asked("a"), desired(42, &[("main", "2")]));
        fleet.report("a", 42, &[("main", Phase::Active)]);
        // What it holds becomes known only now.
        fleet.report("b", 5, &[("main", Phase::Active), ("second", Phase::Active)]);
        // One that is always further is not asked for ever.
        for generation in [3, 5, 7] {
            fleet.report("c", generation, &[]);
            assert_eq!(fleet.is_asked("c").generation, Generation(generation + 1));
        }
        fleet.report("c", 9, &[]);
    });
    assert_eq!(end.done, [name("a")]);
    assert_eq!(
        end.failed,
        BTreeMap::from([
            (name("b"), Failure::WouldEmpty(vec![name::<SlotName>("second")])),
            (name("c"), Failure::Superseded(Generation(9)))
        ])
    );
}

/// As `slot` says it that has taken `generation`, with this digest.
fn taken(slot: &str, generation: u64, sha256: Option<&str>) -> ReportedState {
    let mut state = reported(generation, &[(slot, Phase::Active)]);
    for slot in state.slots.values_mut() {
        slot.generation = Some(Generation(generation));
        slot.desired_sha256 = sha256.map(str::to_owned);
    }
    state
}

#[test]
fn a_device_that_has_taken_the_same_generation_with_another_content_is_asked_again() {
    let broker = broker();
    // The broker knows what the device has not taken: what it holds would be emptied by the next state.
    let mut fleet = Fleet::new(&broker);
    fleet.say("d", &Topic::Desired, &desired(3, &[]));
    fleet.say("d", &Topic::Reported, &taken("second", 3, Some("cd")));
    let end = play(&broker, &rollout(&["a", "b", "c", "d"]), |fleet, _| {
        for device in ["a", "b", "c"] {
            assert_eq!(fleet.is_asked(device).generation, Generation(1));
        }
        // The same version, another file.
        fleet.say("a", &Topic::Reported, &taken("main", 1, Some("cd")));
        assert_eq!(fleet.is_asked("a"), desired(2, &[("main", "2")]));
        fleet.say("a", &Topic::Reported, &taken("main", 2, Some("ab")));
        // Another slot of it holds something that nobody here knew.
        let mut other = taken("second", 1, Some("cd"));
        other.slots.extend(taken("main", 1, Some("ab")).slots);
        fleet.say("b", &Topic::Reported, &other);
        // The very same: it is the answer.
        fleet.say("c", &Topic::Reported, &taken("main", 1, Some("ab")));
    });
    assert_eq!(
        end.done.into_iter().collect::<std::collections::BTreeSet<_>>(),
        [name("a"), name("c")].into()
    );
    let emptied = Failure::WouldEmpty(vec![name("second")]);
    assert_eq!(
        end.failed,
        BTreeMap::from([(name("b"), emptied.clone()), (name("d"), emptied)])
    );
}

#[test]
fn two_operators_that_ask_the_same_generation_notice() {
    let broker = broker();
    let end = play(&broker, &rollout(&["a", "b", "c"]), |fleet, _| {
        for device in ["a", "b", "c"] {
            fleet.is_asked(device);
        }
        fleet.say("a", &Topic::Desired, &desired(1, &[("main", "3")]));
        // Older than what was asked, but not ours: the device's newer report answers somebody else.
        fleet.say("b", &Topic::Desired, &desired(0, &[("main", "3")]));
        fleet.report("b", 4, &[("main", Phase::Active)]);
        // Our own words, once more.
        fleet.say("c", &Topic::Desired, &desired(1, &[("main", "2")]));
        fleet.report("c", 1, &[("main", Phase::Active)]);
    });
    assert_eq!(end.done, [name("c")]);
    assert_eq!(
        end.failed,
        BTreeMap::from([
            (name("a"), Failure::Superseded(Generation(1))),
            (name("b"), Failure::Superseded(Generation(0)))
        ])
    );
}

#[test]
fn the_last_generation_has_no_next_one() {
    let broker = broker();
    Fleet::new(&broker).report("a", u64::MAX, &[]);
    let end = play(&broker, &rollout(&["a"]), |_, _| {});
    let failure = &end.failed[&name::<DeviceId>("a")];
    assert!(
        matches!(failure, Failure::Refused(why) if why.contains("no generation is newer")),
        "{failure:?}"
    );
}
