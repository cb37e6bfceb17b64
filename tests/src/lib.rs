//! End-to-end tests, conformance suites and benchmarks.

pub mod bare_ort;
