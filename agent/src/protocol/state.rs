use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Generation, SlotName, TopicName};

/// What a device should run: the whole of it, so that a device that missed any number of messages converges
/// from the last one alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct DesiredState {
    /// Counts up with each change; see [`Generation`].
    pub generation: Generation,
    /// Slots by name; a slot that is absent here is to be emptied.
    pub slots: BTreeMap<SlotName, SlotSpec>,
}

impl DesiredState {
    /// Whether slot `name` has taken another state of this same generation. Two operators that do not know of each other
    /// arrive at the same number, and so does one that begins again after the broker has lost everything.
    pub fn contradicts(&self, name: &SlotName, slot: &ReportedSlot) -> bool {
        let own = self.slots.get(name).map(|spec| &spec.sha256);
        slot.generation == Some(self.generation) && slot.desired_sha256.as_ref() != own
    }
}

/// The model a slot should hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SlotSpec {
    /// Name of the model, as in the bundle's manifest.
    pub model: String,
    /// Version of the model, as in the bundle's manifest.
    pub version: String,
    /// SHA-256 of the bundle file, lower-case hex.
    pub sha256: String,
    /// Size of the bundle file in bytes: space is reserved before the download starts.
    pub size: u64,
    /// Where to get it: tried in this order, each until it fails for good.
    pub sources: Vec<ModelSource>,
}

/// Where a device gets a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ModelSource {
    /// `http:`, `https:` or `file:`.
    Url(String),
    /// Chunks over MQTT, asked for by the device under `blob/<id>/request`.
    Blob(TopicName),
}

/// How far a slot has come towards its specification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Nothing there.
    #[default]
    Absent,
    /// The bundle is being fetched.
    Downloading,
    /// Digest and signature are right.
    Verified,
    /// Unpacked, its engine built beside the running one.
    Staged,
    /// Its golden outputs were reproduced.
    SelfTested,
    /// It answers.
    Active,
    /// Refused or rolled back; the reason says why, and the previous model answers if there was one.
    Failed,
}

/// One slot as a device reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReportedSlot {
    /// How far the desired model has come.
    pub phase: Phase,
    /// Version that answers now, whatever the phase.
    pub active_version: Option<String>,
    /// Version kept for roll-back.
    pub previous_version: Option<String>,
    /// Whether the version that answers is still watched: until this ends, the previous one comes back by itself when it
    /// misbehaves.
    #[serde(default)]
    pub watched: bool,
    /// Why, when the phase is [`Phase::Failed`]; what is waited for, while it is [`Phase::Downloading`].
    pub reason: Option<String>,
    /// Generation of the desired state that this slot has taken last; absent when it has taken none, and from agents
    /// that do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// SHA-256 of the bundle that this generation asks for; absent when it asks for an empty slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_sha256: Option<String>,
    /// What executes the model that answers: `tensorrt`, `cpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Its engine, while it is not as it should be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<ReportedEngine>,
}

/// An engine that is built while another backend answers, or the slot waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReportedEngine {
    /// How far it has come.
    pub state: EngineState,
    /// Why it is built; why there is none, and what happens next, when it has failed.
    pub reason: String,
}

/// How far an engine has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EngineState {
    /// It is built in the background.
    Building,
    /// It was built, and is tested or watched: what answered before comes back if it misbehaves.
    Trying,
    /// It cannot be built, or misbehaved.
    Failed,
}

/// What a device runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ReportedState {
    /// The desired generation this answers.
    pub generation: Generation,
    /// Slots by name.
    pub slots: BTreeMap<SlotName, ReportedSlot>,
}

/// Whether a device is reachable. The daemon writes the online form at each connect and the offline form when it stops;
/// the broker writes the offline form, its last will, when the connection breaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Status {
    /// Connected to the broker.
    pub online: bool,
    /// Version of the daemon.
    pub agent_version: String,
    /// Drawn at random when the daemon starts. Two values that alternate are two devices with one name.
    pub instance: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESIRED: &str = r#"{"generation": 7, "slots": {"detector": {"model": "ppocr-det", "version": "2",
        "sha256": "ab", "size": 12, "sources": [{"url": "https://models.example/det.edge"}, {"blob": "fleet"}]}}}"#;

    #[test]
    fn desired_state_reads_back_as_written() {
        let state: DesiredState = serde_json::from_str(DESIRED).unwrap();
        assert!(state.generation.supersedes(Generation(6)));
        assert!(!state.generation.supersedes(Generation(7)));
        let again: DesiredState = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
        assert_eq!(state, again);
    }

    #[test]
    fn another_state_of_the_same_generation_is_told_by_the_digest() {
        let state: DesiredState = serde_json::from_str(DESIRED).unwrap();
        let slot = |json: &str| -> ReportedSlot {
            let fields =
                r#""phase": "active", "active_version": "2", "previous_version": null, "reason": null"#;
            serde_json::from_str(&format!("{{{fields}{json}}}")).unwrap()
        };
        let (detector, other) = ("detector".parse().unwrap(), "other".parse().unwrap());
        for (name, json, expected) in [
            (&detector, r#", "generation": 7, "desired_sha256": "ab""#, false),
            (&detector, r#", "generation": 7, "desired_sha256": "cd""#, true),
            (&detector, r#", "generation": 7"#, true),
            (&detector, r#", "generation": 6, "desired_sha256": "cd""#, false),
            (&detector, "", false),
            (&other, r#", "generation": 7, "desired_sha256": "ab""#, true),
            (&other, r#", "generation": 7"#, false),
        ] {
            assert_eq!(state.contradicts(name, &slot(json)), expected, "{name} {json}");
        }
    }

    #[test]
    fn misspelt_fields_and_bad_slot_names_are_refused_by_name() {
        let error =
            serde_json::from_str::<DesiredState>(&DESIRED.replace("\"size\"", "\"sise\"")).unwrap_err();
        assert!(error.to_string().contains("sise"), "{error}");
        let error = serde_json::from_str::<DesiredState>(&DESIRED.replace("detector", "a/b")).unwrap_err();
        assert!(error.to_string().contains("a/b"), "{error}");
    }
}
