use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// SHA-256 of a bundle file: what identifies it everywhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BundleDigest([u8; 32]);

/// A text that is no SHA-256.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a SHA-256: use 64 lower-case hex digits")]
pub struct InvalidDigest(String);

impl BundleDigest {
    pub(crate) fn finish(hash: Sha256) -> Self {
        Self(hash.finalize().into())
    }
}

impl FromStr for BundleDigest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let refuse = || InvalidDigest(text.chars().take(80).collect());
        let nibble = |c: u8| match c {
            b'0'..=b'9' => Some(c - b'0'),
            b'a'..=b'f' => Some(c - b'a' + 10),
            _ => None,
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut out = [0; 32];
        if pairs.len() != out.len() || !rest.is_empty() {
            return Err(refuse());
        }
        for (byte, [high, low]) in out.iter_mut().zip(pairs) {
            let (high, low) = nibble(*high).zip(nibble(*low)).ok_or_else(refuse)?;
            *byte = high << 4 | low;
        }
        Ok(Self(out))
    }
}

impl TryFrom<String> for BundleDigest {
    type Error = InvalidDigest;

    fn try_from(text: String) -> Result<Self, InvalidDigest> {
        text.parse()
    }
}

impl From<BundleDigest> for String {
    fn from(digest: BundleDigest) -> String {
        digest.to_string()
    }
}

impl fmt::Display for BundleDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BundleDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_back_and_anything_else_is_refused() {
        let text = "00ff".to_owned() + &"a1".repeat(30);
        assert_eq!(text.parse::<BundleDigest>().unwrap().to_string(), text);
        for bad in [
            "",
            "00",
            &text[1..],
            &format!("{text}0"),
            &text.to_uppercase(),
            &text.replace('f', "/"),
        ] {
            assert!(bad.parse::<BundleDigest>().is_err(), "{bad}");
        }
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(BundleDigest::finish(Sha256::new()).to_string(), empty);
    }
}
