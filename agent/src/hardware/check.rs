//! What is wrong with `[hardware]`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;

use super::settings::{
    Cause, HardwareSettings, Ina3221Settings, LimitSettings, OutputSettings, SensorSettings,
};
use crate::config::{Problem, Severity};
use crate::protocol::SlotName;

/// 7-bit addresses that no chip may use are below and above.
const ADDRESSES: (u8, u8) = (0x08, 0x77);
/// Most numbers in a window: 16 MiB as float32.
const MAX_WINDOW: usize = 4 << 20;

struct Findings<'a> {
    problems: Vec<Problem>,
    slots: BTreeSet<&'a SlotName>,
    /// Who uses an address of a bus.
    addresses: BTreeMap<(&'a Path, u8), String>,
}

impl<'a> Findings<'a> {
    fn add(&mut self, severity: Severity, field: &str, message: impl Into<String>) {
        self.problems.push(Problem {
            field: field.to_owned(),
            message: message.into(),
            severity,
        });
    }

    fn error(&mut self, field: &str, message: impl Into<String>) {
        self.add(Severity::Error, field, message);
    }

    fn range<T: PartialOrd + Display>(&mut self, field: &str, value: T, low: T, high: T, unit: &str) {
        // Not a number is in no range.
        if !(value >= low && value <= high) {
            self.error(
                field,
                format!("{value}{unit} is out of range: {low} to {high}{unit}"),
            );
        }
    }

    fn slot(&mut self, field: &str, slot: &SlotName) {
        if !self.slots.contains(slot) {
            self.error(field, format!("there is no [slots.{slot}]"));
        }
    }

    fn device(&mut self, field: &str, path: &Path) {
        if !path.starts_with("/dev") {
            self.error(
                field,
                format!("{} is not a device: write it from /dev", path.display()),
            );
        }
    }

    fn i2c(&mut self, field: &str, bus: &'a Path, address: u8, low: u8, high: u8) {
        self.device(&format!("{field}.bus"), bus);
        let at = format!("{field}.address");
        if address < low || address > high {
            self.error(
                &at,
                format!("{address:#04x} is out of range: {low:#04x} to {high:#04x}"),
            );
        }
        if let Some(other) = self.addresses.insert((bus, address), field.to_owned()) {
            self.error(&at, format!("{address:#04x} is {other}'s on this bus too"));
        }
    }
}

impl HardwareSettings {
    /// Everything that is wrong without looking at any device; `slots` are those of the configuration.
    pub fn problems<'a>(&'a self, slots: impl IntoIterator<Item = &'a SlotName>) -> Vec<Problem> {
        let mut findings = Findings {
            problems: Vec::new(),
            slots: slots.into_iter().collect(),
            addresses: BTreeMap::new(),
        };
        self.outputs_and_rules(&mut findings);
        for (name, sensor) in &self.sensors {
            check_sensor(&format!("hardware.sensors.{name}"), sensor, &mut findings);
        }
        let mut rails = BTreeSet::new();
        for (name, monitor) in &self.ina3221 {
            check_monitor(
                &format!("hardware.ina3221.{name}"),
                monitor,
                &mut rails,
                &mut findings,
            );
        }
        let throttle = &self.throttle;
        findings.range("hardware.throttle.interval_s", throttle.interval_s, 1, 3600, " s");
        findings.range("hardware.throttle.dwell_s", throttle.dwell_s, 0, 86_400, " s");
        for (index, limit) in throttle.limits.iter().enumerate() {
            check_limit(
                &format!("hardware.throttle.limits[{index}]"),
                limit,
                &mut findings,
            );
        }
        findings.problems
    }

    /// Device files that are named and not there.
    pub fn absent_devices(&self) -> Vec<Problem> {
        let chips = self.outputs.iter().filter_map(|(name, output)| match output {
            OutputSettings::Gpio { chip, .. } => Some((format!("hardware.outputs.{name}.chip"), chip)),
            OutputSettings::Pwm { .. } => None,
        });
        let sensors = self.sensors.iter();
        let sensors = sensors.map(|(name, sensor)| (format!("hardware.sensors.{name}.bus"), &sensor.bus));
        let monitors = self.ina3221.iter();
        let monitors = monitors.map(|(name, chip)| (format!("hardware.ina3221.{name}.bus"), &chip.bus));
        chips
            .chain(sensors)
            .chain(monitors)
            .filter(|(_, path)| !path.exists())
            .map(|(field, path)| Problem {
                field,
                message: format!("{} is not there: is its driver loaded?", path.display()),
                severity: Severity::Error,
            })
            .collect()
    }

    fn outputs_and_rules(&self, findings: &mut Findings<'_>) {
        let mut lines = BTreeMap::new();
        for (name, output) in &self.outputs {
            let field = format!("hardware.outputs.{name}");
            let line = match output {
                OutputSettings::Gpio { chip, line, .. } => {
                    findings.device(&format!("{field}.chip"), chip);
                    format!("line {line} of {}", chip.display())
                }
                OutputSettings::Pwm {
                    chip,
                    channel,
                    frequency_hz,
                    duty,
                    ..
                } => {
                    findings.range(&format!("{field}.frequency_hz"), *frequency_hz, 0.1, 1e6, " Hz");
                    if !(*duty > 0.0 && *duty <= 1.0) {
                        findings.error(
                            &format!("{field}.duty"),
                            format!("{duty} is no share above 0 up to 1"),
                        );
                    }
                    format!("channel {channel} of {chip}")
                }
            };
            if let Some(other) = lines.insert(line.clone(), field.clone()) {
                findings.error(&field, format!("{line} is {other}'s too"));
            }
            if !self.rules.iter().any(|rule| rule.output == *name) {
                findings.add(Severity::Warning, &field, "no rule makes it active");
            }
        }
        for (index, rule) in self.rules.iter().enumerate() {
            let field = format!("hardware.rules[{index}]");
            findings.slot(&format!("{field}.slot"), &rule.slot);
            findings.range(&format!("{field}.frames"), rule.frames, 1, 100_000, "");
            findings.range(&format!("{field}.hold_ms"), rule.hold_ms, 1, 86_400_000, " ms");
            if !self.outputs.contains_key(&rule.output) {
                let output = &rule.output;
                findings.error(
                    &format!("{field}.output"),
                    format!("there is no [hardware.outputs.{output}]"),
                );
            }
        }
    }
}

