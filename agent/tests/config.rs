//! What `agent.toml` accepts, and how it says no.

#![allow(clippy::unwrap_used)] // helpers of tests, too

use std::path::Path;

use edgeopt_agent::config::{Config, ConfigError, DropPolicy, Input, Listen, Severity};
use edgeopt_agent::inputs::camera::{FormatChoice, PixelFormat};
use edgeopt_models::Bytes;

const KEY: &str = "RWQp7tYaUVaS5yvZ8ZkKX93KMQQvARiz+MTe8rUbzPbbx2P/JrhT+YaK";

fn minimal() -> String {
    format!("device = \"cam-1\"\n[broker]\nhost = \"broker.example\"\n[trust]\nkeys = [\"{KEY}\"]\n")
}

fn load(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::from_text(Path::new("agent.toml"), text, variables)
}

fn refusal(text: &str) -> String {
    load(text, &[]).unwrap_err().to_string()
}

#[test]
fn the_example_that_is_shipped_is_valid_and_shows_every_section() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd/agent.toml");
    let config = Config::load(&path, []).unwrap();
    let tls = config.broker.tls.as_ref().unwrap();
    assert!(tls.ca.is_some() && tls.certificate.is_some() && tls.key.is_some());
    assert!(config.http.is_some() && config.trust.require_signature);
    let inputs: Vec<&Input> = config.slots.values().flat_map(|slot| &slot.inputs).collect();
    assert!(inputs.iter().any(|input| matches!(input, Input::Mqtt {})));
    assert!(inputs.iter().any(|input| matches!(input, Input::Folder { .. })));
    assert!(inputs.iter().any(|input| matches!(input, Input::Http {})));
    // The examples of what most devices do not have are right, too.
    let text = std::fs::read_to_string(&path).unwrap();
    let with_camera: String = text
        .lines()
        .skip_while(|line| !line.starts_with("#+ [slots."))
        .map_while(|line| line.strip_prefix("#+ "))
        .map(|line| format!("{line}\n"))
        .collect();
    let with_camera = load(&(minimal() + "[slots.detector]\n" + &with_camera), &[]).unwrap();
    let camera = with_camera.slots.into_values().next().unwrap().camera.unwrap();
    assert!(camera.size().is_some() && camera.fps.is_some() && camera.rate.is_some());
    // What the example says of defaults is true: the commented-out lines change nothing.
    let text = std::fs::read_to_string(&path).unwrap();
    let enabled: String = text
        .lines()
        .map(|line| match line.strip_prefix("#= ") {
            Some(default) => format!("{default}\n"),
            None => format!("{line}\n"),
        })
        .collect();
    assert!(
        enabled != text,
        "the example shows defaults as `#= field = value`"
    );
    assert_eq!(load(&enabled, &[]).unwrap(), config);
}

#[test]
fn defaults_are_safe() {
    let config = load(&minimal(), &[]).unwrap();
    assert!(config.trust.require_signature);
    assert_eq!(config.broker.port(), 1883);
    assert_eq!(config.broker.max_packet, Bytes::mib(1));
    assert_eq!(config.spool.drop, DropPolicy::Oldest);
    assert_eq!(config.http, None);
    let tls = load(&minimal().replace("[trust]", "[broker.tls]\n[trust]"), &[]).unwrap();
    assert_eq!(tls.broker.port(), 8883);
}

#[test]
fn a_mistake_is_named_with_file_and_line() {
    let text = minimal().replace("host", "hots");
    let error = refusal(&text);
    assert!(
        error.starts_with("agent.toml:3:1: unknown field `hots`"),
        "{error}"
    );
    let error = refusal(&minimal().replace("cam-1", "cam/1"));
    assert!(error.starts_with("agent.toml:1:"), "{error}");
    assert!(
        error.contains("cam/1") && error.contains("ASCII letters"),
        "{error}"
    );
    let error = refusal("device = \"a\"\n[broker]\n");
    assert!(error.contains("missing field `host`"), "{error}");
    let error = refusal(&format!("{}[spool]\nmax = \"lots\"\n", minimal()));
    assert!(
        error.starts_with("agent.toml:7:") && error.contains("64MiB"),
        "{error}"
    );
    let error = refusal(&format!(
        "{}[slots.a]\ninputs = [{{ kind = \"serial\" }}]\n",
        minimal()
    ));
    assert!(error.contains("serial") && error.contains("folder"), "{error}");
    let error = refusal(&format!(
        "{}[slots.a]\ninputs = [{{ kind = \"mqtt\", qos = 1 }}]\n",
        minimal()
    ));
    assert!(error.contains("qos"), "{error}");
    let error = refusal(&format!("{}[http]\nlisten = \"0.0.0.0:80\"\n", minimal()));
    assert!(error.contains("other machines"), "{error}");
    let missing = Config::load(Path::new("/nonexistent/agent.toml"), [])
        .unwrap_err()
        .to_string();
    assert!(
        missing.contains("/nonexistent/agent.toml") && missing.contains("example"),
        "{missing}"
    );
}

