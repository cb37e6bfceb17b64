//! The thread that keeps one slot: takes events, writes the record, does the effects.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::engine::{Missing, is_tried};
use super::machine::{Effect, Event, next};
use super::record::{Installed, SlotRecord};
use crate::protocol::{EngineState, Generation, Phase, ReportedSlot, SlotName, SlotSpec};
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

/// How a bundle was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// On the backend it is meant for.
    Engine,
    /// On a stand-in, as its engine has to be built first; [`Stage::missing`] says why.
    StandIn,
    /// Not at all: its engine has to be built first, and nothing stands in.
    Missing(Missing),
}

/// The serving side of a slot. Loading and testing may take long: who does it has a pulse of its own. An engine whose key
/// is `refused` counts as missing.
pub trait Stage: Send {
    /// Loads a bundle beside the model that answers, or instead of it if both do not fit. Where its engine is not at hand
    /// and nothing answers, a stand-in is loaded. A build under way is given up.
    ///
    /// # Errors
    /// When it cannot be loaded; what answered before answers then.
    fn stage(&mut self, bundle: &Path, refused: Option<&str>) -> Result<Loaded, String>;

    /// Reproduces the golden outputs with what was staged.
    ///
    /// # Errors
    /// With what differs.
    fn self_test(&mut self) -> Result<(), String>;

    /// Lets what was staged answer.
    fn switch(&mut self);

    /// Loads a model that has answered before, and lets it answer. A build under way is given up.
    ///
    /// # Errors
    /// When it cannot be loaded, now or ever; nothing answers then. Where it is never, inputs wait for another model, or
    /// [`Stage::empty`].
    fn restore(&mut self, bundle: &Path, refused: Option<&str>) -> Result<Loaded, Unloadable>;

    /// Gives up what was staged, and a build for anything but the model that answers.
    fn discard(&mut self);

    /// Whether the model that answered gave way to another one and could not be loaded again.
    fn is_lost(&self) -> bool;

    /// Stops answering, refuses what waits, and gives up a build under way.
    fn empty(&mut self);

    /// What is missing, if a stand-in answers for the model.
    fn missing(&self) -> Option<Missing>;

    /// Begins to build the engine of a bundle on another thread, in place of any other build under way.
    fn build(&mut self, bundle: &Path);

    /// The end of a build, once.
    fn built(&mut self) -> Option<Result<(), String>>;

    /// Loads the engine of the bundle that a stand-in answers for, tests it, lets it answer, and begins to judge it.
    ///
    /// # Errors
    /// When it cannot be loaded or does not pass the test; the stand-in answers then.
    fn upgrade(&mut self, bundle: &Path) -> Result<(), String>;

    /// Lets the stand-in answer for a bundle whose engine misbehaves, which is called `refused` from now on.
    ///
    /// # Errors
    /// When it cannot be loaded, now or ever; nothing answers then.
    fn stand_in(&mut self, bundle: &Path, refused: Missing) -> Result<(), Unloadable>;

