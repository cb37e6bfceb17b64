use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::protocol::{Generation, Phase, ReportedSlot, SlotSpec};

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
            reason: self.reason.clone(),
        }
    }

    /// Bundles that must stay on disk.
    pub fn needed(&self) -> Vec<String> {
        let desired = self.desired.iter().map(|spec| spec.sha256.clone());
        let installed = self
            .active
            .iter()
            .chain(&self.previous)
            .map(|installed| installed.sha256.clone());
        desired.chain(installed).collect()
    }
}

/// A record could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct RecordError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub problem: String,
}

/// The file of a slot's record.
#[derive(Clone, Debug)]
pub struct RecordFile(PathBuf);

impl RecordFile {
    /// The record of `slot` in `folder`.
    pub fn new(folder: &Path, slot: &str) -> Self {
        Self(folder.join(format!("{slot}.json")))
    }

    fn failed(&self, problem: impl ToString) -> RecordError {
        RecordError {
            path: self.0.clone(),
            problem: problem.to_string(),
        }
    }

    /// The record; an empty one if there is none yet.
    ///
    /// # Errors
    /// When it cannot be read. A record is written whole or not at all, so one that makes no sense was damaged by
    /// something else, and is not silently thrown away.
    pub fn read(&self) -> Result<SlotRecord, RecordError> {
        match fs::read(&self.0) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| self.failed(format!("{error}; move it away to begin with an empty slot"))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(SlotRecord::default()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Writes the record: beside, to disk, renamed, the folder to disk. After this returns, a power cut finds it.
    ///
    /// # Errors
    /// When the disk refuses; the old record is still there then.
    pub fn write(&self, record: &SlotRecord) -> Result<(), RecordError> {
        let folder = self.0.parent().unwrap_or(Path::new("."));
        let write = || -> std::io::Result<()> {
            fs::create_dir_all(folder)?;
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(&serde_json::to_vec_pretty(record)?)?;
            file.as_file().sync_all()?;
            file.persist(&self.0).map_err(|error| error.error)?;
            fs::File::open(folder)?.sync_all()
        };
        write().map_err(|error| self.failed(error))
    }
}
