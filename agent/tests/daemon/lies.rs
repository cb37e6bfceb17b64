//! A broker that lies: what it says is not believed, said once in the log, and the daemon goes on.

use edgeopt_agent::protocol::{
    BlobChunk, BlobRequest, CommandReply, CommandState, DesiredState, Generation, ModelSource, Phase,
    ReportedState,
};

use crate::bundles::{Computes, Made, make_with};
use crate::device::{Device, Settings, main_slot};
use crate::support::packet::{self, Packet, Publish};
use crate::support::scripted::{Peer, ScriptedBroker};

fn message(topic: &str, payload: impl Into<Vec<u8>>, id: u16) -> Vec<u8> {
    packet::publish(&Publish {
        topic: topic.to_owned(),
        payload: payload.into(),
        id,
        qos: u8::from(id > 0),
        retain: false,
        dup: false,
    })
}

/// Reads, acknowledges and answers pings until a message comes on a topic that ends so.
fn until(peer: &mut Peer, end: &str) -> Publish {
    loop {
        match peer.read().unwrap() {
            Packet::Publish(publish) => {
                peer.send(&packet::puback(publish.id));
                if publish.topic.ends_with(end) {
                    return publish;
                }
            }
            Packet::Subscribe { id, filters } => peer.send(&packet::suback(id, &vec![1; filters.len()])),
            Packet::PingReq => peer.send(&packet::pingresp()),
            _ => {}
        }
    }
}

/// Everything that was sent before has been handled when this returns.
fn caught_up(peer: &mut Peer, id: &str) {
    let topic = format!("edgeopt/v1/d/command/{id}");
    peer.send(&message(&topic, br#"{"action": {"kind": "ping"}}"#, 1));
    loop {
        let reply = until(peer, &format!("/command/{id}/reply"));
        let reply: CommandReply = serde_json::from_slice(&reply.payload).unwrap();
        if reply.state == CommandState::Succeeded {
            return;
        }
    }
}

fn desired(generation: u64, made: &Made, source: ModelSource) -> Vec<u8> {
    let mut spec = made.spec.clone();
    spec.sources = vec![source];
    let state = DesiredState {
        generation: Generation(generation),
        slots: [(main_slot(), spec)].into(),
    };
    serde_json::to_vec(&state).unwrap()
}

#[test]
fn nonsense_of_every_kind_is_told_once_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let broker = ScriptedBroker::start();
    let mut unit = Device::start(&Settings::new(broker.port()));
    let mut peer = broker.accept_session(false);
    caught_up(&mut peer, "c0");
    let made = make_with(folder.path(), "1", Computes::Times(2.0), Some(2.0), 0, None);
    let file = made.spec.sources[0].clone();
    let large = vec![b'{'; 1_000_000];
    let foreign = BlobChunk {
        sha256: "ab".repeat(32),
        offset: 0,
        total: 4,
    };
    // Topics of others, of no protocol, and of the device itself.
    for topic in [
        "x",
        "edgeopt/v1/other/desired",
        "edgeopt/v2/d/desired",
        "edgeopt/v1/d/reported",
        "edgeopt/v1/d/models/main/result",
        "edgeopt/v1/d/blob/desk/request",
        "edgeopt/v1/d/models/main",
    ] {
        peer.send(&message(topic, desired(5, &made, file.clone()), 0));
    }
    let unknown = desired(6, &made, file).to_ascii_uppercase();
    let garbage: [&[u8]; 6] = [
        &large,
        b"null",
        b"\xff\xfe",
        br#"{"generation": -1, "slots": {}}"#,
        br#"{"generation": 99999999999999999999999, "slots": {}}"#,
        &unknown,
    ];
    for round in 0..50 {
        for payload in &garbage[usize::from(round > 0)..] {
            peer.send(&message("edgeopt/v1/d/desired", *payload, 0));
            peer.send(&message("edgeopt/v1/d/models/main/input", *payload, 0));
            peer.send(&message("edgeopt/v1/d/models/nowhere/input", *payload, 0));
            peer.send(&message("edgeopt/v1/d/blob/desk/chunk", *payload, 0));
        }
        peer.send(&message(
            "edgeopt/v1/d/blob/desk/chunk",
            foreign.encode(b"data").unwrap(),
            0,
        ));
    }
    peer.send(&message("edgeopt/v1/d/command/odd", large, 0));
    caught_up(&mut peer, "c1");
    assert!(unit.is_running());
    let overview = unit.overview().unwrap();
    assert_eq!(overview.link.connects, 1, "no message was worth a new connection");
    assert!(overview.hanging.is_empty());
    assert!(unit.record().is_none(), "{:?}", unit.record());
    // Of each kind one line, in ten seconds.
    for (part, most) in [
        ("nothing is changed", 1),
        ("models/main/input: ", 1),
        ("no slot nowhere", 1),
        ("for another device", 1),
        ("not a topic of", 1),
        ("not a topic that", 1),
        ("/chunk: ", 1),
    ] {
        assert!(unit.logged(part) <= most, "{part}: {}", unit.log());
    }
    let warnings = unit.logged(" WARN suppressed") + unit.logged("suppressed=");
    assert!((4..=12).contains(&warnings), "{warnings}: {}", unit.log());
    assert!(unit.log().len() < 20_000, "{} bytes of log", unit.log().len());

    // An acknowledgement of what was never sent: the connection is given up, and another one is made.
    peer.send(&packet::puback(900));
    drop(peer);
    let mut peer = broker.accept_session(true);
    caught_up(&mut peer, "c2");
    // And a model still comes through.
    peer.send(&message(
        "edgeopt/v1/d/desired",
        desired(1, &made, made.spec.sources[0].clone()),
        0,
    ));
    unit.until_active("1");
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0);
    unit.kill();
}

