use std::path::PathBuf;

use edgeopt_models::Bytes;

use crate::disk::DiskError;

/// Why a spool refuses a record or cannot work.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The file system failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The record is longer than allowed; it was counted and not kept.
    #[error(
        "a record of {size} for {topic:?} is longer than the spool's limit of {limit}; raise max_record or send less"
    )]
    TooLarge {
        /// Where it was to go.
        topic: String,
        /// What it takes on disk.
        size: Bytes,
        /// The most that one record may take.
        limit: Bytes,
    },
    /// There is no room and nothing may be dropped for it; the record was counted and not kept.
    #[error("no room for a record in {folder}: the spool holds {held} of {limit}, free on disk: {free}")]
    Full {
        /// The spool's folder.
        folder: PathBuf,
        /// What it takes.
        held: Bytes,
        /// What it may take.
        limit: Bytes,
        /// What the file system has left.
        free: Bytes,
    },
    /// Another process uses it.
    #[error("{0} is used by another process; stop that one, or give this one another folder")]
    InUse(PathBuf),
    /// The options contradict each other.
    #[error("spool options: {0}")]
    Options(String),
}