#[test]
fn all_contradictions_come_in_one_message() {
    let text = "device = \"a\"\n[broker]\nhost = \"mqtt://b\"\nport = 0\nkeep_alive_s = 0\nclient_id = \"a b\"\n\
        password_file = \"/x\"\nmax_packet = 10\n[broker.tls]\ncertificate = \"/c\"\nalpn = [\"\"]\n\
        [spool]\nmax = \"1MiB\"\ndirectory = \"spool\"\n[memory]\nlimit = \"1KiB\"\n[engine]\nhang_after_s = 0\n[slots.s]\nqueue = 0\n\
        inputs = [{ kind = \"http\" }, { kind = \"folder\", path = \"/in\" }, { kind = \"folder\", path = \"/in\" }]\n";
    let ConfigError::Invalid { problems, .. } = load(text, &[]).unwrap_err() else {
        panic!("another error")
    };
    let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "broker.host",
            "broker.port",
            "broker.keep_alive_s",
            "broker.max_packet",
            "broker.client_id",
            "broker.password_file",
            "broker.tls",
            "broker.tls.alpn[0]",
            "spool.directory",
            "spool.max",
            "memory.limit",
            "trust.keys",
            "engine.hang_after_s",
            "slots.s.queue",
            "slots.s.inputs[0]",
            "slots.s.inputs[2]",
        ]
    );
}

#[test]
fn a_camera_alone_feeds_a_slot_and_its_mistakes_are_named() {
    let slot = |camera: &str| format!("{}[slots.a.camera]\n{camera}", minimal());
    let config = load(&slot("device = \"/dev/video0\"\n"), &[]).unwrap();
    let camera = config.slots.values().next().unwrap().camera.clone().unwrap();
    assert_eq!(
        (camera.format, camera.width, camera.rate),
        (FormatChoice::Auto, None, None)
    );
    let given = slot("device = \"/dev/v4l/by-id/usb-cam\"\nformat = \"mjpeg\"\nfps = 30.0\nrate = 7.5\n");
    let camera = load(&given, &[])
        .unwrap()
        .slots
        .into_values()
        .next()
        .unwrap()
        .camera
        .unwrap();
    assert_eq!(camera.format, FormatChoice::Only(PixelFormat::Mjpeg));
    let error = refusal(&slot("device = \"/dev/video0\"\nformat = \"h264\"\n"));
    assert!(
        error.starts_with("agent.toml:8:") && error.contains("mjpeg"),
        "{error}"
    );
    let error = refusal(&slot("device = \"/dev/video0\"\ngain = 3\n"));
    assert!(error.contains("unknown field `gain`"), "{error}");
    assert!(refusal(&slot("")).contains("missing field `device`"));
    let text = slot("device = \"video0\"\nwidth = 8\nfps = 0.0\nrate = nan\n")
        + "[slots.b.camera]\ndevice = \"video0\"\n";
    let ConfigError::Invalid { problems, .. } = load(&text, &[]).unwrap_err() else {
        panic!("another error")
    };
    let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "slots.a.camera.device",
            "slots.a.camera.width",
            "slots.a.camera.width",
            "slots.a.camera.fps",
            "slots.a.camera.rate",
            "slots.b.camera.device",
            "slots.b.camera.device",
        ]
    );
    assert!(
        problems[6].message.contains("slots.a.camera's too"),
        "{problems:?}"
    );
    // What the device itself says is the check's part.
    let config = load(&slot("device = \"/dev/null\"\n"), &[]).unwrap();
    let found = config.check();
    let problem = found
        .iter()
        .find(|problem| problem.field == "slots.a.camera")
        .unwrap();
    assert_eq!(
        problem.message,
        "/dev/null: it is no camera: it is no V4L2 device"
    );
}

#[test]
fn a_host_is_only_a_host() {
    let with_host = |host: &str, tls: bool| {
        let tls = if tls { "[broker.tls]\n[trust]" } else { "[trust]" };
        load(
            &minimal().replace("broker.example", host).replace("[trust]", tls),
            &[],
        )
    };
    for good in ["broker", "10.0.0.1", "::1"] {
        assert!(with_host(good, false).is_ok(), "{good}");
    }
    for (bad, tls) in [
        ("", false),
        ("mqtt://b", false),
        ("b:1883", false),
        ("a b", false),
        ("::1", true),
    ] {
        assert!(
            matches!(with_host(bad, tls), Err(ConfigError::Invalid { .. })),
            "{bad:?}"
        );
    }
}

