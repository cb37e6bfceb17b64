//! `[hardware]` in `agent.toml`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::condition::Condition;
use super::ina3221::ChannelNumber;
use super::registers::Format;
use crate::protocol::SlotName;

/// Hardware beside the processor. Without it, what the kernel reports (rails, temperatures, fan, power mode) is measured
/// all the same.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HardwareSettings {
    /// Outputs by name.
    pub outputs: BTreeMap<String, OutputSettings>,
    /// What makes outputs active.
    pub rules: Vec<RuleSettings>,
    /// Sensors by name.
    pub sensors: BTreeMap<String, SensorSettings>,
    /// Power monitors, by name, that the kernel does not drive.
    pub ina3221: BTreeMap<String, Ina3221Settings>,
    /// When slots are to answer less often.
    pub throttle: ThrottleSettings,
}

/// An output.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum OutputSettings {
    /// A pin.
    Gpio {
        /// The chip's device file, such as `/dev/gpiochip0`.
        chip: PathBuf,
        /// Number or name of the line, as `gpioinfo` shows them.
        line: LineName,
        /// Active means low.
        #[serde(default)]
        active_low: bool,
    },
    /// Pulses.
    Pwm {
        /// `pwmchip<n>`, or the name of its device, such as `32f0000.pwm`.
        chip: String,
        /// The chip's channel, from 0.
        channel: u32,
        /// Pulses per second.
        frequency_hz: f64,
        /// Share of the time that is high while active, above 0 to 1.
        duty: f64,
        /// Inverted: high while inactive.
        #[serde(default)]
        active_low: bool,
    },
}

/// Which line of a GPIO chip.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum LineName {
    /// By its offset.
    Number(u32),
    /// By the name the board gives it, such as `PQ.05`.
    Name(String),
}

impl fmt::Display for LineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(offset) => write!(f, "{offset}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// A rule: results of a slot make an output active.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleSettings {
    /// The slot.
    pub slot: SlotName,
    /// What a result must be like.
    pub when: Condition,
    /// How many results in a row.
    #[serde(default = "defaults::frames")]
    pub frames: u32,
    /// The output's name.
    pub output: String,
    /// Milliseconds that it stays active.
    pub hold_ms: u64,
    /// Whether a row that goes on prolongs this.
    #[serde(default = "defaults::retrigger")]
    pub retrigger: bool,
}

impl RuleSettings {
    /// The rule.
    pub fn rule(&self) -> super::Rule {
        super::Rule {
            slot: self.slot.clone(),
            when: self.when.clone(),
            frames: self.frames,
            output: self.output.clone(),
            hold: Duration::from_millis(self.hold_ms),
            retrigger: self.retrigger,
        }
    }
}

/// A sensor whose samples, a window at a time, are a slot's input: `.npy`, float32, of [`Layout`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SensorSettings {
    /// The bus's device file, such as `/dev/i2c-7`.
    pub bus: PathBuf,
    /// The 7-bit address.
    pub address: u8,
    /// The slot that takes the windows.
    pub slot: SlotName,
    /// Microseconds between two samples.
    pub interval_us: u64,
    /// Samples in a window.
    pub window: usize,
    /// Samples from the start of a window to the start of the next; absent: `window`, so that none is in two.
    pub step: Option<usize>,
    /// Order of the tensor's axes.
    #[serde(default)]
    pub layout: Layout,
    /// A register that must hold a value, so that no other chip is read by mistake.
    pub identity: Option<RegisterValue>,
    /// What is written before the first sample, in order.
    #[serde(default)]
    pub setup: Vec<RegisterValue>,
    /// What is read, in the order of the tensor's channels.
    pub channels: Vec<ChannelSettings>,
}

/// Order of the axes of a window: batch (1), time, channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// `[1, window, channels]`, as recurrent models and transformers take it.
    #[default]
    Nwc,
    /// `[1, channels, window]`, as one-dimensional convolutions take it.
    Ncw,
}

/// A register of one byte with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisterValue {
    /// The register.
    pub register: u8,
    /// The value.
    pub value: u8,
}

/// A number in a sensor's registers: `raw · scale + offset`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelSettings {
    /// The first register.
    pub register: u8,
    /// What the bytes mean.
    pub format: Format,
    /// Units in a step of the raw number.
    #[serde(default = "defaults::scale")]
    pub scale: f64,
    /// Units at a raw number of 0.
    #[serde(default)]
    pub offset: f64,
}

/// An INA3221 that the kernel does not drive.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ina3221Settings {
    /// The bus's device file.
    pub bus: PathBuf,
    /// The 7-bit address, 0x40 to 0x43.
    #[serde(default = "defaults::ina3221_address")]
    pub address: u8,
    /// Channels in use.
    pub channels: Vec<RailSettings>,
}

/// A channel of an INA3221.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RailSettings {
    /// 1, 2 or 3.
    pub channel: ChannelNumber,
    /// Name of the rail in reports.
    pub rail: String,
    /// The shunt resistor in milliohms.
    pub shunt_milliohms: f64,
}

/// When slots are to answer less often.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThrottleSettings {
    /// Seconds between two looks at the sensors.
    pub interval_s: u32,
    /// Seconds that a limit's cause must be gone before the limit is lifted.
    pub dwell_s: u32,
    /// The limits. Of those in force, the lowest rate counts.
    pub limits: Vec<LimitSettings>,
}

impl Default for ThrottleSettings {
    fn default() -> Self {
        Self {
            interval_s: 2,
            dwell_s: 30,
            limits: Vec::new(),
        }
    }
}

/// A limit: why, and how often slots may answer then.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSettings {
    /// What puts it in force.
    pub when: Cause,
    /// Largest number of inferences per second for slots that `rates` does not name.
    pub rate: Option<f64>,
    /// The same by slot.
    #[serde(default)]
    pub rates: BTreeMap<SlotName, f64>,
}

/// What puts a limit in force.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Cause {
    /// Heat.
    Temperature {
        /// In force from this many degrees Celsius,
        above: f64,
        /// until there are fewer than this.
        below: f64,
        /// The thermal zone; absent: the hottest.
        zone: Option<String>,
    },
    /// Power drawn.
    Power {
        /// In force from this many watts,
        above: f64,
        /// until there are fewer than this.
        below: f64,
        /// The rail.
        rail: String,
    },
    /// A power mode.
    PowerMode {
        /// Names, such as `7W`.
        names: Vec<String>,
    },
    /// The system has lowered clocks because of heat or current.
    Throttled {},
}

mod defaults {
    pub(super) fn frames() -> u32 {
        1
    }

    pub(super) fn retrigger() -> bool {
        true
    }

    pub(super) fn scale() -> f64 {
        1.0
    }

    pub(super) fn ina3221_address() -> u8 {
        0x40
    }
}
