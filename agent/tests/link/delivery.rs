//! Nothing that the broker has not acknowledged is lost, whatever happens to the connection.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use edgeopt_agent::link::{
    Alarm, DisconnectReason, Environment, Link, LinkState, MemoryOutbox, Outbox, OutboxError, Outgoing,
    Refusal,
};

use crate::support::packet;
use crate::support::scripted::ScriptedBroker;
use crate::support::{PATIENCE, eventually};
use crate::{Device, generous_outbox, number, numbers, options, set};

#[test]
fn results_survive_a_cut_without_acknowledgement_and_a_lost_session() {
    let broker = ScriptedBroker::start();
    let device = Device::start(options("d", broker.port()));
    device.produce(0..10);
    let mut first = broker.accept_session(false);
    assert_eq!(numbers(&first.messages(10)), (0..10).collect::<Vec<_>>());
    drop(first);

    let mut second = broker.accept_session(false);
    let again = second.messages(10);
    assert_eq!(
        numbers(&again),
        (0..10).collect::<Vec<_>>(),
        "all again, in order"
    );
    assert_eq!(
        device.outbox.len(),
        10,
        "nothing is deleted before its acknowledgement"
    );
    for message in &again {
        second.send(&packet::puback(message.id));
    }
    eventually("the outbox is empty", || device.outbox.is_empty());
    second.stays_silent(Duration::from_millis(200));
    assert_eq!(device.link.view().counters.connects, 2);
}

#[test]
fn order_is_kept_when_a_session_resumes_after_packet_ids_have_wrapped() {
    let broker = ScriptedBroker::start();
    let device = Device::start(options("d", broker.port()));
    let mut first = broker.accept_session(false);
    device.produce(0..1100);
    let (mut wrapped, mut last_id) = (false, 0);
    for expected in 0..1090 {
        let message = first.message().unwrap();
        assert_eq!(number(&message), expected);
        wrapped |= message.id < last_id;
        last_id = message.id;
        first.send(&packet::puback(message.id));
    }
    assert!(wrapped, "the test means to pass the last packet id");
    first.messages(10);
    eventually("all but ten are gone", || device.outbox.len() == 10);
    drop(first);

    let mut second = broker.accept_session(true);
    assert_eq!(numbers(&second.messages(10)), (1090..1100).collect::<Vec<_>>());
}

#[test]
fn an_acknowledgement_out_of_order_deletes_its_own_record_only() {
    let broker = ScriptedBroker::start();
    let device = Device::start(options("d", broker.port()));
    device.produce(0..3);
    let mut first = broker.accept_session(false);
    let messages = first.messages(3);
    first.send(&packet::puback(messages[1].id));
    eventually("one is deleted", || device.outbox.len() == 2);
    drop(first);

    let mut second = broker.accept_session(true);
    let again = second.messages(2);
    assert_eq!(numbers(&again), [0, 2]);
    second.send(&packet::puback(again[1].id));
    second.send(&packet::puback(again[0].id));
    device.produce(3..5);
    assert_eq!(numbers(&second.messages(2)), [3, 4], "delivery goes on");
}

#[test]
fn a_message_that_is_never_acknowledged_holds_the_window_and_then_costs_the_connection() {
    let broker = ScriptedBroker::start();
    let mut options = options("d", broker.port());
    options.window = 8;
    options.ack_timeout = Duration::from_millis(600);
    let device = Device::start(options);
    let mut first = broker.accept_session(false);
    eventually("the status is acknowledged", || {
        first.stays_silent(Duration::from_millis(50));
        device.link.view().state.is_connected()
    });
    device.produce(0..20);
    let messages = first.messages(8);
    for message in &messages[1..] {
        first.send(&packet::puback(message.id));
    }
    // The oldest is open: eight beyond it would be the end of the window.
    assert!(
        first.message().is_err(),
        "no more is published, then the connection ends"
    );
    let mut second = broker.accept_session(true);
    let mut delivered = Vec::new();
    while delivered.len() < 13 {
        let message = second.message().unwrap();
        second.send(&packet::puback(message.id));
        delivered.push(number(&message));
    }
    let expected: Vec<u64> = std::iter::once(0).chain(8..20).collect();
    assert_eq!(delivered, expected);
}

#[test]
fn what_is_too_large_is_refused_and_counted_and_blocks_nothing() {
    let broker = ScriptedBroker::start();
    let options = options("d", broker.port());
    let limit = options.packet_limit();
    let device = Device::start(options);
    let mut peer = broker.accept_session(false);
    let refused = device
        .outbox
        .push("t".into(), vec![0; limit.bytes()], false)
        .unwrap_err();
    assert!(refused.to_string().contains("broker.max_packet"), "{refused}");
    assert_eq!(device.outbox.refused_count(), 1);
    device.produce(1..2);
    assert_eq!(numbers(&peer.messages(1)), [1]);
    // The largest that is allowed passes.
    device
        .outbox
        .push("t".into(), vec![7; limit.bytes() - 1 - 3 - 2 - 1 - 2], false)
        .unwrap();
    device.link.nudge().outbox_changed();
    assert_eq!(peer.message().unwrap().payload[0], 7);
    peer.stays_silent(Duration::from_millis(100));
    assert_eq!(device.link.view().counters.connects, 1);
}

