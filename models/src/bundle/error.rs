use std::path::PathBuf;

use crate::Bytes;

/// Why a bundle is refused or cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The file system or the stream failed.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The archive itself is damaged or of another kind.
    #[error("not a bundle: {0}")]
    Archive(String),
    /// A member must not be there, or not like this.
    #[error("member {member:?}: {problem}")]
    Member {
        /// Its path in the archive.
        member: String,
        /// What is wrong.
        problem: String,
    },
    /// A member's content is not what the manifest says.
    #[error(
        "member {member:?} is damaged or was altered: its SHA-256 is {actual}, the manifest says {expected}"
    )]
    Digest {
        /// Its path in the archive.
        member: String,
        /// Lower-case hex.
        expected: String,
        /// Lower-case hex.
        actual: String,
    },
    /// The manifest does not describe a model this version understands.
    #[error("manifest.json: {0}")]
    Manifest(String),
    /// More than the reader's limit.
    #[error("{what} takes {size}, the limit is {limit}")]
    TooLarge {
        /// What is too large.
        what: String,
        /// Its size.
        size: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// The signature does not satisfy the trust asked for.
    #[error(transparent)]
    Signature(#[from] SignatureError),
}

/// Why a signature, or a key, is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    /// There is none.
    #[error("the bundle is not signed; sign it with `edgeopt sign`, or accept unsigned bundles explicitly")]
    Unsigned,
    /// Signed by a key that is not trusted here.
    #[error("the bundle is signed by key {key}, which is not among the trusted keys ({})", trusted.join(", "))]
    UnknownKey {
        /// Id of the signing key.
        key: String,
        /// Ids of the trusted keys.
        trusted: Vec<String>,
    },
    /// The signature does not belong to this manifest.
    #[error("the signature by key {key} does not match the manifest: the bundle was altered after signing")]
    Mismatch {
        /// Id of the signing key.
        key: String,
    },
    /// A key or signature cannot be read.
    #[error("{what}: {problem}")]
    Malformed {
        /// Which key or signature.
        what: String,
        /// What is wrong.
        problem: String,
    },
}
