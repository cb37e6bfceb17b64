use std::time::SystemTime;

use edgeopt_models::Bytes;

use super::record::{self, HEADER, Raw};
use super::segment::{self, Segment};
use super::{CLOCK_SET_MS, DropPolicy, Dropped, FsyncPolicy, Result, Spool, SpoolError, milliseconds};
use crate::disk::{At, DiskError, OpenMode};
use crate::durable;

/// How many sequences are reserved at once: each reservation costs a sync.
pub(super) const RESERVATION: u64 = 1 << 16;
/// Most segments, which bounds memory.
pub(super) const MAX_SEGMENTS: usize = 4096;

/// A record that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Its sequence.
    pub sequence: u64,
    /// What was dropped to make room for it, or because of its age.
    pub dropped: Dropped,
}

/// Why a record was not written.
enum Refusal {
    /// There is no room.
    Full,
    Failed(SpoolError),
}

impl From<DiskError> for Refusal {
    fn from(error: DiskError) -> Self {
        if error.is_full() {
            Self::Full
        } else {
            Self::Failed(error.into())
        }
    }
}

impl Spool {
    /// Adds a record. When it returns, the record survives the end of the process, and a power cut as the policy says.
    ///
    /// # Errors
    /// When the record is too long, there is no room (both are counted), or the file system fails. The record is not
    /// kept then.
    pub fn append(&mut self, topic: &str, payload: &[u8], now: SystemTime) -> Result<Appended> {
        let size = record::size(topic, payload);
        if Bytes::from(size) > self.options.max_record || topic.len() > usize::from(u16::MAX) {
            self.state.counters.oversize_records += 1;
            self.save_state(false)?;
            return Err(SpoolError::TooLarge {
                topic: topic.chars().take(100).collect(),
                size: Bytes::from(size),
                limit: self.options.max_record,
            });
        }
        let time_ms = milliseconds(now);
        let mut dropped = self.expire(time_ms)?;
        loop {
            let refusal = match self.try_append(topic, payload, size, time_ms) {
                Ok(sequence) => {
                    self.sync_if_due();
                    return Ok(Appended { sequence, dropped });
                }
                Err(refusal) => refusal,
            };
            match refusal {
                Refusal::Failed(error) => return Err(error),
                Refusal::Full if self.options.full == DropPolicy::DropOldest && self.can_drop() => {
                    dropped += self.drop_oldest(false)?;
                }
                Refusal::Full => return Err(self.refuse((topic.len() + payload.len()) as u64)?),
            }
        }
    }

    /// Whether dropping the oldest segment frees more than the header of one that was just begun.
    fn can_drop(&self) -> bool {
        let oldest = self.segments.front();
        self.segments.len() > 1 || oldest.is_some_and(|segment| segment.next > segment.first)
    }

    fn refuse(&mut self, bytes: u64) -> Result<SpoolError> {
        self.state.counters.refused_records += 1;
        self.state.counters.refused_bytes += bytes;
        self.save_state(false)?;
        Ok(SpoolError::Full {
            folder: self.folder.clone(),
            held: self.bytes_on_disk(),
            limit: self.options.max_bytes,
            free: self.disk.room(&self.folder).map_or(Bytes::ZERO, |room| room.free),
        })
    }

    /// Writes a record if there is room for it.
    fn try_append(
        &mut self,
        topic: &str,
        payload: &[u8],
        size: usize,
        time_ms: u64,
    ) -> std::result::Result<u64, Refusal> {
        let grown = self.segments.back().map_or(0, |last| last.end + size as u64);
        if self.writer.is_some() && (grown > self.options.segment_bytes.0 || self.is_stretched(time_ms)) {
            self.seal().map_err(Refusal::Failed)?;
        }
        let header = if self.writer.is_some() { 0 } else { HEADER };
        let total = self.bytes_on_disk() + Bytes::from(header + size);
        if total > self.options.max_bytes || (header > 0 && self.segments.len() >= MAX_SEGMENTS) {
            return Err(Refusal::Full);
        }
        if self.next >= self.state.reserved {
            self.state.reserved = self.next + RESERVATION;
            self.save_state(true).map_err(Refusal::Failed)?;
        }
        if self.writer.is_none() {
            self.begin_segment()?;
        }
        self.write_record(topic, payload, size, time_ms)
    }

    /// Whether the last segment spans so much time that dropping it by age would be coarse.
    fn is_stretched(&self, time_ms: u64) -> bool {
        let (Some(age), Some(last)) = (self.options.max_age, self.segments.back()) else {
            return false;
        };
        // A segment begun before the clock was set is given up at once, or its records would gain an age.
        let unset = last.oldest_ms < CLOCK_SET_MS && time_ms >= CLOCK_SET_MS;
        unset || time_ms.saturating_sub(last.oldest_ms) > age.as_millis() as u64 / 8
    }

    /// Ends the last segment.
    fn seal(&mut self) -> Result<()> {
        if self.options.fsync != FsyncPolicy::Never {
            self.sync_records()?;
        }
        self.writer = None;
        self.unsynced = false;
        Ok(())
    }

    fn begin_segment(&mut self) -> std::result::Result<(), Refusal> {
        let segment = Segment::empty(self.next);
        let path = segment::path(&self.folder, segment.first);
        let made: std::result::Result<_, DiskError> = (|| {
            let file = self.disk.open(&path, OpenMode::Create).at("create", &path)?;
            file.write_at(&record::header(segment.first), 0)
                .at("write", &path)?;
            durable::sync_folder_of(self.disk.as_ref(), &path)?;
            Ok(file)
        })();
        match made {
            Ok(file) => {
                self.segments.push_back(segment);
                self.writer = Some(file);
                self.unsynced = true;
                Ok(())
            }
            Err(error) => {
                // A leftover is found and removed at the next start.
                let _ = self.disk.remove(&path);
                Err(Refusal::from(error))
            }
        }
    }

    fn write_record(
        &mut self,
        topic: &str,
        payload: &[u8],
        size: usize,
        time_ms: u64,
    ) -> std::result::Result<u64, Refusal> {
        let sequence = self.next;
        let raw = Raw {
            sequence,
            time_ms,
            topic,
            payload,
        };
        record::encode(&mut self.buffer, raw);
        let (Some(writer), Some(last)) = (&self.writer, self.segments.back_mut()) else {
            return Err(Refusal::Full);
        };
        let path = segment::path(&self.folder, last.first);
        let written = writer
            .write_at(&self.buffer, last.end)
            .at("write", &path)
            .and_then(|()| {
                if self.options.fsync == FsyncPolicy::Always {
                    return writer.sync().at("sync", &path);
                }
                Ok(())
            });
        let Err(error) = written else {
            last.added(size, time_ms);
            self.next += 1;
            self.unsynced = self.options.fsync != FsyncPolicy::Always;
            return Ok(sequence);
        };
        // Taken back, so that the file ends with a whole record. If that fails, or a sync did, nothing may follow in
        // this file; and since the record may be found there later, its sequence is spent.
        let taken_back = writer.set_len(last.end).is_ok();
        if !taken_back {
            last.length = last.end + size as u64;
        }
        if !taken_back || error.action == "sync" {
            self.writer = None;
            self.unsynced = false;
            self.next += 1;
        }
        Err(error.into())
    }
}
