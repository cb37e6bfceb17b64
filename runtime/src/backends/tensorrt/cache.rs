//! Engines and timings kept on disk, so that nothing is built twice. Bounded: the engines used longest ago go first.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use edgeopt_models::Bytes;
use edgeopt_models::bundle::digest_of;

use super::failure::TensorRtError;
use super::plan_file::{self, EngineKey, PlanProblem, WRITTEN};

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
    /// There is one that cannot be used, and why. A damaged one is removed; one that was built for something else stays
    /// until another takes its place.
    Refused(PlanProblem),
}

/// How old a file that is being written may be: what is older was left by a process that was killed.
const LONGEST_WRITE: Duration = Duration::from_secs(3600);

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
                if !matches!(problem, PlanProblem::Differs(_)) {
                    fs::remove_file(&path).map_err(failed)?;
                }
                Ok(Cached::Refused(problem))
            }
        }
    }

    /// Why there is no engine for `key`, by the headers of what is there alone; `None` if there is one.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn missing(&self, key: &EngineKey) -> Result<Option<String>, TensorRtError> {
        let path = self.path(key);
        let refused = match plan_file::read_key(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                return Err(TensorRtError::File {
                    path,
                    problem: error.to_string(),
                });
            }
            Ok(Err(problem)) => Some(problem),
            Ok(Ok(found)) => match key.differences(&found) {
                differences if differences.is_empty() => return Ok(None),
                differences => Some(PlanProblem::Differs(differences)),
            },
        };
        let refused = match refused {
            Some(problem) => Some(problem),
            None => self
                .others(key)?
                .into_iter()
                .next()
                .map(|(_, differences)| PlanProblem::Differs(differences)),
        };
        Ok(Some(match refused {
            Some(problem) => format!("the engine kept from earlier is not used: {problem}"),
            None => "none was built for it on this device yet".to_owned(),
        }))
    }

    /// Engines of the same model and options that another library built, or for another GPU, with what differs.
    fn others(&self, key: &EngineKey) -> Result<Vec<(PathBuf, Vec<String>)>, TensorRtError> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                return Err(TensorRtError::File {
                    path: self.folder.clone(),
                    problem: error.to_string(),
                });
            }
        };
        let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        let plans = paths.filter(|path| path.extension().is_some_and(|extension| extension == "plan"));
        let mut found: Vec<_> = plans
            .filter_map(|path| {
                let other = plan_file::read_key(&path).ok()?.ok()?;
                key.supersedes(&other).then(|| (path, key.differences(&other)))
            })
            .collect();
        // The one that differs least first.
        found.sort_by(|(a, x), (b, y)| (x.len(), a).cmp(&(y.len(), b)));
        Ok(found)
    }

    /// Removes the engines whose place `key`'s has taken: of the same model and options, by another library or for another
    /// GPU. Returns the files.
    ///
    /// # Errors
    /// When the folder cannot be read, or a file not removed.
    pub fn remove_superseded(&self, key: &EngineKey) -> Result<Vec<PathBuf>, TensorRtError> {
        let mut removed = Vec::new();
        for (path, _) in self.others(key)? {
            fs::remove_file(&path).map_err(|error| TensorRtError::File {
                path: path.clone(),
                problem: error.to_string(),
            })?;
            removed.push(path);
        }
        Ok(removed)
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
            let modified = |metadata: &fs::Metadata| metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if path.extension().is_some_and(|extension| extension == "plan") {
                let metadata = entry.metadata().map_err(failed)?;
                files.push((modified(&metadata), metadata.len(), path));
            } else if entry.file_name().to_string_lossy().starts_with(WRITTEN) {
                // It may be renamed at this moment.
                let age = entry
                    .metadata()
                    .ok()
                    .map(|metadata| modified(&metadata).elapsed());
                if age.is_some_and(|age| age.is_ok_and(|age| age > LONGEST_WRITE)) {
                    fs::remove_file(&path).map_err(failed)?;
                }
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
        let mut file = tempfile::Builder::new()
            .prefix(WRITTEN)
            .tempfile_in(&self.folder)
            .map_err(failed)?;
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
    fn an_engine_of_another_library_is_named_and_goes_when_the_new_one_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let cache = EngineCache::new(folder.path(), Bytes::mib(1));
        let by = |builder: &str, target: &str| EngineKey {
            builder: builder.into(),
            target: target.into(),
            ..key("a")
        };
        let (now, mut elsewhere) = (by("TensorRT 10.16.0", "sm_87"), by("TensorRT 10.3.0", "sm_87"));
        elsewhere.options.insert("range of x".into(), "1 2 3".into());
        assert!(cache.missing(&now).unwrap().unwrap().contains("none was built"));
        cache.put(&by("TensorRT 8.5.2", "sm_72"), b"farther").unwrap();
        cache.put(&by("TensorRT 10.3.0", "sm_87"), b"stale").unwrap();
        // Of the same model with other ranges, and of another model: neither is this one's.
        cache.put(&elsewhere, b"with a range").unwrap();
        cache.put(&key("b"), b"of b").unwrap();
        let why = cache.missing(&now).unwrap().unwrap();
        assert!(
            why.contains("built by TensorRT 10.3.0, here TensorRT 10.16.0"),
            "{why}"
        );
        assert!(!why.contains("sm_"), "{why}");
        cache.put(&now, b"fresh").unwrap();
        assert_eq!(cache.missing(&now).unwrap(), None);
        assert_eq!(cache.remove_superseded(&now).unwrap().len(), 2);
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 3, "the new one and those of others");
        assert!(matches!(cache.get(&elsewhere).unwrap(), Cached::Engine(_)));
        assert!(matches!(cache.get(&key("b")).unwrap(), Cached::Engine(_)));
    }

    #[test]
    fn an_engine_that_is_too_large_for_today_s_limit_stays_until_another_takes_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let cache = EngineCache::new(folder.path(), Bytes::mib(1));
        let with = |mib: u64| EngineKey {
            workspace: Some(Bytes::mib(mib)),
            ..key("a")
        };
        cache.put(&with(64), b"large").unwrap();
        let why = cache.missing(&with(32)).unwrap().unwrap();
        assert!(why.contains("workspace 64.0 MiB, here at most 32.0 MiB"), "{why}");
        assert!(matches!(
            cache.get(&with(32)).unwrap(),
            Cached::Refused(PlanProblem::Differs(_))
        ));
        assert!(matches!(cache.get(&with(64)).unwrap(), Cached::Engine(_)));
        cache.put(&with(32), b"small").unwrap();
        assert!(matches!(cache.get(&with(64)).unwrap(), Cached::Engine(plan) if plan == b"small"));
    }

    #[test]
    fn what_a_killed_process_left_half_written_goes() {
        let folder = tempfile::tempdir().unwrap();
        let cache = EngineCache::new(folder.path(), Bytes::mib(1));
        let (old, new) = (
            folder.path().join(".writing-old"),
            folder.path().join(".writing-new"),
        );
        for path in [&old, &new] {
            fs::write(path, b"half").unwrap();
        }
        let long_ago = SystemTime::now() - 2 * LONGEST_WRITE;
        fs::File::options()
            .append(true)
            .open(&old)
            .unwrap()
            .set_modified(long_ago)
            .unwrap();
        cache.put(&key("a"), b"engine").unwrap();
        assert!(!old.exists() && new.exists());
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
