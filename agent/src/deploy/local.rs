//! A content-addressed folder of bundles, filled from files of this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use edgeopt_models::bundle::{Limits, Trust, verify};
use sha2::{Digest, Sha256};

use super::keeper::{Bundles, FetchError};
use crate::protocol::{ModelSource, SlotSpec};

/// Bundles in `<folder>/<sha256>.edge`.
#[derive(Clone)]
pub struct LocalBundles {
    folder: PathBuf,
    trust: Trust,
    slot: String,
    /// What each slot needs.
    needed: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
}

impl LocalBundles {
    /// The store in `folder`, accepting what `trust` accepts.
    pub fn new(folder: impl Into<PathBuf>, trust: Trust) -> Self {
        Self {
            folder: folder.into(),
            trust,
            slot: String::new(),
            needed: Arc::default(),
        }
    }

    /// The same store for a slot, which needs `needed` until it says otherwise.
    #[must_use]
    pub fn for_slot(&self, slot: &str, needed: Vec<String>) -> Self {
        let own = Self {
            slot: slot.to_owned(),
            ..self.clone()
        };
        own.needed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(slot.to_owned(), needed);
        own
    }

    fn note_needed(&self, sha256: &str) {
        let mut needed = self.needed.lock().unwrap_or_else(PoisonError::into_inner);
        needed
            .entry(self.slot.clone())
            .or_default()
            .push(sha256.to_owned());
    }

    /// Copies a file into the store, if it is what the specification says.
    fn adopt(&self, from: &Path, spec: &SlotSpec, superseded: &dyn Fn() -> bool) -> Result<(), FetchError> {
        let failed = |what: &Path, error: std::io::Error| {
            FetchError::Permanent(format!("{}: {error}", what.display()))
        };
        fs::create_dir_all(&self.folder).map_err(|error| failed(&self.folder, error))?;
        let mut source = File::open(from).map_err(|error| failed(from, error))?;
        let mut copy =
            tempfile::NamedTempFile::new_in(&self.folder).map_err(|error| failed(&self.folder, error))?;
        let (mut hash, mut size, mut buffer) = (Sha256::new(), 0u64, vec![0u8; 1 << 20]);
        loop {
            if superseded() {
                return Err(FetchError::Superseded);
            }
            let count = source.read(&mut buffer).map_err(|error| failed(from, error))?;
            if count == 0 {
                break;
            }
            size += count as u64;
            if size > spec.size {
                return Err(FetchError::Permanent(format!(
                    "{} is larger than the {} bytes announced",
                    from.display(),
                    spec.size
                )));
            }
            hash.update(&buffer[..count]);
            copy.write_all(&buffer[..count])
                .map_err(|error| failed(&self.folder, error))?;
        }
        let found: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if found != spec.sha256 || size != spec.size {
            return Err(FetchError::Permanent(format!(
                "{} has {size} bytes and SHA-256 {found}, announced were {} and {}",
                from.display(),
                spec.size,
                spec.sha256
            )));
        }
        let opened = copy.reopen().map_err(|error| failed(&self.folder, error))?;
        let (manifest, _) = verify(BufReader::new(opened), &Limits::default(), &self.trust)
            .map_err(|error| FetchError::Permanent(format!("{}: {error}", from.display())))?;
        if (manifest.name.as_str(), manifest.version.as_str()) != (spec.model.as_str(), spec.version.as_str())
        {
            return Err(FetchError::Permanent(format!(
                "{} holds {} {}, announced was {} {}",
                from.display(),
                manifest.name,
                manifest.version,
                spec.model,
                spec.version
            )));
        }
        let path = self.path(&spec.sha256);
        copy.as_file()
            .sync_all()
            .map_err(|error| failed(&self.folder, error))?;
        copy.persist(&path).map_err(|error| failed(&path, error.error))?;
        File::open(&self.folder)
            .and_then(|folder| folder.sync_all())
            .map_err(|error| failed(&self.folder, error))
    }
}

impl Bundles for LocalBundles {
    fn fetch(&mut self, spec: &SlotSpec, superseded: &dyn Fn() -> bool) -> Result<(), FetchError> {
        let digest = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        if spec.sha256.len() != 64 || !spec.sha256.bytes().all(digest) {
            return Err(FetchError::Permanent(format!(
                "sha256 {:?} is not 64 hex digits",
                spec.sha256
            )));
        }
        self.note_needed(&spec.sha256);
        // What is there was checked when it came, and is named after its digest.
        if self.path(&spec.sha256).is_file() {
            return Ok(());
        }
        let mut reasons = Vec::new();
        for source in &spec.sources {
            let reason = match source {
                ModelSource::Url(url) => match url.strip_prefix("file:") {
                    Some(path) => {
                        match self.adopt(Path::new(path.trim_start_matches("//")), spec, superseded) {
                            Err(FetchError::Permanent(reason)) => reason,
                            other => return other,
                        }
                    }
                    None => format!("{url}: only file: is possible here"),
                },
                ModelSource::Blob(id) => format!("blob {id}: not possible here"),
            };
            reasons.push(reason);
        }
        if reasons.is_empty() {
            reasons.push("no source was given".into());
        }
        Err(FetchError::Permanent(reasons.join("; ")))
    }

    fn path(&self, sha256: &str) -> PathBuf {
        self.folder.join(format!("{sha256}.edge"))
    }

    fn collect(&mut self, needed: &[String]) {
        let mut all = self.needed.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(self.slot.clone(), needed.to_vec());
        let keep: BTreeSet<String> = all
            .values()
            .flatten()
            .map(|sha256| format!("{sha256}.edge"))
            .collect();
        // The lock is held: nobody adds a bundle meanwhile that is not among those needed.
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".edge") && !keep.contains(&name) {
                match fs::remove_file(entry.path()) {
                    Ok(()) => tracing::info!("{name} was removed: no slot needs it"),
                    Err(error) => tracing::warn!("{name} is not needed, but stays: {error}"),
                }
            }
        }
    }
}
