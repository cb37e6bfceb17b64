//! The backend: from a model to a loaded engine, built only when no earlier one fits.

use std::sync::{Arc, Mutex, PoisonError};

use edgeopt_models::bundle::Precision;
use edgeopt_models::{Bytes, onnx};

use super::builder::{EngineOptions, build_engine};
use super::cache::{Cached, EngineCache};
use super::device::CudaDevice;
use super::engine::{Loading, NAME, TensorRtEngine};
use super::failure::TensorRtError;
use super::library::{Library, Places};
use super::limits::BuildLimits;
use super::plan_file::EngineKey;
use super::shapes::ranges;
use super::watch::{MemoryWatch, Steps, StopRequest, Stoppable};
use crate::memory::available;
use crate::{Backend, CompileOptions, Engine, ModelSource, OnStep, RuntimeError};

/// Memory that must stay free on the machine while an engine is built: below, Linux begins to kill.
pub const BUILD_FLOOR: Bytes = Bytes::mib(200);

/// TensorRT on the machine's GPU.
pub struct TensorRtBackend {
    library: Library,
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
        let library = Library::find(None, places)?;
        let device = CudaDevice::open().map_err(|message| RuntimeError::LibraryNotFound {
            library: "a GPU for TensorRT",
            tried: vec![message],
        })?;
        Ok(Self {
            library,
            device: Arc::new(device),
            cache,
            building: Mutex::new(()),
        })
    }

    fn plan(
        &self,
        onnx: &[u8],
        options: &EngineOptions,
        on_step: Option<&OnStep>,
    ) -> Result<Vec<u8>, TensorRtError> {
        let library = self.library.identity.to_string();
        let target = self.device.target().to_owned();
        let mut key = EngineKey::new(onnx, library.clone(), target.clone(), &options.limits)
            .map_err(|error| TensorRtError::Unsupported(error.to_string()))?;
        for range in &options.ranges {
            let shown = format!("{:?} {:?} {:?}", range.min, range.opt, range.max);
            key.options.insert(format!("range of {}", range.input), shown);
        }
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
        let built = build_engine(&self.library, onnx, &options, &Stoppable::new(&steps, stop))?;
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
            self.library,
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
            .plan(&encoded, &engine_options, options.on_step.as_ref())
            .map_err(refused)?;
        let loading = Loading {
            table: self.library.table,
            entries: self.library.entries,
            device: self.device.clone(),
            budget: options.budget.clone(),
            name,
        };
        Ok(Arc::new(TensorRtEngine::load(&plan, loading)?))
    }
}