fn check_sensor<'a>(field: &str, sensor: &'a SensorSettings, findings: &mut Findings<'a>) {
    findings.i2c(field, &sensor.bus, sensor.address, ADDRESSES.0, ADDRESSES.1);
    findings.slot(&format!("{field}.slot"), &sensor.slot);
    findings.range(
        &format!("{field}.interval_us"),
        sensor.interval_us,
        500,
        3_600_000_000,
        " µs",
    );
    if sensor.channels.is_empty() {
        findings.error(&format!("{field}.channels"), "is empty: name at least one");
    }
    let most = MAX_WINDOW / sensor.channels.len().max(1);
    findings.range(&format!("{field}.window"), sensor.window, 1, most, "");
    if let Some(step) = sensor.step {
        findings.range(&format!("{field}.step"), step, 1, sensor.window, "");
    }
    for (index, channel) in sensor.channels.iter().enumerate() {
        let field = format!("{field}.channels[{index}]");
        if usize::from(channel.register) + channel.format.bytes() > 256 {
            findings.error(&format!("{field}.register"), "its bytes go beyond register 0xff");
        }
        if !channel.scale.is_finite() || channel.scale == 0.0 || !channel.offset.is_finite() {
            findings.error(&field, "`scale` and `offset` are finite, and `scale` is not 0");
        }
    }
    // One transfer has at most 256 bytes, for there are no more registers.
    let total: usize = sensor.channels.iter().map(|channel| channel.format.bytes()).sum();
    if total > 256 {
        findings.error(
            &format!("{field}.channels"),
            format!("take {total} bytes; 256 are the most"),
        );
    }
}

fn check_monitor<'a>(
    field: &str,
    monitor: &'a Ina3221Settings,
    rails: &mut BTreeSet<&'a str>,
    findings: &mut Findings<'a>,
) {
    findings.i2c(field, &monitor.bus, monitor.address, 0x40, 0x43);
    if monitor.channels.is_empty() {
        findings.error(&format!("{field}.channels"), "is empty: name at least one");
    }
    let mut numbers = BTreeSet::new();
    for (index, channel) in monitor.channels.iter().enumerate() {
        let field = format!("{field}.channels[{index}]");
        if !numbers.insert(channel.channel) {
            findings.error(
                &format!("{field}.channel"),
                format!("{:?} is there twice", channel.channel),
            );
        }
        findings.range(
            &format!("{field}.shunt_milliohms"),
            channel.shunt_milliohms,
            0.01,
            1e6,
            " mΩ",
        );
        if channel.rail.is_empty() || !rails.insert(&channel.rail) {
            findings.error(
                &format!("{field}.rail"),
                format!("{:?} is empty or there twice", channel.rail),
            );
        }
    }
}

fn check_limit(field: &str, limit: &LimitSettings, findings: &mut Findings<'_>) {
    if limit.rate.is_none() && limit.rates.is_empty() {
        findings.error(field, "limits nothing: set `rate`, or `rates` by slot");
    }
    for rate in limit.rate.iter().chain(limit.rates.values()) {
        findings.range(&format!("{field}.rate"), *rate, 1e-4, 1e6, " per second");
    }
    for slot in limit.rates.keys() {
        findings.slot(&format!("{field}.rates"), slot);
    }
    let field = format!("{field}.when");
    match &limit.when {
        Cause::Temperature { above, below, .. } => thresholds(&field, *above, *below, 150.0, findings),
        Cause::Power { above, below, rail } => {
            thresholds(&field, *above, *below, 1e4, findings);
            if rail.is_empty() {
                findings.error(&field, "`rail` is empty");
            }
        }
        Cause::PowerMode { names } if names.is_empty() => findings.error(&field, "`names` is empty"),
        Cause::PowerMode { .. } | Cause::Throttled {} => {}
    }
}

fn thresholds(field: &str, above: f64, below: f64, most: f64, findings: &mut Findings<'_>) {
    findings.range(&format!("{field}.above"), above, 0.0, most, "");
    // Equal thresholds are no hysteresis, but the dwell time still is.
    findings.range(&format!("{field}.below"), below, 0.0, above, "");
}
