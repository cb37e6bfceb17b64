//! A model on its way from the operator to answers: over MQTT, over HTTP, from a file.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use edgeopt_agent::protocol::{DesiredState, Generation, ModelSource, Phase, Topic};

use crate::bundles::{Computes, input, make_with};
use crate::device::{Device, Settings, deploy, deployed, device, from_file, from_url, main_slot, operator};
use crate::http::first;
use crate::observer::Observer;
use crate::range_server::RangeServer;
use crate::support::eventually;
use crate::support::mosquitto::Mosquitto;

/// More than two windows of chunks.
const BALLAST: usize = 2_300_000;

fn a_free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn over_mqtt_http_and_from_a_file_and_answers_are_right_by_every_way() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let server = RangeServer::start(folder.path());
    let observer = Observer::start(broker.port);
    let mut operator = operator(broker.port);
    let port = a_free_port();
    let device_of = |listen: Option<String>| {
        Device::start(&Settings {
            listen,
            ..Settings::new(broker.port)
        })
    };
    let made = |version: &str, factor: f32| {
        make_with(
            folder.path(),
            version,
            Computes::Times(factor),
            Some(factor),
            BALLAST,
            None,
        )
    };
    let mut unit = device_of(None);
    unit.until_connected();
    assert_eq!(
        unit.http().predict(1.0).unwrap().error(),
        "no model is active in this slot"
    );

    // In chunks over MQTT: the device is told nothing but the blob's name.
    let one = made("1", 2.0);
    let mut spec = one.spec.clone();
    spec.sources = vec![ModelSource::Blob("desk".parse().unwrap())];
    let end = deploy(&mut operator, "main", spec, Some(&one.path));
    assert_eq!(end.done, [device()], "{end:?}");
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0);
    let chunks = observer.on("/blob/desk/chunk").len();
    let needed = one.spec.size.div_ceil(128 << 10) as usize;
    assert!((needed..needed + 8).contains(&chunks), "{chunks} of {needed}");

    // Over HTTP, in one request.
    let two = made("2", 3.0);
    answer_until_trusted(&unit);
    deployed(&mut operator, from_url(&two, server.url(&two.path)));
    assert_eq!(unit.http().predict(14.0).unwrap().number(), 42.0);
    let asked = server.asked();
    assert_eq!((asked.len(), asked[0].from), (1, None), "{asked:?}");

    // A file on the device.
    let three = made("3", 4.0);
    answer_until_trusted(&unit);
    deployed(&mut operator, from_file(&three));
    assert_eq!(unit.http().predict(10.5).unwrap().number(), 42.0);

    // An input over MQTT: its answer is published.
    operator
        .publish(
            &Topic::Input(main_slot()).of(&device()),
            input([8.0, 0.0, 0.0, 0.0]),
            false,
        )
        .unwrap();
    let mut answer = None;
    eventually("the answer is published", || {
        answer = observer
            .results("main")
            .into_iter()
            .find(|result| result.stream == "mqtt");
        answer.is_some()
    });
    let answer = answer.unwrap();
    assert_eq!(first(&answer), 32.0);
    assert_eq!((answer.model.as_str(), answer.version.as_str()), ("small", "3"));
    // Answers over HTTP are published too, with the id that the asker saw.
    let reply = unit.http().predict(1.0).unwrap().json();
    eventually("it is published as well", || {
        observer
            .distinct("main")
            .contains_key(reply["id"].as_str().unwrap())
    });

    // Each phase of each generation was told, in order, and the last word is kept by the broker.
    let phases = |generation: u64| -> Vec<Phase> {
        let reports = observer.reports();
        let of_this = reports
            .iter()
            .filter(|report| report.generation.0 == generation)
            .map(|report| report.slots[&main_slot()].phase);
        let mut phases: Vec<Phase> = of_this.collect();
        phases.dedup();
        phases
    };
    for generation in 1..=3 {
        let told = phases(generation);
        assert_eq!(told.last(), Some(&Phase::Active), "{told:?}");
        let rank = |phase: &Phase| {
            [
                Phase::Absent,
                Phase::Downloading,
                Phase::Verified,
                Phase::Staged,
                Phase::SelfTested,
                Phase::Active,
            ]
            .iter()
            .position(|one| one == phase)
        };
        // The first report of a generation may still show what the one before had reached.
        let own = if generation > 1 && told[0] == Phase::Active {
            &told[1..]
        } else {
            &told[..]
        };
        assert!(
            own.iter().map(rank).is_sorted(),
            "generation {generation}: {told:?}"
        );
    }
    assert!(observer.online());
    unit.stop();
    eventually("it says goodbye", || !observer.online());

    // The same over a TCP address.
    let mut by_port = device_of(Some(format!("127.0.0.1:{port}")));
    by_port.until_active("3");
    assert_eq!(by_port.http().predict(2.0).unwrap().number(), 8.0);
    by_port.stop();
}

/// Enough answers for the model to be trusted, so that a next one replaces it and not the one before.
fn answer_until_trusted(unit: &Device) {
    for _ in 0..6 {
        assert_eq!(unit.http().predict(1.0).unwrap().status, 200);
    }
    eventually("the model is trusted", || !unit.record().unwrap().watching);
}

