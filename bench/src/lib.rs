//! What the programs here share with each other, and with the tests that run them for a short while.
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
