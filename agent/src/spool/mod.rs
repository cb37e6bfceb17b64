//! Results that wait for a connection: a bounded log on disk.
//!
//! ```text
//! <folder>/state                      cursor, counters (two places, overwritten in turn)
//! <folder>/00000000000000000001.log   header, record, record, …   named by its first sequence
//! <folder>/00000000000000004711.log   …                           the last one grows
//! ```
//!
//! A record keeps its sequence for ever, and none is given twice, not even to another record after a power cut: it can
//! serve as message id by which receivers recognise duplicates. Delivery is at least once: acknowledgements may be
//! forgotten by a power cut, never invented. Memory does not grow with what is on disk: it holds some tens of bytes per
//! segment, of at most 4096 segments, and one record.

mod acks;
mod append;
mod counters;
mod error;
mod open;
mod options;
mod read;
mod record;
mod segment;
mod state;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use edgeopt_models::Bytes;

use crate::clock::{Clock, SystemClock};
use crate::disk::{At, Disk, DiskFile, OpenMode, RealDisk};
use acks::Acks;
use segment::{Scanner, Segment, Step};
use state::{State, StateFile};

pub use append::Appended;
pub use counters::Counters;
pub use error::SpoolError;
pub use options::{DropPolicy, FsyncPolicy, SpoolOptions};
pub use read::Record;

/// A shorthand for this module's results.
pub type Result<T> = std::result::Result<T, SpoolError>;

/// Records that were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// How many.
    pub records: u64,
    /// Their topics and payloads, in bytes.
    pub bytes: u64,
}

impl std::ops::AddAssign for Dropped {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.bytes += other.bytes;
    }
}

/// The spool of one folder, which it alone uses.
#[derive(Debug)]
pub struct Spool {
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    folder: PathBuf,
    options: SpoolOptions,
    /// Oldest first; the last one may be open for appending.
    segments: VecDeque<Segment>,
    /// The last segment's file, while records are appended to it.
    writer: Option<Box<dyn DiskFile>>,
    /// It has content that was not synced.
    unsynced: bool,
    synced_at: Duration,
    state_file: StateFile,
    state: State,
    state_synced_at: Duration,
    state_unsynced: bool,
    /// Acknowledged, at or above the cursor.
    acks: Acks,
    /// Sequence of the next record.
    next: u64,
    /// The segment that was read last, and where.
    reader: Option<(u64, Scanner)>,
    /// Reused for encoding.
    buffer: Vec<u8>,
    closed: bool,
}

/// Least time between two syncs of the state that only save duplicates.
const STATE_INTERVAL: Duration = Duration::from_secs(1);
/// A segment that is acknowledged as a whole while it is still appended to is given up beyond this size, so that a
/// drained spool takes little space, and a connected one does not create a file per record.
const SPENT: u64 = 64 << 10;

impl Spool {
    /// Opens the spool in `folder`, creating it if needed, and repairs what a crash left. All records are read once.
    ///
    /// # Errors
    /// When the folder cannot be used, another process has it, or the options contradict each other. Damaged content
    /// is no error; it is counted.
    pub fn open(folder: &Path, options: SpoolOptions) -> Result<Self> {
        Self::open_on(
            Arc::new(RealDisk),
            Arc::new(SystemClock::default()),
            folder,
            options,
        )
    }

    /// Notes that a record was delivered. `false` if it is not waiting: acknowledged before, dropped, unknown, or too
    /// far out of order to be remembered (it is delivered again then).
    ///
    /// # Errors
    /// When the cursor cannot be saved; the acknowledgement counts until the next restart all the same.
    pub fn acknowledge(&mut self, sequence: u64) -> Result<bool> {
        let exists = self
            .segment_at(sequence)
            .is_some_and(|at| self.segments[at].first <= sequence);
        if sequence < self.state.cursor || !exists || !self.acks.insert(sequence) {
            return Ok(false);
        }
        self.state.counters.acknowledged += 1;
        self.settle()?;
        Ok(true)
    }

