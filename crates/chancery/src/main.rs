//! The `chancery` binary: parses the command line and the configuration, wires the crates together, and runs one command.
//! Exit codes: 0 success, 1 failure or differences found, 2 invalid command line or configuration.

mod cli;
mod client_file;
mod commands;
mod config;
mod data_dir;
mod download_progress;
mod encryption_keys;
mod hints;
mod operator;
mod output;
mod output_file;
mod secret_file;
mod serve;

use chancery_engine_cpu::{BudgetedAllocator, SplitAllocator};
use clap::Parser;
use mimalloc::MiMalloc;
use rustix::process::{Resource, getrlimit};
use std::process::ExitCode;

/// Bounds the memory of chat templates. An API request takes hundreds of small allocations, and many are freed by another thread,
/// which mimalloc is fast at. It reserves a gigabyte of addresses at once.
#[global_allocator]
static ALLOCATOR: BudgetedAllocator<SplitAllocator<MiMalloc>> =
    BudgetedAllocator(SplitAllocator::new(MiMalloc, has_unlimited_addresses));

/// Whether there is no `ulimit -v`.
fn has_unlimited_addresses() -> bool {
    getrlimit(Resource::As).current.is_none()
}

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("chancery: {}", output::format_error(&error));
            ExitCode::from(if error.is::<config::ConfigError>() { 2 } else { 1 })
        }
    }
}
