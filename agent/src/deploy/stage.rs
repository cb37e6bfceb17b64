//! What a keeper needs of the serving side.

use std::path::Path;

use super::engine::Missing;

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

    /// Stops answering, refuses what waits, and gives up what was staged and a build under way.
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
