//! Loading, testing and switching the models of a slot.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use edgeopt_runtime::memory::Budget;
use edgeopt_runtime::{Backend, OnStep, RuntimeError};

use super::health::{Watch, WatchCriteria, judge};
use super::model::{LoadError, LoadedModel, compile_options};
use super::server::Server;
use crate::deploy::{Stage, Unloadable, Verdict};
use crate::pulse::Pulse;

/// How long loading a model may take: an engine may be built meanwhile, by a library that says nothing of its progress.
const LOADING: Duration = Duration::from_secs(3600);
/// How long until the next step, of a library that tells of them.
const NEXT_STEP: Duration = Duration::from_secs(600);
/// How long the self-test may take.
const TESTING: Duration = Duration::from_secs(600);

/// The serving side of a deployment.
pub struct SlotStage {
    server: Server,
    backend: Arc<dyn Backend>,
    budget: Option<Budget>,
    threads: usize,
    criteria: WatchCriteria,
    pulse: Pulse,
    staged: Option<Arc<LoadedModel>>,
    /// Where the model that answers came from.
    active: Option<PathBuf>,
    staged_path: Option<PathBuf>,
    watch: Option<Watch>,
}

impl SlotStage {
    /// A stage before `server`, which shows by `pulse` that it goes on.
    pub fn new(
        server: Server,
        backend: Arc<dyn Backend>,
        budget: Option<Budget>,
        threads: usize,
        criteria: WatchCriteria,
        pulse: Pulse,
    ) -> Self {
        Self {
            server,
            backend,
            budget,
            threads,
            criteria,
            pulse,
            staged: None,
            active: None,
            staged_path: None,
            watch: None,
        }
    }

    fn watch_from_now(&self) -> Watch {
        Watch {
            since: Instant::now(),
            before: self.server.health(),
        }
    }

    fn load(&self, bundle: &Path) -> Result<LoadedModel, LoadError> {
        let pulse = self.pulse.clone();
        let on_step = OnStep::new(move || pulse.beat(NEXT_STEP));
        let options = compile_options(self.threads, self.budget.clone(), on_step);
        self.pulse.beat(LOADING);
        let loaded = LoadedModel::load(bundle, &*self.backend, &options);
        self.pulse.rest();
        loaded
    }

    /// Loads `bundle` in place of the model that answers: inputs wait meanwhile. If it cannot be loaded, the old model
    /// comes back.
    fn load_instead(&mut self, bundle: &Path, too_much: &LoadError) -> Result<LoadedModel, String> {
        let Some(active) = self.active.clone() else {
            return Err(too_much.to_string());
        };
        tracing::info!("{too_much}; it is loaded in place of the model that answers, inputs wait meanwhile");
        let begun = Instant::now();
        self.server.release();
        let loaded = self.load(bundle).map_err(|error| error.to_string());
        // The old model answers again until the new one has passed its test; with memory for one only, it cannot.
        let back = match &loaded {
            Ok(_) => None,
            Err(_) => Some(self.load(&active)),
        };
        match back {
            Some(Ok(model)) => self.server.switch(Arc::new(model)),
            Some(Err(error)) => {
                self.server.empty();
                tracing::error!("{}: {error}: the slot is empty", active.display());
            }
            None => {}
        }
        tracing::info!("inputs have waited for {:.1} s", begun.elapsed().as_secs_f64());
        loaded
    }
}

impl Stage for SlotStage {
    fn stage(&mut self, bundle: &Path) -> Result<(), String> {
        let loaded = match self.load(bundle) {
            Ok(loaded) => loaded,
            Err(error @ LoadError::Budget(_)) => self.load_instead(bundle, &error)?,
            Err(error) => return Err(error.to_string()),
        };
        self.staged = Some(Arc::new(loaded));
        self.staged_path = Some(bundle.into());
        Ok(())
    }

    fn self_test(&mut self) -> Result<(), String> {
        let staged = self.staged.as_ref().ok_or("nothing was staged")?;
        self.pulse.beat(TESTING);
        let tested = staged.self_test().map(drop);
        self.pulse.rest();
        tested
    }

    fn switch(&mut self) {
        if let Some(model) = self.staged.take() {
            // From before its first answer on.
            self.watch = Some(self.watch_from_now());
            self.server.switch(model);
            self.active = self.staged_path.take();
        }
    }

    fn restore(&mut self, bundle: &Path) -> Result<(), Unloadable> {
        let loaded = match self.load(bundle) {
            Err(LoadError::Budget(_)) => {
                self.server.release();
                self.load(bundle)
            }
            loaded => loaded,
        };
        match loaded {
            Ok(loaded) => {
                self.server.switch(Arc::new(loaded));
                self.active = Some(bundle.into());
                self.watch = None;
                Ok(())
            }
            Err(error) => {
                // Whatever still answers is what should not any more.
                self.server.empty();
                self.active = None;
                Err(match &error {
                    LoadError::Budget(_) | LoadError::Runtime(RuntimeError::LibraryNotFound { .. }) => {
                        Unloadable::Now(error.to_string())
                    }
                    _ => Unloadable::Ever(error.to_string()),
                })
            }
        }
    }

    fn discard(&mut self) {
        self.staged = None;
        self.staged_path = None;
        match (self.server.model(), self.active.clone()) {
            (Some(_), _) => {}
            // Staging in place of the active model took that one away.
            (None, Some(active)) => {
                if let Err(error) = self.restore(&active) {
                    tracing::error!("{}: {error}: the slot is empty", active.display());
                }
            }
            // What waits since the start for a model that is given up waits in vain.
            (None, None) => self.server.empty(),
        }
    }

    fn empty(&mut self) {
        self.server.empty();
        self.active = None;
        self.watch = None;
    }

    fn begin_watch(&mut self) {
        if self.watch.is_none() {
            self.watch = Some(self.watch_from_now());
        }
    }

    fn verdict(&mut self) -> Verdict {
        let Some(watch) = &self.watch else {
            return Verdict::Healthy;
        };
        judge(&self.criteria, watch, &self.server.health(), Instant::now())
    }
}
