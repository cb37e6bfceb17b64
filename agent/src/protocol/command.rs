use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::SlotName;

/// Something a device should do once. Its id is in the topic: a command that is seen again (retained, replayed at a
/// reconnect) is the same one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// What to do.
    pub action: Action,
    /// Milliseconds since 1970 after which a device that has not begun refuses it; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
}

/// What a [`Command`] asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Answer: proves that the daemon's main loop turns.
    Ping {},
    /// Reproduce the golden outputs of the model that answers.
    SelfTest {
        /// Where.
        slot: SlotName,
    },
    /// Return to the previous model.
    Rollback {
        /// Where.
        slot: SlotName,
    },
    /// Stop answering; inputs are refused until `resume`, also after a restart.
    Pause {
        /// Where.
        slot: SlotName,
    },
    /// Answer again.
    Resume {
        /// Where.
        slot: SlotName,
    },
    /// Build the engine of the model that answers again, which could not be built or misbehaved.
    Rebuild {
        /// Where.
        slot: SlotName,
    },
    /// Report every kind of telemetry now.
    Report {},
}

/// How far a command has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CommandState {
    /// Begun; written to disk before the work.
    Running,
    /// Done. Final.
    Succeeded,
    /// Refused or failed; the reason says why. Final.
    Failed,
}

/// A device's answer to a [`Command`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CommandReply {
    /// How far it has come.
    pub state: CommandState,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it found, where the action has something to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Value>,
}
