//! Topics and messages. Everything lies below `edgeopt/v1/<device>/`; the major version is in the topic, so
//! that devices of two versions can share a broker.
//!
//! `docs/mqtt.md` describes each topic with examples, and `docs/schemas/` holds the JSON Schemas of the messages; tests
//! keep both true to the types here.

mod blob;
mod cbor;
mod command;
mod generation;
mod name;
mod prediction;
mod result;
#[cfg(test)]
mod schema;
mod state;
mod telemetry;
mod topic;

pub use blob::{BlobChunk, BlobRequest, InvalidChunk, MAX_CHUNK};
pub use cbor::CborError;
pub use command::{Action, Command, CommandReply, CommandState};
pub use generation::Generation;
pub use name::{DeviceId, InvalidName, SlotName, TopicName};
pub use prediction::{Prediction, RawOutput};
pub use result::{DecodeError, EncodeError, Encoding, ResultMessage};
pub use state::{
    DesiredState, EngineState, ModelSource, Phase, ReportedEngine, ReportedSlot, ReportedState, SlotSpec,
    Status,
};
pub use telemetry::{Camera, CameraState, Fan, Latency, Sample, Telemetry};
pub use topic::{ParseTopicError, Topic, Writer};
