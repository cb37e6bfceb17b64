//! Loading, testing and switching the models of a slot.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use edgeopt_models::Bytes;
use edgeopt_runtime::memory::Budget;
use edgeopt_runtime::{Backend, CompileOptions, OnStep, RuntimeError};

use super::building::{BuildProgress, Building};
use super::health::{Watch, WatchCriteria, judge};
use super::model::{LoadError, LoadedModel, Opened};
use super::server::Server;
use crate::deploy::{Loaded, Missing, Stage, Unloadable, Verdict};
use crate::pulse::{Pulse, Pulses};

/// How long loading a model may take: an engine may be built meanwhile, by a library that says nothing of its progress.
const LOADING: Duration = Duration::from_secs(3600);
/// How long until the next step, of a library that tells of them.
const NEXT_STEP: Duration = Duration::from_secs(600);
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
struct Active {
    path: PathBuf,
    /// What is missing, if the stand-in answers.
    missing: Option<Missing>,
}

/// A model that is ready to answer.
struct Staged {
    model: Arc<LoadedModel>,
    active: Active,
}

/// The serving side of a deployment.
pub struct SlotStage {
    server: Server,
    executors: Executors,
    budget: Option<Budget>,
    threads: usize,
    criteria: WatchCriteria,
    pulses: Pulses,
    pulse: Pulse,
    staged: Option<Staged>,
    active: Option<Active>,
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

    fn options(&self) -> CompileOptions {
        CompileOptions {
            threads: self.threads,
            budget: self.budget.clone(),
            ..CompileOptions::default()
        }
    }

    fn load_on(
        &self,
        backend: &dyn Backend,
        bundle: &Path,
        at_hand_only: bool,
    ) -> Result<LoadedModel, LoadError> {
        let pulse = self.pulse.clone();
        let options = CompileOptions {
            on_step: Some(OnStep::new(move || pulse.beat(NEXT_STEP))),
            at_hand_only,
            ..self.options()
        };
        self.pulse.beat(LOADING);
        let loaded = LoadedModel::load(bundle, backend, &options);
        self.pulse.rest();
        loaded
    }

    /// Loads the engine, which must be at hand.
    fn load(&self, bundle: &Path) -> Result<LoadedModel, LoadError> {
        self.load_on(&*self.executors.backend, bundle, true)
    }

    /// Loads a model the way it answered.
    fn load_again(&self, active: &Active) -> Result<LoadedModel, LoadError> {
        match (&active.missing, &self.executors.stand_in) {
            (Some(_), Some(stand_in)) => self.load_on(&**stand_in, &active.path, false),
            // Its engine was at hand; if it is not any more, it is built while inputs wait.
            _ => self.load_on(&*self.executors.backend, &active.path, false),
        }
    }

    /// What is missing, if the engine is not at hand for a model that may take the place of the one that answers.
    fn look(&self, bundle: &Path, refused: Option<&str>) -> Result<Option<Missing>, LoadError> {
        let held = self.server.model().map(|model| model.engine.memory().total());
        let options = CompileOptions {
            budget: self
                .budget
                .as_ref()
                .map(|budget| Budget::new(budget.available() + held.unwrap_or(Bytes::ZERO))),
            ..self.options()
        };
        let found = match Opened::read(bundle)?.look_up(&*self.executors.backend, &options) {
            // Loading says so with what is held.
            Err(LoadError::Budget(_)) => return Ok(None),
            found => found?,
        };
        if found.key.is_empty() {
            return Ok(None);
        }
        let limit = self.executors.limit.map(|limit| format!(" within {limit}"));
        let key = found.key + &limit.unwrap_or_default();
        let why = match found.missing {
            Some(why) => why,
            None if refused == Some(key.as_str()) => "the one that is at hand was given up".into(),
            None => return Ok(None),
        };
        Ok(Some(Missing { key, why }))
    }

