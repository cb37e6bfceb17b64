//! Bringing bundles into the store, from wherever they can be had.
//!
//! ```text
//! SlotSpec.sources   url "https://…"  ─┐  Range, resumed
//!                    url "file:/…"    ─┼─▶ partial file ──▶ digest, signature, name ──▶ store
//!                    blob "id"        ─┘  chunks over MQTT that the device asks for
//! ```
//!
//! The partial file is always a first part of the bundle, whichever source its bytes came from: a bundle is named by its
//! digest, so sources may take turns, also across restarts. Only the digest of the whole decides. If it is wrong and
//! parts came from different attempts, everything is fetched once more in one piece before a source is given up.

mod chunks;
mod http;
mod local;
mod partial;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use edgeopt_models::Bytes;

use crate::clock::Clock;
use crate::deploy::{Bundles, FetchError, Fetching};
use crate::link::{Backoff, BackoffPolicy};
use crate::protocol::{ModelSource, SlotSpec};
use crate::store::{Acceptance, BundleDigest, Reservation, Store, StoreError, Stored};
use partial::Partial;

pub use chunks::Blobs;
pub use http::{HttpClient, HttpError};

/// How a source's attempt ended.
enum Attempt {
    /// The partial file has its full length.
    Complete,
    /// Something newer is wanted.
    Superseded,
    /// It did not work, and may later.
    Later(String),
    /// It will not work.
    Never(String),
}

/// How often a waiting fetch asks whether it is superseded.
const ASKS: Duration = Duration::from_millis(200);

/// How often a fetch that waits for room looks for it.
const ROOM_AGAIN: Duration = Duration::from_secs(2);

/// How often it is told anew how much is missing.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

/// Waits between rounds over all sources.
const ROUNDS: BackoffPolicy = BackoffPolicy {
    base: Duration::from_secs(2),
    cap: Duration::from_secs(120),
    stable: Duration::from_secs(300),
};

/// The ways into a store for one slot.
#[derive(Clone, Debug)]
pub struct Fetcher {
    store: Store,
    acceptance: Acceptance,
    http: HttpClient,
    blobs: Blobs,
    clock: Arc<dyn Clock>,
}

/// What is fetched.
struct Job<'a> {
    spec: &'a SlotSpec,
    digest: BundleDigest,
    size: Bytes,
    fetching: &'a Fetching<'a>,
}

impl Job<'_> {
    fn superseded(&self) -> bool {
        (self.fetching.superseded)()
    }
}

