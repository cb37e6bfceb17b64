//! Bringing a slot from the model it has to the model it should have, so that it never ends up without a working one.
//!
//! [`machine`] decides, and touches nothing: record and event in, record and effects out. [`SlotRecord`] is what survives a
//! power cut; it is on disk before an effect begins, and every effect can be begun again. [`Keeper`] does the effects of
//! one slot on a thread of its own, through the traits [`Bundles`] and [`Stage`].

mod bundles;
mod engine;
mod fetching;
mod keeper;
mod loading;
pub mod machine;
mod record;
mod stage;
mod worker;

pub use bundles::{Bundles, FETCH_SPEAKS, FetchError, Fetching};
pub use engine::{EngineRecord, Missing};
pub use keeper::{Keeper, KeeperHandle, Report};
pub use machine::{Effect, Event, next};
pub use record::{Installed, SlotRecord};
pub use stage::{Loaded, Stage, Unloadable, Verdict};
