//! Measures how much of the machine other programs used during the run: figures from a busy machine are unreliable, and readers
//! must see it.

use crate::Outcome;

/// CPU time in kernel ticks.
#[derive(Clone, Copy, Debug)]
struct Ticks {
    passed: u64,
    busy: u64,
    /// The part of `busy` used by this program and its servers.
    ours: u64,
}

/// Measures from its creation on.
#[derive(Debug)]
pub struct Watch {
    processes: Vec<u32>,
    before: Ticks,
}

impl Watch {
    /// `servers` are the other processes that belong to the measurement.
    pub fn start(servers: impl Iterator<Item = u32>) -> Outcome<Self> {
        let processes: Vec<u32> = servers.chain([std::process::id()]).collect();
        let before = read(&processes)?;
        Ok(Self { processes, before })
    }

    /// Returns the share of all cores that others have used since, from 0 to 1. Includes time that the hypervisor gave to other
    /// guests.
    pub fn share_of_others(&self) -> Outcome<f64> {
        let now = read(&self.processes)?;
        let others = (now.busy - self.before.busy).saturating_sub(now.ours - self.before.ours);
        Ok(others as f64 / (now.passed - self.before.passed).max(1) as f64)
    }
}

fn read(processes: &[u32]) -> Outcome<Ticks> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal; the fields after these are already included in user.
    let fields: Vec<u64> =
        line.split_whitespace().skip(1).take(8).map(str::parse).collect::<Result<_, _>>()?;
    let passed: u64 = fields.iter().sum();
    let idle: u64 = fields.iter().skip(3).take(2).sum();
    let mut ours = 0;
    for process in processes {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
        ours += process_ticks(&stat).ok_or("a process without times")?;
    }
    Ok(Ticks { passed, busy: passed - idle, ours })
}

/// Returns the time in user and kernel mode. The name in parentheses may contain spaces, so fields are counted after it.
fn process_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut times = after_name.split_whitespace().skip(11);
    Some(times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_with_spaces_does_not_shift_stat_fields() {
        let stat = "12 (a (b) c) S 1 12 12 0 -1 4194304 90 0 0 0 70 30 0 0 20 0 1 0 555 1000 20";
        assert_eq!(process_ticks(stat), Some(100));
    }
}
