//! The thread that keeps one slot: takes events, writes the record, does the effects.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::machine::{Effect, Event, next};
use super::record::{Installed, SlotRecord};
use crate::protocol::{Generation, Phase, ReportedSlot, SlotName, SlotSpec};
use crate::pulse::{Pulse, Pulses};
use crate::store::Store;

/// Why there is no bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// It makes no sense to try again; why.
    Permanent(String),
    /// Something newer is wanted.
    Superseded,
}

/// What a fetch asks and tells while it lasts.
pub struct Fetching<'a> {
    /// Whether something newer is wanted. To be asked at least every [`FETCH_SPEAKS`].
    pub superseded: &'a dyn Fn() -> bool,
    /// Told what the fetch waits for, and an empty text when it goes on.
    pub waits_for: &'a dyn Fn(&str),
}

/// How long a fetch may be silent before it counts as hanging.
pub const FETCH_SPEAKS: Duration = Duration::from_secs(300);

/// The store of bundles, and the ways into it.
pub trait Bundles: Send {
    /// Brings a bundle into the store, digest and signature checked. Waits and tries again as long as that may help,
    /// and gives up when it is superseded.
    ///
    /// # Errors
    /// See [`FetchError`].
    fn fetch(&mut self, spec: &SlotSpec, fetching: &Fetching<'_>) -> Result<(), FetchError>;

    /// Where the bundle of this digest is.
    fn path(&self, sha256: &str) -> PathBuf;

    /// Removes what no slot needs.
    fn collect(&mut self);
}

/// What a watched model shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Too little to say.
    Open,
    /// It behaves.
    Healthy,
    /// It does not; why.
    Unhealthy(String),
}

/// Why a model that has answered before does not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unloadable {
    /// The machine lacks something that may come back: memory, the library, the GPU.
    #[error("{0}")]
    Now(String),
    /// The bundle is damaged or gone, or the library refuses it.
    #[error("{0}")]
    Ever(String),
}

/// The serving side of a slot. Loading and testing may take long: who does it has a pulse of its own.
pub trait Stage: Send {
    /// Loads a bundle beside the model that answers, or instead of it if both do not fit.
    ///
    /// # Errors
    /// When it cannot be loaded; what answered before answers then.
    fn stage(&mut self, bundle: &Path) -> Result<(), String>;

    /// Reproduces the golden outputs with what was staged.
    ///
    /// # Errors
    /// With what differs.
    fn self_test(&mut self) -> Result<(), String>;

    /// Lets what was staged answer.
    fn switch(&mut self);

    /// Loads a model that has answered before, and lets it answer.
    ///
    /// # Errors
    /// When it cannot be loaded, now or ever; nothing answers then.
    fn restore(&mut self, bundle: &Path) -> Result<(), Unloadable>;

    /// Gives up what was staged.
    fn discard(&mut self);

    /// Stops answering.
    fn empty(&mut self);

    /// Begins to judge the model that answers, from the switch on if there was one.
    fn begin_watch(&mut self);

    /// The judgement since then.
    fn verdict(&mut self) -> Verdict;
}

/// How long a step other than fetching, loading and testing may take.
const STEP: Duration = Duration::from_secs(30);

/// How often a watched model is judged.
const JUDGED_EVERY: Duration = Duration::from_millis(100);

/// How long to wait before a model that could not be loaded for want of something is tried again.
const LOAD_AGAIN: Duration = Duration::from_secs(5);

/// How long to wait before a record that could not be written is tried again.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

/// How often the log says so meanwhile.
const TOLD_EVERY: Duration = Duration::from_secs(60);

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
    events: Sender<Event>,
    /// The newest generation that was sent, so that a download in progress learns that it is superseded.
    newest: Arc<AtomicU64>,
    report: Arc<Mutex<Report>>,
    stopping: Arc<AtomicBool>,
    settled: Arc<AtomicBool>,
    /// The operator waits for an event that a download in progress holds up.
    interrupted: Arc<AtomicBool>,
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

struct Worker {
    name: SlotName,
    store: Store,
    pulse: Pulse,
    record: SlotRecord,
    bundles: Box<dyn Bundles>,
    stage: Box<dyn Stage>,
    reported: Box<dyn Fn() + Send>,
    handle: KeeperHandle,
    /// The active model that could not be loaded, and when that is tried again.
    missing: Option<(Installed, Instant)>,
}

