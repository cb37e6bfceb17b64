//! End to end through the real broker. The observer is a link too, subscribed to everything.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use edgeopt_agent::config::Tls;
use edgeopt_agent::link::{Alarm, DisconnectReason, LinkState, Stopped};
use edgeopt_agent::protocol::Status;
use edgeopt_models::Bytes;

use crate::support::authority::{Authority, Identity};
use crate::support::mosquitto::Mosquitto;
use crate::support::{PATIENCE, eventually};
use crate::{Device, options, produce, set, subscribed};

fn observer(port: u16) -> Device {
    let mut options = options("observer", port);
    options.filters = vec!["edgeopt/v1/+/models/#".into(), "edgeopt/v1/d/status".into()];
    Device::start(options)
}

fn connected(device: &Device) {
    let seen = device
        .link
        .watch()
        .wait(PATIENCE, |view| view.state.is_connected());
    assert!(seen.is_ok(), "{seen:?}");
}

/// Waits for results until `wanted` is complete; returns how many messages it took.
fn collect(observer: &Device, wanted: &BTreeSet<u64>) -> usize {
    let (mut seen, mut messages) = (BTreeSet::new(), 0);
    let start = Instant::now();
    while seen != *wanted {
        assert!(
            start.elapsed() < PATIENCE * 2,
            "{} of {} arrived",
            seen.len(),
            wanted.len()
        );
        let Ok(inbound) = observer.received.recv_timeout(Duration::from_millis(100)) else {
            continue;
        };
        if inbound.topic.ends_with("/result") {
            messages += 1;
            seen.insert(String::from_utf8(inbound.payload).unwrap().parse().unwrap());
        }
    }
    messages
}

fn status(observer: &Device) -> bool {
    loop {
        let inbound = observer.received.recv_timeout(PATIENCE).unwrap();
        if inbound.topic.ends_with("/status") {
            return serde_json::from_slice::<Status>(&inbound.payload).unwrap().online;
        }
    }
}

#[test]
fn results_and_status_pass_and_each_result_once_while_nothing_breaks() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = observer(broker.port);
    subscribed(&observer);
    let device = Device::start(options("d", broker.port));
    assert!(status(&observer));
    device.produce(0..500);
    assert_eq!(collect(&observer, &set(0..500)), 500);
    eventually("the outbox is empty", || device.outbox.is_empty());
    assert_eq!(device.link.stop(PATIENCE), Stopped::InTime);
    assert!(!status(&observer));
}

#[test]
fn nothing_is_lost_when_the_broker_restarts_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = observer(broker.port);
    subscribed(&observer);
    let device = Device::start(options("d", broker.port));
    connected(&device);
    let total = 3000;
    let (outbox, nudge) = (device.outbox.clone(), device.link.nudge());
    std::thread::scope(|scope| {
        let producer = scope.spawn(move || {
            for number in 0..total {
                produce(&outbox, &nudge, number..number + 1);
                if number % 20 == 0 {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(150));
            broker.stop();
            std::thread::sleep(Duration::from_millis(50));
            broker.start_again();
        }
        producer.join().unwrap();
    });
    let messages = collect(&observer, &set(0..total));
    eventually("the outbox is empty", || device.outbox.is_empty());
    let counters = device.link.view().counters;
    println!("{messages} messages for {total} results, {counters:?}");
    assert!(
        counters.connects >= 2,
        "the test means to break connections: {counters:?}"
    );
    assert_eq!(device.outbox.dropped_count(), 0);
    // What was in flight is repeated, and no more than that.
    assert!(messages < 3500, "{messages}");
}

#[test]
fn a_device_that_vanishes_is_offline_by_its_will() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = observer(broker.port);
    subscribed(&observer);
    let device = Device::start(options("d", broker.port));
    assert!(status(&observer));
    subscribed(&device);
    // Its queue is gone: the link ends without a goodbye as soon as a message comes in.
    drop(device.received);
    let mut producer = options("producer", broker.port);
    producer.filters = Vec::new();
    let producer = Device::start(producer);
    producer
        .outbox
        .push("edgeopt/v1/d/command/1".into(), b"{}".to_vec(), false)
        .unwrap();
    producer.link.nudge().outbox_changed();
    assert!(!status(&observer));
}

#[test]
fn two_devices_with_one_name_raise_the_alarm() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let twins = [
        Device::start(options("twin", broker.port)),
        Device::start(options("twin", broker.port)),
    ];
    let alarm = Alarm::Takeover {
        client_id: "twin".into(),
    };
    let raised = |device: &Device| {
        device
            .link
            .watch()
            .wait(PATIENCE, |view| view.alarms.contains(&alarm))
            .is_ok()
    };
    assert!(raised(&twins[0]) || raised(&twins[1]));
}

