use std::time::Duration;

use edgeopt_models::Bytes;

use super::SpoolError;
use super::record::{HEADER, MAX_BODY, PREFIX};
use super::state::FILE_BYTES;

/// When appended records are made to survive a power cut. The end of the process alone never loses a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsyncPolicy {
    /// Before `append` returns: nothing that was accepted is lost.
    Always,
    /// At the first append or [`Spool::maintain`](super::Spool::maintain) after this long: what was accepted since is
    /// lost.
    Interval(Duration),
    /// When the system likes to, on Linux usually within 30 s.
    Never,
}

/// What happens to a record for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropPolicy {
    /// It is kept; the oldest segment goes.
    DropOldest,
    /// It is refused.
    RefuseNew,
}

/// Bounds and promises of a spool.
#[derive(Clone, Copy, Debug)]
pub struct SpoolOptions {
    /// Most bytes on disk, all files together.
    pub max_bytes: Bytes,
    /// Records older than this are dropped, exact to an eighth of it; records whose time is before 2020, when the
    /// clock was not set yet, are exempt. `None` keeps them for ever.
    pub max_age: Option<Duration>,
    /// Size of one file of the log: the unit in which space is freed.
    pub segment_bytes: Bytes,
    /// Longest record: topic, payload and 26 bytes.
    pub max_record: Bytes,
    /// When records are made durable.
    pub fsync: FsyncPolicy,
    /// What happens at the bound, and when the disk is full.
    pub full: DropPolicy,
}

impl Default for SpoolOptions {
    /// 64 MiB in files of 1 MiB, a week, records up to 256 KiB, synced every second, the oldest dropped.
    fn default() -> Self {
        Self {
            max_bytes: Bytes::mib(64),
            max_age: Some(Duration::from_secs(7 * 24 * 3600)),
            segment_bytes: Bytes::mib(1),
            max_record: Bytes::kib(256),
            fsync: FsyncPolicy::Interval(Duration::from_secs(1)),
            full: DropPolicy::DropOldest,
        }
    }
}

impl SpoolOptions {
    pub(super) fn check(&self) -> Result<(), SpoolError> {
        let refuse = |problem: String| Err(SpoolError::Options(problem));
        let longest = Bytes::from(PREFIX + MAX_BODY);
        if self.max_record > longest {
            return refuse(format!(
                "max_record is {}, at most {longest} is possible",
                self.max_record
            ));
        }
        let least = Bytes::from(HEADER) + self.max_record;
        if self.segment_bytes < least {
            return refuse(format!(
                "segment_bytes is {}, but one record of max_record takes {least} with the header",
                self.segment_bytes
            ));
        }
        let least = Bytes(FILE_BYTES) + self.segment_bytes + self.segment_bytes;
        if self.max_bytes < least {
            return refuse(format!(
                "max_bytes is {}, but two segments and the state take {least}",
                self.max_bytes
            ));
        }
        Ok(())
    }
}