    /// Counts of what was delivered, lost and refused.
    pub fn counters(&self) -> Counters {
        self.state.counters
    }

    /// Bytes that the spool's files take.
    pub fn bytes_on_disk(&self) -> Bytes {
        Bytes(state::FILE_BYTES + self.segments.iter().map(|segment| segment.length).sum::<u64>())
    }

    /// Records that are not acknowledged yet.
    pub fn len(&self) -> u64 {
        let cursor = self.state.cursor;
        let all: u64 = self
            .segments
            .iter()
            .map(|segment| segment.next.saturating_sub(segment.first.max(cursor)))
            .sum();
        all - self.acks.total()
    }

    /// Whether every record is acknowledged.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is due by time: drops records that are too old, syncs what the policy promises. To be called every second
    /// or so, in particular when nothing is appended.
    ///
    /// # Errors
    /// When the file system fails.
    pub fn maintain(&mut self, now: SystemTime) -> Result<Dropped> {
        let dropped = self.expire(milliseconds(now))?;
        self.sync_if_due();
        if self.state_unsynced && self.clock.elapsed().saturating_sub(self.state_synced_at) >= STATE_INTERVAL
        {
            self.sync_state()?;
        }
        Ok(dropped)
    }

    /// Makes everything durable, whatever the policy.
    ///
    /// # Errors
    /// When the file system fails.
    pub fn sync(&mut self) -> Result<()> {
        self.sync_records()?;
        self.sync_state()
    }

    /// Makes everything durable and lets go of the folder. Dropping the spool does the same, but cannot say whether it
    /// worked.
    ///
    /// # Errors
    /// When the file system fails.
    pub fn close(mut self) -> Result<()> {
        self.shut()
    }

    fn shut(&mut self) -> Result<()> {
        self.closed = true;
        self.sync_records()?;
        // Nothing is in flight: the next record may follow without a gap.
        self.state.reserved = self.next;
        self.save_state(true)
    }

    /// Index of the first segment that ends after `sequence`.
    fn segment_at(&self, sequence: u64) -> Option<usize> {
        let at = self.segments.partition_point(|segment| segment.next <= sequence);
        (at < self.segments.len()).then_some(at)
    }

    /// Moves the cursor over everything that is acknowledged or gone, and deletes segments that it has passed.
    fn settle(&mut self) -> Result<()> {
        loop {
            let before = self.state.cursor;
            let waiting = self
                .segment_at(before)
                .map_or(self.next, |at| self.segments[at].first);
            let cursor = before.max(waiting);
            self.state.cursor = self.acks.take_at(cursor).unwrap_or(cursor);
            if self.state.cursor == before {
                break;
            }
        }
        let spent = self.spent();
        self.save_state(spent > 0)?;
        for _ in 0..spent {
            self.delete_oldest()?;
        }
        Ok(())
    }

    /// How many of the oldest segments hold nothing that waits.
    fn spent(&self) -> usize {
        let passed = |segment: &&Segment| segment.next <= self.state.cursor;
        let count = self.segments.iter().take_while(passed).count();
        let growing = self.writer.is_some() && count == self.segments.len();
        let small = self.segments.back().is_some_and(|last| last.length <= SPENT);
        count - usize::from(growing && small)
    }

    /// Deletes the oldest segment's file. The cursor is past it, so it does no harm if the name comes back.
    fn delete_oldest(&mut self) -> Result<()> {
        let Some(segment) = self.segments.front().copied() else {
            return Ok(());
        };
        if self
            .reader
            .as_ref()
            .is_some_and(|(first, _)| *first == segment.first)
        {
            self.reader = None;
        }
        if self.segments.len() == 1 {
            self.writer = None;
            self.unsynced = false;
        }
        let path = segment::path(&self.folder, segment.first);
        match self.disk.remove(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.at("remove", &path)?,
        }
        self.segments.pop_front();
        Ok(())
    }

