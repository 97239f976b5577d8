//! The versions behind the figures, and the command that repeats the run.

use crate::server::Parts;
use crate::{DEFAULT_MODEL, Outcome};
use chancery_bench::machine::{self, Machine};
use std::path::Path;

/// The versions of all servers.
pub fn versions(machine: &Machine, parts: &Parts) -> Outcome<String> {
    let build_info = |folder: &Path| -> Outcome<String> {
        let stamp = std::fs::read_to_string(folder.join("made-of"))?;
        Ok(stamp.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
    };
    Ok(format!(
        "Chancery at {}; {}; {}; {}",
        machine.revision,
        build_info(&parts.peers.join("llama"))?,
        build_info(&parts.peers.join("venv"))?,
        machine::first_line("cc", &["--version"])?,
    ))
}

/// The command to repeat the run, without the two paths that the Makefile supplies.
pub fn command(model: &str) -> String {
    let target = match model {
        DEFAULT_MODEL => "bench-engine".to_owned(),
        model => format!("bench-engine MODEL={model}"),
    };
    machine::repeat_command(&target, &["--peers-folder", "--model"])
}
