//! Logging to standard error: readable lines on a terminal, JSON otherwise. `CHANCERY_LOG` sets the level. `log_writer` writes the
//! lines, so that requests do not wait for it.

use super::json_lines::JsonLines;
use super::log_writer::{FlushOnDrop, LogWriter};
use crate::config::ConfigError;
use anyhow::Context;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

const VARIABLE: &str = "CHANCERY_LOG";

/// Keep the result until the process ends: dropping it writes the last lines.
pub fn start() -> anyhow::Result<FlushOnDrop> {
    let filter = match std::env::var(VARIABLE) {
        Ok(text) => EnvFilter::try_new(&text).map_err(|error| {
            ConfigError(vec![format!(
                "environment variable {VARIABLE}: {error}; use a level such as \"info\" or \"debug\""
            )])
        })?,
        Err(_) => EnvFilter::new("info"),
    };
    let (writer, flush) = LogWriter::start(std::io::stderr()).context("cannot start the log's thread")?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    // Reporting a log write error would write to the same log, which panics.
    let builder = builder.log_internal_errors(false);
    if std::io::stderr().is_terminal() {
        builder.with_target(false).init();
    } else {
        builder.event_format(JsonLines).init();
    }
    Ok(flush)
}