    /// Drops the oldest segment with all that waits in it, and says what that was. The loss is counted durably first.
    fn drop_oldest(&mut self, expired: bool) -> Result<Dropped> {
        let Some(segment) = self.segments.front().copied() else {
            return Ok(Dropped::default());
        };
        let dropped = self.waiting_in(&segment);
        let counters = &mut self.state.counters;
        if expired {
            counters.expired_records += dropped.records;
            counters.expired_bytes += dropped.bytes;
        } else {
            counters.dropped_records += dropped.records;
            counters.dropped_bytes += dropped.bytes;
        }
        self.acks.remove(self.state.cursor, segment.next);
        self.state.cursor = self.state.cursor.max(segment.next);
        self.save_state(true)?;
        self.delete_oldest()?;
        self.settle()?;
        Ok(dropped)
    }

    /// Counts what waits in a segment. Bytes that can no longer be read are left out.
    fn waiting_in(&self, segment: &Segment) -> Dropped {
        let mut found = Dropped::default();
        let from = segment.first.max(self.state.cursor);
        found.records = (from..segment.next)
            .filter(|sequence| !self.acks.contains(*sequence))
            .count() as u64;
        let path = segment::path(&self.folder, segment.first);
        let scanner = self
            .disk
            .open(&path, OpenMode::Read)
            .and_then(|file| Scanner::new(file, segment.first));
        if let Ok(Some(mut scanner)) = scanner {
            while let Ok(Step::Record(raw, size)) = scanner.peek(segment.end) {
                if raw.sequence >= from && !self.acks.contains(raw.sequence) {
                    found.bytes += (raw.topic.len() + raw.payload.len()) as u64;
                }
                scanner.pass(size);
            }
        }
        found
    }

    /// Drops segments whose latest record is too old.
    fn expire(&mut self, now_ms: u64) -> Result<Dropped> {
        let mut dropped = Dropped::default();
        let Some(age) = self.options.max_age.map(|age| age.as_millis() as u64) else {
            return Ok(dropped);
        };
        while let Some(front) = self.segments.front() {
            let old = front.newest_ms >= CLOCK_SET_MS && now_ms.saturating_sub(front.newest_ms) > age;
            if !old || front.next <= self.state.cursor {
                break;
            }
            dropped += self.drop_oldest(true)?;
        }
        Ok(dropped)
    }

    fn save_state(&mut self, sync: bool) -> Result<()> {
        self.state_unsynced = true;
        self.state_file.save(&self.state, false)?;
        if sync { self.sync_state() } else { Ok(()) }
    }

    fn sync_state(&mut self) -> Result<()> {
        self.state_file.sync()?;
        self.state_unsynced = false;
        self.state_synced_at = self.clock.elapsed();
        Ok(())
    }

    /// Syncs the segment that grows.
    fn sync_records(&mut self) -> Result<()> {
        if let (true, Some(writer), Some(last)) = (self.unsynced, &self.writer, self.segments.back()) {
            let path = segment::path(&self.folder, last.first);
            if let Err(error) = writer.sync().at("sync", &path) {
                // What did not reach the medium is unknown from here on: nothing may follow it in this file.
                self.writer = None;
                self.unsynced = false;
                return Err(error.into());
            }
        }
        self.unsynced = false;
        self.synced_at = self.clock.elapsed();
        Ok(())
    }

    /// Syncs if the interval is over. A failure is only counted: the records of this interval were never promised.
    fn sync_if_due(&mut self) {
        if let FsyncPolicy::Interval(interval) = self.options.fsync
            && self.unsynced
            && self.clock.elapsed().saturating_sub(self.synced_at) >= interval
            && self.sync_records().is_err()
        {
            self.state.counters.sync_failures += 1;
        }
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        if !self.closed {
            // Without it, the next start finds everything too, with a gap in the sequences.
            let _ = self.shut();
        }
    }
}

/// 2020-01-01: a wall clock before it was not set yet.
const CLOCK_SET_MS: u64 = 1_577_836_800_000;

fn milliseconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
