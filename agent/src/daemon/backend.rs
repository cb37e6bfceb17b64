//! Which library executes models, opened when the first one needs it: a device without a model pays nothing for it.

use std::sync::{Arc, Mutex, PoisonError};

use edgeopt_runtime::backends::cpu::CpuBackend;
use edgeopt_runtime::backends::tensorrt::{EngineCache, Places, TensorRtBackend};
use edgeopt_runtime::{AtHand, Backend, CompileOptions, Engine, ModelSource, RuntimeError};

use crate::config::{self, BackendChoice, WhileBuilding};
use crate::serve::Executors;

/// Opens what the configuration asks for.
fn open_backend(settings: &config::Engine) -> Result<Arc<dyn Backend>, RuntimeError> {
    let tensorrt = || {
        let cache = EngineCache::new(&settings.cache, settings.cache_max);
        TensorRtBackend::new(&Places::usual(), Some(cache))
            .map(|backend| Arc::new(backend) as Arc<dyn Backend>)
    };
    let cpu = || CpuBackend::new().map(|backend| Arc::new(backend) as Arc<dyn Backend>);
    match settings.backend {
        BackendChoice::Cpu => cpu(),
        BackendChoice::Tensorrt => tensorrt(),
        BackendChoice::Auto => tensorrt().or_else(|error| {
            tracing::info!("models run on the CPU: {error}");
            cpu()
        }),
    }
}

/// What executes the models of all slots.
pub(super) fn executors(config: &config::Config) -> Executors {
    let engine = &config.engine;
    let stand_in = match engine.while_building {
        WhileBuilding::None => None,
        WhileBuilding::Cpu => {
            let cpu = config::Engine {
                backend: BackendChoice::Cpu,
                ..engine.clone()
            };
            Some(Arc::new(Lazily::new(cpu)) as Arc<dyn Backend>)
        }
    };
    Executors {
        backend: Arc::new(Lazily::new(engine.clone())),
        stand_in,
        limit: config.memory.limit,
    }
}

/// A backend that is opened at first use. One that could not be opened is tried again the next time.
struct Lazily {
    settings: config::Engine,
    opened: Mutex<Option<Arc<dyn Backend>>>,
}

impl Lazily {
    fn new(settings: config::Engine) -> Self {
        Self {
            settings,
            opened: Mutex::default(),
        }
    }

    fn get(&self) -> Result<Arc<dyn Backend>, RuntimeError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backend) = &*opened {
            return Ok(Arc::clone(backend));
        }
        let backend = open_backend(&self.settings)?;
        tracing::info!("models run on {}", backend.description());
        *opened = Some(Arc::clone(&backend));
        Ok(backend)
    }
}

impl Backend for Lazily {
    fn name(&self) -> &'static str {
        self.get().map_or("none", |backend| backend.name())
    }

    fn description(&self) -> String {
        match self.get() {
            Ok(backend) => backend.description(),
            Err(error) => error.to_string(),
        }
    }

    fn compile(
        &self,
        model: ModelSource<'_>,
        options: &CompileOptions,
    ) -> Result<Arc<dyn Engine>, RuntimeError> {
        self.get()?.compile(model, options)
    }

    fn look_up(&self, model: ModelSource<'_>, options: &CompileOptions) -> Result<AtHand, RuntimeError> {
        self.get()?.look_up(model, options)
    }

    fn build(&self, model: ModelSource<'_>, options: &CompileOptions) -> Result<(), RuntimeError> {
        self.get()?.build(model, options)
    }
}
