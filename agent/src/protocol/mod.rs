//! Topics and messages. Everything lies below `edgeopt/v1/<device>/`; the major version is in the topic, so
//! that devices of two versions can share a broker.

mod generation;
mod state;
mod topic;

pub use generation::Generation;
pub use state::{DesiredState, ModelSource, Phase, ReportedSlot, ReportedState, SlotSpec, Status};
pub use topic::{DeviceId, InvalidName, ParseTopicError, SlotName, Topic};
