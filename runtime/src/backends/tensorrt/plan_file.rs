//! Engines on disk: TensorRT's bytes behind a header of our own, which says what they are before the library sees them.
//!
//! TensorRT crashes or misbehaves on some damaged engines, and its own message about a foreign one does not say what
//! differs. So a file holds, in this order: the magic, the header's length (32 bits, little-endian), the header (JSON),
//! TensorRT's bytes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use edgeopt_models::Bytes;
use edgeopt_models::bundle::digest_of;
use serde::{Deserialize, Serialize};

use super::builder::EngineOptions;
use super::failure::TensorRtError;
use super::limits::BuildLimits;

const MAGIC: &[u8; 8] = b"EDGEPLAN";
const FORMAT: u32 = 1;
/// How the name of a file begins while it is written.
pub(super) const WRITTEN: &str = ".writing-";
/// A header takes less than 1 KiB.
const LONGEST_HEADER: usize = 64 << 10;

/// What an engine depends on: with another value of any of these it must be built again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineKey {
    /// SHA-256 of the encoded model.
    pub model: String,
    /// Product and version of the library: `TensorRT 10.3.0`.
    pub builder: String,
    /// Compute capability of the GPU, `sm_87`; `portable` for engines that do not depend on one.
    pub target: String,
    /// Scratch memory that any one layer was allowed. An engine serves wherever at least as much is allowed.
    pub workspace: Option<Bytes>,
    /// Everything else that changes the engine, by name.
    pub options: std::collections::BTreeMap<String, String>,
}

impl EngineKey {
    /// The key for a model built by a library for a target.
    pub fn new(model: &[u8], builder: String, target: String, limits: &BuildLimits) -> std::io::Result<Self> {
        Ok(Self {
            model: digest_of(model)?.0,
            builder,
            target,
            workspace: limits.workspace,
            options: std::collections::BTreeMap::new(),
        })
    }

    /// The key for a model built with `options`, whose ranges of lengths change the engine.
    ///
    /// # Errors
    /// As [`EngineKey::new`].
    pub fn for_build(
        model: &[u8],
        builder: String,
        target: String,
        options: &EngineOptions,
    ) -> std::io::Result<Self> {
        let mut key = Self::new(model, builder, target, &options.limits)?;
        for range in &options.ranges {
            let shown = format!("{:?} {:?} {:?}", range.min, range.opt, range.max);
            key.options.insert(format!("range of {}", range.input), shown);
        }
        Ok(key)
    }

    /// What of `other` does not serve here, in words; empty if it serves.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut compare = |what: &str, wanted: &str, present: &str| {
            if wanted != present {
                found.push(format!("{what} {present}, here {wanted}"));
            }
        };
        compare("built from model", &self.model, &other.model);
        compare("built by", &self.builder, &other.builder);
        compare("built for", &self.target, &other.target);
        let allowed = self.workspace.unwrap_or(Bytes(u64::MAX));
        if other.workspace.unwrap_or(Bytes(u64::MAX)) > allowed {
            let present = other
                .workspace
                .map_or("unlimited".to_owned(), |bytes| bytes.to_string());
            compare("workspace", &format!("at most {allowed}"), &present);
        }
        for name in self.options.keys().chain(other.options.keys()) {
            let value = |key: &Self| key.options.get(name).cloned().unwrap_or_else(|| "not set".into());
            compare(name, &value(self), &value(other));
        }
        found.dedup();
        found
    }

    /// Whether `other` was built for the same model and options, but by another library or for another GPU: where this
    /// one is in place, it is of no use any more.
    pub fn supersedes(&self, other: &Self) -> bool {
        self.model == other.model
            && self.options == other.options
            && (&self.builder, &self.target) != (&other.builder, &other.target)
    }

    /// A name for a file: hex digits of a digest over the key, without the workspace, which is no more than a bound.
    pub fn file_stem(&self) -> String {
        let unbounded = Self {
            workspace: None,
            ..self.clone()
        };
        // A structure of strings and numbers always becomes JSON, and reading from memory does not fail.
        let json = serde_json::to_vec(&unbounded).unwrap_or_default();
        let mut digest = digest_of(&json[..]).map(|(digest, _)| digest).unwrap_or_default();
        digest.truncate(32);
        digest
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: u32,
    key: EngineKey,
    plan_bytes: Bytes,
    plan_sha256: String,
}

