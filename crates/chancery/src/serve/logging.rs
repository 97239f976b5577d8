//! Logging to standard error: readable lines on a terminal, JSON otherwise. `CHANCERY_LOG` sets the level. If the log
//! cannot be written, because its reader is gone or the disk is full, its lines are lost and the server keeps running.

use crate::config::ConfigError;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

const VARIABLE: &str = "CHANCERY_LOG";

pub fn start() -> Result<(), ConfigError> {
    let filter = match std::env::var(VARIABLE) {
        Ok(text) => EnvFilter::try_new(&text).map_err(|error| {
            ConfigError(vec![format!(
                "environment variable {VARIABLE}: {error}; use a level such as \"info\" or \"debug\""
            )])
        })?,
        Err(_) => EnvFilter::new("info"),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Reporting a log write error would write to the same log, which panics.
    let builder = builder.log_internal_errors(false);
    if std::io::stderr().is_terminal() {
        builder.with_target(false).init();
    } else {
        builder.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
    }
    Ok(())
}
