use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use super::append::{MAX_SEGMENTS, RESERVATION};
use super::segment::{self, Scanner, Segment, Step};
use super::state::StateFile;
use super::{Acks, DropPolicy, FsyncPolicy, Result, Spool, SpoolError, SpoolOptions};
use crate::clock::Clock;
use crate::disk::{At, Disk, DiskFile, OpenMode};
use crate::durable;

/// A segment as it was found.
struct Found {
    segment: Segment,
    file: Box<dyn DiskFile>,
    /// Bytes after the last whole record.
    rest: u64,
}

impl Spool {
    /// Opens a spool on any disk, with any clock.
    ///
    /// # Errors
    /// As [`Spool::open`].
    pub fn open_on(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        folder: &Path,
        options: SpoolOptions,
    ) -> Result<Self> {
        options.check()?;
        durable::make_folders(disk.as_ref(), folder)?;
        let opened = StateFile::open(disk.as_ref(), &folder.join("state"))?;
        let (state_file, state) = opened.ok_or_else(|| SpoolError::InUse(folder.into()))?;
        let now = clock.elapsed();
        let mut spool = Self {
            disk,
            clock,
            folder: folder.into(),
            options,
            segments: VecDeque::new(),
            writer: None,
            unsynced: false,
            synced_at: now,
            state_file,
            state: state.unwrap_or_default(),
            state_synced_at: now,
            state_unsynced: false,
            acks: Acks::default(),
            next: 1,
            reader: None,
            buffer: Vec::new(),
            // Until everything is found, dropping this must not save what was not found.
            closed: true,
        };
        let last = spool.find_segments(state.is_none())?;
        spool.continue_after(last, state.is_none())?;
        spool.settle()?;
        while spool.options.full == DropPolicy::DropOldest
            && spool.bytes_on_disk() > spool.options.max_bytes
            && !spool.segments.is_empty()
        {
            spool.drop_oldest(false)?;
        }
        spool.closed = false;
        Ok(spool)
    }

    /// Takes in the segments on disk, oldest first; gives the last one's file.
    fn find_segments(&mut self, state_lost: bool) -> Result<Option<Box<dyn DiskFile>>> {
        let mut names = BTreeSet::new();
        let mut surplus = false;
        let mut visit = |name: &str| {
            names.extend(segment::first_of(name));
            if names.len() > MAX_SEGMENTS {
                names.pop_first();
                surplus = true;
            }
        };
        self.disk
            .names(&self.folder, &mut visit)
            .at("list", &self.folder)?;
        if state_lost {
            // Unknown what was acknowledged: everything on disk is delivered again.
            self.state.cursor = names.first().copied().unwrap_or(1);
        }
        if surplus {
            self.remove_before(names.first().copied().unwrap_or(0))?;
        }
        let last_first = names.last().copied();
        let mut last = None;
        for first in names {
            let path = segment::path(&self.folder, first);
            let is_last = Some(first) == last_first;
            let overlaps = self.segments.back().is_some_and(|before| first < before.next);
            let Some(found) = self.examine(&path, first)?.filter(|_| !overlaps) else {
                self.discard(&path, is_last)?;
                continue;
            };
            self.take_in(&path, found, is_last).map(|file| last = file)?;
        }
        Ok(last)
    }

    /// Reads a segment to its end; `None` if it has no valid header.
    fn examine(&self, path: &Path, first: u64) -> Result<Option<Found>> {
        let file = self.disk.open(path, OpenMode::ReadWrite).at("open", path)?;
        let length = file.length().at("read", path)?;
        let Some(mut scanner) = Scanner::new(file, first).at("read", path)? else {
            return Ok(None);
        };
        let mut segment = Segment::empty(first);
        let rest = loop {
            match scanner.peek(length) {
                Ok(Step::Record(raw, size)) => {
                    segment.added(size, raw.time_ms);
                    scanner.pass(size);
                }
                // A place that the medium cannot read is as good as damaged.
                Ok(Step::End | Step::Bad) | Err(_) => break length - segment.end,
            }
        };
        Ok(Some(Found {
            segment,
            file: scanner.into_file(),
            rest,
        }))
    }

    /// Adds a segment that was found; cuts off what is no record, after counting it.
    fn take_in(&mut self, path: &Path, found: Found, is_last: bool) -> Result<Option<Box<dyn DiskFile>>> {
        let Found { segment, file, rest } = found;
        if rest > 0 {
            let counters = &mut self.state.counters;
            if is_last {
                counters.torn_bytes += rest;
            } else {
                counters.corrupt_places += 1;
                counters.corrupt_bytes += rest;
            }
            self.save_state(true)?;
            file.set_len(segment.end).at("cut", path)?;
            file.sync().at("sync", path)?;
        }
        // What a killed process appended may be in memory only; the policy's promise holds from here on as well.
        if is_last && self.options.fsync != FsyncPolicy::Never {
            file.sync().at("sync", path)?;
        }
        self.segments.push_back(segment);
        Ok(is_last.then_some(file))
    }

    /// Removes a file that is no segment though it is called one.
    fn discard(&mut self, path: &Path, is_last: bool) -> Result<()> {
        let length = match self.disk.look(path).at("look at", path)? {
            Some(crate::disk::Found::File(length)) => length.0,
            _ => return Ok(()),
        };
        let counters = &mut self.state.counters;
        if is_last {
            counters.torn_bytes += length;
        } else {
            counters.corrupt_places += 1;
            counters.corrupt_bytes += length;
        }
        self.save_state(true)?;
        Ok(durable::remove(self.disk.as_ref(), path)?)
    }

    /// Drops segments that are too many to be kept in mind.
    fn remove_before(&mut self, first_kept: u64) -> Result<()> {
        loop {
            let mut batch = BTreeSet::new();
            let mut visit = |name: &str| {
                batch.extend(segment::first_of(name).filter(|first| *first < first_kept));
                if batch.len() > MAX_SEGMENTS {
                    batch.pop_last();
                }
            };
            self.disk
                .names(&self.folder, &mut visit)
                .at("list", &self.folder)?;
            if batch.is_empty() {
                return Ok(());
            }
            for first in batch {
                let path = segment::path(&self.folder, first);
                match self.examine(&path, first)? {
                    Some(found) => {
                        self.segments.push_back(found.segment);
                        self.drop_oldest(false)?;
                    }
                    None => self.discard(&path, false)?,
                }
            }
        }
    }

    /// Decides the next sequence, and whether the last segment can be continued.
    fn continue_after(&mut self, file: Option<Box<dyn DiskFile>>, state_lost: bool) -> Result<()> {
        let last = self.segments.back().copied();
        let after_last = last.map_or(1, |segment| segment.next).max(self.state.cursor);
        self.next = after_last.max(self.state.reserved);
        if state_lost && last.is_some() {
            // Unknown what was given to records that are gone: at most one reservation.
            self.next += RESERVATION;
        }
        let continues = last.is_some_and(|segment| segment.next == self.next);
        self.writer = file.filter(|_| continues);
        // A last segment without records would stand in the way of one with the same first sequence.
        if let Some(segment) = last.filter(|segment| !continues && segment.first == segment.next) {
            let path = segment::path(&self.folder, segment.first);
            durable::remove(self.disk.as_ref(), &path)?;
            self.segments.pop_back();
        }
        Ok(())
    }
}
