//! The backend: from a model to a loaded engine, built only when no earlier one fits.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use edgeopt_models::bundle::{Precision, read_member};
use edgeopt_models::{Bytes, onnx};

use super::builder::{EngineOptions, build_engine};
use super::cache::{Cached, EngineCache};
use super::device::CudaDevice;
use super::engine::{Loading, NAME, TensorRtEngine};
use super::failure::TensorRtError;
use super::identity::Product;
use super::library::{Library, Places};
use super::limits::BuildLimits;
use super::plan_file::{self, EngineKey};
use super::shapes::ranges;
use super::watch::{MemoryWatch, Steps, StopRequest, Stoppable};
use crate::memory::available;
use crate::{Backend, BundleEngines, CompileOptions, Engine, ModelSource, OnStep, RuntimeError};

/// Memory that must stay free on the machine while an engine is built: below, Linux begins to kill.
pub const BUILD_FLOOR: Bytes = Bytes::mib(200);

/// The largest engine read from a bundle.
const ENGINE_LIMIT: Bytes = Bytes::mib(4 << 10);

/// TensorRT on the machine's GPU.
pub struct TensorRtBackend {
    tensorrt: Library,
    device: Arc<CudaDevice>,
    cache: Option<EngineCache>,
    /// Builds one after the other: two at once need twice the memory.
    building: Mutex<()>,
}

impl TensorRtBackend {
    /// Opens TensorRT and the GPU. Engines are kept in `cache`, if there is one.
    ///
    /// # Errors
    /// When the library, its plugin, the driver or a GPU is missing; says what was tried.
    pub fn new(places: &Places, cache: Option<EngineCache>) -> Result<Self, RuntimeError> {
        let tensorrt = Library::find(None, places)?;
        let device = CudaDevice::open().map_err(|message| RuntimeError::LibraryNotFound {
            library: "a GPU for TensorRT",
            tried: vec![message],
        })?;
        Ok(Self {
            tensorrt,
            device: Arc::new(device),
            cache,
            building: Mutex::new(()),
        })
    }

    fn plan(
        &self,
        onnx: &[u8],
        options: &EngineOptions,
        shipped: Option<&BundleEngines>,
        on_step: Option<&OnStep>,
    ) -> Result<Vec<u8>, TensorRtError> {
        let library = self.tensorrt.identity.to_string();
        // Engines of RTX are made for a GPU when they are loaded.
        let target = match self.tensorrt.identity.product {
            Product::Rtx => "portable".to_owned(),
            Product::TensorRt => self.device.target().to_owned(),
        };
        let key = EngineKey::for_build(onnx, library.clone(), target.clone(), options)
            .map_err(|error| TensorRtError::Unsupported(error.to_string()))?;
        let _one = self.building.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cache) = &self.cache {
            match cache.get(&key)? {
                Cached::Engine(plan) => return Ok(plan),
                Cached::Absent => {}
                Cached::Refused(problem) => {
                    tracing::warn!("an engine kept from earlier is not used: {problem}")
                }
            }
        }
        if let Some(plan) = shipped.and_then(|shipped| from_bundle(shipped, &key)) {
            return Ok(plan);
        }
        let timings = self
            .cache
            .as_ref()
            .and_then(|cache| cache.timings(&library, &target));
        let options = EngineOptions {
            timing_cache: timings,
            ..options.clone()
        };
        let stop = StopRequest::default();
        let _watch = MemoryWatch::start(BUILD_FLOOR, stop.clone(), available);
        let steps = Steps(on_step);
        let built = build_engine(&self.tensorrt, onnx, &options, &Stoppable::new(&steps, stop))?;
        if let Some(cache) = &self.cache {
            for removed in cache.put(&key, &built.plan)? {
                tracing::info!("{} was removed: the cache of engines is full", removed.display());
            }
            if let Some(timings) = &built.timing_cache {
                cache.put_timings(&library, &target, timings)?;
            }
        }
        Ok(built.plan)
    }
}

