//! One file per command.

pub(crate) mod bench;
pub(crate) mod build;
pub(crate) mod compare;
pub(crate) mod doctor;
pub(crate) mod fleet;
pub(crate) mod inspect;
pub(crate) mod keygen;
pub(crate) mod labels;
pub(crate) mod lengths;
pub(crate) mod run;
pub(crate) mod sign;
pub(crate) mod task;
pub(crate) mod verify;

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use edgeopt_models::bundle::{self, Limits, Manifest, Trust};
use edgeopt_models::{Model, onnx};
use edgeopt_runtime::{Backend, CompileOptions, Engine, ModelSource, RuntimeError, compile_declared};

/// A model as the command line takes it: an ONNX file, or a bundle with its manifest.
pub(crate) struct Given {
    /// The graph.
    pub(crate) model: Model,
    /// What the bundle says about it; none for an ONNX file.
    pub(crate) manifest: Option<Manifest>,
}

impl Given {
    /// Compiles the model, held to what its bundle declares if it came in one.
    pub(crate) fn compile(
        &self,
        backend: &dyn Backend,
        options: &CompileOptions,
    ) -> Result<Arc<dyn Engine>, RuntimeError> {
        let model = ModelSource::Model(&self.model);
        match &self.manifest {
            Some(manifest) => compile_declared(manifest, model, backend, options),
            None => backend.compile(model, options),
        }
    }
}

/// Reads a model from an `.onnx` or `.edge` file; which of the two is told by content.
pub(crate) fn read_model(path: &Path) -> anyhow::Result<Given> {
    if !is_bundle(path)? {
        let model = onnx::read_file(path).with_context(|| format!("cannot use {}", path.display()))?;
        return Ok(Given {
            model,
            manifest: None,
        });
    }
    let open = || std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()));
    let (manifest, _) = bundle::read_manifest(open()?, &Limits::default(), &Trust::Unchecked)?;
    let member = bundle::map_member(path, bundle::MODEL)?;
    let model =
        onnx::read_mapped(&member).with_context(|| format!("{} in {}", bundle::MODEL, path.display()))?;
    Ok(Given {
        model,
        manifest: Some(manifest),
    })
}

/// A tar archive has `ustar` at byte 257; an ONNX model starts with its IR version.
fn is_bundle(path: &Path) -> anyhow::Result<bool> {
    let file = std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut start = Vec::new();
    file.take(262)
        .read_to_end(&mut start)
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(start.get(257..262) == Some(b"ustar"))
}