#[test]
fn an_outbox_that_holds_something_too_large_loses_only_that() {
    let broker = ScriptedBroker::start();
    let options = options("d", broker.port());
    let outbox = generous_outbox();
    let too_large = vec![0; options.packet_limit().bytes()];
    outbox.push("t".into(), too_large, false).unwrap();
    outbox.push("a/+".into(), b"x".to_vec(), false).unwrap_err();
    outbox.push("t".into(), b"5".to_vec(), true).unwrap();
    let (link, _received) = Link::start(options, Box::new(outbox.clone()), Environment::default()).unwrap();
    let mut peer = broker.accept_session(false);
    let message = peer.message().unwrap();
    assert_eq!((number(&message), message.retain, message.qos), (5, true, 1));
    peer.send(&packet::puback(message.id));
    eventually("both are gone", || outbox.is_empty());
    let counters = link.view().counters;
    assert_eq!(
        (counters.refused, counters.acknowledged, counters.connects),
        (1, 1, 1)
    );
}

#[test]
fn whatever_a_broker_does_with_its_acknowledgements_everything_arrives() {
    let total = 200;
    for seed in 0..6u64 {
        let mut state = seed;
        let mut dice = move |sides: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % sides
        };
        let broker = ScriptedBroker::start();
        let mut options = options("d", broker.port());
        options.backoff.cap = Duration::from_millis(5);
        let device = Device::start(options);
        device.produce(0..total);
        let (mut seen, mut connects) = (BTreeSet::new(), 0);
        while !device.outbox.is_empty() {
            let mut peer = broker.accept_session(dice(2) == 0);
            connects += 1;
            let mut held = Vec::new();
            let mut newest = None;
            while let Ok(message) = peer.message() {
                // Within a connection messages come in order, each once.
                assert!(newest < Some(number(&message)), "seed {seed}");
                newest = Some(number(&message));
                seen.insert(number(&message));
                held.push(message.id);
                // Acknowledge some of what is held, in any order; rarely, cut.
                let count = dice(4) as usize;
                for _ in 0..count.min(held.len()) {
                    let id = held.swap_remove(dice(held.len() as u64) as usize);
                    drop(peer.try_send(&packet::puback(id)));
                }
                if dice(30) == 0 {
                    break;
                }
                let all_out = newest == Some(total - 1);
                if all_out || held.len() > 8 {
                    for id in held.drain(..) {
                        drop(peer.try_send(&packet::puback(id)));
                    }
                }
                if all_out {
                    // What the outbox still has comes with the next connection.
                    peer.settle();
                    break;
                }
            }
        }
        assert_eq!(seen, set(0..total), "seed {seed}");
        assert!(connects > 1, "seed {seed} means to cut");
    }
}

/// An outbox whose disk fails until the test repairs it.
struct Broken {
    content: MemoryOutbox,
    broken: Arc<AtomicBool>,
}

impl Outbox for Broken {
    fn next(&mut self, after: Option<u64>, max: usize) -> Result<Vec<Outgoing>, OutboxError> {
        match self.broken.load(Ordering::SeqCst) {
            true => Err(OutboxError("the disk does not answer".into())),
            false => self.content.next(after, max),
        }
    }

    fn acknowledged(&mut self, sequence: u64) -> Result<(), OutboxError> {
        self.content.acknowledged(sequence)
    }

    fn refused(&mut self, sequence: u64, why: &Refusal) -> Result<(), OutboxError> {
        self.content.refused(sequence, why)
    }
}

#[test]
fn an_outbox_that_cannot_be_read_is_an_alarm_and_is_tried_again() {
    let broker = ScriptedBroker::start();
    let content = generous_outbox();
    content.push("t".into(), b"1".to_vec(), false).unwrap();
    let broken = Arc::new(AtomicBool::new(true));
    let outbox = Broken {
        content,
        broken: Arc::clone(&broken),
    };
    let (link, _received) = Link::start(
        options("d", broker.port()),
        Box::new(outbox),
        Environment::default(),
    )
    .unwrap();
    let alarm = Alarm::Outbox(OutboxError("the disk does not answer".into()));
    let alarmed = |wanted: bool| {
        let seen = link
            .watch()
            .wait(PATIENCE, |view| view.alarms.contains(&alarm) == wanted);
        assert!(seen.is_ok(), "{seen:?}");
    };
    // The connection in which it fails, and a later one, in which it recovers.
    let first = broker.accept_session(false);
    alarmed(true);
    drop(first);
    let mut peer = broker.accept_session(false);
    let again = link.watch().wait(PATIENCE, |view| view.counters.connects == 2);
    assert!(again.is_ok(), "{again:?}");
    broken.store(false, Ordering::SeqCst);
    assert_eq!(numbers(&peer.messages(1)), [1]);
    alarmed(false);
}

#[test]
fn an_acknowledgement_nobody_asked_for_costs_the_connection_and_no_record() {
    let broker = ScriptedBroker::start();
    let mut options = options("d", broker.port());
    options.backoff.base = Duration::from_millis(300);
    let environment = Environment {
        random: Box::new(|| 1.0),
        ..Environment::default()
    };
    let device = Device::start_in(options, environment);
    device.produce(0..2);
    let mut first = broker.accept_session(false);
    let messages = first.messages(2);
    first.send(&packet::puback(messages[1].id + 100));
    let seen = device.link.watch().wait(PATIENCE, |view| {
        matches!(
            view.state,
            LinkState::Disconnected {
                reason: DisconnectReason::Protocol(_),
                ..
            }
        )
    });
    assert!(seen.is_ok(), "{seen:?}");
    let mut second = broker.accept_session(true);
    assert_eq!(numbers(&second.messages(2)), [0, 1]);
}