    /// Loads a model that answers while its engine is built, if there is memory for both. Says why not.
    fn load_stand_in(&self, bundle: &Path) -> Option<LoadedModel> {
        let stand_in = self.executors.stand_in.as_ref()?;
        let no = |error: &dyn std::fmt::Display| {
            tracing::warn!("nothing answers until the engine is built, no backend can stand in: {error}");
        };
        let loaded = self
            .load_on(&**stand_in, bundle, false)
            .inspect_err(|error| no(error))
            .ok()?;
        let fits =
            Opened::read(bundle).and_then(|opened| opened.look_up(&*self.executors.backend, &self.options()));
        match fits {
            Err(error @ LoadError::Budget(_)) => {
                no(&format_args!(
                    "{error}, beside {} on {}",
                    loaded.manifest.name, loaded.backend
                ));
                None
            }
            _ => Some(loaded),
        }
    }

    /// Loads the engine of `bundle` in place of the model that answers: inputs wait meanwhile. If it cannot be loaded, the
    /// old model comes back.
    fn load_instead(&mut self, bundle: &Path, too_much: &LoadError) -> Result<LoadedModel, String> {
        if self.active.is_none() {
            return Err(too_much.to_string());
        }
        tracing::info!("{too_much}; it is loaded in place of the model that answers, inputs wait meanwhile");
        let begun = Instant::now();
        self.server.release();
        let loaded = self.load(bundle).map_err(|error| error.to_string());
        if loaded.is_err() {
            // The old model answers again until the new one has passed its test; with memory for one only, it cannot.
            self.come_back();
        }
        tracing::info!("inputs have waited for {:.1} s", begun.elapsed().as_secs_f64());
        loaded
    }

    /// Beside the model that answers, or instead of it.
    fn load_beside_or_instead(&mut self, bundle: &Path) -> Result<LoadedModel, LoadFailure> {
        match self.load(bundle) {
            Ok(loaded) => Ok(loaded),
            Err(error @ LoadError::Budget(_)) => {
                self.load_instead(bundle, &error).map_err(LoadFailure::Other)
            }
            Err(error @ LoadError::Runtime(RuntimeError::NotAtHand { .. })) => {
                match self.look(bundle, None) {
                    // It takes more scratch memory than is left beside the model that answers.
                    Ok(None) if self.active.is_some() => {
                        self.load_instead(bundle, &error).map_err(LoadFailure::Other)
                    }
                    // It was damaged.
                    Ok(Some(missing)) => Err(LoadFailure::Missing(missing)),
                    _ => Err(LoadFailure::Other(error.to_string())),
                }
            }
            Err(error) => Err(LoadFailure::Other(error.to_string())),
        }
    }

    /// Lets the model that gave way answer again.
    fn come_back(&mut self) {
        let (None, Some(active)) = (self.server.model(), self.active.clone()) else {
            return;
        };
        match self.load_again(&active) {
            Ok(model) => self.server.switch(Arc::new(model)),
            Err(error) => {
                self.server.empty();
                self.active = None;
                tracing::error!("{}: {error}: the slot is empty", active.path.display());
            }
        }
    }

    fn answer(&mut self, model: LoadedModel, active: Active) {
        self.server.switch(Arc::new(model));
        self.active = Some(active);
        self.watch = None;
    }

