use serde::{Deserialize, Serialize};

/// Counts the versions of a device's desired state. A device acts on a generation once: an older or equal one
/// (a retained message replayed on reconnect, a late duplicate) changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Generation(pub u64);

impl Generation {
    /// Whether a state of this generation replaces one of `current`.
    pub fn supersedes(self, current: Self) -> bool {
        self > current
    }
}
