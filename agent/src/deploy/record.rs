use serde::{Deserialize, Serialize};

use super::engine::EngineRecord;
use crate::protocol::{Generation, Phase, ReportedSlot, SlotSpec};
use crate::store::BundleDigest;

/// A model that is, or was, in a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Installed {
    /// Name, as in the bundle.
    pub model: String,
    /// Version, as in the bundle.
    pub version: String,
    /// SHA-256 of the bundle file.
    pub sha256: String,
}

impl Installed {
    /// What `spec` asks for.
    pub fn of(spec: &SlotSpec) -> Self {
        Self {
            model: spec.model.clone(),
            version: spec.version.clone(),
            sha256: spec.sha256.clone(),
        }
    }
}

/// All that is known of a slot across restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotRecord {
    /// The newest desired generation that was taken.
    pub generation: Generation,
    /// What it asks for; `None` = an empty slot.
    pub desired: Option<SlotSpec>,
    /// How far that has come.
    pub phase: Phase,
    /// What answers.
    pub active: Option<Installed>,
    /// What answered before, kept for roll-back.
    pub previous: Option<Installed>,
    /// Whether the active model is still being watched; a roll-back is automatic until this ends.
    pub watching: bool,
    /// Starts of the daemon since the active model was put in and is being watched: a model that takes the daemon down
    /// with it is found by these.
    pub starts: u32,
    /// Why the phase is `failed`.
    pub reason: Option<String>,
    /// Digest of the model that had to be given up after it had answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up: Option<String>,
    /// An engine that is built, tried, or cannot be had; `None` = what answers or is under way needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<EngineRecord>,
}

impl SlotRecord {
    /// What the device reports, but for the backend, which the record does not know.
    pub fn reported(&self) -> ReportedSlot {
        let version =
            |installed: &Option<Installed>| installed.as_ref().map(|installed| installed.version.clone());
        ReportedSlot {
            phase: self.phase,
            active_version: version(&self.active),
            previous_version: version(&self.previous),
            watched: self.watching,
            reason: self.reason.clone(),
            generation: (self.generation > Generation::default()).then_some(self.generation),
            desired_sha256: self.desired.as_ref().map(|spec| spec.sha256.clone()),
            backend: None,
            engine: self.engine_shown().map(EngineRecord::reported),
        }
    }

    /// What is noted of the engine of the model that answers, or of the one that is under way.
    fn engine_shown(&self) -> Option<&EngineRecord> {
        let engine = self.engine.as_ref()?;
        let of_active = self
            .active
            .as_ref()
            .is_some_and(|active| active.sha256 == engine.sha256);
        let desired = self
            .desired
            .as_ref()
            .is_some_and(|spec| spec.sha256 == engine.sha256);
        (of_active || desired && self.phase == Phase::Verified).then_some(engine)
    }

    /// Bundles that must stay on disk. What the operator wrongly calls a digest is none of them.
    pub fn bundles(&self) -> impl Iterator<Item = BundleDigest> {
        let desired = self.desired.iter().map(|spec| &spec.sha256);
        let installed = self.active.iter().chain(&self.previous);
        desired
            .chain(installed.map(|installed| &installed.sha256))
            .filter_map(|sha256| sha256.parse().ok())
    }
}
