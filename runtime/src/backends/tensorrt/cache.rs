//! Engines and timings kept on disk, so that nothing is built twice. Bounded: the engines used longest ago go first.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use edgeopt_models::Bytes;
use edgeopt_models::bundle::digest_of;

use super::failure::TensorRtError;
use super::plan_file::{self, EngineKey, PlanProblem};

/// A folder of engines.
#[derive(Clone, Debug)]
pub struct EngineCache {
    folder: PathBuf,
    limit: Bytes,
}

/// What a look into the cache finds.
#[derive(Debug)]
pub enum Cached {
    /// TensorRT's bytes of an engine built for exactly this key.
    Engine(Vec<u8>),
    /// There is none.
    Absent,
    /// There was one that cannot be used, and why; it is removed.
    Refused(PlanProblem),
}

impl EngineCache {
    /// A cache of at most `limit` in `folder`, which is made when it is first written to.
    pub fn new(folder: impl Into<PathBuf>, limit: Bytes) -> Self {
        Self {
            folder: folder.into(),
            limit,
        }
    }

    fn path(&self, key: &EngineKey) -> PathBuf {
        self.folder.join(format!("{}.plan", key.file_stem()))
    }

    /// Looks for the engine of `key`; marks it as used.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn get(&self, key: &EngineKey) -> Result<Cached, TensorRtError> {
        let path = self.path(key);
        let failed = |error: std::io::Error| TensorRtError::File {
            path: path.clone(),
            problem: error.to_string(),
        };
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Cached::Absent),
            Err(error) => return Err(failed(error)),
        };
        match plan_file::decode_for(&bytes, key) {
            Ok(plan) => {
                // Only the order of removal depends on the time: a file system that refuses costs nothing else.
                if let Ok(file) = fs::File::options().append(true).open(&path) {
                    let _ = file.set_modified(SystemTime::now());
                }
                Ok(Cached::Engine(plan.to_vec()))
            }
            Err(problem) => {
                fs::remove_file(&path).map_err(failed)?;
                Ok(Cached::Refused(problem))
            }
        }
    }

    /// Keeps an engine and removes those used longest ago beyond the limit; the new one stays in any case. Returns the
    /// files removed.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn put(&self, key: &EngineKey, plan: &[u8]) -> Result<Vec<PathBuf>, TensorRtError> {
        let path = self.path(key);
        plan_file::write(&path, key, plan)?;
        self.trim(&path)
    }

    fn trim(&self, newest: &Path) -> Result<Vec<PathBuf>, TensorRtError> {
        let failed = |error: std::io::Error| TensorRtError::File {
            path: self.folder.clone(),
            problem: error.to_string(),
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "plan") {
                let metadata = entry.metadata().map_err(failed)?;
                files.push((
                    metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                    metadata.len(),
                    path,
                ));
            }
        }
        files.sort();
        let mut total: u64 = files.iter().map(|(_, size, _)| size).sum();
        let mut removed = Vec::new();
        for (_, size, path) in files {
            if total <= self.limit.0 {
                break;
            }
            if path == newest {
                continue;
            }
            fs::remove_file(&path).map_err(failed)?;
            total -= size;
            removed.push(path);
        }
        Ok(removed)
    }

    /// Timings of earlier builds by `library` for `target`. A damaged file counts as none: TensorRT itself takes junk
    /// without a word.
    pub fn timings(&self, library: &str, target: &str) -> Option<Vec<u8>> {
        let bytes = fs::read(self.timings_path(library, target)).ok()?;
        let (digest, timings) = bytes.split_at_checked(64)?;
        let found = digest_of(timings).ok()?.0;
        (found.as_bytes() == digest).then(|| timings.to_vec())
    }

    /// Keeps timings for later builds.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn put_timings(&self, library: &str, target: &str, timings: &[u8]) -> Result<(), TensorRtError> {
        let path = self.timings_path(library, target);
        let failed = |error: std::io::Error| TensorRtError::File {
            path: path.clone(),
            problem: error.to_string(),
        };
        fs::create_dir_all(&self.folder).map_err(failed)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.folder).map_err(failed)?;
        let digest = digest_of(timings).map_err(failed)?.0;
        std::io::Write::write_all(&mut file, digest.as_bytes()).map_err(failed)?;
        std::io::Write::write_all(&mut file, timings).map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    fn timings_path(&self, library: &str, target: &str) -> PathBuf {
        self.folder
            .join(format!("{}-{target}.timings", library.replace(' ', "-")))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::limits::BuildLimits;
    use super::*;

    fn key(model: &str) -> EngineKey {
        EngineKey::new(
            model.as_bytes(),
            "TensorRT 10.3.0".into(),
            "sm_87".into(),
            &BuildLimits::default(),
        )
        .unwrap()
    }

    #[test]
    fn engines_come_back_until_the_limit_and_the_longest_unused_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = EngineCache::new(folder.path().join("engines"), Bytes(3000));
        assert!(matches!(cache.get(&key("a")).unwrap(), Cached::Absent));
        for name in ["a", "b"] {
            assert!(cache.put(&key(name), &[7; 900]).unwrap().is_empty());
            std::thread::sleep(Duration::from_millis(15));
        }
        assert!(matches!(cache.get(&key("a")).unwrap(), Cached::Engine(plan) if plan == [7; 900]));
        std::thread::sleep(Duration::from_millis(15));
        assert_eq!(cache.put(&key("c"), &[7; 900]).unwrap(), [cache.path(&key("b"))]);
        assert!(matches!(cache.get(&key("b")).unwrap(), Cached::Absent));
        assert!(matches!(cache.get(&key("a")).unwrap(), Cached::Engine(_)));
        // One that is larger than everything stays alone.
        assert_eq!(cache.put(&key("d"), &[7; 9000]).unwrap().len(), 2);
        assert!(matches!(cache.get(&key("d")).unwrap(), Cached::Engine(_)));
    }

    #[test]
    fn a_damaged_engine_is_refused_once_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = EngineCache::new(folder.path(), Bytes::mib(1));
        cache.put(&key("a"), b"engine").unwrap();
        let path = cache.path(&key("a"));
        let mut bytes = fs::read(&path).unwrap();
        bytes.pop();
        fs::write(&path, bytes).unwrap();
        assert!(matches!(
            cache.get(&key("a")).unwrap(),
            Cached::Refused(PlanProblem::Size { .. })
        ));
        assert!(matches!(cache.get(&key("a")).unwrap(), Cached::Absent));
    }

    #[test]
    fn timings_that_are_damaged_count_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let cache = EngineCache::new(folder.path(), Bytes::mib(1));
        assert_eq!(cache.timings("TensorRT 10.3.0", "sm_87"), None);
        cache.put_timings("TensorRT 10.3.0", "sm_87", b"timings").unwrap();
        assert_eq!(
            cache.timings("TensorRT 10.3.0", "sm_87").as_deref(),
            Some(&b"timings"[..])
        );
        assert_eq!(cache.timings("TensorRT 10.3.0", "sm_72"), None);
        let path = cache.timings_path("TensorRT 10.3.0", "sm_87");
        let mut bytes = fs::read(&path).unwrap();
        bytes[70] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(cache.timings("TensorRT 10.3.0", "sm_87"), None);
    }
}