    /// What executes the model that answers.
    fn backend(&self) -> Option<&'static str>;

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
        while !self.handle.stopping.load(Ordering::Relaxed) {
            if !self.awaits_engine() {
                self.settle();
            }
            self.pulse.beat(STEP);
            match received.recv_timeout(JUDGED_EVERY) {
                Ok(event) => self.handle(event),
                Err(RecvTimeoutError::Timeout) if self.is_due() => self.load_again(),
                Err(RecvTimeoutError::Timeout) => {
                    let is_judged = self.is_judged();
                    // A build that has failed may have to bring a model back, which lasts; loading has a pulse of its own.
                    self.pulse.rest();
                    if let Some(event) = noticed(self.stage.as_mut(), is_judged) {
                        self.handle(event);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.end();
    }

    /// The daemon ends because it was asked to: a build that this interrupts is not suspected of it.
    fn end(&mut self) {
        if let Some(engine) = self.record.engine.as_mut().filter(|engine| engine.starts > 0) {
            engine.starts -= 1;
            if let Err(error) = self.store.put_slot(&self.name, &self.record) {
                tracing::warn!(slot = %self.name, "this start counts against the engine: {error}");
            }
        }
    }

    fn is_judged(&self) -> bool {
        (self.record.watching || is_tried(&self.record)) && self.missing.is_none()
    }

    /// Whether the active model does not answer yet because its engine is being built.
    fn awaits_engine(&self) -> bool {
        let (active, engine) = (self.record.active.as_ref(), self.record.engine.as_ref());
        active.zip(engine).is_some_and(|(active, engine)| {
            active.sha256 == engine.sha256 && engine.state == EngineState::Building && !engine.stand_in
        })
    }

    /// The key of the engine that was given up for this bundle.
    fn refused(&self, sha256: &str) -> Option<String> {
        let engine = self.record.engine.as_ref()?;
        (engine.sha256 == sha256 && engine.state == EngineState::Failed).then(|| engine.key.clone())
    }

    /// That the model of this bundle, which answers or waits, has no engine.
    fn engine_missing(&self, sha256: String, missing: Missing, stand_in: bool) -> Event {
        tracing::warn!(slot = %self.name, "the engine of the model has to be built: {}", missing.why);
        Event::EngineMissing {
            sha256,
            missing,
            stand_in,
        }
    }

    /// When the active model, which is not loaded, is to be tried again.
    fn due(&mut self) -> Option<Instant> {
        if self.missing.is_none() && self.stage.is_lost() {
            let active = self.record.active.clone();
            self.missing = active.map(|active| (active, Instant::now() + LOAD_AGAIN));
        }
        self.missing.as_ref().map(|(_, at)| *at)
    }

    fn is_due(&mut self) -> bool {
        self.due().is_some_and(|at| Instant::now() >= at)
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
        let refused = self.refused(&model.sha256);
        let restored = self
            .stage
            .restore(&self.bundles.path(&model.sha256), refused.as_deref());
        self.restored(model, restored)
    }

    fn restored(&mut self, model: Installed, restored: Result<Loaded, Unloadable>) -> Option<Event> {
        match restored {
            Ok(Loaded::Missing(missing)) => Some(self.engine_missing(model.sha256, missing, false)),
            Ok(loaded) => {
                self.settle();
                if self.record.watching {
                    self.stage.begin_watch();
                }
                self.report();
                match (loaded, self.stage.missing()) {
                    (Loaded::StandIn, Some(missing)) => {
                        Some(self.engine_missing(model.sha256, missing, true))
                    }
                    _ => self.record.engine.is_some().then_some(Event::EngineServes),
                }
            }
            Err(Unloadable::Ever(reason)) => {
                tracing::error!(slot = %self.name, "slot {}: the active model cannot be loaded: {reason}", self.name);
                if self.record.previous.is_none() {
                    // No other model follows that what waits could wait for.
                    self.stage.empty();
                }
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

    fn stand_in(&mut self, model: Installed) -> Option<Event> {
        let engine = self.record.engine.as_ref()?;
        tracing::error!(slot = %self.name, "the engine is given up, a stand-in answers: {}", engine.reason);
        let refused = Missing {
            key: engine.key.clone(),
            why: engine.reason.clone(),
        };
        self.pulse.rest();
        match self.stage.stand_in(&self.bundles.path(&model.sha256), refused) {
            Ok(()) => {
                self.report();
                None
            }
            Err(unloadable) => self.restored(model, Err(unloadable)),
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
                let of_active = matches!(
                    effect,
                    Effect::Restore(_) | Effect::Upgrade(_) | Effect::StandIn(_) | Effect::LookForEngine
                );
                match self.perform(effect) {
                    // No other effect, a long download least of all, may come before a model that answers.
                    Some(event) if of_active => self.handle(event),
                    event => events.extend(event),
                }
            }
        }
    }

    /// Until the record is on disk, its effects must not begin: waits for a full disk. `false` when the daemon stops.
    fn write(&self, record: &SlotRecord) -> bool {
        loop {
            match self.store.put_slot(&self.name, record) {
                Ok(()) => return true,
                Err(error) => tracing::error!(slot = %self.name, "slot {} waits: {error}", self.name),
            }
            if self.handle.stopping.load(Ordering::Relaxed) {
                return false;
            }
            self.pulse.beat(STEP);
            thread::sleep(WRITE_AGAIN);
        }
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
                let refused = self.refused(&model.sha256);
                match self
                    .stage
                    .stage(&self.bundles.path(&model.sha256), refused.as_deref())
                {
                    Ok(Loaded::Engine | Loaded::StandIn) => Some(Event::Staged),
                    Ok(Loaded::Missing(missing)) => Some(self.engine_missing(model.sha256, missing, false)),
                    Err(reason) => Some(Event::Failed(reason)),
                }
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
            Effect::Build(model) => {
                self.stage.build(&self.bundles.path(&model.sha256));
                None
            }
            Effect::Upgrade(model) => {
                self.pulse.rest();
                let upgraded = self.stage.upgrade(&self.bundles.path(&model.sha256));
                Some(upgraded.map_or_else(Event::EngineFailed, |()| Event::EngineSwitched))
            }
            Effect::StandIn(model) => self.stand_in(model),
            Effect::LookForEngine => {
                let active = self.record.active.as_ref().map(|active| active.sha256.clone());
                let (sha256, missing) = active.zip(self.stage.missing())?;
                Some(self.engine_missing(sha256, missing, true))
            }
            Effect::Discard => {
                // The model that gave way is loaded again.
                self.pulse.rest();
                self.stage.discard();
                if self.record.active.is_none() {
                    // What waits since the start for a model that is given up waits in vain.
                    self.stage.empty();
                }
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
        let slot = ReportedSlot {
            backend: self.stage.backend().map(str::to_owned),
            ..self.record.reported()
        };
        tell(&self.handle, self.reported.as_ref(), self.record.generation, slot);
    }

    /// Fetches a bundle. A model that answered and could not be loaded is tried again meanwhile.
    fn fetch(&mut self, spec: &SlotSpec) -> Option<Event> {
        loop {
            match self.fetch_until_due(spec) {
                Fetch::Ended(event) => return event,
                Fetch::LoadAgain => self.load_again(),
            }
            // What came of that may have changed the wish, or fetched it.
            if self.record.phase != Phase::Downloading || self.record.desired.as_ref() != Some(spec) {
                return None;
            }
        }
    }

    fn fetch_until_due(&mut self, spec: &SlotSpec) -> Fetch {
        self.pulse.beat(FETCH_SPEAKS);
        let due = self.due();
        let (own, record) = (self.record.generation, &self.record);
        let (handle, pulse, reported) = (&self.handle, &self.pulse, self.reported.as_ref());
        // A download may last; the model that answers is judged all the same, and gets its engine.
        let (backend, is_judged) = (self.stage.backend(), self.is_judged());
        let stage = RefCell::new(&mut self.stage);
        let (judgement, judged) = (RefCell::new(None), Cell::new(Instant::now()));
        let wanted_elsewhere =
            || handle.newest.load(Ordering::Relaxed) > own.0 || handle.interrupted.load(Ordering::Relaxed);
        let is_due = || due.is_some_and(|at| Instant::now() >= at);
        let superseded = || {
            pulse.beat(FETCH_SPEAKS);
            if judgement.borrow().is_none() && judged.get().elapsed() >= JUDGED_EVERY {
                judged.set(Instant::now());
                pulse.rest();
                judgement.replace(noticed(stage.borrow_mut().as_mut(), is_judged));
                pulse.beat(FETCH_SPEAKS);
            }
            wanted_elsewhere() || judgement.borrow().is_some() || is_due()
        };
        let waits_for = |what: &str| {
            let reason = (!what.is_empty()).then(|| what.to_owned());
            let slot = ReportedSlot {
                reason,
                backend: backend.map(str::to_owned),
                ..record.reported()
            };
            tell(handle, reported, own, slot);
        };
        let fetching = Fetching {
            superseded: &superseded,
            waits_for: &waits_for,
        };
        let fetched = self.bundles.fetch(spec, &fetching);
        match (fetched, judgement.take()) {
            // A build ends once: that goes first, and the bundle is fetched again after it, which finds it.
            (_, Some(event @ (Event::EngineBuilt | Event::EngineFailed(_)))) => Fetch::Ended(Some(event)),
            (Ok(()), _) => Fetch::Ended(Some(Event::Fetched)),
            (Err(FetchError::Permanent(reason)), _) => Fetch::Ended(Some(Event::Failed(reason))),
            (Err(FetchError::Superseded), None) if is_due() && !wanted_elsewhere() => Fetch::LoadAgain,
            (Err(FetchError::Superseded), event) => Fetch::Ended(event),
        }
    }
}

/// What comes of a fetch.
enum Fetch {
    /// It has ended, with this.
    Ended(Option<Event>),
    /// It was interrupted, for it is time to load the active model again.
    LoadAgain,
}

/// What a slot shows by itself: the end of a build, or a judgement of the model that answers.
fn noticed(stage: &mut dyn Stage, is_judged: bool) -> Option<Event> {
    if let Some(built) = stage.built() {
        return Some(built.map_or_else(Event::EngineFailed, |()| Event::EngineBuilt));
    }
    if !is_judged {
        return None;
    }
    match stage.verdict() {
        Verdict::Open => None,
        Verdict::Healthy => Some(Event::WatchPassed),
        Verdict::Unhealthy(reason) => Some(Event::WatchFailed(reason)),
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

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