#[test]
fn chunks_with_other_bytes_are_found_out_and_unasked_ones_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let broker = ScriptedBroker::start();
    let unit = Device::start(&Settings::new(broker.port()));
    let mut peer = broker.accept_session(false);
    let made = make_with(folder.path(), "1", Computes::Times(2.0), Some(2.0), 400_000, None);
    let whole = std::fs::read(&made.path).unwrap();
    let blob = ModelSource::Blob("desk".parse().unwrap());
    let topic = "edgeopt/v1/d/blob/desk/chunk";
    let chunk = |offset: usize, sha256: &str, bytes: &[u8]| {
        let header = BlobChunk {
            sha256: sha256.to_owned(),
            offset: offset as u64,
            total: whole.len() as u64,
        };
        message(topic, header.encode(bytes).unwrap(), 0)
    };
    let digest = made.spec.sha256.clone();
    // Answers one request; `change` is done to the bytes of each chunk.
    let answer = |peer: &mut Peer, change: &dyn Fn(&mut Vec<u8>)| -> BlobRequest {
        let asked = until(peer, "/blob/desk/request");
        let asked: BlobRequest = serde_json::from_slice(&asked.payload).unwrap();
        let mut offset = asked.offset as usize;
        for _ in 0..asked.chunks {
            let end = whole.len().min(offset + asked.length as usize);
            if offset == end {
                break;
            }
            let mut bytes = whole[offset..end].to_vec();
            change(&mut bytes);
            // Beside each right one: of another bundle, out of order, and of the wrong length.
            peer.send(&chunk(offset, &"cd".repeat(32), &bytes));
            peer.send(&chunk(end - 1, &digest, &bytes[..1]));
            peer.send(&chunk(offset, &digest, &[]));
            peer.send(&chunk(offset, &digest, &bytes));
            offset = end;
        }
        asked
    };
    peer.send(&message(
        "edgeopt/v1/d/desired",
        desired(1, &made, blob.clone()),
        0,
    ));
    let spoil = |bytes: &mut Vec<u8>| bytes[100] ^= 1;
    assert_eq!(answer(&mut peer, &spoil).offset, 0);
    let failed = loop {
        let report = until(&mut peer, "/reported");
        let report: ReportedState = serde_json::from_slice(&report.payload).unwrap();
        let slot = report.slots[&main_slot()].clone();
        if report.generation == Generation(1) && slot.phase == Phase::Failed {
            break slot;
        }
    };
    let reason = failed.reason.unwrap();
    assert!(reason.contains("blob desk: its SHA-256 is"), "{reason}");
    assert!(
        !unit
            .folder()
            .join("store/bundles")
            .join(format!("{digest}.edge"))
            .exists()
    );

    // With the right bytes it works, lies beside them or not.
    peer.send(&message("edgeopt/v1/d/desired", desired(2, &made, blob), 0));
    assert_eq!(
        answer(&mut peer, &|_| {}).offset,
        0,
        "nothing of the spoilt ones was kept"
    );
    unit.until_active("1");
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0);
}
