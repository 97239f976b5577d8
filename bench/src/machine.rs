//! The machine and the build behind the figures.

use crate::Outcome;
use chancery_domain::{Clock, SystemClock};
use std::process::Command;

#[derive(Debug)]
pub struct Machine {
    pub day: String,
    pub cpu: String,
    pub kernel: String,
    /// The commit, and whether the working tree has changes.
    pub revision: String,
    /// The load generator's share of one core.
    pub generator_share: f64,
}

pub fn describe() -> Outcome<Machine> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let features: Vec<&str> = ["avx2", "avx512f", "avx512_vnni", "amx_int8", "amx_bf16"]
        .into_iter()
        .filter(|feature| flags.split(' ').any(|flag| flag == *feature))
        .collect();
    let cores = std::thread::available_parallelism()?;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(Machine {
        day: SystemClock.now().to_iso().chars().take(10).collect(),
        cpu: format!(
            "{cores} cores of {} ({})",
            model.trim_start_matches([':', ' ', '\t']),
            features.join(", ")
        ),
        kernel: release.trim().split('-').next().unwrap_or_default().to_owned(),
        revision: first_line("git", &["describe", "--always", "--dirty"])?,
        generator_share: own_cpu_share()?,
    })
}

/// The first line that a program prints, such as its version.
pub fn first_line(program: &str, arguments: &[&str]) -> Outcome<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{program} does not start: {error}"))?;
    // nginx prints its version to standard error.
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    Ok(String::from_utf8_lossy(&text).lines().next().unwrap_or("unknown").trim().to_owned())
}

/// The `make` command that repeats a run: its target, and this program's arguments without those that the Makefile supplies. Each
/// of `supplied` has a value.
pub fn repeat_command(target: &str, supplied: &[&str]) -> String {
    command_of(target, std::env::args().skip(1).collect(), supplied)
}

fn command_of(target: &str, mut arguments: Vec<String>, supplied: &[&str]) -> String {
    for option in supplied {
        if let Some(at) = arguments.iter().position(|argument| argument == option) {
            arguments.drain(at..(at + 2).min(arguments.len()));
        }
    }
    if arguments.is_empty() {
        format!("make {target}")
    } else {
        format!("make {target} ARGS=\"{}\"", arguments.join(" "))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_command_omits_paths_that_the_makefile_supplies() {
        let arguments = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let all = arguments("--peers-folder /cache --rounds 1 --model m.gguf");
        assert_eq!(
            command_of("bench-engine", all, &["--peers-folder", "--model"]),
            "make bench-engine ARGS=\"--rounds 1\""
        );
        assert_eq!(
            command_of("bench-gateway", arguments("--peers-folder /cache"), &["--peers-folder"]),
            "make bench-gateway"
        );
    }
}
