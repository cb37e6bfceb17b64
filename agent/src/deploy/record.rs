use serde::{Deserialize, Serialize};

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
}

impl SlotRecord {
    /// What the device reports.
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
        }
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
