use std::path::PathBuf;

use edgeopt_models::Bytes;
use edgeopt_models::bundle::BundleError;

use super::BundleDigest;
use crate::disk::DiskError;

/// Why the store refuses something or cannot work.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A file has another content than its name says.
    #[error("{path}: its SHA-256 is {actual}, not {expected}: it is damaged or another file")]
    Digest {
        /// The file.
        path: PathBuf,
        /// What it should be.
        expected: BundleDigest,
        /// What it is.
        actual: BundleDigest,
    },
    /// The content is the one asked for, but no bundle that is accepted here.
    #[error("bundle {digest}: {source}")]
    Bundle {
        /// The bundle.
        digest: BundleDigest,
        /// What is wrong with it.
        source: BundleError,
    },
    /// There is not enough room for a download now.
    #[error(
        "no room for a bundle of {size}: {needed} more are needed, {free} are free, of which {margin} stay free and \
         {reserved} are promised to other downloads; remove something, or shrink the margin"
    )]
    NoSpace {
        /// Size of the bundle.
        size: Bytes,
        /// What of it is not on disk yet.
        needed: Bytes,
        /// What the file system has left.
        free: Bytes,
        /// What is never taken.
        margin: Bytes,
        /// What other downloads will still take.
        reserved: Bytes,
    },
    /// There would not be enough room for a download if nothing else were there.
    #[error(
        "a bundle of {size} never fits: the file system holds {total}, of which {margin} stay free; use a larger one, or \
         shrink the margin"
    )]
    NeverFits {
        /// Size of the bundle.
        size: Bytes,
        /// What the file system can hold.
        total: Bytes,
        /// What is never taken.
        margin: Bytes,
    },
    /// The same bundle is being downloaded already.
    #[error("bundle {0} is being downloaded already")]
    Busy(BundleDigest),
    /// A slot's record cannot be understood.
    #[error("{path}: {problem}; restore it or remove it, then deploy to the slot again")]
    Slot {
        /// The record's file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// Another process uses the store.
    #[error("{0} is used by another process; stop that one, or give this one another folder")]
    InUse(PathBuf),
}
