//! Code shared by the benchmark programs, and by the tests that run them briefly.
#![expect(
    clippy::unwrap_used,
    reason = "a measurement that fails has nothing to clean up but what Drop removes"
)]

pub mod accounts;
pub mod bar_chart;
pub mod chancery_gateway;
pub mod cpu;
pub mod firm;
pub mod http;
pub mod instant_upstream;
pub mod keep_alive;
pub mod machine;
pub mod noise;
pub mod paired_times;
pub mod people;
pub mod portal;
pub mod processes;
pub mod results_page;
pub mod soak;
pub mod summary;
pub mod watch;

/// The result of a program that reports its failure and stops its servers.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
