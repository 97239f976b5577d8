//! Logs: lines for people on a terminal, JSON elsewhere, both on standard error. `CHANCERY_LOG` sets the level.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

pub fn start() {
    let filter = EnvFilter::try_from_env("CHANCERY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        builder.with_target(false).init();
    } else {
        builder.json().flatten_event(true).with_current_span(false).with_span_list(false).init();
    }
}
