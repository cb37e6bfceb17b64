use std::path::Path;

use edgeopt_agent::config::{Config, ConfigError, Severity};
use edgeopt_agent::hardware::Hardware;

use crate::config;
use crate::tree::Tree;

fn refusal(hardware: &str) -> String {
    config(hardware).unwrap_err().to_string()
}

/// A file of the repository.
fn repository(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

#[test]
fn mistakes_in_words_are_named_with_their_line() {
    // The first line of `[hardware]` here is the tenth of the file.
    for (text, expected) in [
        (
            "[hardware]\noutput = {}\n",
            "agent.toml:11:1: unknown field `output`",
        ),
        (
            "[[hardware.rules]]\nwhen = 'person >'\nslot = 'detector'\noutput = 'a'\nhold_ms = 1\n",
            "three parts",
        ),
        (
            "[hardware.outputs.a]\nkind = 'relay'\n",
            "unknown variant `relay`",
        ),
        (
            "[hardware.ina3221.a]\nbus = '/dev/i2c-1'\nchannels = [{ channel = 4, rail = 'a', shunt_milliohms = 1.0 }]\n",
            "the chip has the channels 1, 2 and 3, and not 4",
        ),
        (
            "[hardware.throttle]\nlimits = [{ when = { kind = 'moonlight' }, rate = 1.0 }]\n",
            "unknown variant `moonlight`",
        ),
    ] {
        let error = refusal(text);
        assert!(
            error.starts_with("agent.toml:1") && error.contains(expected),
            "{text}: {error}"
        );
    }
}

#[test]
fn all_contradictions_come_at_once() {
    let text = "[hardware.outputs.lamp]\nkind = 'gpio'\nchip = 'gpiochip0'\nline = 3\n\
        [hardware.outputs.other]\nkind = 'gpio'\nchip = 'gpiochip0'\nline = 3\n\
        [hardware.outputs.horn]\nkind = 'pwm'\nchip = 'pwmchip0'\nchannel = 0\nfrequency_hz = nan\nduty = 0.0\n\
        [[hardware.rules]]\nslot = 'nowhere'\nwhen = 'person > 0.8'\nframes = 0\noutput = 'siren'\nhold_ms = 0\n\
        [hardware.sensors.imu]\nbus = '/dev/i2c-7'\naddress = 0x80\nslot = 'nowhere'\ninterval_us = 1\nwindow = 4\n\
        step = 5\nchannels = [{ register = 0xFF, format = 'i16be', scale = 0.0 }]\n\
        [hardware.sensors.none]\nbus = '/dev/i2c-7'\naddress = 0x40\nslot = 'anomaly'\ninterval_us = 1000\nwindow = 0\n\
        channels = []\n\
        [hardware.ina3221.a]\nbus = '/dev/i2c-7'\nchannels = [{ channel = 1, rail = '', shunt_milliohms = 0.0 }, \
        { channel = 1, rail = 'b', shunt_milliohms = 5.0 }]\n\
        [hardware.throttle]\ninterval_s = 0\n\
        [[hardware.throttle.limits]]\nwhen = { kind = 'temperature', above = 70.0, below = 80.0 }\n\
        [[hardware.throttle.limits]]\nwhen = { kind = 'power_mode', names = [] }\nrates = { nowhere = 0.0 }\n";
    let ConfigError::Invalid { problems, .. } = config(text).unwrap_err() else {
        panic!("another error")
    };
    let fields: Vec<&str> = problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "hardware.outputs.horn.frequency_hz",
            "hardware.outputs.horn.duty",
            "hardware.outputs.lamp.chip",
            "hardware.outputs.other.chip",
            "hardware.outputs.other",
            "hardware.rules[0].slot",
            "hardware.rules[0].frames",
            "hardware.rules[0].hold_ms",
            "hardware.rules[0].output",
            "hardware.sensors.imu.address",
            "hardware.sensors.imu.slot",
            "hardware.sensors.imu.interval_us",
            "hardware.sensors.imu.step",
            "hardware.sensors.imu.channels[0].register",
            "hardware.sensors.imu.channels[0]",
            "hardware.sensors.none.channels",
            "hardware.sensors.none.window",
            "hardware.ina3221.a.address",
            "hardware.ina3221.a.channels[0].shunt_milliohms",
            "hardware.ina3221.a.channels[0].rail",
            "hardware.ina3221.a.channels[1].channel",
            "hardware.throttle.interval_s",
            "hardware.throttle.limits[0]",
            "hardware.throttle.limits[0].when.below",
            "hardware.throttle.limits[1].rate",
            "hardware.throttle.limits[1].rates",
            "hardware.throttle.limits[1].when",
        ]
    );
}

#[test]
fn the_check_looks_for_devices_and_opening_names_the_one_that_fails() {
    let lamp = "[hardware.outputs.lamp]\nkind = 'gpio'\nchip = '/dev/edgeopt-none'\nline = 3\n";
    let sensor = "[hardware.sensors.imu]\nbus = '/dev/edgeopt-none'\naddress = 0x68\nslot = 'anomaly'\n\
        interval_us = 1000\nwindow = 8\nchannels = [{ register = 0, format = 'u8' }]\n";
    let problems = config(&format!("{lamp}{sensor}")).unwrap().check();
    let found: Vec<_> = problems
        .iter()
        .filter(|problem| problem.field.starts_with("hardware"))
        .map(|problem| (problem.field.as_str(), problem.severity))
        .collect();
    assert_eq!(
        found,
        [
            ("hardware.outputs.lamp", Severity::Warning), // no rule uses it
            ("hardware.outputs.lamp.chip", Severity::Error),
            ("hardware.sensors.imu.bus", Severity::Error),
        ]
    );
    let tree = Tree::empty();
    for (text, expected) in [
        (
            lamp,
            "hardware.outputs.lamp: cannot open /dev/edgeopt-none line 3",
        ),
        (
            sensor,
            "hardware.sensors.imu: cannot open /dev/edgeopt-none address 0x68",
        ),
    ] {
        let error = Hardware::open(&config(text).unwrap(), tree.root())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(expected) && error.contains("No such file"),
            "{error}"
        );
    }
}

#[test]
fn the_guides_examples_are_valid() {
    let guide = repository("docs/hardware.md");
    let mut rest = guide.as_str();
    let mut all = String::new();
    while let Some((_, block)) = rest.split_once("```toml\n") {
        let (text, after) = block.split_once("```").unwrap();
        config(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        all.push_str(text);
        rest = after;
    }
    // Together they show every section.
    let together = config(&all).unwrap().hardware;
    assert!(!together.rules.is_empty() && !together.outputs.is_empty() && !together.sensors.is_empty());
    assert!(!together.ina3221.is_empty() && !together.throttle.limits.is_empty());
}

#[test]
fn the_examples_in_the_configuration_that_is_shipped_are_valid() {
    let text = repository("systemd/agent.toml");
    let enabled: String = text
        .lines()
        .map(|line| format!("{}\n", line.strip_prefix("#+ ").unwrap_or(line)))
        .collect();
    let shipped = Config::from_text(Path::new("agent.toml"), &text, []).unwrap();
    let config = Config::from_text(Path::new("agent.toml"), &enabled, []).unwrap();
    // Nothing of it is on until someone takes the mark away.
    assert!(shipped.hardware.outputs.is_empty() && shipped.hardware.throttle.limits.is_empty());
    let hardware = config.hardware;
    assert!(!hardware.outputs.is_empty() && !hardware.rules.is_empty() && !hardware.sensors.is_empty());
    assert!(!hardware.ina3221.is_empty() && !hardware.throttle.limits.is_empty());
}
