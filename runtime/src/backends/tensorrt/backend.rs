//! The backend: from a model to a loaded engine, built only when no earlier one fits.

use std::sync::Arc;

use edgeopt_models::bundle::Precision;
use edgeopt_models::onnx;

use super::builder::EngineOptions;
use super::cache::EngineCache;
use super::device::CudaDevice;
use super::engine::{Loading, NAME, TensorRtEngine};
use super::failure::{Stop, TensorRtError};
use super::library::{Library, Places};
use super::limits::BuildLimits;
use super::maker::{EngineMaker, Found, Wanted};
use super::shapes::ranges;
use crate::{AtHand, Backend, CompileOptions, Engine, ModelSource, RuntimeError};

/// TensorRT on the machine's GPU.
pub struct TensorRtBackend {
    maker: EngineMaker,
    device: Arc<CudaDevice>,
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
            maker: EngineMaker::new(tensorrt, device.target(), cache),
            device: Arc::new(device),
        })
    }
}

/// A model as the builder takes it.
struct Order {
    name: String,
    onnx: Vec<u8>,
    options: EngineOptions,
}

impl Order {
    fn new(model: ModelSource<'_>, options: &CompileOptions) -> Result<Self, RuntimeError> {
        let (name, onnx) = match model {
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
        let options = EngineOptions {
            // TensorRT 8 needs permission for what the graph holds; a graph without such types does not use it.
            precision: Some(Precision::Int8),
            limits,
            ranges: ranges(&options.declared).map_err(refused)?,
            ..EngineOptions::default()
        };
        Ok(Self { name, onnx, options })
    }

    fn wanted<'a>(&'a self, options: &'a CompileOptions) -> Wanted<'a> {
        Wanted {
            onnx: &self.onnx,
            options: &self.options,
            shipped: options.engines.as_ref(),
        }
    }
}

fn refused(error: TensorRtError) -> RuntimeError {
    match error {
        TensorRtError::Stopped(Stop::Asked) => RuntimeError::Cancelled,
        error => RuntimeError::Compile {
            backend: NAME,
            message: error.to_string(),
        },
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
            self.maker.vendor(),
            self.device.name(),
            self.device.target()
        )
    }

    fn compile(
        &self,
        model: ModelSource<'_>,
        options: &CompileOptions,
    ) -> Result<Arc<dyn Engine>, RuntimeError> {
        let order = Order::new(model, options)?;
        let wanted = order.wanted(options);
        let plan = if options.at_hand_only {
            match self.maker.find(&wanted).map_err(refused)? {
                Found::Engine(plan) => plan,
                Found::Missing(why) => return Err(RuntimeError::NotAtHand { why }),
            }
        } else {
            let (on_step, cancel) = (options.on_step.as_ref(), options.cancel.as_ref());
            self.maker.make(&wanted, on_step, cancel).map_err(refused)?
        };
        let library = self.maker.vendor();
        let loading = Loading {
            table: library.table,
            entries: library.entries,
            device: self.device.clone(),
            budget: options.budget.clone(),
            name: order.name,
        };
        Ok(Arc::new(TensorRtEngine::load(&plan, loading)?))
    }

    fn look_up(&self, model: ModelSource<'_>, options: &CompileOptions) -> Result<AtHand, RuntimeError> {
        let order = Order::new(model, options)?;
        self.maker.look_up(&order.wanted(options)).map_err(refused)
    }

    fn build(&self, model: ModelSource<'_>, options: &CompileOptions) -> Result<(), RuntimeError> {
        let order = Order::new(model, options)?;
        let (on_step, cancel) = (options.on_step.as_ref(), options.cancel.as_ref());
        self.maker
            .make(&order.wanted(options), on_step, cancel)
            .map(drop)
            .map_err(refused)
    }
}
