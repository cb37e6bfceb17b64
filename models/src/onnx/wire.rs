//! A walk over the bytes of a model before the protobuf parser sees them.
//!
//! The parser follows *groups* (an encoding ONNX never uses) by unbounded recursion, reports errors without
//! saying where, and copies every weight. This walk is a loop with an explicit stack: it refuses groups, bad
//! varints, lengths beyond the enclosing message and nesting beyond [`MAX_DEPTH`], naming the byte offset and
//! the field; it adds up what the structure will cost in memory and refuses what exceeds [`memory_bound`];
//! and it cuts every tensor's `raw_data` out of what the parser gets, leaving the number of the cut in its
//! place, so that weights can stay in the mapped file.

use std::ops::Range;

use super::schema::{Content, Kind, RAW_DATA, cost, field};
use crate::Bytes;

/// Messages nested deeper than this are refused; the parser's own limit is 100.
pub(super) const MAX_DEPTH: usize = 96;

/// The most memory reading may take, for a file of `len` bytes: 64 MiB and 96 times the file's size.
///
/// Real models take far less, as weights (`raw_data`, external data) are not copied when a file is read, and
/// once when a model is read from memory. A file whose structure would take more, which only one made to
/// exhaust memory does, is refused before it is parsed.
pub fn memory_bound(len: u64) -> Bytes {
    Bytes(Bytes::mib(64).0.saturating_add(len.saturating_mul(96)))
}

/// Bytes that are not a well-formed message.
#[derive(Debug, thiserror::Error)]
#[error("byte {offset}, in {path}: {problem}")]
pub struct WireError {
    /// Where in the file.
    pub offset: usize,
    /// The field, such as `model.graph.node[3].attribute[0]`.
    pub path: String,
    /// What is wrong.
    pub problem: String,
}

/// A model without its raw tensor data.
pub(super) struct Structure {
    /// The message; each non-empty `raw_data` outside functions, sparse tensors and training information is
    /// replaced by the index of its cut as four little-endian bytes.
    pub(super) bytes: Vec<u8>,
    /// Where the raw data lies in the original.
    pub(super) cuts: Vec<Range<usize>>,
    /// What of [`memory_bound`] the structure leaves, in bytes.
    pub(super) budget: u64,
}

struct Frame {
    kind: Kind,
    /// Field of the parent message that this message is, and how many such fields came right before it.
    name: &'static str,
    index: usize,
    /// Position of the length in front of the message (empty for the model).
    length: Range<usize>,
    end: usize,
    /// By how much the message's size changes.
    delta: i64,
    /// Raw data below stays in the message.
    kept: bool,
    last: (u32, usize),
}

enum Patch {
    Length(u64),
    Cut(u32),
}

/// Checks `bytes` and takes the raw data out.
pub(super) fn separate(bytes: &[u8]) -> Result<Structure, WireError> {
    let mut walk = Walk {
        bytes,
        position: 0,
        stack: vec![Frame {
            kind: Kind::Model,
            name: "model",
            index: 0,
            length: 0..0,
            end: bytes.len(),
            delta: 0,
            kept: false,
            last: (0, 0),
        }],
        patches: Vec::new(),
        cuts: Vec::new(),
        cost: cost(Kind::Model) as u64,
    };
    while walk.step()? {}
    walk.finish()
}

struct Walk<'a> {
    bytes: &'a [u8],
    position: usize,
    stack: Vec<Frame>,
    patches: Vec<(Range<usize>, Patch)>,
    cuts: Vec<Range<usize>>,
    cost: u64,
}

