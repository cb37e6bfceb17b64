//! The thread that keeps one slot, and what others see of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::bundles::Bundles;
use super::machine::Event;
use super::stage::Stage;
use super::worker::Worker;
use crate::protocol::{Generation, ReportedSlot, SlotName};
use crate::pulse::Pulses;
use crate::store::Store;

/// A slot as it is reported, and the generation of the desired state that this answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The newest generation that was taken.
    pub generation: Generation,
    /// The slot.
    pub slot: ReportedSlot,
}

/// Hands events to a keeper.
#[derive(Clone)]
pub struct KeeperHandle {
    pub(super) events: Sender<Event>,
    /// The newest generation that was sent, so that a download in progress learns that it is superseded.
    pub(super) newest: Arc<AtomicU64>,
    pub(super) report: Arc<Mutex<Report>>,
    pub(super) stopping: Arc<AtomicBool>,
    pub(super) settled: Arc<AtomicBool>,
    /// The operator waits for an event that a download in progress holds up.
    pub(super) interrupted: Arc<AtomicBool>,
}

impl KeeperHandle {
    /// Hands an event over; after the keeper has ended, nothing happens.
    pub fn send(&self, event: Event) {
        if let Event::Desired { generation, .. } = &event {
            self.newest.fetch_max(generation.0, Ordering::Relaxed);
        }
        if event == Event::RollbackAsked {
            self.interrupted.store(true, Ordering::Relaxed);
        }
        // The only receiver ends when the daemon does.
        let _ = self.events.send(event);
    }

    /// Whether the slot has, after the start of the daemon, what it had before or could get.
    pub fn settled(&self) -> bool {
        self.settled.load(Ordering::Acquire)
    }

    /// The slot as it is reported.
    pub fn report(&self) -> Report {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A running keeper; stops when dropped.
pub struct Keeper {
    handle: KeeperHandle,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread of slot `name`, whose record is in `store`. `reported` is called at each change.
    ///
    /// # Errors
    /// When the record cannot be read, or the system gives no thread.
    pub fn start(
        name: &SlotName,
        store: Store,
        bundles: Box<dyn Bundles>,
        stage: Box<dyn Stage>,
        reported: Box<dyn Fn() + Send>,
        pulses: &Pulses,
    ) -> Result<Self, String> {
        let record = store
            .slot(name)
            .map_err(|error| error.to_string())?
            .unwrap_or_default();
        let (events, received) = mpsc::channel();
        let handle = KeeperHandle {
            events,
            newest: Arc::new(AtomicU64::new(record.generation.0)),
            report: Arc::new(Mutex::new(Report {
                generation: record.generation,
                slot: record.reported(),
            })),
            stopping: Arc::default(),
            settled: Arc::default(),
            interrupted: Arc::default(),
        };
        let worker = Worker {
            pulse: pulses.join(format!("keeper of slot {name}")),
            name: name.clone(),
            store,
            record,
            bundles,
            stage,
            reported,
            handle: handle.clone(),
            missing: None,
        };
        let thread = thread::Builder::new()
            .name(format!("keeper-{name}"))
            .spawn(move || worker.run(&received))
            .map_err(|error| format!("no thread for slot {name}: {error}"))?;
        Ok(Self {
            handle,
            thread: Some(thread),
        })
    }

    /// To send events.
    pub fn handle(&self) -> KeeperHandle {
        self.handle.clone()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.handle.stopping.store(true, Ordering::Relaxed);
        self.handle.newest.store(u64::MAX, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by its thread already.
            drop(thread.join());
        }
    }
}

/// Shows a slot's state to others, and tells of it if it is another one.
pub(super) fn tell(handle: &KeeperHandle, reported: &dyn Fn(), generation: Generation, slot: ReportedSlot) {
    let report = Report { generation, slot };
    let mut shown = handle.report.lock().unwrap_or_else(PoisonError::into_inner);
    if *shown != report {
        *shown = report;
        drop(shown);
        reported();
    }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
