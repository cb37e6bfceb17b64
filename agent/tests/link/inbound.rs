//! Messages from the broker: taken before they are acknowledged, and never able to block the device.

use std::time::Duration;

use edgeopt_agent::link::{Alarm, Inbound, LinkState};
use edgeopt_agent::protocol::{DesiredState, Generation};

use crate::support::packet::{self, Packet, Publish};
use crate::support::scripted::ScriptedBroker;
use crate::support::{PATIENCE, eventually};
use crate::{Device, numbers, options};

const DESIRED: &str = "edgeopt/v1/d/desired";

fn message(payload: impl Into<Vec<u8>>, id: u16) -> Publish {
    Publish {
        topic: DESIRED.into(),
        payload: payload.into(),
        id,
        qos: 1,
        retain: false,
        dup: false,
    }
}

#[test]
fn a_message_is_handed_over_whole_and_then_acknowledged() {
    let broker = ScriptedBroker::start();
    let device = Device::start(options("d", broker.port()));
    let mut peer = broker.accept_session(false);
    peer.send(&packet::publish(&Publish {
        dup: true,
        ..message("hello", 77)
    }));
    assert_eq!(peer.acknowledgement().unwrap(), 77);
    let expected = Inbound {
        topic: DESIRED.into(),
        payload: b"hello".to_vec(),
        retained: false,
        duplicate: true,
    };
    assert_eq!(device.received.recv_timeout(PATIENCE).unwrap(), expected);
}

#[test]
fn a_retained_desired_state_is_acted_on_once_however_often_it_is_replayed() {
    let broker = ScriptedBroker::start();
    let device = Device::start(options("d", broker.port()));
    let mut current = Generation(0);
    let mut acted = Vec::new();
    for generation in [5, 5, 4, 5, 6] {
        let mut peer = broker.accept_session(true);
        let payload = format!("{{\"generation\": {generation}, \"slots\": {{}}}}");
        peer.send(&packet::publish(&Publish {
            retain: true,
            ..message(payload, 1)
        }));
        assert_eq!(peer.acknowledgement().unwrap(), 1);
        let inbound = device.received.recv_timeout(PATIENCE).unwrap();
        assert!(inbound.retained);
        let desired: DesiredState = serde_json::from_slice(&inbound.payload).unwrap();
        if desired.generation.supersedes(current) {
            current = desired.generation;
            acted.push(generation);
        }
    }
    assert_eq!(acted, [5, 6]);
}

#[test]
fn every_connect_subscribes_anew() {
    let broker = ScriptedBroker::start();
    let _device = Device::start(options("d", broker.port()));
    for session_present in [false, true, false] {
        let mut peer = broker.accept_session(session_present);
        let filters = loop {
            if let Packet::Subscribe { filters, .. } = peer.read().unwrap() {
                break filters;
            }
        };
        let expected = ["desired", "models/+/input", "command/+", "blob/+/chunk"];
        let expected: Vec<(String, u8)> = expected
            .iter()
            .map(|tail| (format!("edgeopt/v1/d/{tail}"), 1))
            .collect();
        assert_eq!(filters, expected);
    }
}

#[test]
fn a_refused_subscription_is_an_alarm_until_it_is_granted() {
    let broker = ScriptedBroker::start();
    let device = Device::start(options("d", broker.port()));
    for (codes, refused) in [([1, 0x80, 1, 0x80], true), ([1, 1, 1, 1], false)] {
        let mut peer = broker.accept_session(false);
        let id = loop {
            if let Packet::Subscribe { id, .. } = peer.read().unwrap() {
                break id;
            }
        };
        peer.send(&packet::suback(id, &codes));
        let expected = Alarm::SubscriptionRefused {
            filters: vec![
                "edgeopt/v1/d/models/+/input".into(),
                "edgeopt/v1/d/blob/+/chunk".into(),
            ],
        };
        let seen = device
            .link
            .watch()
            .wait(PATIENCE, |view| view.alarms.contains(&expected) == refused);
        assert!(seen.is_ok(), "{seen:?}");
    }
}

#[test]
fn a_full_queue_holds_the_broker_back_and_loses_nothing() {
    let broker = ScriptedBroker::start();
    let mut options = options("d", broker.port());
    options.inbound = 2;
    options.stall_timeout = Duration::from_millis(300);
    let device = Device::start(options);
    let mut first = broker.accept_session(false);
    for id in 1..=4 {
        first.send(&packet::publish(&message(id.to_string(), id)));
    }
    let acknowledged: Vec<u16> = std::iter::from_fn(|| first.acknowledgement().ok()).collect();
    assert!(
        acknowledged.iter().all(|id| *id <= 2),
        "acknowledged, but never taken: {acknowledged:?}"
    );

    // The daemon wakes up; the broker sends again what was not acknowledged.
    let mut second = broker.accept_session(true);
    let take = || device.received.recv_timeout(PATIENCE).unwrap().payload;
    assert_eq!((take(), take()), (b"1".to_vec(), b"2".to_vec()));
    for id in 3..=4 {
        second.send(&packet::publish(&Publish {
            dup: true,
            ..message(id.to_string(), id)
        }));
        assert_eq!(second.acknowledgement().unwrap(), id);
    }
    assert_eq!((take(), take()), (b"3".to_vec(), b"4".to_vec()));
}

