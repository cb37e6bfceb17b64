//! Removing what nobody needs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use edgeopt_models::Bytes;

use super::{BundleDigest, Store, StoreError};
use crate::deploy::SlotRecord;
use crate::disk::{At, Found};
use crate::durable;

/// What a removed file was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Garbage {
    /// A bundle that no slot holds.
    Bundle,
    /// A download that nobody continues, or its notes.
    Partial,
    /// A file whose writing was interrupted.
    Leftover,
}

/// A file that was removed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Removed {
    /// The file.
    pub path: PathBuf,
    /// What it was.
    pub what: Garbage,
    /// What it took.
    pub size: Bytes,
}

impl Store {
    /// Removes bundles that are in no slot's record and not held, downloads that are neither in progress nor desired
    /// by a slot, and files whose writing was interrupted; says what it removed. Other files are left alone.
    ///
    /// # Errors
    /// When a slot's record cannot be understood (nothing is removed then: it might name anything), or the file system
    /// fails.
    pub fn collect(&self) -> Result<Vec<Removed>, StoreError> {
        // Held throughout: nothing can be reserved, held or recorded while the decision is made.
        let live = self.live();
        let records = self.slots()?;
        let mut kept: BTreeSet<BundleDigest> = records.values().flat_map(SlotRecord::bundles).collect();
        kept.extend(live.held.keys());
        kept.extend(live.downloads.keys());

        let mut removed = Vec::new();
        for folder in ["bundles", "partial", "slots"] {
            let folder = self.root().join(folder);
            let mut garbage = Vec::new();
            let mut visit = |name: &str| {
                let what = if durable::is_temporary(name) {
                    // Notes of a download in progress may be written right now.
                    let digest = name.get(1..65).and_then(|digest| digest.parse().ok());
                    let busy = digest.is_some_and(|digest| live.downloads.contains_key(&digest));
                    (!busy).then_some(Garbage::Leftover)
                } else {
                    let (stem, what) = match folder.file_name().and_then(|name| name.to_str()) {
                        Some("bundles") => (name.strip_suffix(".edge"), Garbage::Bundle),
                        Some("partial") => (name.strip_suffix(".json").or(Some(name)), Garbage::Partial),
                        _ => (None, Garbage::Leftover),
                    };
                    let digest = stem.and_then(|stem| stem.parse::<BundleDigest>().ok());
                    digest.filter(|digest| !kept.contains(digest)).map(|_| what)
                };
                garbage.extend(what.map(|what| (folder.join(name), what)));
            };
            self.disk().names(&folder, &mut visit).at("list", &folder)?;
            self.remove_all(&folder, garbage, &mut removed)?;
        }
        removed.sort();
        Ok(removed)
    }

    fn remove_all(
        &self,
        folder: &Path,
        garbage: Vec<(PathBuf, Garbage)>,
        removed: &mut Vec<Removed>,
    ) -> Result<(), StoreError> {
        let any = !garbage.is_empty();
        for (path, what) in garbage {
            let Some(Found::File(size)) = self.disk().look(&path).at("look at", &path)? else {
                continue;
            };
            self.disk().remove(&path).at("remove", &path)?;
            removed.push(Removed { path, what, size });
        }
        if any {
            self.disk().sync_folder(folder).at("sync folder", folder)?;
        }
        Ok(())
    }
}
