//! Code shared by the benchmark programs, and by the tests that run them briefly.
#![expect(
    clippy::unwrap_used,
    reason = "a measurement that fails has nothing to clean up but what Drop removes"
)]

pub mod accounts;
pub mod cpu;
pub mod paired_times;
pub mod people;
pub mod portal;
pub mod soak;