impl Fetcher {
    /// Fetches into `store` what `acceptance` accepts.
    pub fn new(
        store: Store,
        acceptance: Acceptance,
        http: HttpClient,
        blobs: Blobs,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            store,
            acceptance,
            http,
            blobs,
            clock,
        }
    }

    fn fetch_bundle(&self, job: &Job<'_>) -> Result<(), FetchError> {
        let mut dead: BTreeSet<usize> = BTreeSet::new();
        let mut reasons = vec![String::new(); job.spec.sources.len()];
        let mut backoff = Backoff::new(ROUNDS);
        loop {
            // Room is promised for one round: what others wrote meanwhile is seen before the disk is full.
            let Some(reservation) = self.promised(job)? else {
                return Ok(());
            };
            for (index, source) in job.spec.sources.iter().enumerate() {
                if dead.contains(&index) {
                    continue;
                }
                match self.attempt_source(job, &reservation, source)? {
                    Ok(stored) => {
                        (job.fetching.waits_for)("");
                        return announced(job.spec, &stored);
                    }
                    Err(Failed { reason, for_good }) => {
                        tracing::warn!(model = job.spec.model, version = job.spec.version, "{reason}");
                        reasons[index] = reason;
                        if for_good {
                            dead.insert(index);
                        }
                    }
                }
            }
            drop(reservation);
            if dead.len() == job.spec.sources.len() {
                if reasons.is_empty() {
                    reasons.push("no source was given".into());
                }
                return Err(FetchError::Permanent(reasons.join("; ")));
            }
            let wait = backoff.after(None, fastrand::f64());
            (job.fetching.waits_for)(&format!(
                "next attempt in {:.0} s: {}",
                wait.as_secs_f64(),
                reasons.join("; ")
            ));
            self.wait(job, wait)?;
        }
    }

    /// Waits until there is room for what is missing of the bundle; `None` if it is in the store already.
    fn promised(&self, job: &Job<'_>) -> Result<Option<Reservation>, FetchError> {
        let mut told: Option<Duration> = None;
        loop {
            match self.store.check(job.digest, &self.acceptance) {
                Ok(Some(stored)) => return announced(job.spec, &stored).map(|()| None),
                Ok(None) => {}
                // Damaged on this disk: fetched again, it takes the damaged one's place.
                Err(error @ StoreError::Digest { .. }) => tracing::warn!("{error}; it is fetched again"),
                Err(error) => return Err(permanent(error)),
            }
            let missing = match self.reserve(job)? {
                Ok(reservation) => {
                    if told.is_some() {
                        (job.fetching.waits_for)("");
                    }
                    return Ok(Some(reservation));
                }
                Err(missing) => missing,
            };
            let now = self.clock.elapsed();
            if told.is_none_or(|at| now.saturating_sub(at) >= TOLD_AGAIN) {
                tracing::warn!(model = job.spec.model, version = job.spec.version, "{missing}");
                (job.fetching.waits_for)(&missing);
                told = Some(now);
            }
            self.wait(job, ROOM_AGAIN)?;
        }
    }

    fn wait(&self, job: &Job<'_>, wait: Duration) -> Result<(), FetchError> {
        let until = self.clock.elapsed() + wait;
        while self.clock.elapsed() < until {
            if job.superseded() {
                return Err(FetchError::Superseded);
            }
            self.clock.sleep(ASKS);
        }
        Ok(())
    }

    /// Promises room, after removing what nobody needs if there is too little; otherwise says what is waited for.
    fn reserve(&self, job: &Job<'_>) -> Result<Result<Reservation, String>, FetchError> {
        let mut reserved = self.store.reserve(job.digest, job.size);
        if let Err(StoreError::NoSpace { .. }) = reserved {
            reserved = match self.store.collect() {
                Ok(_) => self.store.reserve(job.digest, job.size),
                Err(error) => Err(error),
            };
        }
        match reserved {
            Ok(reservation) => Ok(Ok(reservation)),
            Err(StoreError::Busy(_)) => Ok(Err("another slot fetches the same bundle".into())),
            Err(error @ StoreError::NoSpace { .. }) => Ok(Err(format!("it waits for room: {error}"))),
            Err(error @ StoreError::Disk(_)) => Ok(Err(format!("it is tried again: {error}"))),
            Err(error) => Err(permanent(error)),
        }
    }

    /// One attempt at one source, and a second one from the beginning if parts of different origin do not fit together.
    fn attempt_source(
        &self,
        job: &Job<'_>,
        reservation: &Reservation,
        source: &ModelSource,
    ) -> Result<Result<Stored, Failed>, FetchError> {
        let later = |error: StoreError| Failed {
            reason: error.to_string(),
            for_good: false,
        };
        loop {
            let mut partial = match Partial::open(reservation, job.size) {
                Ok(partial) => partial,
                Err(error) => return Ok(Err(later(error.into()))),
            };
            let resumed = partial.length() > Bytes::ZERO;
            let attempt = match source {
                _ if partial.is_complete() => Attempt::Complete,
                ModelSource::Url(url) => match url.strip_prefix("file:") {
                    Some(path) => local::copy(path, job, &mut partial),
                    None => self.http.download(url, job, &mut partial),
                },
                ModelSource::Blob(id) => self.blobs.receive(id, job, &mut partial, self.clock.as_ref()),
            };
            match attempt {
                Attempt::Complete => {}
                Attempt::Superseded => return Err(FetchError::Superseded),
                Attempt::Later(reason) => {
                    return Ok(Err(Failed {
                        reason,
                        for_good: false,
                    }));
                }
                Attempt::Never(reason) => {
                    return Ok(Err(Failed {
                        reason,
                        for_good: true,
                    }));
                }
            }
            drop(partial);
            match self.store.adopt(reservation, &self.acceptance) {
                Ok(stored) => return Ok(Ok(stored)),
                Err(StoreError::Digest { actual, .. }) => {
                    self.store.discard(job.digest).map_err(permanent)?;
                    if resumed {
                        continue;
                    }
                    let name = match source {
                        ModelSource::Url(url) => url.clone(),
                        ModelSource::Blob(id) => format!("blob {id}"),
                    };
                    return Ok(Err(Failed {
                        reason: format!("{name}: its SHA-256 is {actual}, announced was {}", job.digest),
                        for_good: true,
                    }));
                }
                // It is what was announced, and it is not acceptable: no other source can help.
                Err(error @ StoreError::Bundle { .. }) => {
                    self.store.discard(job.digest).map_err(permanent)?;
                    return Err(permanent(error));
                }
                Err(error) => return Ok(Err(later(error))),
            }
        }
    }
}

/// Why a source gave nothing.
struct Failed {
    reason: String,
    for_good: bool,
}

fn permanent(error: StoreError) -> FetchError {
    FetchError::Permanent(error.to_string())
}

/// Whether a bundle calls itself what the specification calls it.
fn announced(spec: &SlotSpec, stored: &Stored) -> Result<(), FetchError> {
    let manifest = &stored.manifest;
    if (manifest.name.as_str(), manifest.version.as_str()) == (spec.model.as_str(), spec.version.as_str()) {
        return Ok(());
    }
    Err(FetchError::Permanent(format!(
        "bundle {} holds {} {}, announced was {} {}",
        spec.sha256, manifest.name, manifest.version, spec.model, spec.version
    )))
}

impl Bundles for Fetcher {
    fn fetch(&mut self, spec: &SlotSpec, fetching: &Fetching<'_>) -> Result<(), FetchError> {
        let digest = spec
            .sha256
            .parse()
            .map_err(|error| FetchError::Permanent(format!("sha256: {error}")))?;
        self.fetch_bundle(&Job {
            spec,
            digest,
            size: Bytes(spec.size),
            fetching,
        })
    }

    fn path(&self, sha256: &str) -> PathBuf {
        match sha256.parse() {
            Ok(digest) => self.store.bundle_path(digest),
            // Nothing is ever stored under it.
            Err(_) => Path::new(sha256).to_owned(),
        }
    }

    fn collect(&mut self) {
        match self.store.collect() {
            Ok(removed) => {
                for removed in removed {
                    tracing::info!(path = %removed.path.display(), size = %removed.size, "removed: no slot needs it");
                }
            }
            Err(error) => tracing::warn!("what no slot needs stays on disk: {error}"),
        }
    }
}