impl Walk<'_> {
    /// Takes one field or leaves one message; false at the end.
    fn step(&mut self) -> Result<bool, WireError> {
        let (kind, end, kept) = match self.stack.last() {
            Some(frame) => (frame.kind, frame.end, frame.kept),
            None => return Ok(false),
        };
        if self.position == end {
            self.leave();
            return Ok(true);
        }
        let start = self.position;
        let key = self.varint(end)?;
        let number = u32::try_from(key >> 3)
            .ok()
            .filter(|number| (1..1 << 29).contains(number))
            .ok_or_else(|| self.error(start, format!("{} is no field number", key >> 3)))?;
        let known = field(kind, number);
        self.count(number);
        self.spend(start, if known.is_some() { 160 } else { 1024 })?;
        match key & 7 {
            0 => {
                self.varint(end)?;
            }
            1 => self.skip(start, end, 8)?,
            5 => self.skip(start, end, 4)?,
            2 => {
                let length_start = self.position;
                let len = self.varint(end)?;
                let body = self.position;
                let len = usize::try_from(len)
                    .ok()
                    .filter(|len| *len <= end - body)
                    .ok_or_else(|| {
                        let left = end - body;
                        self.error(
                            start,
                            format!("field {number} has length {len}, but only {left} bytes follow"),
                        )
                    })?;
                match known {
                    Some((name, Content::Message(child))) => {
                        if self.stack.len() >= MAX_DEPTH {
                            return Err(
                                self.error(start, format!("messages are nested more than {MAX_DEPTH} deep"))
                            );
                        }
                        self.spend(start, cost(child))?;
                        let index = self.stack.last().map_or(0, |frame| frame.last.1);
                        self.stack.push(Frame {
                            kind: child,
                            name,
                            index,
                            length: length_start..body,
                            end: body + len,
                            delta: 0,
                            kept: kept
                                || matches!(kind, Kind::Function | Kind::Training | Kind::SparseTensor),
                            last: (0, 0),
                        });
                        return Ok(true);
                    }
                    Some(("raw_data", _))
                        if kind == Kind::Tensor && number == RAW_DATA && !kept && len > 0 =>
                    {
                        let index = u32::try_from(self.cuts.len())
                            .map_err(|_| self.error(start, "more tensors than can be counted".to_owned()))?;
                        self.cuts.push(body..body + len);
                        self.patches.push((length_start..body + len, Patch::Cut(index)));
                        if let Some(frame) = self.stack.last_mut() {
                            frame.delta += 5 - (body + len - length_start) as i64;
                        }
                    }
                    // one byte may be a number of eight, in a vector that doubles, and again in the tensor
                    Some((_, Content::Numbers)) => self.spend(start, len.saturating_mul(40))?,
                    _ => self.spend(start, len.saturating_mul(6))?,
                }
                self.position = body + len;
            }
            wire_type => {
                let what = if matches!(wire_type, 3 | 4) {
                    "a group"
                } else {
                    "an unknown wire type"
                };
                return Err(self.error(
                    start,
                    format!("field {number} is {what}, which ONNX does not use"),
                ));
            }
        }
        Ok(true)
    }

    fn leave(&mut self) {
        let Some(frame) = self.stack.pop() else { return };
        let Some(parent) = self.stack.last_mut() else {
            return;
        };
        if frame.delta != 0 {
            let old = frame.end - frame.length.end;
            let new = old as u64 + frame.delta.unsigned_abs() * u64::from(frame.delta > 0)
                - frame.delta.unsigned_abs() * u64::from(frame.delta < 0);
            parent.delta += frame.delta + varint_len(new) as i64 - frame.length.len() as i64;
            self.patches.push((frame.length, Patch::Length(new)));
        }
    }

    fn finish(mut self) -> Result<Structure, WireError> {
        self.patches.sort_unstable_by_key(|(range, _)| range.start);
        let removed: usize = self.cuts.iter().map(ExactSizeIterator::len).sum();
        let mut bytes = Vec::with_capacity(self.bytes.len() - removed + 16 * self.patches.len());
        let mut position = 0;
        for (range, patch) in &self.patches {
            bytes.extend_from_slice(&self.bytes[position..range.start]);
            match patch {
                Patch::Length(len) => push_varint(&mut bytes, *len),
                Patch::Cut(index) => {
                    bytes.push(4);
                    bytes.extend_from_slice(&index.to_le_bytes());
                }
            }
            position = range.end;
        }
        bytes.extend_from_slice(&self.bytes[position..]);
        Ok(Structure {
            bytes,
            cuts: self.cuts,
            budget: memory_bound(self.bytes.len() as u64).0.saturating_sub(self.cost),
        })
    }

    fn count(&mut self, number: u32) {
        if let Some(frame) = self.stack.last_mut() {
            frame.last = match frame.last {
                (last, count) if last == number => (number, count + 1),
                _ => (number, 0),
            };
        }
    }

    fn spend(&mut self, offset: usize, amount: usize) -> Result<(), WireError> {
        self.cost = self.cost.saturating_add(amount as u64);
        let bound = memory_bound(self.bytes.len() as u64);
        if self.cost > bound.0 {
            return Err(self.error(
                offset,
                format!("reading this file would take more than {bound} of memory, far more than a file of its size needs"),
            ));
        }
        Ok(())
    }

    fn skip(&mut self, start: usize, end: usize, count: usize) -> Result<(), WireError> {
        if end - self.position < count {
            return Err(self.error(
                start,
                format!("{count} bytes are needed, {} follow", end - self.position),
            ));
        }
        self.position += count;
        Ok(())
    }

    fn varint(&mut self, end: usize) -> Result<u64, WireError> {
        let start = self.position;
        let mut value = 0u64;
        for (count, byte) in self.bytes[start..end].iter().take(10).enumerate() {
            if count == 9 && *byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (7 * count);
            if byte & 0x80 == 0 {
                self.position = start + count + 1;
                return Ok(value);
            }
        }
        let problem = if end - start < 10 {
            "the file or message ends inside a number"
        } else {
            "a number has more than 64 bits"
        };
        Err(self.error(start, problem.to_owned()))
    }

    fn error(&self, offset: usize, problem: String) -> WireError {
        let mut path = String::new();
        for frame in &self.stack {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(frame.name);
            if matches!(
                frame.kind,
                Kind::Node | Kind::Attribute | Kind::Tensor | Kind::ValueInfo | Kind::Function
            ) {
                path.push_str(&format!("[{}]", frame.index));
            }
        }
        WireError {
            offset,
            path,
            problem,
        }
    }
}

