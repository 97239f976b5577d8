//! Tests the API client against a fake API that fails on purpose. The binary's integration tests use the real one.

mod failures;
pub(crate) mod faulty_api;
