//! Graph in, better graph out: passes, precision, calibration, memory plan, report.

pub mod accuracy;
pub mod build;
pub mod calibrate;
pub mod passes;
pub mod plan;
pub mod precision;
pub mod report;
pub mod tensorrt_support;
