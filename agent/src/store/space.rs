//! Room promised to downloads, and bundles that are in somebody's hands.

use std::collections::BTreeMap;
use std::path::PathBuf;

use edgeopt_models::Bytes;

use super::{BundleDigest, Store, StoreError};
use crate::disk::{At, Found, Room};

/// What is going on, shared by all handles of a store.
#[derive(Debug, Default)]
pub(super) struct Live {
    /// Downloads in progress, and the bytes they will still write.
    pub(super) downloads: BTreeMap<BundleDigest, Bytes>,
    /// How often a bundle is held.
    pub(super) held: BTreeMap<BundleDigest, usize>,
}

/// The right to download one bundle, with room for it. Given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    store: Store,
    digest: BundleDigest,
    size: Bytes,
}

/// Keeps a bundle from being collected until it is dropped, so that there is time to record it in a slot.
#[derive(Debug)]
pub struct Held {
    store: Store,
    digest: BundleDigest,
}

impl Store {
    /// Promises room for the rest of a bundle of `size`, what its partial file holds not counted.
    ///
    /// # Errors
    /// When there is not enough room, now or ever, or the bundle is being downloaded already.
    pub fn reserve(&self, digest: BundleDigest, size: Bytes) -> Result<Reservation, StoreError> {
        let partial = self.partial_path(digest);
        let there = match self.disk().look(&partial).at("look at", &partial)? {
            Some(Found::File(length)) => length,
            _ => Bytes::ZERO,
        };
        let mut live = self.live();
        if live.downloads.contains_key(&digest) {
            return Err(StoreError::Busy(digest));
        }
        let needed = size.saturating_sub(there);
        let Room { free, total } = self
            .disk()
            .room(self.root())
            .at("look for room in", self.root())?;
        let reserved: Bytes = live.downloads.values().copied().sum();
        let margin = self.margin();
        if size > total.saturating_sub(margin) {
            return Err(StoreError::NeverFits { size, total, margin });
        }
        if needed > free.saturating_sub(margin).saturating_sub(reserved) {
            return Err(StoreError::NoSpace {
                size,
                needed,
                free,
                margin,
                reserved,
            });
        }
        live.downloads.insert(digest, needed);
        Ok(Reservation {
            store: self.clone(),
            digest,
            size,
        })
    }

    /// Keeps a bundle from being collected.
    pub fn hold(&self, digest: BundleDigest) -> Held {
        *self.live().held.entry(digest).or_default() += 1;
        Held {
            store: self.clone(),
            digest,
        }
    }
}

impl Reservation {
    /// The bundle.
    pub fn digest(&self) -> BundleDigest {
        self.digest
    }

    /// Its size.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// The store that it will be in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Where to write it.
    pub fn partial_path(&self) -> PathBuf {
        self.store.partial_path(self.digest)
    }

    /// Says how much of it is on disk now, so that only the rest stays promised.
    pub fn holds(&self, length: Bytes) {
        let left = self.size.saturating_sub(length);
        self.store.live().downloads.insert(self.digest, left);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.store.live().downloads.remove(&self.digest);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut live = self.store.live();
        if let Some(count) = live.held.get_mut(&self.digest) {
            *count -= 1;
            if *count == 0 {
                live.held.remove(&self.digest);
            }
        }
    }
}
