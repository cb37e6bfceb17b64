//! How the daemon says that it is well, and that it is not.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::process::Command;
use std::time::Duration;

use edgeopt_agent::daemon::{Daemon, Overview};
use edgeopt_agent::link::Environment;
use serde_json::json;

use crate::bundles::{Computes, make};
use crate::device::{Device, Settings, deployed, from_file, main_slot, operator};
use crate::support::eventually;
use crate::support::mosquitto::Mosquitto;

/// A family of metrics: its type, and its samples by name and labels.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    unit: Option<String>,
    help: Option<String>,
    samples: BTreeMap<(String, String), f64>,
}

fn is_name(text: &str) -> bool {
    let mut letters = text.chars();
    letters
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Splits `name{labels} value` and checks each part.
fn sample(line: &str) -> (String, String, f64) {
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
    let value = match value {
        "+Inf" => f64::INFINITY,
        other => other.parse().unwrap_or_else(|_| panic!("no number: {line:?}")),
    };
    let (name, labels) = match series.split_once('{') {
        None => (series, ""),
        Some((name, rest)) => (name, rest.strip_suffix('}').unwrap_or_else(|| panic!("{line:?}"))),
    };
    assert!(is_name(name), "{line:?}");
    for label in labels.split(',').filter(|label| !label.is_empty()) {
        let (key, quoted) = label.split_once('=').unwrap_or_else(|| panic!("{line:?}"));
        let inner = quoted
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'))
            .unwrap_or_else(|| panic!("{line:?}"));
        assert!(is_name(key) && !inner.contains(['"', '\n']), "{line:?}");
    }
    (name.to_owned(), labels.to_owned(), value)
}

/// Reads OpenMetrics 1.0 text strictly, as far as it is used here: gauges, counters and histograms, without exemplars
/// and time stamps.
fn parse(text: &str) -> BTreeMap<String, Family> {
    let body = text.strip_suffix("# EOF\n").expect("it ends with # EOF");
    assert!(!body.contains("# EOF") && !body.contains('\r') && !body.contains("\n\n"));
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let (word, rest) = rest.split_once(' ').unwrap();
            let (name, text) = rest.split_once(' ').unwrap();
            assert!(is_name(name), "{line:?}");
            if name != current {
                assert!(
                    !families.contains_key(name),
                    "{name} comes twice, or not in one piece"
                );
                name.clone_into(&mut current);
                families.insert(current.clone(), Family::default());
            }
            let family = families.get_mut(name).unwrap();
            assert!(family.samples.is_empty(), "{line:?} comes after samples");
            let text = text.to_owned();
            match word {
                "TYPE" => family.kind = text,
                "UNIT" => assert!(family.unit.replace(text).is_none(), "{line:?}"),
                "HELP" => assert!(family.help.replace(text).is_none(), "{line:?}"),
                _ => panic!("{line:?}"),
            }
            continue;
        }
        let (name, labels, value) = sample(line);
        let family = families.get_mut(&current).unwrap_or_else(|| panic!("{line:?}"));
        let suffix = name
            .strip_prefix(&current)
            .unwrap_or_else(|| panic!("{line:?} in {current}"));
        let suffixes: &[&str] = match family.kind.as_str() {
            "gauge" => &[""],
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            other => panic!("{other}"),
        };
        assert!(suffixes.contains(&suffix), "{line:?} in a {}", family.kind);
        assert!(family.kind == "gauge" || value >= 0.0, "{line:?}");
        let before = family.samples.insert((suffix.to_owned(), labels), value);
        assert!(before.is_none(), "{line:?} comes twice");
    }
    for (name, family) in &families {
        assert!(family.help.is_some() && !family.kind.is_empty(), "{name}");
        if let Some(unit) = &family.unit {
            assert!(name.ends_with(&format!("_{unit}")), "{name} in {unit}");
        }
        if family.kind == "histogram" {
            check_histogram(name, family);
        }
    }
    families
}

/// Buckets count everything up to their bound, in order, and the last one counts all.
fn check_histogram(name: &str, family: &Family) {
    for ((suffix, labels), count) in &family.samples {
        if suffix != "_count" {
            continue;
        }
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for ((suffix, other), value) in &family.samples {
            let of_this = other.contains(labels.as_str());
            let bound = other.split(',').find_map(|label| label.strip_prefix("le=\""));
            if let (true, true, Some(bound)) = (suffix == "_bucket", of_this, bound) {
                let bound = match bound.trim_end_matches('"') {
                    "+Inf" => f64::INFINITY,
                    text => text.parse().unwrap(),
                };
                buckets.push((bound, *value));
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(buckets.len() > 5, "{name}: {buckets:?}");
        assert!(
            buckets.iter().map(|bucket| bucket.1).is_sorted(),
            "{name}: {buckets:?}"
        );
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, *count)), "{name}");
        let sum = family.samples.get(&("_sum".to_owned(), labels.clone()));
        assert!(sum.is_some(), "{name}");
    }
}