/// The first engine of a bundle that serves here; why others do not is logged.
fn from_bundle(shipped: &BundleEngines, key: &EngineKey) -> Option<Vec<u8>> {
    for member in &shipped.members {
        let read = File::open(&shipped.bundle)
            .map_err(|error| error.to_string())
            .and_then(|file| read_member(file, member, ENGINE_LIMIT).map_err(|error| error.to_string()));
        let found = read.and_then(|bytes| {
            let plan = plan_file::decode_for(&bytes, key).map_err(|problem| problem.to_string())?;
            Ok(plan.to_vec())
        });
        match found {
            Ok(plan) => return Some(plan),
            Err(problem) => tracing::info!("{member} of the bundle does not serve here: {problem}"),
        }
    }
    None
}

impl Backend for TensorRtBackend {
    fn name(&self) -> &'static str {
        NAME
    }

    fn description(&self) -> String {
        let memory = self
            .device
            .memory()
            .map_or_else(|error| error, |(free, total)| format!("{free} of {total} free"));
        format!(
            "{:?} on {} ({}, {memory})",
            self.tensorrt,
            self.device.name(),
            self.device.target()
        )
    }

    fn compile(
        &self,
        model: ModelSource<'_>,
        options: &CompileOptions,
    ) -> Result<Arc<dyn Engine>, RuntimeError> {
        let refused = |error: TensorRtError| RuntimeError::Compile {
            backend: NAME,
            message: error.to_string(),
        };
        let (name, encoded) = match model {
            ModelSource::Model(model) => (model.graph.name.clone(), onnx::write_bytes(model)?),
            ModelSource::Bytes(bytes) => ("model".to_owned(), bytes.to_vec()),
            ModelSource::Mapped(part) => ("model".to_owned(), part.bytes().to_vec()),
            ModelSource::File(path) => {
                let model = onnx::read_file(path)?;
                (model.graph.name.clone(), onnx::write_bytes(&model)?)
            }
        };
        let limits = match (&options.budget, &options.plan) {
            (Some(budget), Some(plan)) => BuildLimits::derive(&name, budget.available(), plan, None)?,
            _ => BuildLimits::default(),
        };
        let engine_options = EngineOptions {
            // TensorRT 8 needs permission for what the graph holds; a graph without such types does not use it.
            precision: Some(Precision::Int8),
            limits,
            ranges: ranges(&options.declared).map_err(refused)?,
            ..EngineOptions::default()
        };
        let plan = self
            .plan(
                &encoded,
                &engine_options,
                options.engines.as_ref(),
                options.on_step.as_ref(),
            )
            .map_err(refused)?;
        let loading = Loading {
            table: self.tensorrt.table,
            entries: self.tensorrt.entries,
            device: self.device.clone(),
            budget: options.budget.clone(),
            name,
        };
        Ok(Arc::new(TensorRtEngine::load(&plan, loading)?))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use edgeopt_models::bundle::{MODEL, Manifest, Member, pack};

    use super::*;

    #[test]
    fn an_engine_of_the_bundle_is_taken_if_it_serves() {
        let key = |library: &str| {
            let target = "sm_87".to_owned();
            EngineKey::for_build(b"model", library.into(), target, &EngineOptions::default()).unwrap()
        };
        let ours = key("TensorRT 10.3.0");
        let mut cut = plan_file::encode(&ours, b"cut").unwrap();
        cut.pop();
        let members = BTreeMap::from([
            (MODEL.to_owned(), Member::Data(b"model".to_vec())),
            ("engines/a.plan".to_owned(), Member::Data(cut)),
            (
                "engines/b.plan".to_owned(),
                Member::Data(plan_file::encode(&key("TensorRT 8.5.2"), b"older").unwrap()),
            ),
            (
                "engines/c.plan".to_owned(),
                Member::Data(plan_file::encode(&ours, b"ours").unwrap()),
            ),
        ]);
        let manifest = Manifest::new("m", "1", Precision::Int8);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.edge");
        pack(manifest, &members, None, &path).unwrap();
        let (manifest, _) = edgeopt_models::bundle::verify(
            File::open(&path).unwrap(),
            &edgeopt_models::bundle::Limits::default(),
            &edgeopt_models::bundle::Trust::Unchecked,
        )
        .unwrap();
        let shipped = BundleEngines::of(&path, &manifest);
        assert_eq!(shipped.members.len(), 3);
        assert_eq!(from_bundle(&shipped, &ours).as_deref(), Some(&b"ours"[..]));
        assert_eq!(from_bundle(&shipped, &key("TensorRT 11.4.0")), None);
    }
}