impl Worker {
    fn run(mut self, received: &Receiver<Event>) {
        if self.record.active.is_none() {
            self.settle();
        }
        self.handle(Event::Started);
        self.settle();
        while !self.handle.stopping.load(Ordering::Relaxed) {
            self.pulse.beat(STEP);
            match received.recv_timeout(JUDGED_EVERY) {
                Ok(event) => self.handle(event),
                Err(RecvTimeoutError::Timeout) if self.is_due() => self.load_again(),
                Err(RecvTimeoutError::Timeout) if self.record.watching && self.missing.is_none() => {
                    match self.stage.verdict() {
                        Verdict::Open => {}
                        Verdict::Healthy => self.handle(Event::WatchPassed),
                        Verdict::Unhealthy(reason) => self.handle(Event::WatchFailed(reason)),
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn is_due(&self) -> bool {
        self.missing.as_ref().is_some_and(|(_, at)| Instant::now() >= *at)
    }

    fn load_again(&mut self) {
        if let Some((model, _)) = self.missing.take()
            && let Some(event) = self.restore(model)
        {
            self.handle(event);
        }
    }

    /// Lets the active model answer again. For want of memory or a library it is not given up, but tried again.
    fn restore(&mut self, model: Installed) -> Option<Event> {
        self.pulse.rest();
        self.missing = None;
        match self.stage.restore(&self.bundles.path(&model.sha256)) {
            Ok(()) => {
                self.settle();
                self.report();
                None
            }
            Err(Unloadable::Ever(reason)) => {
                tracing::error!(slot = %self.name, "slot {}: the active model cannot be loaded: {reason}", self.name);
                Some(Event::ActiveUnusable(reason))
            }
            Err(Unloadable::Now(reason)) => {
                tracing::error!(slot = %self.name, "slot {}: the active model is not loaded, which is tried again: {reason}", self.name);
                let slot = ReportedSlot {
                    reason: Some(format!("the active model is not loaded yet: {reason}")),
                    ..self.record.reported()
                };
                tell(&self.handle, self.reported.as_ref(), self.record.generation, slot);
                self.missing = Some((model, Instant::now() + LOAD_AGAIN));
                self.settle();
                None
            }
        }
    }

    /// What answered before answers again, or nothing did: the daemon may say that it has started.
    fn settle(&self) {
        if !self.handle.settled.swap(true, Ordering::AcqRel) {
            (self.reported)();
        }
    }

    /// Handles an event and everything that follows from it.
    fn handle(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            self.pulse.beat(STEP);
            if event == Event::RollbackAsked {
                self.handle.interrupted.store(false, Ordering::Relaxed);
            }
            let (record, effects) = next(&self.record, event);
            if record != self.record {
                if !self.write(&record) {
                    return;
                }
                // All of it in the text too: the journal shows no fields unless asked to.
                let because = record.reason.as_ref().map(|reason| format!(": {reason}"));
                tracing::info!(
                    slot = %self.name, phase = ?record.phase, reason = record.reason,
                    "slot {}: {:?}{}", self.name, record.phase, because.unwrap_or_default()
                );
                self.record = record;
            }
            for effect in effects {
                let restores = matches!(effect, Effect::Restore(_));
                match self.perform(effect) {
                    // No other effect, a long download least of all, may come before a model that answers.
                    Some(event) if restores => self.handle(event),
                    event => events.extend(event),
                }
            }
        }
    }

    /// Until the record is on disk, its effects must not begin: waits for a full disk, and says so. `false` when the
    /// daemon stops.
    fn write(&self, record: &SlotRecord) -> bool {
        let mut told: Option<Instant> = None;
        loop {
            match self.store.put_slot(&self.name, record) {
                Ok(()) => {
                    if told.is_some() {
                        tell(
                            &self.handle,
                            self.reported.as_ref(),
                            record.generation,
                            record.reported(),
                        );
                    }
                    return true;
                }
                Err(error) => {
                    if told.is_none_or(|told| told.elapsed() >= TOLD_EVERY) {
                        told = Some(Instant::now());
                        tracing::error!(slot = %self.name, "slot {} waits: {error}", self.name);
                    }
                    self.report_waiting(record, &error.to_string());
                }
            }
            if self.handle.stopping.load(Ordering::Relaxed) {
                return false;
            }
            self.pulse.beat(STEP);
            thread::sleep(WRITE_AGAIN);
        }
    }

    /// The operator, too, hears of it, also who has asked for something since that cannot be begun yet.
    fn report_waiting(&self, record: &SlotRecord, error: &str) {
        let mut slot = ReportedSlot {
            reason: Some(format!("waits: {error}")),
            ..record.reported()
        };
        let mut generation = record.generation;
        let newest = self.handle.newest.load(Ordering::Relaxed);
        // The largest number stands for the end of the daemon.
        if newest > generation.0 && newest < u64::MAX {
            slot.phase = Phase::Downloading;
            generation = Generation(newest);
        }
        tell(&self.handle, self.reported.as_ref(), generation, slot);
    }

    fn perform(&mut self, effect: Effect) -> Option<Event> {
        let failed =
            |result: Result<(), String>, done: Event| Some(result.map_or_else(Event::Failed, |()| done));
        self.pulse.beat(STEP);
        match effect {
            Effect::Fetch(spec) => {
                // What could be restored has been.
                self.settle();
                self.fetch(&spec)
            }
            Effect::Stage(model) => {
                self.pulse.rest();
                failed(self.stage.stage(&self.bundles.path(&model.sha256)), Event::Staged)
            }
            Effect::SelfTest => {
                self.pulse.rest();
                failed(self.stage.self_test(), Event::SelfTested)
            }
            Effect::Switch => {
                self.missing = None;
                self.stage.switch();
                Some(Event::Switched)
            }
            Effect::Watch => {
                self.stage.begin_watch();
                None
            }
            Effect::Restore(model) => self.restore(model),
            Effect::Discard => {
                // The model that gave way is loaded again.
                self.pulse.rest();
                self.stage.discard();
                None
            }
            Effect::Empty => {
                self.missing = None;
                self.stage.empty();
                Some(Event::Emptied)
            }
            Effect::Report => {
                self.report();
                None
            }
            Effect::Collect => {
                self.bundles.collect();
                None
            }
        }
    }

    fn report(&self) {
        // What is missing has been told with its reason.
        if self.missing.is_some() {
            return;
        }
        let slot = self.record.reported();
        tell(&self.handle, self.reported.as_ref(), self.record.generation, slot);
    }

    fn fetch(&mut self, spec: &SlotSpec) -> Option<Event> {
        self.pulse.beat(FETCH_SPEAKS);
        let (own, record) = (self.record.generation, &self.record);
        let (handle, pulse, reported) = (&self.handle, &self.pulse, self.reported.as_ref());
        // A download may last; the model that answers is judged all the same.
        let watched = self.record.watching.then(|| RefCell::new(&mut self.stage));
        let (judgement, judged) = (RefCell::new(None), Cell::new(Instant::now()));
        let superseded = || {
            pulse.beat(FETCH_SPEAKS);
            if let Some(stage) = &watched
                && judged.get().elapsed() >= JUDGED_EVERY
            {
                judged.set(Instant::now());
                match stage.borrow_mut().verdict() {
                    Verdict::Open => {}
                    Verdict::Healthy => drop(judgement.replace(Some(Event::WatchPassed))),
                    Verdict::Unhealthy(reason) => {
                        judgement.replace(Some(Event::WatchFailed(reason)));
                    }
                }
            }
            handle.newest.load(Ordering::Relaxed) > own.0
                || handle.interrupted.load(Ordering::Relaxed)
                || judgement.borrow().is_some()
        };
        let waits_for = |what: &str| {
            let reason = (!what.is_empty()).then(|| what.to_owned());
            let slot = ReportedSlot {
                reason,
                ..record.reported()
            };
            tell(handle, reported, own, slot);
        };
        let fetching = Fetching {
            superseded: &superseded,
            waits_for: &waits_for,
        };
        match self.bundles.fetch(spec, &fetching) {
            Ok(()) => Some(Event::Fetched),
            Err(FetchError::Permanent(reason)) => Some(Event::Failed(reason)),
            Err(FetchError::Superseded) => judgement.take(),
        }
    }
}

/// Shows a slot's state to others, and tells of it if it is another one.
fn tell(handle: &KeeperHandle, reported: &dyn Fn(), generation: Generation, slot: ReportedSlot) {
    let report = Report { generation, slot };
    let mut shown = handle.report.lock().unwrap_or_else(PoisonError::into_inner);
    if *shown != report {
        *shown = report;
        drop(shown);
        reported();
    }
}
