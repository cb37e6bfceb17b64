//! Measurements of the device itself, and what else is due by time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use super::machine::Machine;
use super::mail::Mail;
use super::overview::Observer;
use super::reports::Reports;
use super::results::wall_ms;
use crate::clock::since_boot;
use crate::link::{Alarm, WallClock};
use crate::protocol::{Camera, DeviceId, Latency, Sample, SlotName, Telemetry, Topic};
use crate::pulse::{Pulse, Pulses};

/// How often what is due by time is looked at.
const TICK: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_secs(60);

/// Asks for a report at once.
#[derive(Clone)]
pub(super) struct Now(SyncSender<()>);

impl Now {
    pub(super) fn ask(&self) {
        // Full: one is due already.
        let _ = self.0.try_send(());
    }
}

/// Where [`Now`] is heard.
pub(super) struct Asked(Receiver<()>);

pub(super) fn now() -> (Now, Asked) {
    let (ask, asked) = mpsc::sync_channel(1);
    (Now(ask), Asked(asked))
}

/// What is measured, and where it goes.
pub(super) struct Source {
    pub(super) observer: Arc<Observer>,
    pub(super) mail: Mail,
    pub(super) device: DeviceId,
    pub(super) wall: Arc<dyn WallClock>,
    pub(super) interval: Duration,
    pub(super) machine: Machine,
    pub(super) reports: Reports,
}

/// The thread that ticks; ends when dropped.
pub(super) struct Ticker {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its thread already.
            drop(thread.join());
        }
    }
}

impl Ticker {
    pub(super) fn start(source: Source, asked: Asked, pulses: &Pulses) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::sync_channel(0);
        let pulse = pulses.join("telemetry");
        let mut worker = Worker {
            source,
            before: BTreeMap::new(),
            alarms: Vec::new(),
            connects: 0,
        };
        let thread = thread::Builder::new()
            .name("telemetry".into())
            .spawn(move || worker.run(&stopped, &asked.0, &pulse))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

struct Worker {
    source: Source,
    /// Answers and drops of each slot at the last report.
    before: BTreeMap<SlotName, (u64, u64)>,
    /// Alarms that have been logged.
    alarms: Vec<Alarm>,
    /// Connections made at the last look.
    connects: u64,
}

impl Worker {
    fn run(&mut self, stopped: &Receiver<()>, asked: &Receiver<()>, pulse: &Pulse) {
        let mut due = Instant::now() + self.source.interval;
        loop {
            match stopped.recv_timeout(TICK) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => return,
            }
            pulse.beat(STEP);
            if let Err(error) = self.source.mail.maintain(SystemTime::now()) {
                tracing::error!("spool: {error}");
            }
            self.tell_alarms();
            let connects = self.source.observer.link.get().counters.connects;
            if connects != std::mem::replace(&mut self.connects, connects) {
                // A broker may come back without what it kept.
                self.source.reports.again();
            }
            if asked.try_recv().is_ok() || Instant::now() >= due {
                due = Instant::now() + self.source.interval;
                for sample in self.samples() {
                    self.send(sample);
                }
            }
            pulse.rest();
        }
    }

    fn tell_alarms(&mut self) {
        let alarms = self.source.observer.link.get().alarms;
        for alarm in &alarms {
            if !self.alarms.contains(alarm) {
                tracing::error!("alarm: {alarm}");
            }
        }
        self.alarms = alarms;
    }

    fn samples(&mut self) -> Vec<Sample> {
        let overview = self.source.observer.look();
        let memory = overview.memory;
        let mut latencies = BTreeMap::new();
        for (slot, health) in self.source.observer.health() {
            let (answered, dropped) = self
                .before
                .insert(slot.clone(), (health.answered, health.dropped))
                .unwrap_or_default();
            let (count, dropped) = (health.answered - answered, health.dropped - dropped);
            let latency = health.latency_of_last(count);
            latencies.insert(
                slot,
                Latency {
                    count,
                    dropped,
                    p50_ms: latency.p50_ms,
                    p95_ms: latency.p95_ms,
                    p99_ms: latency.p99_ms,
                    max_ms: latency.max_ms,
                },
            );
        }
        let mut samples = vec![
            Sample::Memory {
                available: memory.available,
                total: memory.total,
                resident: memory.resident,
                limit: memory.limit,
                reserved: memory.reserved,
            },
            Sample::Latency(latencies),
            Sample::Link {
                connects: overview.link.connects,
                spooled: overview.spool.waiting,
                dropped: overview.spool.dropped,
                oversize: overview.spool.oversize,
            },
        ];
        let cameras: BTreeMap<SlotName, Camera> = overview
            .slots
            .into_iter()
            .filter_map(|(slot, state)| Some((slot, state.camera?.camera)))
            .collect();
        if !cameras.is_empty() {
            samples.push(Sample::Camera(cameras));
        }
        samples.extend(self.source.machine.measure());
        samples
    }

    fn send(&self, sample: Sample) {
        let topic = Topic::Telemetry(sample.kind()).of(&self.source.device);
        let telemetry = Telemetry {
            wall_ms: wall_ms(self.source.wall.as_ref()),
            monotonic_us: u64::try_from(since_boot().as_micros()).unwrap_or(u64::MAX),
            sample,
        };
        if let Err(error) = self.source.mail.keep_message(&topic, &telemetry) {
            tracing::warn!("{topic}: {error}");
        }
    }
}