fn varint_len(value: u64) -> usize {
    (64 - value.leading_zeros()).div_ceil(7).max(1) as usize
}

fn push_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(bytes: &[u8]) -> String {
        separate(bytes).err().unwrap().to_string()
    }

    /// `count` messages around `inner`, each in field `number` of the one outside it.
    fn nested(numbers: &[u32], inner: &[u8]) -> Vec<u8> {
        numbers.iter().rev().fold(inner.to_vec(), |inner, number| {
            let mut outer = Vec::new();
            push_varint(&mut outer, u64::from(number << 3 | 2));
            push_varint(&mut outer, inner.len() as u64);
            outer.extend(inner);
            outer
        })
    }

    #[test]
    fn malformed_bytes_are_refused_with_offset_and_field() {
        for (bytes, expected) in [
            (
                nested(&[7, 1, 5], &[0x0b]),
                "byte 6, in model.graph.node[0].attribute[0]: field 1 is a group",
            ),
            (
                nested(&[7], &[0x9c, 0x06]),
                "byte 2, in model.graph: field 99 is a group",
            ),
            (
                vec![0x3a, 5, 0],
                "byte 0, in model: field 7 has length 5, but only 1 bytes follow",
            ),
            (
                vec![8, 0x80],
                "byte 1, in model: the file or message ends inside a number",
            ),
            (
                vec![8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2, 0],
                "more than 64 bits",
            ),
            (vec![0x00, 0x00], "0 is no field number"),
            (vec![0x0f], "an unknown wire type"),
            (vec![0x0d, 0, 0], "4 bytes are needed, 2 follow"),
        ] {
            let message = problem(&bytes);
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_however_deep() {
        let levels: Vec<u32> = [7]
            .into_iter()
            .chain([1, 5, 6].into_iter().cycle().take(20_000))
            .collect();
        assert!(problem(&nested(&levels, &[])).contains("nested more than 96 deep"));
    }

    #[test]
    fn raw_data_is_cut_and_all_lengths_around_it_follow() {
        for len in [1usize, 5, 130, 20_000] {
            let raw: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let tensor = [nested(&[8], b"w"), nested(&[9], &raw), vec![0x10, 2]].concat();
            let model = [nested(&[7, 5], &tensor), vec![8, 9]].concat();
            let structure = separate(&model).unwrap();
            assert_eq!(model[structure.cuts[0].clone()], raw[..]);
            let tensor = [nested(&[8], b"w"), nested(&[9], &[0; 4]), vec![0x10, 2]].concat();
            assert_eq!(structure.bytes, [nested(&[7, 5], &tensor), vec![8, 9]].concat());
        }
    }

    #[test]
    fn functions_keep_their_tensors() {
        let model = nested(&[25, 7, 5, 5, 9], &[1, 2, 3]);
        assert_eq!(separate(&model).unwrap().bytes, model);
    }

    #[test]
    fn a_file_that_would_take_too_much_memory_is_refused() {
        let nodes = nested(&[7], &[0x0a, 0x00].repeat(1_000_000));
        assert!(problem(&nodes).contains("of memory"));
    }
}