#[test]
fn a_wrong_password_is_said_to_be_one_and_the_right_one_passes() {
    let folder = tempfile::tempdir().unwrap();
    let passwords = folder.path().join("passwords");
    let made = std::process::Command::new("mosquitto_passwd")
        .args(["-b", "-c"])
        .arg(&passwords)
        .args(["user", "secret"])
        .status()
        .unwrap();
    assert!(made.success());
    let lines = format!("allow_anonymous false\npassword_file {}", passwords.display());
    let broker = Mosquitto::start(folder.path(), &lines);
    let file = folder.path().join("mine");
    std::fs::write(&file, "wrong").unwrap();
    let mut options = options("d", broker.port);
    options.broker.username = Some("user".into());
    options.broker.password_file = Some(file.clone());
    let device = Device::start(options);
    let refused = device.link.watch().wait(PATIENCE, |view| {
        matches!(
            view.state,
            LinkState::Disconnected {
                reason: DisconnectReason::Refused(_),
                ..
            }
        )
    });
    assert!(refused.is_ok(), "{refused:?}");
    std::fs::write(&file, "secret\n").unwrap();
    connected(&device);
}

/// A broker that wants certificates, and the device's options for it.
fn mutual_tls(
    folder: &std::path::Path,
) -> (Mosquitto, Authority, impl Fn(&str, Option<&Identity>) -> Device) {
    let authority = Authority::new(folder, "ca");
    let server = authority.issue("localhost", 2026);
    let lines = format!(
        "allow_anonymous true\nrequire_certificate true\ncafile {}\ncertfile {}\nkeyfile {}",
        folder.join("ca.pem").display(),
        server.certificate.display(),
        server.key.display()
    );
    let broker = Mosquitto::start(folder, &lines);
    let (port, folder) = (broker.port, folder.to_owned());
    let start = move |ca: &str, identity: Option<&Identity>| {
        let mut options = options("d", port);
        options.broker.host = "localhost".into();
        options.broker.tls = Some(Tls {
            ca: Some(folder.join(ca)),
            certificate: identity.map(|identity| identity.certificate.clone()),
            key: identity.map(|identity| identity.key.clone()),
            alpn: vec!["mqtt".into()],
        });
        Device::start(options)
    };
    (broker, authority, start)
}

#[test]
fn certificates_of_both_sides_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (_broker, authority, start) = mutual_tls(folder.path());
    let mine = authority.issue("d", 2026);
    let device = start("ca.pem", Some(&mine));
    device.produce(0..200);
    connected(&device);
    eventually("results pass", || device.outbox.is_empty());
    assert_eq!(device.link.view().counters.connects, 1);

    let stranger = Authority::new(folder.path(), "other");
    let reason = |device: &Device| {
        let ended = |state: &LinkState| match state {
            LinkState::Disconnected { reason, .. } => Some(reason.clone()),
            _ => None,
        };
        let view = device
            .link
            .watch()
            .wait(PATIENCE, |view| ended(&view.state).is_some())
            .unwrap();
        assert_eq!(view.counters.connects, 0, "{view:?}");
        ended(&view.state).unwrap()
    };
    // An authority that did not sign the broker's certificate.
    let unknown = reason(&start("other.pem", Some(&mine)));
    assert!(
        matches!(&unknown, DisconnectReason::Tls(text) if text.contains("UnknownIssuer")),
        "{unknown:?}"
    );
    // A device without a certificate, and one with a stranger's: the broker says no.
    let anonymous = reason(&start("ca.pem", None));
    assert!(
        matches!(
            anonymous,
            DisconnectReason::Tls(_) | DisconnectReason::ClosedByPeer
        ),
        "{anonymous:?}"
    );
    let foreign = reason(&start("ca.pem", Some(&stranger.issue("d", 2027))));
    assert!(
        matches!(foreign, DisconnectReason::Tls(_) | DisconnectReason::ClosedByPeer),
        "{foreign:?}"
    );
    // A key that is not the certificate's is found before anything is sent.
    let mixed = Identity {
        certificate: mine.certificate.clone(),
        key: authority.issue("x", 2026).key,
    };
    let mismatch = reason(&start("ca.pem", Some(&mixed)));
    assert!(
        matches!(mismatch, DisconnectReason::Configuration(_)),
        "{mismatch:?}"
    );
}

#[test]
fn a_message_too_large_in_the_brokers_queue_is_got_rid_of_and_later_ones_arrive() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let device = Device::start(options("d", broker.port));
    subscribed(&device);
    let mut generous = options("producer", broker.port);
    generous.filters = Vec::new();
    generous.broker.max_packet = Bytes::mib(4);
    let producer = Device::start(generous);
    let send = |payload: Vec<u8>| {
        producer
            .outbox
            .push("edgeopt/v1/d/command/1".into(), payload, false)
            .unwrap();
        producer.link.nudge().outbox_changed();
        eventually("the broker has it", || producer.outbox.is_empty());
    };
    send(vec![0; 2 << 20]);
    // The message can be met until the queue is emptied; only then is the device at peace.
    let peace = device.link.watch().wait(PATIENCE, |view| {
        view.counters.oversize_inbound == 3
            && view.alarms.is_empty()
            && matches!(view.state, LinkState::Connected { subscribed: true, .. })
    });
    assert!(peace.is_ok(), "{peace:?}");
    send(b"small".to_vec());
    assert_eq!(device.received.recv_timeout(PATIENCE).unwrap().payload, b"small");
    assert_eq!(device.link.view().counters.oversize_inbound, 3);
}
