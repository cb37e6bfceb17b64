//! Loading, testing and switching the models of a slot.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use edgeopt_models::Bytes;
use edgeopt_runtime::memory::Budget;
use edgeopt_runtime::{Backend, RuntimeError};

use super::building::{BuildProgress, Building};
use super::health::{Watch, WatchCriteria, judge};
use super::loading::LoadFailure;
use super::model::{LoadError, LoadedModel, Opened};
use super::server::Server;
use crate::deploy::{Loaded, Missing, Stage, Unloadable, Verdict};
use crate::pulse::{Pulse, Pulses};

/// How long the self-test may take.
const TESTING: Duration = Duration::from_secs(600);

/// What executes the models of a slot.
#[derive(Clone)]
pub struct Executors {
    /// What they are meant for.
    pub backend: Arc<dyn Backend>,
    /// What answers while an engine of the backend is built; none: inputs are refused until then.
    pub stand_in: Option<Arc<dyn Backend>>,
    /// The limit of memory that the operator set: with another one, an engine that could not be built is tried again.
    pub limit: Option<Bytes>,
}

impl Executors {
    /// One backend, and no stand-in for it.
    pub fn only(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend,
            stand_in: None,
            limit: None,
        }
    }
}

/// The model that answers, or that gave way to one that is loaded in its place.
#[derive(Clone)]
pub(super) struct Active {
    pub(super) path: PathBuf,
    /// What is missing, if the stand-in answers.
    pub(super) missing: Option<Missing>,
}

/// A model that is ready to answer.
struct Staged {
    model: Arc<LoadedModel>,
    active: Active,
}

impl Staged {
    fn new(model: LoadedModel, bundle: &Path, missing: Option<Missing>) -> Self {
        Self {
            model: Arc::new(model),
            active: Active {
                path: bundle.into(),
                missing,
            },
        }
    }
}

/// The serving side of a deployment.
pub struct SlotStage {
    pub(super) server: Server,
    pub(super) executors: Executors,
    pub(super) budget: Option<Budget>,
    pub(super) threads: usize,
    criteria: WatchCriteria,
    pulses: Pulses,
    pub(super) pulse: Pulse,
    staged: Option<Staged>,
    pub(super) active: Option<Active>,
    /// The bundle that answered before and does not until its engine is built.
    awaited: Option<PathBuf>,
    /// The model that gave way could not be loaded again.
    pub(super) lost: bool,
    watch: Option<Watch>,
    building: Option<Building>,
    progress: BuildProgress,
}

impl SlotStage {
    /// A stage before `server`. It shows by pulses of its own that it goes on.
    pub fn new(
        server: Server,
        executors: Executors,
        budget: Option<Budget>,
        threads: usize,
        criteria: WatchCriteria,
        pulses: &Pulses,
    ) -> Self {
        Self {
            pulse: pulses.join(format!("loading into slot {}", server.name())),
            pulses: pulses.clone(),
            server,
            executors,
            budget,
            threads,
            criteria,
            staged: None,
            active: None,
            awaited: None,
            lost: false,
            watch: None,
            building: None,
            progress: BuildProgress::default(),
        }
    }

    /// The build of an engine, as it goes on.
    pub fn progress(&self) -> BuildProgress {
        self.progress.clone()
    }

    fn watch_from_now(&self) -> Watch {
        Watch {
            since: Instant::now(),
            before: self.server.health(),
        }
    }

    fn answer(&mut self, ready: Staged) {
        self.server.switch(ready.model);
        self.now_active(ready.active);
        self.watch = None;
    }

    fn now_active(&mut self, active: Active) {
        self.active = Some(active);
        self.awaited = None;
        self.lost = false;
    }

    /// Nothing answers any more: whatever does is what should not. What waits does so on where another model may follow.
    fn unloadable(&mut self, error: &LoadError) -> Unloadable {
        self.active = None;
        match error {
            LoadError::Budget(_) | LoadError::Runtime(RuntimeError::LibraryNotFound { .. }) => {
                self.server.empty();
                Unloadable::Now(error.to_string())
            }
            _ => {
                self.server.take_away();
                Unloadable::Ever(error.to_string())
            }
        }
    }

