//! Queues, batches and priorities as the configuration says.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use edgeopt_agent::protocol::ResultMessage;

use crate::bundles::{Computes, input, make};
use crate::device::{Device, Settings, deploy, deployed, desire, from_file, main_slot, operator};
use crate::http::{Reply, first};
use crate::observer::Observer;
use crate::support::eventually;
use crate::support::mosquitto::Mosquitto;

struct Place {
    _folder: tempfile::TempDir,
    broker: Mosquitto,
    unit: Device,
}

/// A device with a doubling model in slot `main`.
fn place(slots: &str) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let unit = Device::start(&Settings {
        slots: slots.into(),
        ..Settings::new(broker.port)
    });
    let one = make(folder.path(), "1", Computes::Times(2.0), Some(2.0));
    deployed(&mut operator(broker.port), from_file(&one));
    unit.until_active("1");
    Place {
        _folder: folder,
        broker,
        unit,
    }
}

/// Requests that begin together, with the time each took.
fn together(unit: &Device, count: usize, apart: Duration) -> Vec<(Reply, Duration)> {
    let barrier = Barrier::new(count);
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..count)
            .map(|index| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    std::thread::sleep(apart * index as u32);
                    let begun = Instant::now();
                    let reply = unit.http().predict(index as f32).unwrap();
                    (reply, begun.elapsed())
                })
            })
            .collect();
        asking.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

#[test]
fn inputs_wait_for_company_as_long_as_they_may() {
    let wait = Duration::from_millis(600);
    let place =
        place("[slots.main]\nqueue = 16\nthreads = 1\nbatch_wait_ms = 600\ninputs = [{ kind = \"http\" }]\n");
    // Alone: the whole wait.
    let alone = together(&place.unit, 1, Duration::ZERO);
    assert!(alone[0].1 >= wait, "{:?}", alone[0].1);
    // As many as the model takes: at once, each with its own answer.
    let eight = together(&place.unit, 8, Duration::ZERO);
    for (index, (reply, took)) in eight.iter().enumerate() {
        assert_eq!(reply.number(), index as f64 * 2.0);
        assert!(*took < wait, "{took:?}");
    }
    // One of them makes no sense: the others are answered all the same.
    let unit = &place.unit;
    let (bad, good) = std::thread::scope(|scope| {
        let bad = scope.spawn(|| unit.http().predict_in("main", b"nonsense").unwrap());
        let good = scope.spawn(|| unit.http().predict(5.0).unwrap());
        (bad.join().unwrap(), good.join().unwrap())
    });
    assert_eq!((bad.status, good.number()), (422, 10.0), "{}", bad.body);
}

#[test]
fn a_full_queue_refuses_what_its_policy_says() {
    for (drop, refused) in [("newest", 2), ("oldest", 0)] {
        let place = place(&format!(
            "[slots.main]\nqueue = 2\nthreads = 1\nbatch_wait_ms = 900\ndrop = \"{drop}\"\n\
             inputs = [{{ kind = \"http\" }}]\n"
        ));
        let replies = together(&place.unit, 3, Duration::from_millis(100));
        for (index, (reply, _)) in replies.iter().enumerate() {
            if index == refused {
                assert_eq!(reply.status, 429, "{drop}, {index}");
                assert_eq!(reply.error(), "the queue is full");
                assert!(reply.head.contains("retry-after: 1"), "{}", reply.head);
            } else {
                assert_eq!(
                    (reply.status, reply.number()),
                    (200, index as f64 * 2.0),
                    "{drop}"
                );
            }
        }
        let slot = place.unit.overview().unwrap().slots[&main_slot()].clone();
        assert_eq!((slot.dropped, slot.answered), (1, 2), "{drop}");
    }
}

/// Median latency of one asker of slot `main` while eight of slot `other` never pause; and theirs.
fn latencies(priority: &str) -> (f64, f64) {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let unit = Device::start(&Settings {
        slots: format!(
            "[slots.main]\nthreads = 1\npriority = \"{priority}\"\ninputs = [{{ kind = \"http\" }}]\n\
             [slots.other]\nworkers = 8\nthreads = 1\npriority = \"low\"\ninputs = [{{ kind = \"http\" }}]\n"
        ),
        engine: "concurrent = 1".into(),
        ..Settings::new(broker.port)
    });
    let mut desk = operator(broker.port);
    let model = make(folder.path(), "1", Computes::Slowly(2.0, 150), Some(2.0));
    for slot in ["main", "other"] {
        let end = deploy(&mut desk, slot, from_file(&model), None);
        assert_eq!(end.done.len(), 1, "{end:?}");
    }
    let asks = |slot: &str, count: usize| -> Vec<f64> {
        let latency = |_| {
            let reply = unit.http().predict_in(slot, &input([1.0; 4])).unwrap();
            let message: ResultMessage = serde_json::from_str(&reply.body).unwrap();
            assert_eq!(first(&message), 2.0);
            message.latency_ms
        };
        (0..count).map(latency).collect()
    };
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..8).map(|_| scope.spawn(|| asks("other", 6))).collect();
        std::thread::sleep(Duration::from_millis(50));
        let own = median(asks("main", 7));
        let others = others.into_iter().flat_map(|other| other.join().unwrap());
        (own, median(others.collect()))
    })
}

