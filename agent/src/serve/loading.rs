//! The ways to load a model: beside the one that answers, instead of it, or on a stand-in.

use std::sync::Arc;
use std::time::{Duration, Instant};

use edgeopt_models::Bytes;
use edgeopt_runtime::memory::Budget;
use edgeopt_runtime::{Backend, CompileOptions, OnStep, RuntimeError};

use super::model::{LoadError, LoadedModel, Opened};
use super::stage::{Active, SlotStage};
use crate::deploy::Missing;

/// How long loading a model may take: an engine may be built meanwhile, by a library that says nothing of its progress.
const LOADING: Duration = Duration::from_secs(3600);
/// How long until the next step, of a library that tells of them.
const NEXT_STEP: Duration = Duration::from_secs(600);

/// Why an engine was not loaded.
pub(super) enum LoadFailure {
    /// It is not at hand after all.
    Missing(Missing),
    /// Anything else.
    Other(String),
}

impl SlotStage {
    pub(super) fn options(&self) -> CompileOptions {
        CompileOptions {
            threads: self.threads,
            budget: self.budget.clone(),
            ..CompileOptions::default()
        }
    }

    pub(super) fn load_on(
        &self,
        backend: &dyn Backend,
        opened: &Opened,
        at_hand_only: bool,
    ) -> Result<LoadedModel, LoadError> {
        let pulse = self.pulse.clone();
        let options = CompileOptions {
            on_step: Some(OnStep::new(move || pulse.beat(NEXT_STEP))),
            at_hand_only,
            ..self.options()
        };
        self.pulse.beat(LOADING);
        let loaded = opened.load(backend, &options);
        self.pulse.rest();
        loaded
    }

    /// Loads the engine, which must be at hand.
    pub(super) fn load(&self, opened: &Opened) -> Result<LoadedModel, LoadError> {
        self.load_on(&*self.executors.backend, opened, true)
    }

    /// Loads a model the way it answered.
    pub(super) fn load_again(&self, active: &Active) -> Result<LoadedModel, LoadError> {
        let opened = Opened::read(&active.path)?;
        match (&active.missing, &self.executors.stand_in) {
            (Some(_), Some(stand_in)) => self.load_on(&**stand_in, &opened, false),
            // Its engine was at hand; if it is not any more, it is built while inputs wait.
            _ => self.load_on(&*self.executors.backend, &opened, false),
        }
    }

    /// What is missing, if the engine is not at hand for a model that may take the place of the one that answers.
    pub(super) fn look(&self, opened: &Opened, refused: Option<&str>) -> Result<Option<Missing>, LoadError> {
        let held = self.server.model().map(|model| model.engine.memory().total());
        let options = CompileOptions {
            budget: self
                .budget
                .as_ref()
                .map(|budget| Budget::new(budget.available() + held.unwrap_or(Bytes::ZERO))),
            ..self.options()
        };
        let found = match opened.look_up(&*self.executors.backend, &options) {
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

    /// Loads the model on the stand-in, if there is one; with `builds`, only if there is memory for the build beside it.
    pub(super) fn load_stand_in(
        &self,
        opened: &Opened,
        builds: bool,
    ) -> Result<Option<LoadedModel>, LoadError> {
        let Some(stand_in) = &self.executors.stand_in else {
            return Ok(None);
        };
        let loaded = self.load_on(&**stand_in, opened, false)?;
        // Anything but want of memory the build says itself.
        if builds
            && let Err(error @ LoadError::Budget(_)) =
                opened.look_up(&*self.executors.backend, &self.options())
        {
            return Err(error);
        }
        Ok(Some(loaded))
    }

    /// Loads the engine of a bundle in place of the model that answers: inputs wait meanwhile. If it cannot be loaded, the
    /// old model comes back.
    pub(super) fn load_instead(
        &mut self,
        opened: &Opened,
        too_much: &LoadError,
    ) -> Result<LoadedModel, String> {
        if self.active.is_none() {
            return Err(too_much.to_string());
        }
        tracing::info!("{too_much}; it is loaded in place of the model that answers, inputs wait meanwhile");
        let begun = Instant::now();
        self.server.release();
        let loaded = self.load(opened).map_err(|error| error.to_string());
        if loaded.is_err() {
            // The old model answers again until the new one has passed its test; with memory for one only, it cannot.
            self.come_back();
        }
        tracing::info!("inputs have waited for {:.1} s", begun.elapsed().as_secs_f64());
        loaded
    }

    /// Beside the model that answers, or instead of it.
    pub(super) fn load_beside_or_instead(&mut self, opened: &Opened) -> Result<LoadedModel, LoadFailure> {
        match self.load(opened) {
            Ok(loaded) => Ok(loaded),
            Err(error @ LoadError::Budget(_)) => {
                self.load_instead(opened, &error).map_err(LoadFailure::Other)
            }
            Err(error @ LoadError::Runtime(RuntimeError::NotAtHand { .. })) => {
                match self.look(opened, None) {
                    // It takes more scratch memory than is left beside the model that answers.
                    Ok(None) if self.active.is_some() => {
                        self.load_instead(opened, &error).map_err(LoadFailure::Other)
                    }
                    // It was damaged.
                    Ok(Some(missing)) => Err(LoadFailure::Missing(missing)),
                    _ => Err(LoadFailure::Other(error.to_string())),
                }
            }
            Err(error) => Err(LoadFailure::Other(error.to_string())),
        }
    }

    /// In place of the model that answers, which should not any more, if there is no room beside it.
    pub(super) fn load_or_make_room(&mut self, opened: &Opened) -> Result<LoadedModel, LoadError> {
        match self.load(opened) {
            Err(LoadError::Budget(_) | LoadError::Runtime(RuntimeError::NotAtHand { .. })) => {
                self.server.release();
                self.load(opened)
            }
            loaded => loaded,
        }
    }

    /// Lets the model that gave way answer again.
    pub(super) fn come_back(&mut self) {
        let (None, Some(active)) = (self.server.model(), self.active.clone()) else {
            return;
        };
        match self.load_again(&active) {
            Ok(model) => self.server.switch(Arc::new(model)),
            Err(error) => {
                self.server.empty();
                self.active = None;
                self.lost = true;
                tracing::error!(
                    "{}: {error}: nothing answers until it is loaded again",
                    active.path.display()
                );
            }
        }
    }
}
