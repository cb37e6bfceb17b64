//! How the whole daemon is: for people, for metrics, for telemetry.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Instant;

use edgeopt_runtime::memory::{Budget, available};
use serde::{Deserialize, Serialize};

use super::mail::Mail;
use super::slots::Slots;
use crate::inputs::camera::{CameraView, Monitor};
use crate::link::{LinkView, Watch};
use crate::protocol::{DeviceId, ReportedSlot, SlotName};
use crate::pulse::Pulses;
use crate::serve::Health;

/// The daemon at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// This device.
    pub device: DeviceId,
    /// Version of the daemon.
    pub agent_version: String,
    /// Seconds since its start.
    pub uptime_s: u64,
    /// Whether every slot answers again that did before the start, or cannot.
    pub ready: bool,
    /// Threads that hang, in words.
    pub hanging: Vec<String>,
    /// The connection to the broker.
    pub link: LinkOverview,
    /// What waits for the broker.
    pub spool: SpoolOverview,
    /// Memory, in bytes.
    pub memory: MemoryOverview,
    /// Slots by name.
    pub slots: BTreeMap<SlotName, SlotOverview>,
}

/// The connection to the broker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkOverview {
    /// Whether messages can pass.
    pub connected: bool,
    /// What it is doing, in words.
    pub state: String,
    /// What needs somebody's attention.
    pub alarms: Vec<String>,
    /// Connections that the broker accepted since the start.
    pub connects: u64,
    /// Messages that the broker acknowledged since the start.
    pub acknowledged: u64,
    /// Messages taken in since the start.
    pub received: u64,
}

/// What waits for the broker.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpoolOverview {
    /// Records that wait.
    pub waiting: u64,
    /// Bytes on disk.
    pub bytes: u64,
    /// Records given up because there was no room, or because of their age, since the spool was created.
    pub dropped: u64,
    /// Records lost to damage of the disk, in places.
    pub damaged: u64,
    /// Messages that could never be sent because of their size, since the start.
    pub oversize: u64,
}

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryOverview {
    /// What the system could still give.
    pub available: u64,
    /// What the system has.
    pub total: u64,
    /// What the daemon holds (resident).
    pub resident: u64,
    /// What models may take together; 0 = no limit is known.
    pub limit: u64,
    /// What they have reserved of it.
    pub reserved: u64,
}

/// A slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlotOverview {
    /// Its model, as reported to the operator.
    pub reported: ReportedSlot,
    /// Name of the model that answers.
    pub model: Option<String>,
    /// The engine that is built for it now.
    pub build: Option<BuildOverview>,
    /// Inputs that wait.
    pub waiting: usize,
    /// Answers since the start.
    pub answered: u64,
    /// Inputs that could not be answered since the start.
    pub failed: u64,
    /// Inputs given up because the queue was full, since the start.
    pub dropped: u64,
    /// Median latency of the last answers, milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of the same.
    pub p99_ms: f64,
    /// The camera that feeds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub camera: Option<CameraView>,
}

/// A build under way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BuildOverview {
    /// Seconds since it began.
    pub elapsed_s: u64,
    /// Steps that the library has told of; how many there will be, it does not tell.
    pub steps: u64,
}

/// Looks at the daemon from any thread.
pub(crate) struct Observer {
    pub(super) device: DeviceId,
    pub(super) agent_version: String,
    pub(super) started: Instant,
    pub(super) link: Watch<LinkView>,
    pub(super) mail: Mail,
    pub(super) slots: Arc<Slots>,
    pub(super) budget: Option<Budget>,
    pub(super) pulses: Pulses,
    pub(super) cameras: BTreeMap<SlotName, Arc<Monitor>>,
}

impl Observer {
    pub(crate) fn look(&self) -> Overview {
        let link = self.link.get();
        let mail = self.mail.view();
        Overview {
            device: self.device.clone(),
            agent_version: self.agent_version.clone(),
            uptime_s: self.started.elapsed().as_secs(),
            ready: self.slots.all().all(|slot| slot.keeper.settled()),
            hanging: self.pulses.overdue().iter().map(ToString::to_string).collect(),
            link: LinkOverview {
                connected: link.state.is_connected(),
                state: link.state.to_string(),
                alarms: link.alarms.iter().map(ToString::to_string).collect(),
                connects: link.counters.connects,
                acknowledged: link.counters.acknowledged,
                received: link.counters.received,
            },
            spool: SpoolOverview {
                waiting: mail.waiting,
                bytes: mail.on_disk.0,
                dropped: mail.spool.dropped_records + mail.spool.expired_records + mail.spool.refused_records,
                damaged: mail.spool.corrupt_places,
                oversize: mail.oversize,
            },
            memory: self.memory(),
            slots: self
                .slots
                .all()
                .map(|slot| {
                    let (health, model) = (slot.server.health(), slot.server.model());
                    let latency = health.latency();
                    let overview = SlotOverview {
                        reported: slot.keeper.report().slot,
                        model: model.map(|model| model.manifest.name.clone()),
                        build: slot.build.now().map(|(elapsed, steps)| BuildOverview {
                            elapsed_s: elapsed.as_secs(),
                            steps,
                        }),
                        waiting: slot.server.waiting(),
                        answered: health.answered,
                        failed: health.failed,
                        dropped: health.dropped,
                        p50_ms: latency.p50_ms,
                        p99_ms: latency.p99_ms,
                        camera: self.cameras.get(&slot.name).map(|camera| camera.view()),
                    };
                    (slot.name.clone(), overview)
                })
                .collect(),
        }
    }

    /// Counters and latencies of each slot.
    pub(crate) fn health(&self) -> Vec<(SlotName, Health)> {
        let slots = self.slots.all();
        slots
            .map(|slot| (slot.name.clone(), slot.server.health()))
            .collect()
    }

    pub(super) fn memory(&self) -> MemoryOverview {
        let limit = self.budget.as_ref().map_or(0, |budget| budget.limit().0);
        let left = self.budget.as_ref().map_or(0, |budget| budget.available().0);
        MemoryOverview {
            available: available().map_or(0, |bytes| bytes.0),
            total: field("/proc/meminfo", "MemTotal:"),
            resident: field("/proc/self/status", "VmRSS:"),
            limit,
            reserved: limit.saturating_sub(left),
        }
    }
}

/// A field in kB of a file of `/proc`, in bytes; 0 where there is none.
fn field(path: &str, name: &str) -> u64 {
    fs::read_to_string(path)
        .ok()
        .and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        })
        .map_or(0, |kib| kib << 10)
}
