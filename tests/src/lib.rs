//! End-to-end tests, conformance suites and benchmarks.
