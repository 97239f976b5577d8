//! The machine and the versions behind the figures.

use crate::server::Parts;
use crate::{DEFAULT_MODEL, Outcome};
use chancery_domain::{Clock, SystemClock};
use std::path::Path;
use std::process::Command;

#[derive(Debug)]
pub struct Machine {
    pub day: String,
    pub cpu: String,
    pub kernel: String,
    pub versions: String,
    pub command: String,
    /// The load generator's share of one core.
    pub generator_share: f64,
}

pub fn describe(parts: &Parts) -> Outcome<Machine> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let features: Vec<&str> = ["avx2", "avx512f", "avx512_vnni", "amx_int8", "amx_bf16"]
        .into_iter()
        .filter(|feature| flags.split(' ').any(|flag| flag == *feature))
        .collect();
    let cores = std::thread::available_parallelism()?;
    let build_info = |folder: &Path| -> Outcome<String> {
        let stamp = std::fs::read_to_string(folder.join("made-of"))?;
        Ok(stamp.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
    };
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(Machine {
        day: SystemClock.now().to_iso().chars().take(10).collect(),
        cpu: format!(
            "{cores} cores of {} ({})",
            model.trim_start_matches([':', ' ', '\t']),
            features.join(", ")
        ),
        kernel: release.trim().split('-').next().unwrap_or_default().to_owned(),
        versions: format!(
            "Chancery at {}; {}; {}; {}",
            revision()?,
            build_info(&parts.peers.join("llama"))?,
            build_info(&parts.peers.join("venv"))?,
            compiler()?,
        ),
        command: command(&parts.model_name),
        generator_share: own_cpu_share()?,
    })
}

/// The command to repeat the run, without the two paths that the Makefile supplies.
fn command(model: &str) -> String {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    for path in ["--peers-folder", "--model"] {
        if let Some(at) = arguments.iter().position(|argument| argument == path) {
            arguments.drain(at..(at + 2).min(arguments.len()));
        }
    }
    let mut command = "make bench-engine".to_owned();
    if model != DEFAULT_MODEL {
        command += &format!(" MODEL={model}");
    }
    if !arguments.is_empty() {
        command += &format!(" ARGS=\"{}\"", arguments.join(" "));
    }
    command
}

/// The commit, and whether the working tree has changes.
fn revision() -> Outcome<String> {
    let output = Command::new("git").args(["describe", "--always", "--dirty"]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn compiler() -> Outcome<String> {
    let output = Command::new("cc").arg("--version").output()?;
    Ok(String::from_utf8(output.stdout)?.lines().next().unwrap_or("unknown compiler").to_owned())
}

/// CPU time of this thread, which is the whole program, divided by the time since it started.
fn own_cpu_share() -> Outcome<f64> {
    const TICKS_PER_S: f64 = 100.0;
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let on_cpu_s = schedstat.split(' ').next().unwrap_or_default().parse::<f64>()? / 1e9;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may contain spaces; the start time is the 20th field after it.
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let started_s =
        after_name.split_whitespace().nth(19).ok_or("no start time")?.parse::<f64>()? / TICKS_PER_S;
    let uptime = std::fs::read_to_string("/proc/uptime")?;
    let uptime_s: f64 = uptime.split(' ').next().unwrap_or_default().parse()?;
    Ok(on_cpu_s / (uptime_s - started_s).max(f64::EPSILON))
}
