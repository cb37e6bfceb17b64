use std::error::Error;

use edgeopt_models::Tensor;
use edgeopt_runtime::dataset::Dataset;

/// Why a sample could not be had.
pub type SampleError = Box<dyn Error + Send + Sync>;

/// The inputs of one sample, in the order of the model's required inputs.
pub type SampleInputs = Vec<Tensor>;

/// Data that can be read from the start again and again, a sample at a time.
pub trait Samples {
    /// Starts at the first sample.
    ///
    /// # Errors
    /// When the data cannot be opened.
    fn open(&self) -> Result<Box<dyn Iterator<Item = Result<SampleInputs, SampleError>> + '_>, SampleError>;
}

impl Samples for [SampleInputs] {
    fn open(&self) -> Result<Box<dyn Iterator<Item = Result<SampleInputs, SampleError>> + '_>, SampleError> {
        Ok(Box::new(self.iter().cloned().map(Ok)))
    }
}

impl Samples for Vec<SampleInputs> {
    fn open(&self) -> Result<Box<dyn Iterator<Item = Result<SampleInputs, SampleError>> + '_>, SampleError> {
        self.as_slice().open()
    }
}

impl Samples for Dataset {
    fn open(&self) -> Result<Box<dyn Iterator<Item = Result<SampleInputs, SampleError>> + '_>, SampleError> {
        Ok(Box::new(self.iter().map(|sample| Ok(sample?.inputs))))
    }
}