#[test]
fn the_more_important_slot_goes_first_when_turns_are_few() {
    let (high, others) = latencies("high");
    let (low, others_then) = latencies("low");
    println!("high {high:.1} ms against {others:.1}, low {low:.1} ms against {others_then:.1}");
    // On an idle machine 0.22 against 1; a busy one blurs it.
    let (share, share_then) = (high / others, low / others_then);
    assert!(
        share < 0.75 * share_then,
        "{share:.2} of the others' latency, {share_then:.2} without priority"
    );
}

#[test]
fn results_in_cbor_are_the_same_bytes_over_http_through_the_spool_and_at_the_broker() {
    let mut place = place(
        "[slots.main]\nthreads = 1\nresults = \"cbor\"\ninputs = [{ kind = \"http\" }, { kind = \"mqtt\" }]\n",
    );
    let observer = Observer::start(place.broker.port);
    let ask = |unit: &Device, lines: &str, value: f32| {
        let path = "/v1/slots/main/predict";
        unit.http()
            .ask_with("POST", path, lines, &input([value; 4]))
            .unwrap()
    };
    // While the broker is away, and across a restart, they wait on disk.
    place.broker.stop();
    place
        .unit
        .until("it notices", |overview| !overview.link.connected);
    let mut answers = Vec::new();
    for (index, lines) in [
        "Accept: application/cbor\r\n",
        "Accept: text/html, Application/CBOR;q=0.9\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        let reply = ask(&place.unit, lines, index as f32 + 0.5);
        assert_eq!(reply.status, 200);
        assert!(
            reply.head.contains("content-type: application/cbor"),
            "{}",
            reply.head
        );
        assert_eq!(reply.bytes[0] & 0xe0, 0xa0, "a map");
        answers.push(reply.bytes);
    }
    place.unit.stop();
    place.unit.run();
    place.unit.until_active("1");
    place.broker.start_again();
    eventually("they arrive", || {
        observer.on("/models/main/result").len() >= answers.len()
    });
    assert_eq!(observer.on("/models/main/result"), answers);

    // Who does not ask for CBOR gets JSON, whatever is published; errors are always JSON.
    let reply = ask(&place.unit, "Accept: */*\r\n", 21.0);
    assert_eq!(
        (
            reply.number(),
            reply.head.contains("content-type: application/json")
        ),
        (42.0, true)
    );
    let refused = place.unit.http().ask_with(
        "POST",
        "/v1/slots/main/predict",
        "Accept: application/cbor\r\n",
        b"?",
    );
    let refused = refused.unwrap();
    assert_eq!((refused.status, refused.error().is_empty()), (422, false));
    eventually("it is published", || {
        observer.results("main").len() > answers.len()
    });
    let last = observer.results("main").pop().unwrap();
    assert_eq!(first(&last), 42.0);
    assert_eq!(last.prediction["outputs"][0]["dtype"], "float32");
}

#[test]
fn requests_that_make_no_sense_are_told_so() {
    let place = place(
        "[slots.main]\nthreads = 1\ninputs = [{ kind = \"http\" }]\n\
         [slots.quiet]\nthreads = 1\ninputs = [{ kind = \"mqtt\" }]\n",
    );
    let http = place.unit.http();
    let of = |method: &str, path: &str, body: &[u8]| {
        let reply = http.ask(method, path, body).unwrap();
        (reply.status, reply.error())
    };
    let (status, why) = of("POST", "/v1/slots/none/predict", b"");
    assert_eq!((status, why.as_str()), (404, "this device has no slot \"none\""));
    let (status, why) = of("POST", "/v1/slots/quiet/predict", b"");
    assert_eq!(status, 403);
    assert!(why.contains("{ kind = \"http\" }"), "{why}");
    let (status, why) = of("GET", "/v1/slots/main/predict", b"");
    assert_eq!((status, why.as_str()), (405, "only POST is possible here"));
    let (status, why) = of("GET", "/", b"");
    assert!(status == 404 && why.contains("/v1/status"), "{status} {why}");
    let short = &input([1.0; 4])[..130];
    for body in [b"".as_slice(), b"text", short] {
        let (status, why) = of("POST", "/v1/slots/main/predict", body);
        assert_eq!(status, 422, "{why}");
        assert!(why.starts_with("the request's body"), "{why}");
    }
    assert_eq!(http.predict(21.0).unwrap().number(), 42.0);
}

#[test]
fn what_is_taken_away_answers_no_more_and_another_one_does() {
    let place = place("[slots.main]\nthreads = 1\ninputs = [{ kind = \"http\" }]\n");
    let mut desk = operator(place.broker.port);
    desire(&mut desk, 5, None);
    place.unit.until("the slot is empty", |overview| {
        overview.slots[&main_slot()].model.is_none()
    });
    let reply = place.unit.http().predict(1.0).unwrap();
    assert_eq!(
        (reply.status, reply.error().as_str()),
        (503, "no model is active in this slot")
    );
    let two = make(place.unit.folder(), "2", Computes::Times(3.0), Some(3.0));
    deployed(&mut desk, from_file(&two));
    assert_eq!(place.unit.http().predict(14.0).unwrap().number(), 42.0);
}
