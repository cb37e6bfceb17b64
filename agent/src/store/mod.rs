//! Bundles on a device, by what they contain.
//!
//! ```text
//! <root>/bundles/<sha256>.edge   complete, digest and signature checked before it got this name
//! <root>/partial/<sha256>        being downloaded: always a first part of the bundle
//! <root>/partial/<sha256>.json   notes for resuming it
//! <root>/slots/<slot>.json       what a slot holds, and how far a change has come
//! ```
//!
//! The files are the truth; there is no index beside them. What counts as present is hashed again when it is taken into
//! use.

mod collect;
mod digest;
mod error;
mod slot;
mod space;
#[cfg(test)]
pub(crate) mod tests;

use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use edgeopt_models::Bytes;
use edgeopt_models::bundle::{self, Limits, Manifest, Trust, Trusted};
use sha2::{Digest, Sha256};

use crate::disk::{At, Disk, DiskFile, OpenMode, RealDisk, Stream};
use crate::durable;
use space::Live;

pub use collect::{Garbage, Removed};
pub use digest::{BundleDigest, InvalidDigest};
pub use error::StoreError;
pub use space::{Held, Reservation};

/// Which bundles are accepted.
#[derive(Clone, Debug)]
pub struct Acceptance {
    /// Whose signature is demanded.
    pub trust: Trust,
    /// How large they may be.
    pub limits: Limits,
}

/// A bundle that is in the store and was checked just now.
#[derive(Debug)]
pub struct Stored {
    /// Its file.
    pub path: PathBuf,
    /// What it says about its model.
    pub manifest: Manifest,
    /// What the check of its signature found.
    pub trusted: Trusted,
    /// Keeps it from being collected; to be dropped when a slot's record names it.
    pub held: Held,
}

/// The store in one folder, which one process uses. Clones share it.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    disk: Arc<dyn Disk>,
    root: PathBuf,
    margin: Bytes,
    live: Mutex<Live>,
    /// Locked against other processes as long as it is open.
    _lock: Mutex<Box<dyn DiskFile>>,
}

impl Store {
    /// Opens the store in `root`, creating it if needed. Downloads leave `margin` of the file system free.
    ///
    /// # Errors
    /// When the folder cannot be used, or another process has it.
    pub fn open(root: &Path, margin: Bytes) -> Result<Self, StoreError> {
        Self::open_on(Arc::new(RealDisk), root, margin)
    }

    /// Opens a store on any disk.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_on(disk: Arc<dyn Disk>, root: &Path, margin: Bytes) -> Result<Self, StoreError> {
        for folder in ["bundles", "partial", "slots"] {
            durable::make_folders(disk.as_ref(), &root.join(folder))?;
        }
        let path = root.join("lock");
        let lock = disk.open(&path, OpenMode::OpenOrCreate).at("open", &path)?;
        if !lock.try_lock().at("lock", &path)? {
            return Err(StoreError::InUse(root.into()));
        }
        Ok(Self(Arc::new(Inner {
            disk,
            root: root.into(),
            margin,
            live: Mutex::default(),
            _lock: Mutex::new(lock),
        })))
    }

    /// Where a complete bundle lies, whether it is there or not.
    pub fn bundle_path(&self, digest: BundleDigest) -> PathBuf {
        self.0.root.join("bundles").join(format!("{digest}.edge"))
    }

    /// Where the first part of a bundle lies while it is downloaded.
    pub fn partial_path(&self, digest: BundleDigest) -> PathBuf {
        self.0.root.join("partial").join(digest.to_string())
    }

    /// Removes what there is of a bundle that was being downloaded, and its notes; it is no error if nothing is there.
    ///
    /// # Errors
    /// When the file system fails.
    pub fn discard(&self, digest: BundleDigest) -> Result<(), StoreError> {
        durable::remove(self.disk(), &self.partial_path(digest).with_extension("json"))?;
        Ok(durable::remove(self.disk(), &self.partial_path(digest))?)
    }

    /// Reads a bundle of the store to its end and checks its digest, signature and members; `None` if it is not there.
    ///
    /// # Errors
    /// When it is damaged or not accepted, or the file system fails.
    pub fn check(&self, digest: BundleDigest, acceptance: &Acceptance) -> Result<Option<Stored>, StoreError> {
        let held = self.hold(digest);
        let path = self.bundle_path(digest);
        let file = match self.disk().open(&path, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.at("open", &path)?,
        };
        let (manifest, trusted) = examine(file.as_ref(), &path, digest, acceptance)?;
        Ok(Some(Stored {
            path,
            manifest,
            trusted,
            held,
        }))
    }

    /// Takes a completely downloaded file into the store, after checking its digest, signature and members. On an
    /// error the partial file stays as it is.
    ///
    /// # Errors
    /// When it is another file or not accepted, or the file system fails.
    pub fn adopt(&self, reservation: &Reservation, acceptance: &Acceptance) -> Result<Stored, StoreError> {
        let digest = reservation.digest();
        let held = self.hold(digest);
        let partial = self.partial_path(digest);
        let path = self.bundle_path(digest);
        let file = self
            .disk()
            .open(&partial, OpenMode::ReadWrite)
            .at("open", &partial)?;
        let (manifest, trusted) = examine(file.as_ref(), &partial, digest, acceptance)?;
        file.sync().at("sync", &partial)?;
        durable::rename(self.disk(), &partial, &path)?;
        Ok(Stored {
            path,
            manifest,
            trusted,
            held,
        })
    }

    pub(crate) fn disk(&self) -> &dyn Disk {
        self.0.disk.as_ref()
    }

    fn root(&self) -> &Path {
        &self.0.root
    }

    fn margin(&self) -> Bytes {
        self.0.margin
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        // Every change to it is a single step: a panic elsewhere leaves it usable.
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks digest and content in one reading.
fn examine(
    file: &dyn DiskFile,
    path: &Path,
    expected: BundleDigest,
    acceptance: &Acceptance,
) -> Result<(Manifest, Trusted), StoreError> {
    let hashing = Hashing {
        inner: Stream::new(file),
        hash: Sha256::new(),
    };
    let mut reader = BufReader::with_capacity(64 << 10, hashing);
    let verified = bundle::verify(&mut reader, &acceptance.limits, &acceptance.trust);
    // An archive may end before its file does.
    io::copy(&mut reader, &mut io::sink()).at("read", path)?;
    let actual = BundleDigest::finish(reader.into_inner().hash);
    if actual != expected {
        return Err(StoreError::Digest {
            path: path.into(),
            expected,
            actual,
        });
    }
    verified.map_err(|source| StoreError::Bundle {
        digest: expected,
        source,
    })
}

struct Hashing<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}