/// Why a file is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanProblem {
    /// Not one of ours.
    #[error("it is not an engine that edgeopt wrote")]
    Foreign,
    /// Too short or too long.
    #[error("it is incomplete: it has {found} of {expected}")]
    Size {
        /// Bytes that should be there.
        expected: Bytes,
        /// Bytes that are there.
        found: Bytes,
    },
    /// The digest does not match.
    #[error("it is damaged: its digest is not the one in its header")]
    Damaged,
    /// Built for something else.
    #[error("it was built for something else: {}", .0.join("; "))]
    Differs(Vec<String>),
}

/// The file's bytes for an engine.
///
/// # Errors
/// Never for keys that [`EngineKey::new`] makes.
pub fn encode(key: &EngineKey, plan: &[u8]) -> std::io::Result<Vec<u8>> {
    let header = serde_json::to_vec(&Header {
        format: FORMAT,
        key: key.clone(),
        plan_bytes: Bytes::from(plan.len()),
        plan_sha256: digest_of(plan)?.0,
    })?;
    let mut bytes = Vec::with_capacity(MAGIC.len() + 4 + header.len() + plan.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(plan);
    Ok(bytes)
}

/// Writes an engine beside `path`, then renames.
///
/// # Errors
/// When the folder cannot be written.
pub fn write(path: &Path, key: &EngineKey, plan: &[u8]) -> Result<(), TensorRtError> {
    let failed = |error: std::io::Error| TensorRtError::File {
        path: path.into(),
        problem: error.to_string(),
    };
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(failed)?;
    let mut file = tempfile::Builder::new()
        .prefix(WRITTEN)
        .tempfile_in(folder)
        .map_err(failed)?;
    file.write_all(&encode(key, plan).map_err(failed)?)
        .map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// The key and TensorRT's bytes of a file, checked to be whole.
///
/// # Errors
/// See [`PlanProblem`].
pub fn decode(bytes: &[u8]) -> Result<(EngineKey, &[u8]), PlanProblem> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(PlanProblem::Foreign)?;
    let short = |expected: usize| PlanProblem::Size {
        expected: Bytes::from(expected),
        found: Bytes::from(bytes.len()),
    };
    let (length, rest) = rest.split_first_chunk::<4>().ok_or(short(MAGIC.len() + 4))?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > LONGEST_HEADER {
        return Err(PlanProblem::Foreign);
    }
    let (header, plan) = rest
        .split_at_checked(length)
        .ok_or(short(MAGIC.len() + 4 + length))?;
    let header: Header = serde_json::from_slice(header).map_err(|_| PlanProblem::Foreign)?;
    if header.format != FORMAT {
        return Err(PlanProblem::Foreign);
    }
    if Bytes::from(plan.len()) != header.plan_bytes {
        return Err(PlanProblem::Size {
            expected: header.plan_bytes,
            found: Bytes::from(plan.len()),
        });
    }
    match digest_of(plan) {
        Ok((digest, _)) if digest == header.plan_sha256 => Ok((header.key, plan)),
        _ => Err(PlanProblem::Damaged),
    }
}

/// The key in a file's header, and whether as many bytes follow as it says. The bytes themselves are not read.
///
/// # Errors
/// When the file cannot be read; what is wrong with its content is the inner error.
pub fn read_key(path: &Path) -> io::Result<Result<EngineKey, PlanProblem>> {
    let mut file = File::open(path)?;
    let found = file.metadata()?.len();
    let mut begin = Vec::new();
    Read::by_ref(&mut file)
        .take(MAGIC.len() as u64 + 4)
        .read_to_end(&mut begin)?;
    let Some(length) = begin.strip_prefix(MAGIC).and_then(|rest| rest.first_chunk::<4>()) else {
        return Ok(Err(PlanProblem::Foreign));
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > LONGEST_HEADER {
        return Ok(Err(PlanProblem::Foreign));
    }
    let mut header = Vec::with_capacity(length);
    file.take(length as u64).read_to_end(&mut header)?;
    let Ok(header) = serde_json::from_slice::<Header>(&header) else {
        return Ok(Err(PlanProblem::Foreign));
    };
    let expected = Bytes::from(begin.len() + length) + header.plan_bytes;
    Ok(if header.format != FORMAT {
        Err(PlanProblem::Foreign)
    } else if expected != Bytes(found) {
        Err(PlanProblem::Size {
            expected,
            found: Bytes(found),
        })
    } else {
        Ok(header.key)
    })
}

/// TensorRT's bytes of a file, if it serves where `wanted` is.
///
/// # Errors
/// See [`PlanProblem`].
pub fn decode_for<'a>(bytes: &'a [u8], wanted: &EngineKey) -> Result<&'a [u8], PlanProblem> {
    let (key, plan) = decode(bytes)?;
    let differences = wanted.differences(&key);
    if differences.is_empty() {
        Ok(plan)
    } else {
        Err(PlanProblem::Differs(differences))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> EngineKey {
        EngineKey::new(
            b"model",
            "TensorRT 10.3.0".into(),
            "sm_87".into(),
            &BuildLimits::default(),
        )
        .unwrap()
    }

    #[test]
    fn what_is_written_comes_back_and_every_cut_is_noticed() {
        let bytes = encode(&key(), b"engine of TensorRT").unwrap();
        assert_eq!(decode_for(&bytes, &key()), Ok(&b"engine of TensorRT"[..]));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.plan");
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "cut at {len}");
            std::fs::write(&path, &bytes[..len]).unwrap();
            assert!(read_key(&path).unwrap().is_err(), "cut at {len}");
        }
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(read_key(&path).unwrap(), Ok(key()));
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(matches!(decode(&longer), Err(PlanProblem::Size { .. })));
        let mut damaged = bytes;
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(decode(&damaged), Err(PlanProblem::Damaged));
        assert_eq!(
            decode(b"ftrt an engine of the library itself"),
            Err(PlanProblem::Foreign)
        );
    }

    #[test]
    fn what_differs_is_said() {
        let bytes = encode(&key(), b"engine").unwrap();
        let mut other = key();
        other.builder = "TensorRT 10.16.0".into();
        other.workspace = Some(Bytes::mib(64));
        other.options.insert("ranges".into(), "x 1..4".into());
        let error = decode_for(&bytes, &other).unwrap_err().to_string();
        for part in [
            "built by TensorRT 10.3.0, here TensorRT 10.16.0",
            "workspace unlimited, here at most 64.0 MiB",
            "ranges not set",
        ] {
            assert!(error.contains(part), "{part} in {error}");
        }
        assert_ne!(other.file_stem(), key().file_stem());
    }

    #[test]
    fn an_engine_serves_wherever_it_is_allowed_as_much_as_it_was_built_with() {
        let with = |workspace: Option<u64>| EngineKey {
            workspace: workspace.map(Bytes::mib),
            ..key()
        };
        for (built, allowed, serves) in [
            (Some(10), Some(10), true),
            (Some(10), Some(11), true),
            (Some(10), Some(9), false),
            (Some(10), None, true),
            (None, Some(10), false),
            (None, None, true),
        ] {
            let bytes = encode(&with(built), b"engine").unwrap();
            let found = decode_for(&bytes, &with(allowed));
            assert_eq!(found.is_ok(), serves, "{built:?} where {allowed:?}: {found:?}");
            assert_eq!(with(built).file_stem(), with(allowed).file_stem());
        }
    }
}
