//! The thread that has the device's hardware: rules on results, limits on rates, measurements.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;

use super::quiet::Quiet;
use super::slots::Slots;
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::hardware::{Hardware, HardwareError, Window};
use crate::protocol::{Prediction, Sample, SlotName};
use crate::pulse::{Pulse, Pulses};

/// Results that may wait for the rules.
const QUEUE: usize = 256;
/// How long the thread sleeps when nothing is due.
const IDLE: Duration = Duration::from_secs(60);
/// How long one step may take: a bus that hangs is noticed.
const STEP: Duration = Duration::from_secs(30);
/// How long measurements may take before telemetry goes on without them.
const MEASURING: Duration = Duration::from_secs(10);

enum Told {
    Result(SlotName, Value),
    Fault(SlotName),
    Measure(SyncSender<Vec<Sample>>),
    Stop,
}

/// Tells the hardware what happens. Clones reach the same thread.
#[derive(Clone)]
pub(crate) struct Machine {
    told: SyncSender<Told>,
    has_rules: bool,
    quiet: Quiet,
}

/// The thread that has the hardware; ends, with all outputs inactive, when this is dropped.
pub(super) struct Board {
    machine: Machine,
    thread: Option<JoinHandle<()>>,
}

impl Board {
    /// Asks the thread to end, and gives it to who wants to wait for it.
    pub(super) fn stop(mut self) -> Option<JoinHandle<()>> {
        self.machine.stop();
        self.thread.take()
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.machine.stop();
        }
    }
}

/// The hardware, opened, and what will be told to it.
pub(super) struct Opened {
    hardware: Hardware,
    received: Receiver<Told>,
    pub(super) machine: Machine,
}

impl Machine {
    /// Opens what the configuration names.
    pub(super) fn open(config: &Config) -> Result<Opened, HardwareError> {
        let hardware = Hardware::open(config, Path::new("/"))?;
        let (told, received) = mpsc::sync_channel(QUEUE);
        let has_rules = !config.hardware.rules.is_empty();
        let machine = Self {
            told,
            has_rules,
            quiet: Quiet::default(),
        };
        Ok(Opened {
            hardware,
            received,
            machine,
        })
    }

    /// A slot has answered.
    pub(super) fn result(&self, slot: &SlotName, prediction: &Prediction) {
        if self.has_rules {
            match prediction.to_json() {
                Ok(json) => self.tell(Told::Result(slot.clone(), json)),
                Err(error) => {
                    let problem = format!("slot {slot}: no rule sees a result without JSON form: {error}");
                    self.quiet.warn("prediction", &problem);
                }
            }
        }
    }

    /// A slot does not answer any more.
    pub(crate) fn fault(&self, slot: &SlotName) {
        if self.has_rules {
            self.tell(Told::Fault(slot.clone()));
        }
    }

    fn tell(&self, told: Told) {
        // Never blocks inference.
        if let Err(TrySendError::Full(_)) = self.told.try_send(told) {
            let problem = "the hardware is too slow: a result did not reach the rules";
            self.quiet.warn("hardware", problem);
        }
    }

    /// Makes all outputs inactive and ends the thread.
    fn stop(&self) {
        for _ in 0..100 {
            // It has ended already, or gets to it after what waits. With a bus that hangs, the queue stays full.
            if !matches!(self.told.try_send(Told::Stop), Err(TrySendError::Full(_))) {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Measures; nothing, if that takes too long.
    pub(super) fn measure(&self) -> Vec<Sample> {
        let (reply, measured) = mpsc::sync_channel(1);
        if self.told.try_send(Told::Measure(reply)).is_err() {
            return Vec::new();
        }
        measured.recv_timeout(MEASURING).unwrap_or_default()
    }
}

impl Opened {
    /// Starts the thread, and those of the sensors.
    pub(super) fn start(mut self, slots: Arc<Slots>, pulses: &Pulses) -> Result<Board, HardwareError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let sink = {
            let slots = Arc::clone(&slots);
            move |window: Window| feed(&slots, window)
        };
        self.hardware
            .start_sensors(&clock, &(Arc::new(sink) as Arc<dyn Fn(Window) + Send + Sync>))?;
        let pulse = pulses.join("hardware");
        let (mut hardware, received) = (self.hardware, self.received);
        let thread = thread::Builder::new()
            .name("hardware".into())
            .spawn(move || run(&mut hardware, &received, &slots, clock.as_ref(), &pulse))
            .map_err(|source| HardwareError::Thread {
                sensor: "all".into(),
                source,
            })?;
        Ok(Board {
            machine: self.machine,
            thread: Some(thread),
        })
    }
}

fn feed(slots: &Slots, window: Window) {
    let Some(slot) = slots.get(&window.slot) else {
        return;
    };
    let sensor = window.sensor;
    let stream = format!("sensor/{sensor}");
    slot.submit(format!("sensor {sensor}"), stream, window.bytes, move |result| {
        if let Err(error) = result {
            tracing::debug!("sensor {sensor}: {error}");
        }
    });
}

fn run(hardware: &mut Hardware, received: &Receiver<Told>, slots: &Slots, clock: &dyn Clock, pulse: &Pulse) {
    loop {
        let now = clock.elapsed();
        hardware.tick(now);
        for slot in slots.all() {
            slot.server.limit(hardware.rate_limit(&slot.name));
        }
        let wait = hardware
            .next_tick(now)
            .map_or(IDLE, |next| next.saturating_sub(now).min(IDLE));
        pulse.rest();
        let told = match received.recv_timeout(wait) {
            Ok(told) => told,
            Err(RecvTimeoutError::Timeout) => {
                pulse.beat(STEP);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => Told::Stop,
        };
        pulse.beat(STEP);
        let now = clock.elapsed();
        match told {
            Told::Result(slot, prediction) => hardware.on_result(&slot, &prediction, now),
            Told::Fault(slot) => hardware.on_fault(&slot, now),
            Told::Measure(reply) => {
                // Who asked may have stopped waiting.
                let _ = reply.send(hardware.samples(now));
            }
            Told::Stop => break,
        }
    }
    hardware.stop();
}
