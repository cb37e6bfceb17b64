//! FP16: what converts, what stays in float32 and why, and that the graph runs and gives what its simulation gives.

#![allow(clippy::unwrap_used)] // helpers of tests, too

mod choices;
mod hazards;
mod runs;
mod support;