    /// Nothing answers any more: whatever does is what should not.
    fn unloadable(&mut self, error: &LoadError) -> Unloadable {
        self.server.empty();
        self.active = None;
        match error {
            LoadError::Budget(_) | LoadError::Runtime(RuntimeError::LibraryNotFound { .. }) => {
                Unloadable::Now(error.to_string())
            }
            _ => Unloadable::Ever(error.to_string()),
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

/// Why an engine was not loaded.
enum LoadFailure {
    /// It is not at hand after all.
    Missing(Missing),
    /// Anything else.
    Other(String),
}

impl Drop for SlotStage {
    fn drop(&mut self) {
        // Nothing of it may outlive the slot.
        if let Some(building) = self.building.take() {
            building.stop();
        }
    }
}

impl Stage for SlotStage {
    fn stage(&mut self, bundle: &Path, refused: Option<&str>) -> Result<Loaded, String> {
        self.stop_building();
        let mut missing = self.look(bundle, refused).map_err(|error| error.to_string())?;
        if missing.is_none() {
            match self.load_beside_or_instead(bundle) {
                Ok(loaded) => {
                    self.staged = Some(Staged {
                        model: Arc::new(loaded),
                        active: Active {
                            path: bundle.into(),
                            missing: None,
                        },
                    });
                    return Ok(Loaded::Engine);
                }
                Err(LoadFailure::Missing(found)) => missing = Some(found),
                Err(LoadFailure::Other(reason)) => return Err(reason),
            }
        }
        let Some(missing) = missing else {
            return Err("its engine is neither at hand nor missing".into());
        };
        // What answers does so until the engine is built, and there is no outage to bridge.
        if self.active.is_none()
            && let Some(loaded) = self.load_stand_in(bundle)
        {
            self.staged = Some(Staged {
                model: Arc::new(loaded),
                active: Active {
                    path: bundle.into(),
                    missing: Some(missing),
                },
            });
            return Ok(Loaded::StandIn);
        }
        Ok(Loaded::Missing(missing))
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
            self.active = Some(staged.active);
        }
    }

    fn restore(&mut self, bundle: &Path, refused: Option<&str>) -> Result<Loaded, Unloadable> {
        self.stop_building();
        let mut missing = match self.look(bundle, refused) {
            Ok(missing) => missing,
            Err(error) => return Err(self.unloadable(&error)),
        };
        if missing.is_none() {
            let loaded = match self.load(bundle) {
                Err(LoadError::Budget(_) | LoadError::Runtime(RuntimeError::NotAtHand { .. })) => {
                    self.server.release();
                    self.load(bundle)
                }
                loaded => loaded,
            };
            match loaded {
                Ok(loaded) => {
                    let active = Active {
                        path: bundle.into(),
                        missing: None,
                    };
                    self.answer(loaded, active);
                    return Ok(Loaded::Engine);
                }
                Err(error @ LoadError::Runtime(RuntimeError::NotAtHand { .. })) => {
                    missing = self.look(bundle, refused).ok().flatten();
                    if missing.is_none() {
                        return Err(self.unloadable(&error));
                    }
                }
                Err(error) => return Err(self.unloadable(&error)),
            }
        }
        // Whatever answers is what should not any more, and must leave room.
        if self.server.model().is_some() {
            self.server.release();
        }
        self.active = None;
        let loaded = self.load_stand_in(bundle);
        match (missing, loaded) {
            (Some(missing), Some(loaded)) => {
                let active = Active {
                    path: bundle.into(),
                    missing: Some(missing),
                };
                self.answer(loaded, active);
                Ok(Loaded::StandIn)
            }
            (Some(missing), None) => {
                self.server.empty();
                Ok(Loaded::Missing(missing))
            }
            (None, _) => Err(Unloadable::Ever(
                "its engine is neither at hand nor missing".into(),
            )),
        }
    }

    fn discard(&mut self) {
        self.staged = None;
        let active = self.active.as_ref().map(|active| &active.path);
        if self
            .building
            .as_ref()
            .is_some_and(|building| Some(&building.bundle) != active)
        {
            self.stop_building();
        }
        // Staging, or building, in place of the active model took that one away.
        self.come_back();
    }

    fn empty(&mut self) {
        self.stop_building();
        self.server.empty();
        self.active = None;
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
        let loaded = match self.load_beside_or_instead(bundle) {
            Ok(loaded) => loaded,
            Err(LoadFailure::Missing(missing)) => return Err(missing.why),
            Err(LoadFailure::Other(reason)) => {
                self.come_back();
                return Err(reason);
            }
        };
        if let Err(reason) = self.tested(&loaded) {
            drop(loaded);
            self.come_back();
            return Err(reason);
        }
        let watch = self.watch_from_now();
        let active = Active {
            path: bundle.into(),
            missing: None,
        };
        self.answer(loaded, active);
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
        let loaded = match self.load_on(&*stand_in, bundle, false) {
            Err(LoadError::Budget(_)) => {
                self.server.release();
                self.load_on(&*stand_in, bundle, false)
            }
            loaded => loaded,
        };
        match loaded {
            Ok(loaded) => {
                let active = Active {
                    path: bundle.into(),
                    missing: Some(refused),
                };
                self.answer(loaded, active);
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
