//! Engines found on disk or in a bundle, and built when there is none. Needs no GPU.

use std::fs::File;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use edgeopt_models::Bytes;
use edgeopt_models::bundle::read_member;

use super::builder::{EngineOptions, build_engine};
use super::cache::{Cached, EngineCache};
use super::failure::{Stop, TensorRtError};
use super::identity::Product;
use super::library::Library;
use super::plan_file::{self, EngineKey};
use super::watch::{MemoryWatch, Steps, StopRequest, Stoppable};
use crate::memory::available;
use crate::{AtHand, BundleEngines, Cancel, OnStep};

/// Memory that must stay free on the machine while an engine is built: below, Linux begins to kill.
pub const BUILD_FLOOR: Bytes = Bytes::mib(200);

/// The largest engine read from a bundle.
const ENGINE_LIMIT: Bytes = Bytes::mib(4 << 10);

/// Of the scratch memory that is allowed, this share is left, if there is an engine that takes less: one in so many.
const SPARED: u64 = 8;

/// How often one that waits for another build looks whether it is still wanted.
const WAITING: Duration = Duration::from_millis(20);

/// How often it tells that it waits.
const WAITS_ARE_TOLD: Duration = Duration::from_secs(10);

/// An engine that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The encoded model.
    pub onnx: &'a [u8],
    /// How it is to be built.
    pub options: &'a EngineOptions,
    /// Engines that came with the model.
    pub shipped: Option<&'a BundleEngines>,
}

/// What is there.
#[derive(Debug)]
pub enum Found {
    /// TensorRT's bytes of an engine that serves here.
    Engine(Vec<u8>),
    /// There is none; why.
    Missing(String),
}

/// One TensorRT and one GPU, and the engines that are kept for them.
pub struct EngineMaker {
    tensorrt: Library,
    target: String,
    cache: Option<EngineCache>,
    /// Builds one after the other: two at once need twice the memory.
    building: Mutex<()>,
}

impl EngineMaker {
    /// Makes engines for `gpu` (`sm_87`); they are kept in `cache`, if there is one.
    pub fn new(tensorrt: Library, gpu: &str, cache: Option<EngineCache>) -> Self {
        let target = match tensorrt.identity.product {
            // Engines of RTX are made for a GPU when they are loaded.
            Product::Rtx => "portable",
            Product::TensorRt => gpu,
        };
        Self {
            target: target.to_owned(),
            tensorrt,
            cache,
            building: Mutex::new(()),
        }
    }

    /// The library.
    pub fn vendor(&self) -> &Library {
        &self.tensorrt
    }

    fn key(&self, wanted: &Wanted<'_>) -> Result<EngineKey, TensorRtError> {
        let library = self.tensorrt.identity.to_string();
        EngineKey::for_build(wanted.onnx, library, self.target.clone(), wanted.options)
            .map_err(|error| TensorRtError::Unsupported(error.to_string()))
    }

    /// Whether an engine is at hand, and if not, what differs in those that are there. Of the cache only headers are read:
    /// that an engine is damaged shows when it is taken.
    ///
    /// # Errors
    /// When the cache cannot be read.
    pub fn look_up(&self, wanted: &Wanted<'_>) -> Result<AtHand, TensorRtError> {
        let key = self.key(wanted)?;
        let missing = match self.cache.as_ref().map(|cache| cache.missing(&key)).transpose()? {
            Some(None) => None,
            cached => from_bundle(wanted.shipped, &key)
                .err()
                .map(|others| why(cached.flatten(), others)),
        };
        Ok(AtHand {
            key: key.file_stem(),
            missing,
        })
    }

    /// The engine, if one is at hand and whole.
    ///
    /// # Errors
    /// When the cache cannot be read.
    pub fn find(&self, wanted: &Wanted<'_>) -> Result<Found, TensorRtError> {
        self.find_by(&self.key(wanted)?, wanted.shipped)
    }

    fn find_by(&self, key: &EngineKey, shipped: Option<&BundleEngines>) -> Result<Found, TensorRtError> {
        let mut cached = None;
        if let Some(cache) = &self.cache {
            cached = match cache.get(key)? {
                Cached::Engine(plan) => return Ok(Found::Engine(plan)),
                Cached::Absent => cache.missing(key)?,
                Cached::Refused(problem) => {
                    Some(format!("the engine kept from earlier is not used: {problem}"))
                }
            };
        }
        Ok(match from_bundle(shipped, key) {
            Ok(plan) => Found::Engine(plan),
            Err(others) => Found::Missing(why(cached, others)),
        })
    }

