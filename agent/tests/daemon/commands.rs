//! Commands: each is done once, however often it is seen, and its end is told for certain.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use edgeopt_agent::fleet::{CommandOutcome, Operator, command};
use edgeopt_agent::protocol::{Action, CommandReply, CommandState, Topic};
use serde_json::json;

use crate::bundles::{Computes, make};
use crate::device::{Device, Settings, deployed, device, from_file, main_slot, operator};
use crate::observer::Observer;
use crate::support::mosquitto::Mosquitto;
use crate::support::{PATIENCE, eventually, packet, scripted::ScriptedBroker};

/// Publishes a command as text.
pub(crate) fn ask(operator: &mut Operator, id: &str, text: &str) {
    let topic = Topic::Command(id.parse().unwrap()).of(&device());
    operator.publish(&topic, text, true).unwrap();
    operator.settle().unwrap();
}

fn replies(observer: &Observer, id: &str) -> Vec<Option<CommandReply>> {
    let all = observer.on(&format!("/command/{id}/reply"));
    all.iter()
        .map(|payload| serde_json::from_slice(payload).ok())
        .collect()
}

/// Waits for the last word.
fn reply(observer: &Observer, id: &str) -> CommandReply {
    let mut last = None;
    eventually(&format!("command {id} ends"), || {
        last = replies(observer, id).into_iter().flatten().next_back();
        last.as_ref()
            .is_some_and(|reply| reply.state != CommandState::Running)
    });
    last.unwrap()
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

#[test]
fn each_command_is_done_once_and_its_reply_goes_when_it_is_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = Observer::start(broker.port);
    let mut desk = operator(broker.port);
    let mut unit = Device::start(&Settings::new(broker.port));
    unit.until_connected();
    for (version, factor) in [("1", 2.0), ("2", 3.0)] {
        deployed(
            &mut desk,
            from_file(&make(
                folder.path(),
                version,
                Computes::Times(factor),
                Some(factor),
            )),
        );
        for _ in 0..6 {
            unit.http().predict(1.0).unwrap();
        }
        eventually("it is trusted", || !unit.record().unwrap().watching);
    }
    let id = |text: &str| text.parse().unwrap();
    let done = |desk: &mut Operator, name: &str, action: Action| match command(
        desk,
        &device(),
        action,
        &id(name),
        Some(now_ms() + 60_000),
        PATIENCE,
    )
    .unwrap()
    {
        CommandOutcome::Replied(reply) => reply,
        CommandOutcome::Silent => panic!("no word about {name}"),
    };

    let ping = done(&mut desk, "ping", Action::Ping {});
    assert_eq!(ping.state, CommandState::Succeeded);
    assert!(ping.detail.unwrap()["uptime_s"].is_u64());
    let test = done(&mut desk, "test", Action::SelfTest { slot: main_slot() });
    assert_eq!(test.detail, Some(json!({"version": "2", "samples": 1})));
    let before = observer.telemetry("memory").len();
    done(&mut desk, "report", Action::Report {});
    eventually("it reports", || observer.telemetry("memory").len() > before);
    let unknown = done(
        &mut desk,
        "unknown",
        Action::Pause {
            slot: "other".parse().unwrap(),
        },
    );
    assert_eq!(unknown.state, CommandState::Failed);
    assert_eq!(unknown.reason.unwrap(), "this device has no slot other");

    // Back, once: the second time there is nothing to return to.
    let back = done(&mut desk, "back", Action::Rollback { slot: main_slot() });
    assert_eq!(back.detail, Some(json!({"previous_version": "1"})));
    unit.until_active("1");
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0);
    let again = done(&mut desk, "back2", Action::Rollback { slot: main_slot() });
    assert_eq!(again.state, CommandState::Failed);

    // `command` has cleared each; the device has cleared its replies.
    for name in ["ping", "test", "report", "unknown", "back", "back2"] {
        eventually("the reply is cleared", || {
            replies(&observer, name).last() == Some(&None)
        });
    }
    let journal = unit.folder().join("store/commands.json");
    let kept = || -> serde_json::Value { serde_json::from_slice(&std::fs::read(&journal).unwrap()).unwrap() };
    eventually("nothing is remembered of them", || kept()["entries"] == json!({}));

    // Too late, and no command at all.
    ask(
        &mut desk,
        "late",
        &json!({"action": {"kind": "pause", "slot": "main"}, "expires_ms": now_ms() - 5000}).to_string(),
    );
    assert!(reply(&observer, "late").reason.unwrap().contains("expired"));
    ask(&mut desk, "odd", r#"{"action": {"kind": "explode"}}"#);
    let odd = reply(&observer, "odd").reason.unwrap();
    assert!(odd.contains("not a command") && odd.contains("explode"), "{odd}");
    assert_eq!(
        unit.http().predict(1.0).unwrap().status,
        200,
        "nothing was paused"
    );

    // A pause outlasts a restart; seen again, the command is not done again, but its end is told again.
    ask(
        &mut desk,
        "pause",
        r#"{"action": {"kind": "pause", "slot": "main"}}"#,
    );
    assert_eq!(reply(&observer, "pause").state, CommandState::Succeeded);
    let refused = unit.http().predict(1.0).unwrap();
    assert_eq!(
        (refused.status, refused.error().as_str()),
        (503, "the slot is paused")
    );
    let told = replies(&observer, "pause").len();
    unit.stop();
    unit.run();
    unit.until_active("1");
    eventually("its end is told again", || {
        replies(&observer, "pause").len() > told
    });
    assert_eq!(
        replies(&observer, "pause")
            .last()
            .unwrap()
            .as_ref()
            .unwrap()
            .state,
        CommandState::Succeeded
    );
    assert_eq!(unit.logged("command pause: "), 1, "{}", unit.log());
    assert_eq!(unit.http().predict(1.0).unwrap().status, 503);
    done(&mut desk, "resume", Action::Resume { slot: main_slot() });
    assert_eq!(unit.http().predict(1.0).unwrap().status, 200);
    // The pause is still retained: it must not come back with the next start.
    unit.stop();
    unit.run();
    unit.until_active("1");
    unit.until_connected();
    eventually("it has been seen again", || {
        replies(&observer, "pause").len() > told + 1
    });
    assert_eq!(unit.http().predict(1.0).unwrap().status, 200);
    unit.stop();
}

