use serde::{Deserialize, Serialize};

/// Most bytes of a bundle in one chunk: a slow broker must take each within the client's time limit for one packet.
pub const MAX_CHUNK: u32 = 128 << 10;

/// Bytes before a chunk's header: its length, big-endian.
const LENGTH_BYTES: usize = 4;
/// A header is a few hundred bytes; more is not ours.
const MAX_HEADER: usize = 4096;

/// A device asks for a part of a bundle. It asks again after a silence, so a lost chunk costs a repetition and no state
/// on the other side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BlobRequest {
    /// SHA-256 of the whole bundle, lower-case hex: says which one.
    pub sha256: String,
    /// First byte.
    pub offset: u64,
    /// Bytes wanted, at most [`MAX_CHUNK`] for each chunk.
    pub length: u32,
    /// Chunks wanted, one after the other.
    pub chunks: u16,
}

/// Header of a chunk. The message is the header's length (4 bytes, big-endian), the header as JSON, then the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BlobChunk {
    /// SHA-256 of the whole bundle, lower-case hex.
    pub sha256: String,
    /// Where the bytes belong.
    pub offset: u64,
    /// Size of the whole bundle.
    pub total: u64,
}

/// Why a message is not a chunk.
#[derive(Debug, thiserror::Error)]
pub enum InvalidChunk {
    /// Too short for what it says.
    #[error("chunk of {size} bytes ends within its header")]
    Truncated {
        /// Size of the message.
        size: usize,
    },
    /// The header is not one.
    #[error("chunk's header: {0}")]
    Header(#[from] serde_json::Error),
    /// The header's length is out of range.
    #[error("chunk's header would have {0} bytes; at most {MAX_HEADER} are allowed")]
    HeaderLength(usize),
    /// More bytes than a chunk may have, or than the bundle has behind the offset.
    #[error(
        "chunk has {length} bytes at offset {offset} of {total}; at most {MAX_CHUNK} within the bundle are allowed"
    )]
    Range {
        /// Bytes in the chunk.
        length: usize,
        /// Where they would begin.
        offset: u64,
        /// Size of the bundle.
        total: u64,
    },
}

impl BlobChunk {
    /// The message for `bytes`.
    ///
    /// # Errors
    /// When they are too many, or lie outside the bundle.
    pub fn encode(&self, bytes: &[u8]) -> Result<Vec<u8>, InvalidChunk> {
        self.check(bytes)?;
        let header = serde_json::to_vec(self)?;
        let length = u32::try_from(header.len()).map_err(|_| InvalidChunk::HeaderLength(header.len()))?;
        if header.len() > MAX_HEADER {
            return Err(InvalidChunk::HeaderLength(header.len()));
        }
        Ok([&length.to_be_bytes(), header.as_slice(), bytes].concat())
    }

    /// Takes a message apart into header and bytes.
    ///
    /// # Errors
    /// When it is not a chunk, or lies outside the bundle.
    pub fn decode(message: &[u8]) -> Result<(Self, &[u8]), InvalidChunk> {
        let truncated = || InvalidChunk::Truncated { size: message.len() };
        let (length, rest) = message
            .split_first_chunk::<LENGTH_BYTES>()
            .ok_or_else(truncated)?;
        let length = u32::from_be_bytes(*length) as usize;
        if length > MAX_HEADER {
            return Err(InvalidChunk::HeaderLength(length));
        }
        let (header, bytes) = rest.split_at_checked(length).ok_or_else(truncated)?;
        let header: Self = serde_json::from_slice(header)?;
        header.check(bytes)?;
        Ok((header, bytes))
    }

    fn check(&self, bytes: &[u8]) -> Result<(), InvalidChunk> {
        let length = bytes.len();
        let end = self.offset.checked_add(length as u64);
        if length > MAX_CHUNK as usize || end.is_none_or(|end| end > self.total) {
            return Err(InvalidChunk::Range {
                length,
                offset: self.offset,
                total: self.total,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk() -> BlobChunk {
        BlobChunk {
            sha256: "ab".into(),
            offset: 10,
            total: 14,
        }
    }

    #[test]
    fn chunks_read_back_and_every_truncation_is_noticed_or_shorter() {
        let message = chunk().encode(b"data").unwrap();
        assert_eq!(
            BlobChunk::decode(&message).unwrap(),
            (chunk(), b"data".as_slice())
        );
        for length in 0..message.len() {
            if let Ok((_, bytes)) = BlobChunk::decode(&message[..length]) {
                assert!(bytes.len() < 4);
            }
        }
    }

    #[test]
    fn chunks_outside_the_bundle_or_too_large_are_refused() {
        assert!(matches!(
            chunk().encode(b"data+"),
            Err(InvalidChunk::Range { .. })
        ));
        let wrapping = BlobChunk {
            offset: u64::MAX,
            ..chunk()
        };
        assert!(matches!(wrapping.encode(b"d"), Err(InvalidChunk::Range { .. })));
        let large = BlobChunk {
            total: u64::MAX,
            ..chunk()
        };
        assert!(large.encode(&vec![0; MAX_CHUNK as usize]).is_ok());
        assert!(large.encode(&vec![0; MAX_CHUNK as usize + 1]).is_err());
        let mut lying = chunk().encode(b"data").unwrap();
        lying[..4].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(matches!(
            BlobChunk::decode(&lying),
            Err(InvalidChunk::HeaderLength(_))
        ));
    }
}