#[test]
fn a_long_backlog_is_taken_in_one_connection() {
    let broker = ScriptedBroker::start();
    let device = Device::start(options("d", broker.port()));
    let mut peer = broker.accept_session(true);
    // All at once, without waiting for acknowledgements: a broker may.
    let backlog: Vec<u8> = (1..=3000)
        .flat_map(|id: u16| packet::publish(&message(id.to_string(), id)))
        .collect();
    peer.send(&backlog);
    for id in 1..=3000u16 {
        assert_eq!(
            device.received.recv_timeout(PATIENCE).unwrap().payload,
            id.to_string().into_bytes()
        );
    }
    let acknowledged: Vec<u16> = (1..=3000).map(|_| peer.acknowledgement().unwrap()).collect();
    assert_eq!(acknowledged, (1..=3000).collect::<Vec<u16>>());
    assert_eq!(device.link.view().counters.connects, 1);
}

#[test]
fn a_queued_message_that_is_too_large_is_met_three_times_then_purged() {
    let broker = ScriptedBroker::start();
    let options = options("d", broker.port());
    let too_large = packet::publish(&message(vec![0; options.packet_limit().bytes() + 1], 1));
    let device = Device::start(options);
    for strike in 1..=3 {
        let mut peer = broker.accept();
        assert!(
            matches!(
                peer.connect(),
                Packet::Connect {
                    clean_session: false,
                    ..
                }
            ),
            "strike {strike}"
        );
        peer.send(&packet::connack(true, 0));
        drop(peer.try_send(&too_large));
        peer.until_closed();
    }
    // A clean session makes the broker forget the queue; it ends at once.
    let mut purge = broker.accept();
    assert!(matches!(
        purge.connect(),
        Packet::Connect {
            clean_session: true,
            ..
        }
    ));
    let view = device.link.view();
    assert!(
        matches!(view.alarms[..], [Alarm::OversizeInbound { .. }]),
        "{view:?}"
    );
    assert_eq!(view.counters.oversize_inbound, 3);
    purge.send(&packet::connack(false, 0));
    purge.until_closed();

    let mut healthy = broker.accept();
    assert!(matches!(
        healthy.connect(),
        Packet::Connect {
            clean_session: false,
            ..
        }
    ));
    healthy.send(&packet::connack(false, 0));
    device.produce(0..1);
    assert_eq!(numbers(&healthy.messages(1)), [0]);
    let quiet = device.link.watch().wait(PATIENCE, |view| view.alarms.is_empty());
    assert!(quiet.is_ok(), "the alarm ends with its cause: {quiet:?}");
}

#[test]
fn a_retained_message_that_is_too_large_costs_the_subscriptions_for_a_while_and_no_results() {
    let broker = ScriptedBroker::start();
    let mut options = options("d", broker.port());
    options.quarantine.hold = Duration::from_millis(1500);
    let too_large = packet::publish(&message(vec![0; options.packet_limit().bytes() + 1], 1));
    let device = Device::start(options);
    let mut connects = 0;
    let mut deaf = loop {
        connects += 1;
        assert!(connects <= 6, "the retries are bounded");
        let mut peer = broker.accept();
        let Packet::Connect { clean_session, .. } = peer.connect() else {
            unreachable!()
        };
        peer.send(&packet::connack(false, 0));
        let deaf = match peer.read() {
            Ok(Packet::Publish(status)) => {
                // It came without a subscription before it.
                peer.send(&packet::puback(status.id));
                assert!(clean_session);
                true
            }
            Ok(Packet::Subscribe { id, .. }) => {
                let answer = [packet::suback(id, &[1, 1, 1, 1]), too_large.clone()].concat();
                drop(peer.try_send(&answer));
                false
            }
            _ => false, // the purge
        };
        if deaf {
            break peer;
        }
        peer.until_closed();
    };
    assert_eq!(connects, 6, "three strikes, the purge, one more look, then deaf");
    device.produce(0..5);
    let messages = deaf.messages(5);
    for message in &messages {
        deaf.send(&packet::puback(message.id));
    }
    eventually("results are delivered", || device.outbox.is_empty());
    let view = device.link.view();
    assert!(matches!(view.state, LinkState::Connected { .. }), "{view:?}");
    assert!(
        matches!(view.alarms[..], [Alarm::OversizeInbound { .. }]),
        "{view:?}"
    );

    // After the hold it looks again; the message is gone.
    deaf.until_closed();
    let mut healed = broker.accept_session(false);
    assert!(matches!(healed.read().unwrap(), Packet::Subscribe { .. }));
    let quiet = device.link.watch().wait(PATIENCE, |view| view.alarms.is_empty());
    assert!(quiet.is_ok(), "{quiet:?}");
}
