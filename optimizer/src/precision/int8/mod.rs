//! INT8 by post-training quantization: which layers compute in INT8, and the QuantizeLinear/DequantizeLinear
//! nodes that say so in the graph.

mod options;
mod plan;
mod quantize;
mod report;
mod residual;
mod search;
mod sensitivity;
mod weighted;
mod weights;

pub use options::{Int8Options, Placement};
pub use quantize::{Int8Error, quantize, tensors_to_calibrate};
pub use report::{ActivationScale, Int8Report, KeptNode, QuantizedNode};
pub use search::{SearchError, SearchResult, Target, quantize_to_target};
pub use sensitivity::sensitivity;
