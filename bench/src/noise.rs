//! Measures how much of the machine other programs used during the run: figures from a busy machine are unreliable, and readers
//! must see it.

use crate::{Outcome, cpu};
use std::time::Duration;

/// Measures from its creation on.
#[derive(Debug)]
pub struct NoiseWatch {
    processes: Vec<u32>,
    programs: &'static [&'static str],
    before: Reading,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    passed: Duration,
    busy: Duration,
    /// The part of `busy` used by this program and its servers.
    ours: Duration,
}

impl NoiseWatch {
    /// `servers` are the other processes that belong to the measurement, with their descendants. `programs` are the names of
    /// programs that belong to it but that it did not start, such as a database.
    pub fn start(servers: impl Iterator<Item = u32>, programs: &'static [&'static str]) -> Outcome<Self> {
        let processes: Vec<u32> = servers.collect();
        let before = read(&processes, programs)?;
        Ok(Self { processes, programs, before })
    }

    /// Returns the share of all cores that others have used since, from 0 to 1. Includes time that the hypervisor gave to other
    /// guests.
    pub fn share_of_others(&self) -> Outcome<f64> {
        let now = read(&self.processes, self.programs)?;
        let since = |after: Duration, before: Duration| after.saturating_sub(before);
        let others = since(now.busy, self.before.busy).saturating_sub(since(now.ours, self.before.ours));
        Ok(others.as_secs_f64() / since(now.passed, self.before.passed).as_secs_f64().max(f64::EPSILON))
    }
}

fn read(processes: &[u32], programs: &[&str]) -> Outcome<Reading> {
    let (busy, passed) = cpu::of_the_machine();
    let mut ours = cpu::of_this_process();
    if !programs.is_empty() {
        ours += cpu::of_programs(programs);
    }
    for process in processes {
        ours += cpu::of_process_tree(*process).ok_or("a measured server has ended")?;
    }
    Ok(Reading { passed, busy, ours })
}
