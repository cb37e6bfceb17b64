//! Accuracy: how close a model is to its float original on the user's data, as numbers and by the task's metric.

mod average_precision;
mod compare;
mod layers;
mod sqnr;
mod tasks;

pub use average_precision::{AveragePrecision, MOST_DETECTIONS, MeanAveragePrecision};
pub use compare::{CompareError, Comparison, Observer, compare, compare_parts};
pub(crate) use compare::{Runner, open as open_samples};
pub use layers::{LayerSqnr, layer_sqnr};
pub(crate) use sqnr::rank;
pub use sqnr::{Difference, EXACT_DB, worst_output};
pub use tasks::{EmbeddingSimilarity, TextAccuracy, TopK, levenshtein};
