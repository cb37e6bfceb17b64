//! How a keeper fetches a bundle, and what it does meanwhile.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::bundles::{FETCH_SPEAKS, FetchError, Fetching};
use super::keeper::tell;
use super::machine::Event;
use super::worker::{JUDGED_EVERY, Worker, noticed};
use crate::protocol::{Phase, ReportedSlot, SlotSpec};

impl Worker {
    /// Fetches a bundle. A model that answered and could not be loaded is tried again meanwhile.
    pub(super) fn fetch(&mut self, spec: &SlotSpec) -> Option<Event> {
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
