//! One file of the log, and reading it record by record.

use std::io;
use std::path::{Path, PathBuf};

use super::record::{self, HEADER, PREFIX, Raw};
use crate::disk::{DiskFile, read_full};

/// Where the first record stands.
pub(super) const START: u64 = HEADER as u64;
const READ_AHEAD: usize = 64 << 10;

/// What is known of a segment without reading it. Its records have the sequences `first..next` without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) first: u64,
    pub(super) next: u64,
    /// Where the last whole record ends.
    pub(super) end: u64,
    /// Length of the file: more than `end` only if a failed write could not be taken back.
    pub(super) length: u64,
    /// Wall time of its earliest record, in ms since the epoch; `u64::MAX` without records.
    pub(super) oldest_ms: u64,
    /// Wall time of its latest record.
    pub(super) newest_ms: u64,
}

impl Segment {
    /// A segment with a header and nothing else.
    pub(super) fn empty(first: u64) -> Self {
        Self {
            first,
            next: first,
            end: HEADER as u64,
            length: HEADER as u64,
            oldest_ms: u64::MAX,
            newest_ms: 0,
        }
    }

    /// Takes account of a record of `size` bytes that was added at the end.
    pub(super) fn added(&mut self, size: usize, time_ms: u64) {
        self.next += 1;
        self.end += size as u64;
        self.length = self.length.max(self.end);
        self.oldest_ms = self.oldest_ms.min(time_ms);
        self.newest_ms = self.newest_ms.max(time_ms);
    }
}

/// The file of the segment that starts with `first`.
pub(super) fn path(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("{first:020}.log"))
}

/// The first sequence that a file's name states, if it is a segment's.
pub(super) fn first_of(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log").filter(|digits| digits.len() == 20)?;
    digits
        .bytes()
        .all(|c| c.is_ascii_digit())
        .then(|| digits.parse().ok())?
}

/// What stands at a place of a segment.
#[derive(Debug)]
pub(super) enum Step<'a> {
    /// A record of this size.
    Record(Raw<'a>, usize),
    /// The end.
    End,
    /// No record, and not the end.
    Bad,
}

/// Reads records in order, in a buffer that never exceeds the longest record or the read-ahead.
#[derive(Debug)]
pub(super) struct Scanner {
    file: Box<dyn DiskFile>,
    /// Offset in the file of the next record.
    offset: u64,
    /// Its sequence.
    sequence: u64,
    /// Bytes of the file from `offset` on, as far as they were read.
    buffer: Vec<u8>,
    used: usize,
}

impl Scanner {
    /// Starts after the header; `None` if the header is not that of this segment.
    pub(super) fn new(file: Box<dyn DiskFile>, first: u64) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER];
        let count = read_full(file.as_ref(), &mut header, 0)?;
        Ok(record::is_header(&header[..count], first).then(|| Self {
            file,
            offset: HEADER as u64,
            sequence: first,
            buffer: Vec::new(),
            used: 0,
        }))
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(super) fn into_file(self) -> Box<dyn DiskFile> {
        self.file
    }

    /// Looks at the next record before `end`, which is an offset in the file that never becomes less.
    pub(super) fn peek(&mut self, end: u64) -> io::Result<Step<'_>> {
        let left = end.saturating_sub(self.offset);
        if left == 0 {
            return Ok(Step::End);
        }
        if !self.fill(PREFIX, left)? {
            return Ok(Step::Bad);
        }
        let Some(size) = record::claimed_size(&self.buffer[self.used..]) else {
            return Ok(Step::Bad);
        };
        if !self.fill(size, left)? {
            return Ok(Step::Bad);
        }
        Ok(match record::parse(&self.buffer[self.used..self.used + size]) {
            Some(raw) if raw.sequence == self.sequence => Step::Record(raw, size),
            _ => Step::Bad,
        })
    }

    /// Sees to it that the next `count` bytes are in the buffer; `false` if less than that is left.
    fn fill(&mut self, count: usize, left: u64) -> io::Result<bool> {
        if self.buffer.len() - self.used >= count {
            return Ok(true);
        }
        if count as u64 > left {
            return Ok(false);
        }
        self.buffer.drain(..self.used);
        self.used = 0;
        let have = self.buffer.len();
        let wanted = left.min(count.max(READ_AHEAD) as u64) as usize;
        self.buffer.resize(wanted, 0);
        let read = read_full(
            self.file.as_ref(),
            &mut self.buffer[have..],
            self.offset + have as u64,
        );
        // After an error, what was there before is there still.
        self.buffer
            .truncate(have + read.as_ref().map_or(0, |count| *count));
        read?;
        Ok(self.buffer.len() >= count)
    }

    /// Passes the record of this size that [`Scanner::peek`] found.
    pub(super) fn pass(&mut self, size: usize) {
        self.used += size;
        self.offset += size as u64;
        self.sequence += 1;
    }
}
