//! Brokers other than mosquitto: the same way through a device's life. aedes runs where Node is; RabbitMQ, which takes half
//! a minute to start, when it is asked for (`make test-brokers`).

use std::time::{Duration, Instant};

use edgeopt_agent::fleet::{CommandOutcome, Operator, command};
use edgeopt_agent::protocol::{
    Action, CommandState, ModelSource, Phase, ReportedState, SlotSpec, Status, Topic,
};

use crate::aedes::Aedes;
use crate::bundles::{Computes, input, make_with};
use crate::device::{Device, Settings, deploy, deployed, device, from_url, main_slot, operator};
use crate::http::first;
use crate::observer::Observer;
use crate::rabbitmq::RabbitMq;
use crate::range_server::RangeServer;
use crate::support::mosquitto::Mosquitto;
use crate::support::{PATIENCE, eventually};

/// A broker that goes away and comes back with what it kept.
trait Restarts {
    fn port(&self) -> u16;
    fn stop(&mut self);
    fn start_again(&mut self);
}

macro_rules! restarts {
    ($($broker:ty),*) => {$(
        impl Restarts for $broker {
            fn port(&self) -> u16 { self.port }
            fn stop(&mut self) { self.stop() }
            fn start_again(&mut self) { self.start_again() }
        }
    )*};
}
restarts!(Mosquitto, Aedes, RabbitMq);

/// The message that the broker keeps on a topic of the device.
fn retained<T: serde::de::DeserializeOwned>(port: u16, topic: &Topic) -> T {
    let mut desk = operator(port);
    let topic = topic.of(&device());
    desk.subscribe(&topic).unwrap();
    let heard = desk
        .next(PATIENCE)
        .unwrap()
        .unwrap_or_else(|| panic!("nothing is kept on {topic}"));
    assert!(heard.retained && heard.topic == topic, "{heard:?}");
    serde_json::from_slice(&heard.payload).unwrap()
}

fn ping(desk: &mut Operator, id: &str) {
    let outcome = command(
        desk,
        &device(),
        Action::Ping {},
        &id.parse().unwrap(),
        None,
        PATIENCE,
    )
    .unwrap();
    assert!(
        matches!(&outcome, CommandOutcome::Replied(reply) if reply.state == CommandState::Succeeded),
        "{outcome:?}"
    );
}

/// From the first connection to the last will.
fn life(broker: &mut dyn Restarts) {
    let port = broker.port();
    let folder = tempfile::tempdir().unwrap();
    let server = RangeServer::start(folder.path());
    let observer = Observer::start(port);
    let mut unit = Device::start(&Settings::new(port));
    unit.until_connected();
    eventually("it says that it is there", || observer.online());
    let made = |version: &str, factor: f32| {
        make_with(
            folder.path(),
            version,
            Computes::Times(factor),
            Some(factor),
            400_000,
            None,
        )
    };

    // In chunks over the broker, then over HTTP.
    let mut desk = operator(port);
    let one = made("1", 2.0);
    let spec = SlotSpec {
        sources: vec![ModelSource::Blob("desk".parse().unwrap())],
        ..one.spec.clone()
    };
    let end = deploy(&mut desk, "main", spec, Some(&one.path));
    assert_eq!(end.done, [device()], "{end:?}");
    let two = made("2", 3.0);
    deployed(&mut desk, from_url(&two, server.url(&two.path)));
    desk.publish(&Topic::Input(main_slot()).of(&device()), input([14.0; 4]), false)
        .unwrap();
    eventually("an input over MQTT is answered", || {
        observer
            .results("main")
            .iter()
            .any(|result| first(result) == 42.0)
    });
    ping(&mut desk, "before");
    drop(desk);

    // Nothing is lost while the broker is away, and what was kept is still there.
    broker.stop();
    unit.until("it notices", |overview| !overview.link.connected);
    for number in 100..150 {
        assert_eq!(unit.http().predict(number as f32).unwrap().status, 200);
    }
    broker.start_again();
    // A broker that is away for long is asked every minute.
    let begun = Instant::now();
    while !unit.overview().unwrap().link.connected {
        assert!(
            begun.elapsed() < Duration::from_secs(100),
            "it never connects again"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    eventually("what waited arrives", || {
        let numbers: Vec<f64> = observer.distinct("main").values().map(first).collect();
        (100..150).all(|number| numbers.contains(&f64::from(number * 3)))
    });
    let reported: ReportedState = retained(port, &Topic::Reported);
    let slot = &reported.slots[&main_slot()];
    assert_eq!(
        (slot.phase, slot.active_version.as_deref()),
        (Phase::Active, Some("2"))
    );
    assert!(retained::<Status>(port, &Topic::Status).online);
    let mut desk = operator(port);
    ping(&mut desk, "after");

    // What is said to a device that is away reaches it; its last will says that it is away.
    unit.kill();
    eventually("the broker tells its last will", || !observer.online());
    assert!(!retained::<Status>(port, &Topic::Status).online);
    desk.publish(&Topic::Input(main_slot()).of(&device()), input([5.0; 4]), false)
        .unwrap();
    let three = made("3", 4.0);
    crate::device::desire(&mut desk, reported.generation.0 + 1, Some(three.spec.clone()));
    unit.run();
    unit.until_active("3");
    eventually("it is back", || observer.online());
    eventually("the input that waited at the broker is answered", || {
        observer
            .results("main")
            .iter()
            .any(|result| [15.0, 20.0].contains(&first(result)))
    });
    unit.stop();
    eventually("it says goodbye", || !observer.online());
}

#[test]
fn mosquitto_with_every_limit_low() {
    let folder = tempfile::tempdir().unwrap();
    // One message under way at a time, a queue for the rest of a download, and no packet above that of a chunk.
    let mut broker = Mosquitto::start(
        folder.path(),
        "allow_anonymous true\nmax_inflight_messages 1\nmax_queued_messages 64\nmax_packet_size 140000\nmessage_size_limit 140000",
    );
    life(&mut broker);
}

#[test]
fn aedes() {
    if let Some(mut broker) = Aedes::start() {
        life(&mut broker);
    }
}

#[test]
fn aedes_that_forgets_everything_is_told_again() {
    let Some(mut broker) = Aedes::start() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let unit = Device::start(&Settings::new(broker.port));
    let one = make_with(folder.path(), "1", Computes::Times(2.0), Some(2.0), 0, None);
    deployed(&mut operator(broker.port), one.spec.clone());
    let connects = unit.overview().unwrap().link.connects;
    broker.kill_and_start_again();
    unit.until("it connects again", |overview| {
        overview.link.connects > connects && overview.link.connected
    });
    std::thread::sleep(Duration::from_millis(300));
    let reported: ReportedState = retained(broker.port, &Topic::Reported);
    assert_eq!(reported.slots[&main_slot()].active_version.as_deref(), Some("1"));
    assert!(retained::<Status>(broker.port, &Topic::Status).online);
    let two = make_with(folder.path(), "2", Computes::Times(3.0), Some(3.0), 0, None);
    deployed(&mut operator(broker.port), two.spec.clone());
    assert_eq!(unit.http().predict(14.0).unwrap().number(), 42.0);
}

#[test]
#[ignore = "needs rabbitmq-server and half a minute: make test-brokers"]
fn rabbitmq() {
    life(&mut RabbitMq::start());
}
