//! `edgeopt fleet` against a daemon and a broker in this process.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use edgeopt_agent::broker::EmbeddedBroker;
use edgeopt_agent::config::Config;
use edgeopt_agent::daemon::Daemon;
use edgeopt_agent::fleet::{Access, Operator};
use edgeopt_agent::link::Environment;

const ZOO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/zoo/mnist");

fn edgeopt(broker: &EmbeddedBroker, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_edgeopt"))
        .args(arguments)
        .env("EDGEOPT_BROKER", broker.address().to_string())
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn succeeds(broker: &EmbeddedBroker, arguments: &[&str]) -> String {
    let output = edgeopt(broker, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output));
    text(&output)
}

fn fails(broker: &EmbeddedBroker, arguments: &[&str], part: &str) {
    let output = edgeopt(broker, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", text(&output));
    assert!(text(&output).contains(part), "{arguments:?}: {}", text(&output));
}

fn device(name: &str, broker: &EmbeddedBroker, folder: &Path) -> Daemon {
    let shown = folder.join(name).display().to_string();
    let configuration = format!(
        "device = \"{name}\"\n[broker]\nhost = \"127.0.0.1\"\nport = {}\n[spool]\ndirectory = \"{shown}/spool\"\n\
         [store]\ndirectory = \"{shown}/store\"\n[trust]\nrequire_signature = false\n[engine]\nbackend = \"cpu\"\n\
         cache = \"{shown}/cache\"\n[watch]\nanswers = 2\n[slots.digits]\ninputs = [{{ kind = \"mqtt\" }}]\nthreads = 1\n",
        broker.address().port()
    );
    let config = Config::from_text(Path::new("agent.toml"), &configuration, []).unwrap();
    Daemon::start(&config, "test", Environment::default()).unwrap()
}

fn build(folder: &Path, version: &str) -> String {
    let bundle = folder.join(format!("{version}.edge")).display().to_string();
    let model = format!("{ZOO}/mnist.onnx");
    let data = format!("{ZOO}/calibration");
    let arguments = [
        "build",
        &model,
        "-o",
        &bundle,
        "--name",
        "digits",
        "--model-version",
        version,
        "--precision",
        "fp32",
        "--task",
        "mnist",
        "--evaluation-data",
        &data,
        "--evaluation-samples",
        "4",
    ];
    let output = Command::new(env!("CARGO_BIN_EXE_edgeopt"))
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    bundle
}

#[test]
fn a_fleet_is_seen_changed_fed_and_asked() {
    let folder = tempfile::tempdir().unwrap();
    let broker = EmbeddedBroker::start("127.0.0.1:0".parse().unwrap()).unwrap();
    fails(
        &broker,
        &["fleet", "status", "--quiet-for", "0.2"],
        "no device has said anything",
    );
    let devices = ["one", "two"].map(|name| device(name, &broker, folder.path()));
    let begun = Instant::now();
    while !devices.iter().all(|device| device.overview().link.connected) {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
    let (first, second) = (build(folder.path(), "1"), build(folder.path(), "2"));

    // Over MQTT, to both, one after the other.
    let shown = succeeds(&broker, &["fleet", "deploy", &first, "--slot", "digits", "--all"]);
    for part in ["one  done", "two  done", "2 done, 0 failed"] {
        assert!(shown.contains(part), "{part:?} in {shown}");
    }
    let json = succeeds(&broker, &["fleet", "status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&json).unwrap();
    for device in ["one", "two"] {
        let slot = &status[device]["reported"]["slots"]["digits"];
        assert_eq!(
            (&slot["phase"], &slot["active_version"]),
            (&"active".into(), &"1".into())
        );
        assert_eq!(status[device]["status"]["online"], true);
    }

    // Inputs in, results out.
    let listening = Command::new(env!("CARGO_BIN_EXE_edgeopt"))
        .args([
            "fleet",
            "listen",
            "--device",
            "one",
            "--count",
            "3",
            "--seconds",
            "30",
            "--json",
        ])
        .env("EDGEOPT_BROKER", broker.address().to_string())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let images: Vec<String> = (0..3)
        .map(|index| format!("{ZOO}/heldout/{index:04}.png"))
        .collect();
    let mut send = vec!["fleet", "send", "--device", "one", "--slot", "digits"];
    send.extend(images.iter().map(String::as_str));
    assert!(succeeds(&broker, &send).contains("3 sent"));
    let heard = listening.wait_with_output().unwrap();
    assert!(heard.status.success());
    let results = text(&heard);
    let results = results
        .lines()
        .filter(|line| line.contains("/models/digits/result"));
    assert_eq!(results.filter(|line| line.contains("\"classes\"")).count(), 3);

    // The first model has been watched; the second one is until it has answered.
    let source = format!("file:{second}");
    succeeds(
        &broker,
        &[
            "fleet", "deploy", &second, "--slot", "digits", "--device", "one", "--source", &source,
        ],
    );
    succeeds(&broker, &send);
    for (action, part) in [("ping", "uptime_s"), ("self-test", "\"version\":\"2\"")] {
        let said = succeeds(
            &broker,
            &["fleet", "command", action, "--device", "one", "--slot", "digits"],
        );
        assert!(said.contains(part), "{said}");
    }
    succeeds(
        &broker,
        &[
            "fleet", "command", "rollback", "--device", "one", "--slot", "digits",
        ],
    );
    let begun = Instant::now();
    while !succeeds(
        &broker,
        &["fleet", "status", "--device", "one", "--quiet-for", "0.2"],
    )
    .contains("asked for by the operator")
    {
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    succeeds(
        &broker,
        &["fleet", "remove", "--slot", "digits", "--device", "one"],
    );

    // What cannot be done is said.
    fails(
        &broker,
        &["fleet", "command", "pause", "--device", "one"],
        "needs --slot",
    );
    fails(
        &broker,
        &["fleet", "command", "ping", "--device", "nobody", "--timeout", "1"],
        "nobody has not answered within 1 s; the command is withdrawn",
    );
    fails(
        &broker,
        &["fleet", "deploy", &first, "--slot", "attic", "--device", "two"],
        "this device has no slot attic",
    );
    fails(
        &broker,
        &["fleet", "deploy", ZOO, "--slot", "digits", "--all"],
        "mnist",
    );
    fails(
        &broker,
        &["fleet", "status", "--broker", "127.0.0.1:1"],
        "broker 127.0.0.1:1",
    );
    for device in devices {
        device.stop(Duration::from_secs(10));
    }
    // Stopped, they say so.
    let shown = succeeds(&broker, &["fleet", "status"]);
    assert_eq!(shown.matches("offline").count(), 2, "{shown}");
}

#[test]
fn what_devices_say_and_what_the_broker_lost_is_met_with_caution() {
    let broker = EmbeddedBroker::start("127.0.0.1:0".parse().unwrap()).unwrap();
    let access = Access {
        host: "127.0.0.1".into(),
        port: Some(broker.address().port()),
        ..Access::default()
    };
    let mut device = Operator::connect(&access).unwrap();
    let mut say = |leaf: &str, message: serde_json::Value| {
        let topic = format!("edgeopt/v1/lost/{leaf}");
        device.publish(&topic, message.to_string(), true).unwrap();
        device.settle().unwrap();
    };
    let slot = |version: &str| serde_json::json!({ "phase": "active", "active_version": version });
    say(
        "reported",
        serde_json::json!({ "generation": 4, "slots": { "one": slot("1"), "two": slot("\u{1b}[2J") } }),
    );
    say(
        "models/one/result",
        serde_json::json!({
            "id": "r", "stream": "s", "model": "m", "version": "1", "wall_ms": 1, "monotonic_us": 1, "latency_ms": 1.0,
            "prediction": { "kind": "classes", "classes": [{ "index": 0, "label": "\u{1b}[2Jcat", "score": 1.0 }] },
        }),
    );

    // With colours nothing but what a device says can be the escape that clears a screen.
    let listen = ["fleet", "listen", "--count", "1", "--seconds", "20"];
    for arguments in [listen.as_slice(), &["fleet", "status", "--quiet-for", "0.3"]] {
        let shown = succeeds(&broker, &[&["--color", "always"], arguments].concat());
        assert!(
            shown.contains("\u{fffd}[2J") && !shown.contains("\u{1b}[2J"),
            "{shown:?}"
        );
    }

    let remove = [
        "fleet",
        "remove",
        "--slot",
        "one",
        "--device",
        "lost",
        "--timeout",
        "1",
    ];
    fails(&broker, &remove, "would empty two; --forget-other-slots");
    let forgetting = [remove.as_slice(), &["--forget-other-slots"]].concat();
    fails(&broker, &forgetting, "asked (generation 5)");

    // A broker without TLS is not spoken to in the clear when encryption was asked for.
    let encrypted = format!("mqtts://{}", broker.address());
    fails(
        &broker,
        &["fleet", "status", "--broker", &encrypted],
        "broker 127.0.0.1",
    );
}
