use edgeopt_models::Bytes;
use serde::{Deserialize, Serialize};

use crate::disk::{At, DiskError, DiskFile, OpenMode};
use crate::durable;
use crate::store::Reservation;

/// Bytes between two syncs: what a power cut may cost.
const SYNC_EVERY: u64 = 8 << 20;
/// The notes of a download are this short.
const NOTES_LIMIT: Bytes = Bytes::kib(64);

/// The first part of a bundle, which grows.
pub(super) struct Partial<'a> {
    reservation: &'a Reservation,
    file: Box<dyn DiskFile>,
    length: u64,
    size: Bytes,
    synced: u64,
}

/// What is remembered of the server, for resuming.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notes {
    pub(super) url: String,
    /// A strong validator: the server's word that the file has not changed.
    pub(super) etag: Option<String>,
}

impl<'a> Partial<'a> {
    /// What there is, or nothing yet. A file longer than the bundle is of no use and begins anew.
    pub(super) fn open(reservation: &'a Reservation, size: Bytes) -> Result<Self, DiskError> {
        let path = reservation.partial_path();
        let disk = reservation.store().disk();
        let file = disk.open(&path, OpenMode::OpenOrCreate).at("open", &path)?;
        let length = file.length().at("read", &path)?;
        let mut partial = Self {
            reservation,
            file,
            length,
            size,
            synced: length,
        };
        if length > size.0 {
            partial.restart()?;
        }
        Ok(partial)
    }

    pub(super) fn length(&self) -> Bytes {
        Bytes(self.length)
    }

    pub(super) fn size(&self) -> Bytes {
        self.size
    }

    pub(super) fn is_complete(&self) -> bool {
        self.length == self.size.0
    }

    /// Adds bytes; more than are missing are refused as a whole.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), Appending> {
        let end = self.length + bytes.len() as u64;
        if end > self.size.0 {
            return Err(Appending::TooLong);
        }
        let path = self.reservation.partial_path();
        let write = || -> Result<(), DiskError> {
            self.file.write_at(bytes, self.length).at("write", &path)?;
            if end - self.synced >= SYNC_EVERY {
                self.file.sync().at("sync", &path)?;
            }
            Ok(())
        };
        write().map_err(Appending::Disk)?;
        if end - self.synced >= SYNC_EVERY {
            self.synced = end;
        }
        self.length = end;
        self.reservation.holds(self.length());
        Ok(())
    }

    /// Gives up what there is.
    pub(super) fn restart(&mut self) -> Result<(), DiskError> {
        let path = self.reservation.partial_path();
        self.file.set_len(0).at("shorten", &path)?;
        (self.length, self.synced) = (0, 0);
        self.reservation.holds(Bytes::ZERO);
        Ok(())
    }

    /// What was remembered of the server; what cannot be read is nothing.
    pub(super) fn notes(&self) -> Notes {
        let path = self.reservation.partial_path().with_extension("json");
        durable::read(self.reservation.store().disk(), &path, NOTES_LIMIT)
            .ok()
            .flatten()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default()
    }

    pub(super) fn set_notes(&self, notes: &Notes) -> Result<(), DiskError> {
        let path = self.reservation.partial_path().with_extension("json");
        // Two texts always have a JSON form.
        let bytes = serde_json::to_vec(notes).unwrap_or_default();
        durable::write(self.reservation.store().disk(), &path, &bytes)
    }
}

/// Why bytes were not added.
#[derive(Debug, thiserror::Error)]
pub(super) enum Appending {
    #[error("it sends more bytes than were announced")]
    TooLong,
    #[error(transparent)]
    Disk(DiskError),
}
