//! The embedded broker behaves towards a link as mosquitto does.

use std::collections::BTreeSet;
use std::time::Duration;

use edgeopt_agent::broker::EmbeddedBroker;
use edgeopt_agent::link::{Alarm, Inbound, Stopped};
use edgeopt_agent::protocol::Status;

use crate::support::{PATIENCE, eventually};
use crate::{Device, options, subscribed};

fn start() -> EmbeddedBroker {
    EmbeddedBroker::start("127.0.0.1:0".parse().unwrap()).unwrap()
}

fn device(name: &str, broker: &EmbeddedBroker, filters: &[&str]) -> Device {
    let mut options = options(name, broker.address().port());
    options.filters = filters.iter().map(|filter| (*filter).to_owned()).collect();
    let device = Device::start(options);
    if filters.is_empty() {
        let seen = device
            .link
            .watch()
            .wait(PATIENCE, |view| view.state.is_connected());
        assert!(seen.is_ok(), "{seen:?}");
    } else {
        subscribed(&device);
    }
    device
}

fn send(device: &Device, topic: &str, payload: &str, retain: bool) {
    device.outbox.push(topic.into(), payload.into(), retain).unwrap();
    device.link.nudge().outbox_changed();
    eventually("it is acknowledged", || device.outbox.is_empty());
}

fn next(device: &Device) -> Inbound {
    device.received.recv_timeout(PATIENCE).unwrap()
}

#[test]
fn it_passes_messages_by_filter_and_keeps_the_retained() {
    let broker = start();
    let producer = device("producer", &broker, &[]);
    send(&producer, "a/kept", "1", true);
    send(&producer, "a/gone", "2", false);
    send(&producer, "a/cleared", "3", true);
    send(&producer, "a/cleared", "", true);
    let observer = device("observer", &broker, &["a/+", "b/#"]);
    let kept = next(&observer);
    assert_eq!(
        (kept.topic.as_str(), kept.payload.as_slice(), kept.retained),
        ("a/kept", b"1".as_slice(), true)
    );
    for (topic, wanted) in [
        ("a/b/c", false),
        ("b", true),
        ("b/c/d", true),
        ("c", false),
        ("a/x", true),
    ] {
        send(&producer, topic, topic, false);
        if wanted {
            let inbound = next(&observer);
            assert_eq!((inbound.topic.as_str(), inbound.retained), (topic, false));
        }
    }
    assert!(observer.received.recv_timeout(Duration::from_millis(50)).is_err());
}

#[test]
fn it_keeps_messages_for_a_device_that_is_away() {
    let broker = start();
    let producer = device("producer", &broker, &[]);
    let away = device("d", &broker, &["x/#"]);
    send(&producer, "x/0", "0", false);
    next(&away);
    assert_eq!(away.link.stop(PATIENCE), Stopped::InTime);
    for number in 1..=50 {
        send(&producer, &format!("x/{number}"), "later", false);
    }
    let back = device("d", &broker, &["x/#"]);
    let topics: Vec<String> = (1..=50).map(|_| next(&back).topic).collect();
    assert_eq!(
        topics,
        (1..=50).map(|number| format!("x/{number}")).collect::<Vec<_>>()
    );
    assert_eq!(broker.dropped_count(), 0);
}

#[test]
fn it_publishes_wills_of_those_that_vanish_and_ends_the_older_of_two_with_one_name() {
    let broker = start();
    let observer = device("observer", &broker, &["edgeopt/v1/twin/status"]);
    let twins = [device("twin", &broker, &[]), device("twin", &broker, &[])];
    let alarm = Alarm::Takeover {
        client_id: "twin".into(),
    };
    eventually("the alarm", || {
        twins.iter().any(|twin| twin.link.view().alarms.contains(&alarm))
    });
    let mut seen = BTreeSet::new();
    while seen.len() < 4 {
        let status: Status = serde_json::from_slice(&next(&observer).payload).unwrap();
        seen.insert((status.instance, status.online));
    }
}

#[test]
fn a_thousand_results_pass_in_order_and_a_restart_loses_none_that_was_not_acknowledged() {
    let broker = start();
    let address = broker.address();
    let observer = device("observer", &broker, &["edgeopt/v1/#"]);
    let producer = device("d", &broker, &[]);
    producer.produce(0..1000);
    let number = |inbound: Inbound| String::from_utf8(inbound.payload).unwrap().parse::<u64>().ok();
    let mut numbers = Vec::new();
    while numbers.len() < 1000 {
        numbers.extend(number(next(&observer)));
    }
    assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
    drop(broker);
    producer.produce(1000..1010);
    let _again = EmbeddedBroker::start(address).unwrap();
    eventually("the rest is acknowledged", || producer.outbox.is_empty());
}

#[test]
fn it_listens_to_this_machine_only_and_survives_nonsense() {
    let refused = EmbeddedBroker::start("0.0.0.0:0".parse().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("loopback"), "{refused}");
    let broker = start();
    for nonsense in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0x10, 0xff, 0xff, 0xff, 0xff],
        &[0xc0, 0],
        &[0x10, 2, 0, 9],
    ] {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(broker.address()).unwrap();
        stream.write_all(nonsense).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // Closed or reset, without an answer.
        assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
    }
    device("still-works", &broker, &[]);
}