#[test]
fn metrics_are_strict_openmetrics_and_say_what_status_says() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let unit = Device::start(&Settings {
        slots: "[slots.main]\nthreads = 1\ninputs = [{ kind = \"http\" }]\n\
                [slots.other]\nthreads = 1\ninputs = [{ kind = \"http\" }]\n"
            .into(),
        ..Settings::new(broker.port)
    });
    let one = make(folder.path(), "1", Computes::Times(2.0), Some(2.0));
    deployed(&mut operator(broker.port), from_file(&one));
    for number in 0..40 {
        unit.http().predict(number as f32).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(unit.http().predict_in("main", b"nonsense").unwrap().status, 422);
    }
    unit.until("nothing waits", |overview| overview.spool.waiting == 0);
    let reply = unit.http().get("/metrics").unwrap();
    assert!(
        reply
            .head
            .contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{}",
        reply.head
    );
    let families = parse(&reply.body);
    let value = |family: &str, suffix: &str, labels: &str| {
        let family = families
            .get(family)
            .unwrap_or_else(|| panic!("{family} in {families:?}"));
        family.samples[&(suffix.to_owned(), labels.to_owned())]
    };
    let main = "slot=\"main\"";
    assert_eq!(value("edgeopt_slot_answers", "_total", main), 40.0);
    assert_eq!(value("edgeopt_slot_answers", "_total", "slot=\"other\""), 0.0);
    assert_eq!(value("edgeopt_slot_failures", "_total", main), 3.0);
    assert_eq!(value("edgeopt_slot_dropped", "_total", main), 0.0);
    assert_eq!(value("edgeopt_slot_latency_seconds", "_count", main), 40.0);
    assert_eq!(value("edgeopt_link_connected", "", ""), 1.0);
    assert_eq!(value("edgeopt_threads_hanging", "", ""), 0.0);
    assert!(value("edgeopt_slot_latency_seconds", "_sum", main) > 0.0);
    assert!(value("edgeopt_memory_resident_bytes", "", "") > 1e6);
    let overview = unit.overview().unwrap();
    assert_eq!(
        value("edgeopt_link_connects", "_total", ""),
        overview.link.connects as f64
    );
    assert_eq!(overview.slots[&main_slot()].answered, 40);

    // The program's own way to ask.
    let status = Command::new(env!("CARGO_BIN_EXE_edgeopt-agent"))
        .args(["status", "--json", "--config"])
        .arg(unit.folder().join("agent.toml"))
        .output()
        .unwrap();
    let shown: Overview = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(
        (shown.device, shown.slots[&main_slot()].answered),
        (overview.device, 40)
    );
}

#[test]
fn a_thread_that_hangs_is_named_and_the_daemon_is_not_well() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let unit = Device::new(&Settings::new(broker.port));
    let daemon = Daemon::start(&unit.config(), "0.0.0-test", Environment::default()).unwrap();
    let health = || unit.http().get("/healthz").unwrap();
    eventually("it is well", || health().status == 200);
    assert_eq!(
        health().json(),
        json!({"healthy": true, "ready": true, "hanging": []})
    );
    let pulse = daemon.pulse("the test's own");
    pulse.beat(Duration::from_millis(1));
    std::thread::sleep(Duration::from_millis(50));
    let ill = health();
    assert_eq!(ill.status, 503);
    let ill = ill.json();
    assert_eq!((&ill["healthy"], &ill["ready"]), (&json!(false), &json!(true)));
    let named = ill["hanging"][0].as_str().unwrap();
    assert!(named.starts_with("the test's own hangs: "), "{named}");
    assert_eq!(daemon.hanging().len(), 1);
    let metrics = parse(&unit.http().get("/metrics").unwrap().body);
    let hanging = &metrics["edgeopt_threads_hanging"].samples[&(String::new(), String::new())];
    assert_eq!(*hanging, 1.0);
    pulse.rest();
    assert_eq!(health().status, 200);
    pulse.beat(Duration::from_millis(1));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(health().status, 503);
    drop(pulse);
    assert_eq!(health().status, 200, "a thread that has ended does not hang");
    daemon.stop(Duration::from_secs(10));
}

#[test]
fn it_is_not_well_until_the_model_answers_again() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Mosquitto::start(folder.path(), "allow_anonymous true");
    let mut unit = Device::start(&Settings::new(broker.port));
    let one = make(folder.path(), "1", Computes::Times(2.0), Some(2.0));
    deployed(&mut operator(broker.port), from_file(&one));
    eventually("it is trusted", || !unit.record().unwrap().watching);
    unit.stop();
    // A disk that hangs: the bundle is a pipe that nobody writes to.
    let bundle = unit
        .folder()
        .join("store/bundles")
        .join(format!("{}.edge", one.spec.sha256));
    let bytes = fs::read(&bundle).unwrap();
    fs::remove_file(&bundle).unwrap();
    assert!(Command::new("mkfifo").arg(&bundle).status().unwrap().success());
    unit.run();
    let health = || unit.http().get("/healthz");
    eventually("it answers", || health().is_ok());
    for _ in 0..10 {
        let reply = health().unwrap();
        assert_eq!(reply.status, 503);
        assert_eq!(
            reply.json(),
            json!({"healthy": false, "ready": false, "hanging": []})
        );
        std::thread::sleep(Duration::from_millis(30));
    }
    assert_eq!(
        unit.logged("INFO ready"),
        1,
        "only the first time: {}",
        unit.log()
    );
    let reply = unit.http().predict(1.0).unwrap();
    assert_eq!(reply.status, 503);
    // The disk comes back: who waits gets something that is no bundle, then there is the right one.
    let mut pipe = fs::File::options().write(true).open(&bundle).unwrap();
    fs::remove_file(&bundle).unwrap();
    fs::write(&bundle, &bytes).unwrap();
    pipe.write_all(b"no bundle").unwrap();
    drop(pipe);
    eventually("it is well", || health().is_ok_and(|reply| reply.status == 200));
    unit.until_active("1");
    assert_eq!(unit.http().predict(21.0).unwrap().number(), 42.0);
    eventually("it says that it is ready", || unit.logged("INFO ready") == 2);
    assert_eq!(
        unit.logged("the active model cannot be loaded"),
        1,
        "{}",
        unit.log()
    );
}
