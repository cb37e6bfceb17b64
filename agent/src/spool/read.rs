use super::segment::{self, Scanner, Step};
use super::{Result, Spool};
use crate::disk::{At, OpenMode};

/// A record that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number; later records have greater ones, with gaps.
    pub sequence: u64,
    /// Wall time at which it was appended, in ms since the epoch.
    pub time_ms: u64,
    /// Where it is to go.
    pub topic: String,
    /// What is to go there.
    pub payload: Vec<u8>,
}

/// Linux: the device cannot read this place.
const EIO: i32 = 5;

/// How reading one segment ended.
enum Stop {
    /// At its end.
    Segment,
    /// Enough was read.
    Limit,
    /// At a damaged record.
    Damage,
}

impl Spool {
    /// Reads waiting records in order, those after the sequence `after`, or from the oldest: at most `max_records`, and
    /// `max_bytes` of topics and payloads, but always one if there is one. Acknowledged ones are left out. Reading on
    /// from the last record costs no search.
    ///
    /// # Errors
    /// When the file system fails. A damaged record is no error: it is counted, and reading goes on with the next
    /// segment.
    pub fn read_after(
        &mut self,
        after: Option<u64>,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Vec<Record>> {
        let mut from = after
            .map_or(0, |after| after.saturating_add(1))
            .max(self.state.cursor);
        let mut records = Vec::new();
        let mut bytes = 0;
        while let Some(at) = self.segment_at(from) {
            if records.len() >= max_records {
                break;
            }
            let segment = self.segments[at];
            from = from.max(segment.first);
            let Some(mut scanner) = self.scanner(segment.first, from)? else {
                self.give_up(at, segment.first, segment.end.min(segment::START))?;
                continue;
            };
            let stop = loop {
                if records.len() >= max_records {
                    break Stop::Limit;
                }
                let (raw, size) = match scanner.peek(segment.end) {
                    Ok(Step::Record(raw, size)) => (raw, size),
                    Ok(Step::End) => break Stop::Segment,
                    Ok(Step::Bad) => break Stop::Damage,
                    Err(error) if error.raw_os_error() == Some(EIO) => break Stop::Damage,
                    Err(error) => {
                        return Err(error).at("read", &segment::path(&self.folder, segment.first))?;
                    }
                };
                if raw.sequence >= from && !self.acks.contains(raw.sequence) {
                    let length = raw.topic.len() + raw.payload.len();
                    if !records.is_empty() && bytes + length > max_bytes {
                        break Stop::Limit;
                    }
                    bytes += length;
                    records.push(Record {
                        sequence: raw.sequence,
                        time_ms: raw.time_ms,
                        topic: raw.topic.to_owned(),
                        payload: raw.payload.to_vec(),
                    });
                }
                scanner.pass(size);
            };
            let (sequence, offset) = (scanner.sequence(), scanner.offset());
            self.reader = Some((segment.first, scanner));
            match stop {
                Stop::Limit => break,
                Stop::Segment if sequence == segment.next => from = segment.next,
                // Less than was written is no end but a loss.
                Stop::Segment | Stop::Damage => {
                    from = from.max(sequence);
                    self.give_up(at, sequence, offset)?;
                }
            }
        }
        Ok(records)
    }

    /// A scanner of this segment at `from` or before; `None` if the file is gone or its header damaged.
    fn scanner(&mut self, first: u64, from: u64) -> Result<Option<Scanner>> {
        if let Some((of, scanner)) = self.reader.take()
            && of == first
            && scanner.sequence() <= from
        {
            return Ok(Some(scanner));
        }
        let path = segment::path(&self.folder, first);
        match self.disk.open(&path, OpenMode::Read) {
            Ok(file) => Ok(Scanner::new(file, first).at("read", &path)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).at("open", &path)?,
        }
    }

    /// Gives up a segment from the record `sequence` at `offset` on, and counts that.
    fn give_up(&mut self, at: usize, sequence: u64, offset: u64) -> Result<()> {
        let segment = self.segments[at];
        self.state.counters.corrupt_places += 1;
        self.state.counters.corrupt_bytes += segment.end.saturating_sub(offset);
        self.acks.remove(sequence, segment.next);
        self.reader = None;
        if at + 1 == self.segments.len() {
            self.writer = None;
            self.unsynced = false;
        }
        self.save_state(true)?;
        let path = segment::path(&self.folder, segment.first);
        // So that it is not found, and counted, again. A medium that refuses makes the count too high, not wrong.
        let cut = self
            .disk
            .open(&path, OpenMode::ReadWrite)
            .and_then(|file| file.set_len(offset).and_then(|()| file.sync()));
        let segment = &mut self.segments[at];
        segment.next = sequence;
        segment.end = offset;
        if cut.is_ok() {
            segment.length = offset;
        }
        self.settle()
    }
}
