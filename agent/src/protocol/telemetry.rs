use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{SlotName, TopicName};

/// Measurements of one kind at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Telemetry {
    /// Milliseconds since 1970; absent while the device's clock is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
    /// Microseconds since the device was switched on.
    pub monotonic_us: u64,
    /// The measurements.
    pub sample: Sample,
}

/// Kinds of measurements; the kind is also the last level of the topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Sample {
    /// Memory in bytes.
    Memory {
        /// What the system could still give.
        available: u64,
        /// What it has.
        total: u64,
        /// What the daemon holds (resident).
        resident: u64,
        /// What models may take together.
        limit: u64,
        /// What they have reserved of it.
        reserved: u64,
    },
    /// Watts by power rail.
    Power(BTreeMap<String, f64>),
    /// Temperatures.
    Temperature {
        /// Degrees Celsius by thermal zone.
        zones: BTreeMap<String, f64>,
        /// Whether the system has lowered its clocks because of heat or power since the last report.
        throttled: bool,
    },
    /// Fans by name.
    Fan(BTreeMap<String, Fan>),
    /// The power mode of a Jetson.
    PowerMode {
        /// Its number, as `nvpmodel -m` takes it.
        id: u32,
        /// Its name, such as `15W`.
        name: String,
    },
    /// Limits of how often slots answer, set by the daemon because of heat, power or the power mode.
    RateLimit {
        /// What the limits in force are about; empty when there is none.
        causes: BTreeSet<String>,
        /// Largest number of inferences per second by slot; slots without a limit are absent.
        slots: BTreeMap<SlotName, f64>,
    },
    /// Cameras by the slot that they feed; only where there are any.
    Camera(BTreeMap<SlotName, Camera>),
    /// Latency by slot since the last report.
    Latency(BTreeMap<SlotName, Latency>),
    /// The link to the broker and the spool before it.
    Link {
        /// Connections made since the daemon started.
        connects: u64,
        /// Records that wait in the spool.
        spooled: u64,
        /// Records given up because the spool was full.
        dropped: u64,
        /// Records refused because they are larger than a packet may be.
        oversize: u64,
    },
}

impl Sample {
    /// The last level of the topic.
    pub fn kind(&self) -> TopicName {
        TopicName::fixed(match self {
            Self::Memory { .. } => "memory",
            Self::Power(_) => "power",
            Self::Temperature { .. } => "temperature",
            Self::Fan(_) => "fan",
            Self::PowerMode { .. } => "power_mode",
            Self::RateLimit { .. } => "rate_limit",
            Self::Camera(_) => "camera",
            Self::Latency(_) => "latency",
            Self::Link { .. } => "link",
        })
    }
}

/// A fan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Fan {
    /// How hard it is driven, in percent; absent where only its speed is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// Turns per minute; absent where there is no tachometer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rpm: Option<u64>,
}

/// A camera. Counts are since the daemon's start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Camera {
    /// Whether it gives frames.
    pub state: CameraState,
    /// Why it does not, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Frames per second that came last; 0 when none comes.
    pub fps: f64,
    /// Frames that a model was given.
    pub taken: u64,
    /// Good frames that no model was given: newer ones came, they were not due, or there was no model.
    pub skipped: u64,
    /// Frames that were damaged or cut off.
    pub bad: u64,
    /// Frames that the driver counted and never gave.
    pub lost: u64,
}

/// What a camera does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CameraState {
    /// It has neither given a frame nor failed yet.
    #[default]
    Starting,
    /// It gives frames.
    Streaming,
    /// It cannot be used now; it is tried again until it can.
    Failed,
}

/// Latency of one slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Latency {
    /// Answers given.
    pub count: u64,
    /// Inputs given up because the queue was full.
    pub dropped: u64,
    /// Milliseconds within which half of the answers came.
    pub p50_ms: f64,
    /// Milliseconds within which 95 of 100 came.
    pub p95_ms: f64,
    /// Milliseconds within which 99 of 100 came.
    pub p99_ms: f64,
    /// The slowest, in milliseconds.
    pub max_ms: f64,
}