    fn tested(&self, model: &LoadedModel) -> Result<(), String> {
        self.pulse.beat(TESTING);
        let tested = model.self_test().map(drop);
        self.pulse.rest();
        tested
    }

    /// Asks a build to end, and does not wait for that.
    fn stop_building(&mut self) {
        if let Some(building) = self.building.take() {
            tracing::info!(
                "{}: the build of its engine is given up",
                building.bundle.display()
            );
        }
    }
}

impl Drop for SlotStage {
    fn drop(&mut self) {
        // Memory and files are for whoever comes next.
        if let Some(building) = self.building.take() {
            building.stop();
        }
    }
}

impl Stage for SlotStage {
    fn stage(&mut self, bundle: &Path, refused: Option<&str>) -> Result<Loaded, String> {
        self.stop_building();
        let opened = Opened::read(bundle).map_err(|error| error.to_string())?;
        let found = self.look(&opened, refused).map_err(|error| error.to_string())?;
        let missing = match found {
            Some(missing) => missing,
            None => match self.load_beside_or_instead(&opened) {
                Ok(loaded) => {
                    self.staged = Some(Staged::new(loaded, bundle, None));
                    return Ok(Loaded::Engine);
                }
                Err(LoadFailure::Missing(missing)) => missing,
                Err(LoadFailure::Other(reason)) => return Err(reason),
            },
        };
        // What answers does so until the engine is built, and there is no outage to bridge.
        if self.active.is_some() {
            return Ok(Loaded::Missing(missing));
        }
        let builds = refused != Some(missing.key.as_str());
        match self.load_stand_in(&opened, builds) {
            Ok(Some(loaded)) => {
                self.staged = Some(Staged::new(loaded, bundle, Some(missing)));
                Ok(Loaded::StandIn)
            }
            Ok(None) => Ok(Loaded::Missing(missing)),
            Err(error) => {
                tracing::warn!("nothing answers until the engine is built: no stand-in beside it: {error}");
                Ok(Loaded::Missing(missing))
            }
        }
    }

    fn self_test(&mut self) -> Result<(), String> {
        let staged = self.staged.as_ref().ok_or("nothing was staged")?;
        self.tested(&staged.model)
    }

    fn switch(&mut self) {
        if let Some(staged) = self.staged.take() {
            self.stop_building();
            // From before its first answer on.
            self.watch = Some(self.watch_from_now());
            self.server.switch(staged.model);
            self.now_active(staged.active);
        }
    }

    fn restore(&mut self, bundle: &Path, refused: Option<&str>) -> Result<Loaded, Unloadable> {
        self.stop_building();
        (self.awaited, self.lost) = (None, false);
        let opened = Opened::read(bundle).map_err(|error| self.unloadable(&error))?;
        let found = self
            .look(&opened, refused)
            .map_err(|error| self.unloadable(&error))?;
        let missing = match found {
            Some(missing) => missing,
            None => match self.load_or_make_room(&opened) {
                Ok(loaded) => {
                    self.answer(Staged::new(loaded, bundle, None));
                    return Ok(Loaded::Engine);
                }
                Err(error) => match (&error, self.look(&opened, refused)) {
                    // It was damaged, and is gone.
                    (LoadError::Runtime(RuntimeError::NotAtHand { .. }), Ok(Some(missing))) => missing,
                    _ => return Err(self.unloadable(&error)),
                },
            },
        };
        // Whatever answers is what should not any more, and must leave room.
        if self.server.model().is_some() {
            self.server.release();
        }
        self.active = None;
        let builds = refused != Some(missing.key.as_str());
        match self.load_stand_in(&opened, builds) {
            Ok(Some(loaded)) => {
                self.answer(Staged::new(loaded, bundle, Some(missing)));
                return Ok(Loaded::StandIn);
            }
            Ok(None) => {}
            // It is all that there is.
            Err(error) if !builds => return Err(self.unloadable(&error)),
            Err(error) => {
                tracing::warn!("nothing answers until the engine is built: no stand-in beside it: {error}");
            }
        }
        self.server.empty();
        self.awaited = Some(bundle.into());
        Ok(Loaded::Missing(missing))
    }

