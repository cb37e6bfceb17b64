//! How a keeper brings the model back that answered before.

use std::time::{Duration, Instant};

use super::engine::Missing;
use super::keeper::tell;
use super::machine::Event;
use super::record::Installed;
use super::stage::{Loaded, Unloadable};
use super::worker::Worker;
use crate::protocol::{EngineState, ReportedSlot};

/// How long to wait before a model that could not be loaded for want of something is tried again.
const LOAD_AGAIN: Duration = Duration::from_secs(5);

impl Worker {
    /// The key of the engine that was given up for this bundle.
    pub(super) fn refused(&self, sha256: &str) -> Option<String> {
        let engine = self.record.engine.as_ref()?;
        (engine.sha256 == sha256 && engine.state == EngineState::Failed).then(|| engine.key.clone())
    }

    /// That the model of this bundle, which answers or waits, has no engine.
    pub(super) fn engine_missing(&self, sha256: String, missing: Missing, stand_in: bool) -> Event {
        tracing::warn!(slot = %self.name, "the engine of the model has to be built: {}", missing.why);
        Event::EngineMissing {
            sha256,
            missing,
            stand_in,
        }
    }

    /// When the active model, which is not loaded, is to be tried again.
    pub(super) fn due(&mut self) -> Option<Instant> {
        if self.missing.is_none() && self.stage.is_lost() {
            let active = self.record.active.clone();
            self.missing = active.map(|active| (active, Instant::now() + LOAD_AGAIN));
        }
        self.missing.as_ref().map(|(_, at)| *at)
    }

    pub(super) fn is_due(&mut self) -> bool {
        self.due().is_some_and(|at| Instant::now() >= at)
    }

    pub(super) fn load_again(&mut self) {
        if let Some((model, _)) = self.missing.take()
            && let Some(event) = self.restore(model)
        {
            self.handle(event);
        }
    }

    /// Lets the active model answer again. For want of memory or a library it is not given up, but tried again.
    pub(super) fn restore(&mut self, model: Installed) -> Option<Event> {
        self.pulse.rest();
        self.missing = None;
        let refused = self.refused(&model.sha256);
        let restored = self
            .stage
            .restore(&self.bundles.path(&model.sha256), refused.as_deref());
        self.restored(model, restored)
    }

    pub(super) fn restored(
        &mut self,
        model: Installed,
        restored: Result<Loaded, Unloadable>,
    ) -> Option<Event> {
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
                    if self.stage.backend().is_some() {
                        // Nothing may stand in any more: a model that answers badly is better than none.
                        self.report();
                        return None;
                    }
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

    pub(super) fn stand_in(&mut self, model: Installed) -> Option<Event> {
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
}
