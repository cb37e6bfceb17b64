//! How records and segment headers look as bytes. All numbers are little-endian.

/// First bytes of a segment; the digit is the format's version.
const MAGIC: &[u8; 8] = b"EOSPOOL1";
/// Size of a segment's header: magic, first sequence, 12 zeros, CRC32C of the preceding.
pub(super) const HEADER: usize = 32;
/// Bytes before a record's body: length of the body, CRC32C of length and body.
pub(super) const PREFIX: usize = 8;
/// Bytes of a body before topic and payload: sequence, wall time, length of the topic.
const FIXED: usize = 18;
/// Longest body that a reader accepts, whatever a file claims.
pub(super) const MAX_BODY: usize = 4 << 20;

/// A record as it lies in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Raw<'a> {
    pub(super) sequence: u64,
    pub(super) time_ms: u64,
    pub(super) topic: &'a str,
    pub(super) payload: &'a [u8],
}

/// Bytes that a record takes on disk.
pub(super) fn size(topic: &str, payload: &[u8]) -> usize {
    PREFIX + FIXED + topic.len() + payload.len()
}

/// Replaces `out` by the record's bytes. The topic has at most 65 535 bytes, the body at most [`MAX_BODY`].
pub(super) fn encode(out: &mut Vec<u8>, record: Raw<'_>) {
    let body = FIXED + record.topic.len() + record.payload.len();
    out.clear();
    out.extend_from_slice(&(body as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&record.sequence.to_le_bytes());
    out.extend_from_slice(&record.time_ms.to_le_bytes());
    out.extend_from_slice(&(record.topic.len() as u16).to_le_bytes());
    out.extend_from_slice(record.topic.as_bytes());
    out.extend_from_slice(record.payload);
    let checksum = checksum(&out[..4], &out[PREFIX..]);
    out[4..PREFIX].copy_from_slice(&checksum.to_le_bytes());
}

fn checksum(length: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(length), body)
}

/// The size that a record states in its first [`PREFIX`] bytes, if it can be that of a record.
pub(super) fn claimed_size(bytes: &[u8]) -> Option<usize> {
    let body = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    (FIXED..=MAX_BODY).contains(&body).then_some(PREFIX + body)
}

/// Reads a record from all of its bytes; `None` if they are not one.
pub(super) fn parse(bytes: &[u8]) -> Option<Raw<'_>> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, body) = rest.split_first_chunk::<4>()?;
    let whole = u32::from_le_bytes(*length) as usize == body.len();
    if !whole || checksum(length, body) != u32::from_le_bytes(*sum) {
        return None;
    }
    fields(body)
}

fn fields(body: &[u8]) -> Option<Raw<'_>> {
    let (sequence, rest) = body.split_first_chunk::<8>()?;
    let (time, rest) = rest.split_first_chunk::<8>()?;
    let (topic_length, rest) = rest.split_first_chunk::<2>()?;
    let (topic, payload) = rest.split_at_checked(usize::from(u16::from_le_bytes(*topic_length)))?;
    Some(Raw {
        sequence: u64::from_le_bytes(*sequence),
        time_ms: u64::from_le_bytes(*time),
        topic: std::str::from_utf8(topic).ok()?,
        payload,
    })
}

/// The header of a segment whose first record has this sequence.
pub(super) fn header(first: u64) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..8].copy_from_slice(MAGIC);
    out[8..16].copy_from_slice(&first.to_le_bytes());
    let sum = crc32c::crc32c(&out[..HEADER - 4]);
    out[HEADER - 4..].copy_from_slice(&sum.to_le_bytes());
    out
}

/// Whether this is the header of such a segment.
pub(super) fn is_header(bytes: &[u8], first: u64) -> bool {
    bytes == header(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: Raw<'_> = Raw {
        sequence: 3,
        time_ms: 1_700_000_000_123,
        topic: "models/a/result",
        payload: b"\x00\xff payload",
    };

    #[test]
    fn a_record_reads_back_as_written() {
        let mut bytes = vec![9; 3];
        encode(&mut bytes, RECORD);
        assert_eq!(bytes.len(), size(RECORD.topic, RECORD.payload));
        assert_eq!(claimed_size(&bytes), Some(bytes.len()));
        assert_eq!(parse(&bytes), Some(RECORD));
    }

    #[test]
    fn a_part_of_a_record_is_never_taken_for_one() {
        let mut bytes = Vec::new();
        encode(&mut bytes, RECORD);
        for length in 0..bytes.len() {
            assert_eq!(parse(&bytes[..length]), None, "{length}");
        }
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let mut bytes = Vec::new();
        encode(&mut bytes, RECORD);
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&changed), None, "bit {bit}");
        }
        assert!(!is_header(&header(4), 5));
        assert!(!is_header(&header(4)[..31], 4));
    }
}
