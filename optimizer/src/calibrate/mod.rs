//! Calibration: the ranges of activations, observed on the user's data.
//!
//! The tensors to observe become outputs of a copy of the model, as many at a time as memory allows; what is
//! kept of each is a [`Statistics`] of fixed size, so memory does not depend on the number of samples.

mod collect;
mod extremes;
mod histogram;
mod method;
mod samples;
mod statistics;
mod table;
/// Observing intermediate tensors: a copy of the model with them as outputs, in chunks that fit.
pub mod taps;

pub use collect::{CalibrationError, CalibrationOptions, calibrate};
pub use extremes::{Watched, extremes};
pub use histogram::Histogram;
pub use method::{Method, ParseMethodError};
pub use samples::{SampleError, SampleInputs, Samples};
pub use statistics::{NonFinite, Statistics};
pub use table::{CalibrationTable, TensorRange};
