//! The bundle `.edge`: one file that carries a model to a device.
//!
//! A tar archive whose first member is `manifest.json`; it holds the SHA-256 and size of every other member. An
//! optional `manifest.json.minisig` after it signs the manifest, and thereby everything. See `docs/bundle-format.md`.
//!
//! Reading streams: memory stays below 12 MiB whatever a file claims (a manifest has at most 1 MiB of text and 65 536
//! values; ordinary ones take well below 1 MiB), and nothing is handed on under its final name before its digest matched.

mod detection;
mod error;
mod manifest;
mod member;
mod pack;
mod postprocessing;
mod read;
mod sign;

pub use detection::{DetectionFormat, OutputPart};
pub use error::{BundleError, SignatureError};
pub use manifest::*;
pub use member::{MANIFEST, MODEL, REPORT, SIGNATURE};
pub use pack::{Member, digest_of, pack, sign_file, write_file};
pub use postprocessing::{OutputShape, Postprocessing, PostprocessingError};
pub use read::{Limits, extract, map_member, read_manifest, read_member, verify};
pub use sign::{PublicKey, SecretKey, Trust, Trusted, generate_keys};
