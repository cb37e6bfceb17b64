//! Answering: models loaded from bundles, queues before them, sessions behind them.
//!
//! A [`Server`] holds one slot's queue and workers; [`LoadedModel`] is a bundle made ready; [`SlotStage`] lets the keeper
//! of a deployment load, test and switch.

mod answer;
mod batch;
mod building;
mod health;
mod loading;
mod model;
mod non_finite;
mod server;
mod stage;
mod turns;

pub use answer::Answer;
pub use building::BuildProgress;
pub use health::{Health, LATENCY_BOUNDS_MS, LatencySummary, WatchCriteria};
pub use model::{Input, LoadError, LoadedModel};
pub use server::{Content, Job, LiveInput, Reply, ServeError, Server, ServerOptions, Submitted};
pub use stage::{Executors, SlotStage};
pub use turns::{Turn, Turns};
