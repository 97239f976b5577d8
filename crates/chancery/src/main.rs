//! The `chancery` binary: reads the command line and the configuration, wires the crates together, and runs one command.
//! Exit codes: 0 done, 1 failed or something differs, 2 the command line or the configuration is wrong.

mod advice;
mod catalogue;
mod cli;
mod client_file;
mod commands;
mod config;
mod data_folder;
mod model_pull;
mod new_file;
mod operator;
mod output;
mod secret_file;
mod serve;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("chancery: {}", output::with_causes(&error));
            ExitCode::from(if error.is::<config::ConfigError>() { 2 } else { 1 })
        }
    }
}