#[test]
fn a_last_word_survives_the_loss_of_its_publish() {
    let broker = ScriptedBroker::start();
    let mut unit = Device::start(&Settings::new(broker.port()));
    let mut peer = broker.accept_session(false);
    let command = packet::Publish {
        topic: "edgeopt/v1/d/command/c1".into(),
        payload: br#"{"action": {"kind": "ping"}}"#.to_vec(),
        qos: 1,
        id: 1,
        retain: true,
        dup: false,
    };
    peer.send(&packet::publish(&command));
    // The broker takes the final reply and dies before it acknowledges; so it goes twice, and the daemon with it once.
    let final_reply = |peer: &mut crate::support::scripted::Peer| loop {
        let message = peer.message().unwrap();
        if message.topic.ends_with("/command/c1/reply") {
            let reply: CommandReply = serde_json::from_slice(&message.payload).unwrap();
            assert!(message.retain);
            if reply.state != CommandState::Running {
                return (message.id, reply);
            }
        } else {
            peer.send(&packet::puback(message.id));
        }
    };
    let (_, told) = final_reply(&mut peer);
    assert_eq!(told.state, CommandState::Succeeded);
    drop(peer);
    let mut peer = broker.accept_session(false);
    let (_, again) = final_reply(&mut peer);
    assert_eq!(again, told, "told again because nobody confirmed it");
    unit.kill();
    drop(peer);
    unit.run();
    // After a restart the command is seen again, because it is retained; it is answered from the journal.
    let mut peer = broker.accept_session(false);
    peer.send(&packet::publish(&command));
    let (id, remembered) = final_reply(&mut peer);
    assert_eq!(
        remembered, told,
        "not done again: the same uptime as the first time"
    );
    peer.send(&packet::puback(id));
    assert_eq!(unit.logged("action=Ping"), 1, "{}", unit.log());
    std::thread::sleep(Duration::from_millis(10));
}

#[test]
fn a_command_that_was_interrupted_is_told_as_failed_and_not_begun_again() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = Observer::start(broker.port);
    let mut desk = operator(broker.port);
    let mut unit = Device::start(&Settings::new(broker.port));
    let one = make(folder.path(), "1", Computes::Times(2.0), Some(2.0));
    deployed(&mut desk, from_file(&one));
    eventually("it is trusted", || !unit.record().unwrap().watching);
    // Reading the golden samples hangs: the bundle is a pipe that nobody writes to.
    let bundle = unit
        .folder()
        .join("store/bundles")
        .join(format!("{}.edge", one.spec.sha256));
    let aside = unit.folder().join("aside");
    std::fs::rename(&bundle, &aside).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&bundle).status();
    assert!(made.unwrap().success());
    ask(
        &mut desk,
        "test",
        r#"{"action": {"kind": "self_test", "slot": "main"}}"#,
    );
    eventually("it is said to run", || {
        let last = replies(&observer, "test").pop().flatten();
        last.is_some_and(|reply| reply.state == CommandState::Running)
    });
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0, "answers go on");
    unit.kill();
    std::fs::rename(&aside, &bundle).unwrap();
    unit.run();
    let end = reply(&observer, "test");
    assert_eq!(end.state, CommandState::Failed);
    assert_eq!(end.reason.unwrap(), "the daemon was restarted meanwhile");
    unit.until_active("1");
    unit.until_connected();
    assert_eq!(unit.logged("command test: "), 1, "{}", unit.log());
    unit.stop();
}
