//! How a connection begins and ends.

use std::time::{Duration, Instant};

use edgeopt_agent::link::{DisconnectReason, LinkState, Stopped};
use edgeopt_agent::protocol::Status;

use crate::support::PATIENCE;
use crate::support::packet::{self, Packet};
use crate::support::scripted::ScriptedBroker;
use crate::{Device, options};

const STATUS: &str = "edgeopt/v1/d/status";

fn online(payload: &[u8]) -> bool {
    serde_json::from_slice::<Status>(payload).unwrap().online
}

#[test]
fn a_connect_carries_a_stable_id_the_will_and_the_password() {
    let folder = tempfile::tempdir().unwrap();
    let password_file = folder.path().join("password");
    std::fs::write(&password_file, "secret\nnot this\n").unwrap();
    let broker = ScriptedBroker::start();
    let mut options = options("d", broker.port());
    options.broker.username = Some("user".into());
    options.broker.password_file = Some(password_file);
    let _device = Device::start(options);
    for _ in 0..2 {
        let mut peer = broker.accept();
        let Packet::Connect {
            client_id,
            clean_session,
            keep_alive,
            will,
            username,
            password,
        } = peer.connect()
        else {
            unreachable!()
        };
        assert_eq!((client_id.as_str(), clean_session, keep_alive), ("d", false, 30));
        assert_eq!(
            (username.as_deref(), password.as_deref()),
            (Some("user"), Some("secret"))
        );
        let will = will.unwrap();
        assert_eq!((will.topic.as_str(), will.qos, will.retain), (STATUS, 1, true));
        assert!(!online(&will.payload));
    }
}

#[test]
fn the_status_is_online_at_each_connect() {
    let broker = ScriptedBroker::start();
    let _device = Device::start(options("d", broker.port()));
    for _ in 0..2 {
        let mut peer = broker.accept_session(false);
        let status = loop {
            if let Packet::Publish(publish) = peer.read().unwrap() {
                break publish;
            }
        };
        assert_eq!((status.topic.as_str(), status.retain), (STATUS, true));
        assert!(online(&status.payload));
    }
}

#[test]
fn a_stop_waits_for_acknowledgements_says_offline_and_leaves_properly() {
    let broker = ScriptedBroker::start();
    let device = Device::start(options("d", broker.port()));
    device.produce(0..3);
    let mut peer = broker.accept_session(false);
    let messages = peer.messages(3);
    let outbox = device.outbox.clone();
    let stopping = std::thread::spawn(move || device.link.stop(PATIENCE));
    let goodbye = loop {
        match peer.read().unwrap() {
            Packet::Publish(publish) if !online(&publish.payload) => break publish,
            Packet::Publish(publish) => peer.send(&packet::puback(publish.id)),
            _ => {}
        }
    };
    assert_eq!((goodbye.topic.as_str(), goodbye.retain), (STATUS, true));
    peer.send(&packet::puback(goodbye.id));
    for message in messages {
        peer.send(&packet::puback(message.id));
    }
    while peer.read().unwrap() != Packet::Disconnect {}
    assert_eq!(stopping.join().unwrap(), Stopped::InTime);
    assert!(outbox.is_empty());
}

#[test]
fn a_stop_is_bounded_when_the_broker_is_mute_and_quick_when_there_is_none() {
    let broker = ScriptedBroker::start();
    let device = Device::start(options("d", broker.port()));
    let _mute = broker.accept_session(false);
    assert!(
        device
            .link
            .watch()
            .wait(PATIENCE, |view| view.state.is_connected())
            .is_ok()
    );
    let start = Instant::now();
    assert_eq!(device.link.stop(Duration::from_millis(300)), Stopped::Abandoned);
    assert!(start.elapsed() < PATIENCE);

    let mut options = options("d", 1);
    options.backoff.base = Duration::from_secs(600);
    options.backoff.cap = Duration::from_secs(600);
    let device = Device::start(options);
    let waiting = device.link.watch().wait(PATIENCE, |view| {
        matches!(view.state, LinkState::Disconnected { .. })
    });
    assert!(waiting.is_ok());
    assert_eq!(device.link.stop(PATIENCE), Stopped::InTime);
}

#[test]
fn the_reason_and_the_next_attempt_are_visible() {
    let broker = ScriptedBroker::start();
    let mut options = options("d", broker.port());
    options.backoff.base = Duration::from_secs(600);
    options.backoff.cap = Duration::from_secs(600);
    let device = Device::start(options);
    let mut peer = broker.accept();
    peer.connect();
    peer.send(&packet::connack(false, 4));
    let view = device
        .link
        .watch()
        .wait(PATIENCE, |view| {
            matches!(view.state, LinkState::Disconnected { .. })
        })
        .unwrap();
    let LinkState::Disconnected {
        reason,
        since,
        next_try,
    } = &view.state
    else {
        unreachable!()
    };
    assert!(matches!(reason, DisconnectReason::Refused(_)), "{reason}");
    assert!(
        view.state.to_string().contains("user name or password"),
        "{}",
        view.state
    );
    assert!(*since <= Instant::now() && *next_try <= *since + Duration::from_secs(660));
}

#[test]
fn a_broker_that_falls_silent_is_noticed() {
    let broker = ScriptedBroker::start();
    let mut options = options("d", broker.port());
    options.broker.keep_alive_s = 1;
    options.backoff.base = Duration::from_secs(600);
    options.backoff.cap = Duration::from_secs(600);
    let device = Device::start(options);
    let _silent = broker.accept_session(false);
    let timeout = |state: &LinkState| {
        matches!(
            state,
            LinkState::Disconnected {
                reason: DisconnectReason::Timeout(_),
                ..
            }
        )
    };
    let noticed = device.link.watch().wait(PATIENCE, |view| timeout(&view.state));
    assert!(noticed.is_ok(), "{noticed:?}");
}

#[test]
fn a_file_that_cannot_be_read_is_named_and_read_again_at_the_next_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let password_file = folder.path().join("password");
    let broker = ScriptedBroker::start();
    let mut options = options("d", broker.port());
    options.broker.username = Some("user".into());
    options.broker.password_file = Some(password_file.clone());
    let device = Device::start(options);
    let named = device.link.watch().wait(PATIENCE, |view| match &view.state {
        LinkState::Disconnected {
            reason: DisconnectReason::Configuration(text),
            ..
        } => text.contains(&password_file.display().to_string()),
        _ => false,
    });
    assert!(named.is_ok(), "{named:?}");
    std::fs::write(&password_file, "late").unwrap();
    let Packet::Connect { password, .. } = broker.accept().connect() else {
        unreachable!()
    };
    assert_eq!(password.as_deref(), Some("late"));
}

#[test]
fn a_dropped_link_ends_also_while_the_broker_turns_it_away() {
    let broker = ScriptedBroker::start();
    let device = Device::start(options("d", broker.port()));
    for _ in 0..3 {
        drop(broker.accept());
    }
    let watch = device.link.watch();
    drop(device);
    let ended = watch.wait(PATIENCE, |view| view.state == LinkState::Stopped);
    assert!(ended.is_ok(), "{ended:?}");
    // One attempt may have been under way.
    drop(broker.try_accept());
    std::thread::sleep(Duration::from_millis(300));
    assert!(broker.try_accept().is_none(), "it goes on connecting");
}
