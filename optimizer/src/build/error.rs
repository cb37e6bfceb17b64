use edgeopt_models::graph::validate::ValidateError;
use edgeopt_models::opset::OpsetError;
use edgeopt_runtime::RuntimeError;
use edgeopt_runtime::pipeline::postprocess::PostprocessError;

use crate::accuracy::CompareError;
use crate::calibrate::CalibrationError;
use crate::passes::PassError;
use crate::precision::fp16::Fp16Error;
use crate::precision::int8::{Int8Error, SearchError};

/// Why a model cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The model is not valid ONNX.
    #[error(transparent)]
    Invalid(#[from] ValidateError),
    /// Its operator set cannot be raised.
    #[error(transparent)]
    Opset(#[from] OpsetError),
    /// A pass failed.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// INT8 without data.
    #[error("INT8 needs calibration data: typical inputs, 32 to 512 of them")]
    NoCalibrationData,
    /// Calibration failed.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// Conversion to half failed.
    #[error(transparent)]
    Fp16(#[from] Fp16Error),
    /// Quantization failed.
    #[error(transparent)]
    Int8(#[from] Int8Error),
    /// The search for sensitive layers failed.
    #[error(transparent)]
    Search(#[from] SearchError),
    /// Comparing failed.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// The outputs are not what the task declares.
    #[error(transparent)]
    Outputs(#[from] PostprocessError),
    /// Running failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The model cannot be encoded.
    #[error(transparent)]
    Encode(#[from] edgeopt_models::onnx::WriteError),
}