    fn discard(&mut self) {
        self.staged = None;
        let own = self
            .active
            .as_ref()
            .map(|active| &active.path)
            .or(self.awaited.as_ref());
        if let Some(building) = self.building.take_if(|building| Some(&building.bundle) != own) {
            tracing::info!(
                "{}: the build of its engine is given up",
                building.bundle.display()
            );
            if self.active.is_some() && self.server.model().is_none() {
                // It was built in place of the active model, which needs the memory now.
                building.stop();
            }
        }
        // Staging, or building, in place of the active model took that one away.
        self.come_back();
    }

    fn is_lost(&self) -> bool {
        self.lost
    }

    fn empty(&mut self) {
        self.staged = None;
        self.stop_building();
        self.server.empty();
        (self.active, self.awaited, self.lost) = (None, None, false);
        self.watch = None;
    }

    fn missing(&self) -> Option<Missing> {
        self.active.as_ref()?.missing.clone()
    }

    fn build(&mut self, bundle: &Path) {
        if self
            .building
            .as_ref()
            .is_some_and(|building| building.bundle == bundle)
        {
            return;
        }
        self.stop_building();
        let pulse = self
            .pulses
            .join(format!("building the engine of slot {}", self.server.name()));
        let building = Building::start(
            bundle,
            Arc::clone(&self.executors.backend),
            self.options(),
            self.progress.clone(),
            pulse,
        );
        self.building = Some(building);
    }

    fn built(&mut self) -> Option<Result<(), String>> {
        let building = self.building.as_mut()?;
        let ended = building.ended()?;
        let bundle = building.bundle.clone();
        self.building = None;
        match ended {
            Err(error @ LoadError::Budget(_)) if self.server.model().is_some() => {
                tracing::warn!(
                    "{error}; its engine is built in place of the model that answers, inputs wait meanwhile"
                );
                self.server.release();
                self.build(&bundle);
                None
            }
            Err(error) => {
                self.come_back();
                Some(Err(error.to_string()))
            }
            Ok(()) => Some(Ok(())),
        }
    }

    fn upgrade(&mut self, bundle: &Path) -> Result<(), String> {
        let opened = Opened::read(bundle).map_err(|error| error.to_string())?;
        let loaded = match self.load_beside_or_instead(&opened) {
            Ok(loaded) => loaded,
            Err(failure) => {
                self.come_back();
                return Err(match failure {
                    LoadFailure::Missing(missing) => missing.why,
                    LoadFailure::Other(reason) => reason,
                });
            }
        };
        if let Err(reason) = self.tested(&loaded) {
            drop(loaded);
            self.come_back();
            return Err(reason);
        }
        let watch = self.watch_from_now();
        self.answer(Staged::new(loaded, bundle, None));
        self.watch = Some(watch);
        Ok(())
    }

    fn stand_in(&mut self, bundle: &Path, refused: Missing) -> Result<(), Unloadable> {
        let Some(stand_in) = self.executors.stand_in.clone() else {
            return Err(Unloadable::Ever(format!(
                "{}; no backend may stand in",
                refused.why
            )));
        };
        let opened = Opened::read(bundle).map_err(|error| self.unloadable(&error))?;
        let loaded = match self.load_on(&*stand_in, &opened, false) {
            Err(LoadError::Budget(_)) => {
                self.server.release();
                self.load_on(&*stand_in, &opened, false)
            }
            loaded => loaded,
        };
        match loaded {
            Ok(loaded) => {
                self.answer(Staged::new(loaded, bundle, Some(refused)));
                Ok(())
            }
            Err(error) => Err(self.unloadable(&error)),
        }
    }

    fn backend(&self) -> Option<&'static str> {
        self.server.model().map(|model| model.backend)
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
