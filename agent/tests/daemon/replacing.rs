//! Models replaced while inputs come by every way: none fails, each is answered once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use edgeopt_agent::protocol::{ResultMessage, Topic};

use crate::OnDrop;
use crate::bundles::{Computes, input, make};
use crate::device::{Device, Settings, deployed, device, from_file, main_slot, operator};
use crate::http::first;
use crate::observer::Observer;
use crate::support::eventually;
use crate::support::mosquitto::Mosquitto;

/// A model's version is its factor.
fn factor(message: &ResultMessage) -> f64 {
    message.version.parse().unwrap()
}

#[test]
fn under_load_no_request_fails_and_every_input_is_answered_exactly_once() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let observer = Observer::start(broker.port);
    let mut desk = operator(broker.port);
    let unit = Device::start(&Settings {
        slots: "[slots.main]\nqueue = 1024\nworkers = 2\nthreads = 1\ndrop = \"newest\"\nbatch_wait_ms = 1\n\
                inputs = [{ kind = \"mqtt\" }, { kind = \"http\" }]\n"
            .into(),
        // Two models on a busy machine: how fast they are is not what is tested.
        watch: "answers = 20\nlongest_s = 1\nslowdown = 10000.0".into(),
        ..Settings::new(broker.port)
    });
    let made = |version: u32| {
        let factor = version as f32;
        from_file(&make(
            folder.path(),
            &version.to_string(),
            Computes::Times(factor),
            Some(factor),
        ))
    };
    deployed(&mut desk, made(2));
    let (asked, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let sent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let ends = OnDrop(&over);
        for _ in 0..3 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let reply = unit.http().predict(3.0).unwrap();
                    assert_eq!(reply.status, 200, "{}", reply.body);
                    let message: ResultMessage = serde_json::from_str(&reply.body).unwrap();
                    assert_eq!(first(&message), 3.0 * factor(&message));
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            let mut producer = operator(broker.port);
            let topic = Topic::Input(main_slot()).of(&device());
            while !over.load(Ordering::Relaxed) {
                let number = sent.fetch_add(1, Ordering::Relaxed) + 1;
                producer
                    .publish(&topic, input([number as f32; 4]), false)
                    .unwrap();
                if number.is_multiple_of(8) {
                    producer.settle().unwrap();
                    std::thread::sleep(Duration::from_millis(8));
                }
            }
            producer.settle().unwrap();
        });
        for version in 3..=6 {
            std::thread::sleep(Duration::from_millis(300));
            deployed(&mut desk, made(version));
        }
        std::thread::sleep(Duration::from_millis(300));
        drop(ends);
    });
    let (asked, sent) = (asked.into_inner(), sent.into_inner());
    let by_mqtt = || -> Vec<ResultMessage> {
        let all = observer.distinct("main").into_values();
        all.filter(|result| result.stream == "mqtt").collect()
    };
    eventually("every input is answered", || by_mqtt().len() as u64 >= sent);
    std::thread::sleep(Duration::from_millis(200));
    let mut answers: BTreeMap<u64, u64> = BTreeMap::new();
    let mut by_version: BTreeMap<String, u64> = BTreeMap::new();
    for result in by_mqtt() {
        let number = first(&result) / factor(&result);
        assert_eq!(number.fract(), 0.0, "{result:?}");
        *answers.entry(number as u64).or_default() += 1;
        *by_version.entry(result.version).or_default() += 1;
    }
    assert!(answers.keys().copied().eq(1..=sent), "of {sent} inputs");
    assert!(answers.values().all(|count| *count == 1));
    let all = observer.distinct("main").len() as u64;
    assert_eq!(
        all,
        asked + sent,
        "answers over HTTP are published too, each once"
    );
    let slot = unit.overview().unwrap().slots[&main_slot()].clone();
    assert_eq!((slot.failed, slot.dropped, slot.answered), (0, 0, all));
    println!("{asked} requests and {sent} messages, by version {by_version:?}");
    assert_eq!(by_version.len(), 5, "each model has answered: {by_version:?}");
}
