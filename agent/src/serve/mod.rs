//! Answering: models loaded from bundles, queues before them, sessions behind them.
//!
//! A [`Server`] holds one slot's queue and workers; [`LoadedModel`] is a bundle made ready; [`SlotStage`] lets the keeper
//! of a deployment load, test and switch.

mod answer;
mod batch;
mod health;
mod model;
mod server;
mod stage;

pub use answer::Answer;
pub use health::{Health, LatencySummary, WatchCriteria};
pub use model::{Input, LoadError, LoadedModel};
pub use server::{Job, Server, ServerOptions, Submitted};
pub use stage::SlotStage;