#[test]
fn the_environment_overrides_and_is_named_when_it_is_the_cause() {
    let config = load(
        &minimal(),
        &[
            ("EDGEOPT_AGENT__BROKER__HOST", "other.example"),
            ("EDGEOPT_AGENT__BROKER__PORT", "1999"),
            ("EDGEOPT_AGENT__SPOOL__MAX", "32MiB"),
            ("EDGEOPT_AGENT__HTTP__LISTEN", "[::1]:8080"),
        ],
    )
    .unwrap();
    assert_eq!(
        (config.broker.host.as_str(), config.broker.port()),
        ("other.example", 1999)
    );
    assert_eq!(config.spool.max, Bytes::mib(32));
    assert!(matches!(config.http.unwrap().listen, Listen::Tcp(_)));

    let error = load(&minimal(), &[("EDGEOPT_AGENT__BROKER__PORT", "many")])
        .unwrap_err()
        .to_string();
    assert!(error.contains("EDGEOPT_AGENT__BROKER__PORT"), "{error}");
    // A variable can also supply what the file lacks.
    assert!(
        load(
            "[broker]\nhost=\"b\"\n[trust]\nrequire_signature=false",
            &[("EDGEOPT_AGENT__DEVICE", "d")]
        )
        .is_ok()
    );
    // A fault of the file keeps its line.
    let error = load(
        &minimal().replace("host", "hots"),
        &[("EDGEOPT_AGENT__BROKER__PORT", "1")],
    );
    assert!(error.unwrap_err().to_string().starts_with("agent.toml:3:1"));
}

#[test]
fn the_check_opens_every_file_and_lists_each_that_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("not-a-certificate"), "hello").unwrap();
    std::fs::write(
        at("not-a-key"),
        "-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----\n",
    )
    .unwrap();
    std::fs::write(at("password"), "\nsecret\n").unwrap();
    std::fs::write(at("key.pub"), "untrusted comment\nabc\n").unwrap();
    let text = format!(
        "device = \"a\"\n[broker]\nhost = \"b\"\nusername = \"u\"\npassword_file = {:?}\n\
         [broker.tls]\nca = {:?}\ncertificate = {:?}\nkey = {:?}\n[trust]\nkey_files = [{:?}]\n\
         [store]\ndirectory = {:?}\n[slots.s]\ninputs = [{{ kind = \"folder\", path = {:?} }}]\n",
        at("password"),
        at("missing.pem"),
        at("not-a-certificate"),
        at("not-a-key"),
        at("key.pub"),
        at("password"),
        at("absent"),
    );
    let problems = load(&text, &[]).unwrap().check();
    let fields: Vec<&str> = problems
        .iter()
        .filter(|found| found.severity == Severity::Error)
        .map(|found| found.field.as_str())
        .collect();
    assert_eq!(
        fields,
        [
            "broker.tls.ca",
            "broker.tls.certificate",
            "broker.tls.key",
            "broker.password_file",
            "trust.key_files[0]",
            "store.directory",
            "slots.s.inputs[0].path",
        ],
        "{problems:#?}"
    );
    // The same, repaired: nothing left.
    let certified = rcgen::generate_simple_self_signed(vec!["b".into()]).unwrap();
    for name in ["missing.pem", "not-a-certificate"] {
        std::fs::write(at(name), certified.cert.pem()).unwrap();
    }
    std::fs::write(at("not-a-key"), certified.signing_key.serialize_pem()).unwrap();
    std::fs::write(at("password"), "secret\n").unwrap();
    std::fs::write(at("key.pub"), format!("untrusted comment: x\n{KEY}\n")).unwrap();
    std::fs::create_dir(at("absent")).unwrap();
    let repaired = text.replace(
        &format!("directory = {:?}", at("password")),
        &format!("directory = {:?}", at("store")),
    );
    assert_eq!(load(&repaired, &[]).unwrap().check(), []);
    // A key that belongs to another certificate.
    let other = rcgen::generate_simple_self_signed(vec!["b".into()]).unwrap();
    std::fs::write(at("not-a-key"), other.signing_key.serialize_pem()).unwrap();
    let problems = load(&repaired, &[]).unwrap().check();
    assert_eq!(
        problems
            .iter()
            .map(|found| found.field.as_str())
            .collect::<Vec<_>>(),
        ["broker.tls"],
        "{problems:?}"
    );
}

#[test]
fn a_slot_that_only_a_sensor_feeds_needs_no_inputs() {
    let slot = format!("{}[slots.motion]\ninputs = []\n", minimal());
    assert!(refusal(&slot).contains("slots.motion.inputs: is empty"));
    let sensor = "[hardware.sensors.accelerometer]\nbus = \"/dev/i2c-7\"\naddress = 0x68\nslot = \"motion\"\n\
                  interval_us = 10_000\nwindow = 8\nchannels = [{ register = 0x3B, format = \"i16be\" }]\n";
    load(&(slot + sensor), &[]).unwrap();
}