    /// The engine; built and kept if none is at hand. What another build leaves is waited for. A build that fails or is
    /// cancelled leaves nothing.
    ///
    /// # Errors
    /// When it cannot be built or kept; [`TensorRtError::Stopped`] when it was cancelled.
    pub fn make(
        &self,
        wanted: &Wanted<'_>,
        on_step: Option<&OnStep>,
        cancel: Option<&Cancel>,
    ) -> Result<Vec<u8>, TensorRtError> {
        let key = self.key(wanted)?;
        // Not behind a build that lasts.
        if let Found::Engine(plan) = self.find_by(&key, wanted.shipped)? {
            return Ok(plan);
        }
        let _one = self.turn(on_step, cancel)?;
        match self.find_by(&key, wanted.shipped)? {
            Found::Engine(plan) => Ok(plan),
            Found::Missing(why) => {
                tracing::info!("an engine is built: {why}");
                self.build(&key, wanted, on_step, cancel)
            }
        }
    }

    /// Waits until no other engine is built.
    fn turn(
        &self,
        on_step: Option<&OnStep>,
        cancel: Option<&Cancel>,
    ) -> Result<MutexGuard<'_, ()>, TensorRtError> {
        let mut told = None::<Instant>;
        loop {
            match self.building.try_lock() {
                Ok(turn) => return Ok(turn),
                Err(TryLockError::Poisoned(turn)) => return Ok(turn.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
            if cancel.is_some_and(Cancel::is_asked) {
                return Err(TensorRtError::Stopped(Stop::Asked));
            }
            // Whoever watches must not think that it hangs.
            if told.is_none_or(|told| told.elapsed() >= WAITS_ARE_TOLD) {
                told = Some(Instant::now());
                on_step.inspect(|on_step| on_step.done());
            }
            thread::sleep(WAITING);
        }
    }

    fn build(
        &self,
        key: &EngineKey,
        wanted: &Wanted<'_>,
        on_step: Option<&OnStep>,
        cancel: Option<&Cancel>,
    ) -> Result<Vec<u8>, TensorRtError> {
        let (library, target) = (&key.builder, &key.target);
        let timings = self
            .cache
            .as_ref()
            .and_then(|cache| cache.timings(library, target));
        let options = EngineOptions {
            timing_cache: timings,
            ..wanted.options.clone()
        };
        let stop = StopRequest::with(cancel.cloned());
        let _watch = MemoryWatch::start(BUILD_FLOOR, stop.clone(), available);
        let steps = Steps(on_step);
        let within = |workspace: Option<Bytes>| {
            let mut options = options.clone();
            options.limits.workspace = workspace;
            let events = Stoppable::new(&steps, stop.clone());
            build_engine(&self.tensorrt, wanted.onnx, &options, &events)
        };
        // What is free differs a little from one start to the next: an engine that takes the last byte of scratch memory
        // would have to be built again at every other.
        let mut allowed = key.workspace.map(|all| Bytes(all.0 - all.0 / SPARED));
        let mut built = within(allowed);
        if matches!(built, Err(TensorRtError::Workspace { .. })) {
            allowed = key.workspace;
            built = within(allowed);
        }
        let built = built?;
        // A library that tells of no steps is not stopped by them.
        if stop.reason() == Some(Stop::Asked) {
            return Err(TensorRtError::Stopped(Stop::Asked));
        }
        if let Some(cache) = &self.cache {
            // It serves wherever its layers find the scratch memory that they take, however much they were allowed.
            let taken = built
                .scratch
                .map(|scratch| allowed.map_or(scratch, |allowed| allowed.min(scratch)));
            let key = EngineKey {
                workspace: taken.or(allowed),
                ..key.clone()
            };
            for removed in cache.put(&key, &built.plan)? {
                tracing::info!("{} was removed: the cache of engines is full", removed.display());
            }
            for removed in cache.remove_superseded(&key)? {
                tracing::info!("{} was removed: a new engine is in its place", removed.display());
            }
            if let Some(timings) = &built.timing_cache {
                cache.put_timings(library, target, timings)?;
            }
        }
        Ok(built.plan)
    }
}

/// Why no engine is at hand, in one line.
fn why(cached: Option<String>, shipped: Vec<String>) -> String {
    let all: Vec<String> = cached.into_iter().chain(shipped).collect();
    match all.as_slice() {
        [] => "none was built for it, and none is kept here".to_owned(),
        all => all.join("; "),
    }
}

/// The first engine of a bundle that serves here, or why each does not.
fn from_bundle(shipped: Option<&BundleEngines>, key: &EngineKey) -> Result<Vec<u8>, Vec<String>> {
    let mut refused = Vec::new();
    let Some(shipped) = shipped else {
        return Err(refused);
    };
    for member in &shipped.members {
        let read = File::open(&shipped.bundle)
            .map_err(|error| error.to_string())
            .and_then(|file| read_member(file, member, ENGINE_LIMIT).map_err(|error| error.to_string()));
        let found = read.and_then(|bytes| {
            let plan = plan_file::decode_for(&bytes, key).map_err(|problem| problem.to_string())?;
            Ok(plan.to_vec())
        });
        match found {
            Ok(plan) => return Ok(plan),
            Err(problem) => refused.push(format!("{member} of the bundle does not serve here: {problem}")),
        }
    }
    Err(refused)
}

#[cfg(test)]
#[path = "maker_tests.rs"]
mod tests;