#[test]
fn a_killed_download_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let server = RangeServer::start(folder.path());
    let mut operator = operator(broker.port);
    let unit = Device::start(&Settings::new(broker.port));
    unit.until_connected();
    let made = make_with(folder.path(), "1", Computes::Times(2.0), Some(2.0), BALLAST, None);
    server.pause(10);
    let url = server.url(&made.path);
    crate::device::desire(&mut operator, 1, Some(from_url(&made, url)));
    let partial = || {
        let path = unit.folder().join("store/partial").join(&made.spec.sha256);
        std::fs::metadata(path).map_or(0, |data| data.len())
    };
    let mut reached = Vec::new();
    eventually("a part is there", || partial() > 300_000);
    let mut unit = unit;
    for _ in 0..3 {
        unit.kill();
        let path = unit.folder().join("store/partial").join(&made.spec.sha256);
        let here = std::fs::metadata(&path).unwrap().len();
        reached.push(here);
        unit.run();
        eventually("it goes on", || {
            std::fs::metadata(&path).is_ok_and(|data| data.len() > here + 200_000)
        });
    }
    server.pause(0);
    unit.until_active("1");
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0);
    let asked = server.asked();
    let from: Vec<Option<u64>> = asked.iter().map(|one| one.from).collect();
    let expected: Vec<Option<u64>> = std::iter::once(None)
        .chain(reached.iter().copied().map(Some))
        .collect();
    assert_eq!(from, expected, "each continues at exactly what was on disk");
    assert!(
        asked[1..].iter().all(|one| one.if_range.is_some()),
        "a file that changed must not be mixed with another: {asked:?}"
    );
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(server.asked().len(), 4);
}

#[test]
fn with_its_model_damaged_it_answers_with_the_one_before_while_the_next_one_comes() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let server = RangeServer::start(folder.path());
    let mut operator = operator(broker.port);
    let mut unit = Device::start(&Settings::new(broker.port));
    let made = |version: &str, factor: f32| {
        make_with(
            folder.path(),
            version,
            Computes::Times(factor),
            Some(factor),
            300_000,
            None,
        )
    };
    let (one, two, three) = (made("1", 2.0), made("2", 3.0), made("3", 4.0));
    for made in [&one, &two] {
        deployed(&mut operator, from_file(made));
        answer_until_trusted(&unit);
    }
    server.pause(500);
    crate::device::desire(&mut operator, 3, Some(from_url(&three, server.url(&three.path))));
    eventually("the next one is being fetched", || !server.asked().is_empty());
    unit.kill();
    // One bit of the model, as a worn flash cell would.
    let path = unit
        .folder()
        .join("store/bundles")
        .join(format!("{}.edge", two.spec.sha256));
    let mut bytes = std::fs::read(&path).unwrap();
    let weight = 3f32.to_le_bytes();
    // Golden samples hold the number, too; the model comes after them.
    let found = bytes.windows(4).rposition(|window| window == weight);
    bytes[found.unwrap() + 2] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    unit.run();
    unit.until_active("1");
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0);
    let record = unit.record().unwrap();
    assert_eq!((record.phase, record.generation.0), (Phase::Downloading, 3));
    assert_eq!(unit.http().get("/healthz").unwrap().status, 200);
    server.pause(0);
    unit.until_active("3");
    assert_eq!(unit.http().predict(10.5).unwrap().number(), 42.0);
}

#[test]
fn two_slots_share_one_download_and_a_stop_does_not_wait_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let server = RangeServer::start(folder.path());
    let mut operator = operator(broker.port);
    let mut unit = Device::start(&Settings {
        slots: "[slots.main]\nthreads = 1\ninputs = [{ kind = \"http\" }]\n\
                [slots.second]\nthreads = 1\ninputs = [{ kind = \"http\" }]\n"
            .into(),
        ..Settings::new(broker.port)
    });
    unit.until_connected();
    let made = make_with(folder.path(), "1", Computes::Times(2.0), Some(2.0), BALLAST, None);
    let spec = from_url(&made, server.url(&made.path));
    let state = DesiredState {
        generation: Generation(1),
        slots: ["main", "second"]
            .map(|slot| (slot.parse().unwrap(), spec.clone()))
            .into(),
    };
    server.pause(1000);
    let json = serde_json::to_vec(&state).unwrap();
    operator
        .publish(&Topic::Desired.of(&device()), json, true)
        .unwrap();
    unit.until("the other slot says what it waits for", |overview| {
        overview
            .slots
            .values()
            .any(|slot| slot.reported.reason.as_deref() == Some("another slot fetches the same bundle"))
    });
    eventually("a part of it is there", || unit.partial_bytes() > 0);
    let begun = Instant::now();
    unit.stop();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    server.pause(0);
    unit.run();
    for slot in ["main", "second"] {
        eventually("both answer", || {
            unit.http()
                .predict_in(slot, &input([21.0; 4]))
                .is_ok_and(|reply| reply.status == 200 && reply.number() == 42.0)
        });
    }
    let asked = server.asked();
    assert_eq!(asked.len(), 2, "once before the stop, once to go on: {asked:?}");
    assert!(asked[1].from.is_some_and(|from| from > 0), "{asked:?}");
}
