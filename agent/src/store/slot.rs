//! What each slot holds: one small file per slot, replaced as a whole.

use std::collections::BTreeMap;
use std::path::PathBuf;

use edgeopt_models::Bytes;
use serde::{Deserialize, Serialize};

use super::{Store, StoreError};
use crate::deploy::SlotRecord;
use crate::disk::At;
use crate::durable;
use crate::protocol::SlotName;

/// The format that this version writes and reads.
const FORMAT: u32 = 1;
const SUFFIX: &str = ".json";
const LIMIT: Bytes = Bytes::kib(64);

/// How a record lies in its file.
#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    format: u32,
    slot: T,
}

impl Store {
    /// What a slot holds; `None` if nothing was ever recorded.
    ///
    /// # Errors
    /// When the record cannot be read or understood. It is never taken for an empty one.
    pub fn slot(&self, name: &SlotName) -> Result<Option<SlotRecord>, StoreError> {
        let path = self.slot_path(name);
        let Some(bytes) = durable::read(self.disk(), &path, LIMIT)? else {
            return Ok(None);
        };
        let refuse = |problem: String| StoreError::Slot {
            path: path.clone(),
            problem,
        };
        // The format first: another one may have other fields.
        let found: Envelope<serde_json::Value> =
            serde_json::from_slice(&bytes).map_err(|error| refuse(error.to_string()))?;
        if found.format != FORMAT {
            return Err(refuse(format!(
                "it has format {}, this version reads {FORMAT}",
                found.format
            )));
        }
        serde_json::from_value(found.slot)
            .map(Some)
            .map_err(|error| refuse(error.to_string()))
    }

    /// Every slot's record, by name.
    ///
    /// # Errors
    /// When one of them cannot be read or understood.
    pub fn slots(&self) -> Result<BTreeMap<SlotName, SlotRecord>, StoreError> {
        let folder = self.root().join("slots");
        let mut names = Vec::new();
        let mut visit = |name: &str| {
            let slot = name.strip_suffix(SUFFIX).filter(|_| !durable::is_temporary(name));
            names.extend(slot.and_then(|slot| slot.parse::<SlotName>().ok()));
        };
        self.disk().names(&folder, &mut visit).at("list", &folder)?;
        let mut records = BTreeMap::new();
        for name in names {
            if let Some(record) = self.slot(&name)? {
                records.insert(name, record);
            }
        }
        Ok(records)
    }

    /// Replaces a slot's record; on success it survives a power cut, otherwise the old one does.
    ///
    /// # Errors
    /// When the file system fails.
    pub fn put_slot(&self, name: &SlotName, record: &SlotRecord) -> Result<(), StoreError> {
        // Not while garbage is collected by what the records say.
        let _live = self.live();
        let path = self.slot_path(name);
        let envelope = Envelope {
            format: FORMAT,
            slot: record,
        };
        let bytes = serde_json::to_vec_pretty(&envelope).map_err(|error| StoreError::Slot {
            path: path.clone(),
            problem: error.to_string(),
        })?;
        Ok(durable::write(self.disk(), &path, &bytes)?)
    }

    fn slot_path(&self, name: &SlotName) -> PathBuf {
        self.root().join("slots").join(format!("{name}{SUFFIX}"))
    }
}
