//! The loop of a keeper: takes events, writes the record, does the effects.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::bundles::Bundles;
use super::engine::is_tried;
use super::keeper::{KeeperHandle, tell};
use super::machine::{Effect, Event, next};
use super::record::{Installed, SlotRecord};
use super::stage::{Loaded, Stage, Verdict};
use crate::protocol::{EngineState, Generation, Phase, ReportedSlot, SlotName};
use crate::pulse::Pulse;
use crate::store::Store;

/// How long a step other than fetching, loading and testing may take.
const STEP: Duration = Duration::from_secs(30);

/// How often a watched model is judged.
pub(super) const JUDGED_EVERY: Duration = Duration::from_millis(100);

/// How long to wait before a record that could not be written is tried again.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

/// How often the log says so meanwhile.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// What the thread of a keeper works with.
pub(super) struct Worker {
    pub(super) name: SlotName,
    pub(super) store: Store,
    pub(super) pulse: Pulse,
    pub(super) record: SlotRecord,
    pub(super) bundles: Box<dyn Bundles>,
    pub(super) stage: Box<dyn Stage>,
    pub(super) reported: Box<dyn Fn() + Send>,
    pub(super) handle: KeeperHandle,
    /// The active model that could not be loaded, and when that is tried again.
    pub(super) missing: Option<(Installed, Instant)>,
}

impl Worker {
    pub(super) fn run(mut self, received: &Receiver<Event>) {
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
    pub(super) fn end(&mut self) {
        if let Some(engine) = self.record.engine.as_mut().filter(|engine| engine.starts > 0) {
            engine.starts -= 1;
            if let Err(error) = self.store.put_slot(&self.name, &self.record) {
                tracing::warn!(slot = %self.name, "this start counts against the engine: {error}");
            }
        }
    }

    pub(super) fn is_judged(&self) -> bool {
        (self.record.watching || is_tried(&self.record)) && self.missing.is_none()
    }

    /// Whether the active model does not answer yet because its engine is being built.
    pub(super) fn awaits_engine(&self) -> bool {
        let (active, engine) = (self.record.active.as_ref(), self.record.engine.as_ref());
        active.zip(engine).is_some_and(|(active, engine)| {
            active.sha256 == engine.sha256 && engine.state == EngineState::Building && !engine.stand_in
        })
    }

    /// What answered before answers again, or nothing did: the daemon may say that it has started.
    pub(super) fn settle(&self) {
        if !self.handle.settled.swap(true, Ordering::AcqRel) {
            (self.reported)();
        }
    }

    /// Handles an event and everything that follows from it.
    pub(super) fn handle(&mut self, event: Event) {
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

    /// Until the record is on disk, its effects must not begin: waits for a full disk, and says so. `false` when the
    /// daemon stops.
    pub(super) fn write(&self, record: &SlotRecord) -> bool {
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

    pub(super) fn perform(&mut self, effect: Effect) -> Option<Event> {
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

    pub(super) fn report(&self) {
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
}

/// What a slot shows by itself: the end of a build, or a judgement of the model that answers.
pub(super) fn noticed(stage: &mut dyn Stage, is_judged: bool) -> Option<Event> {
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
