//! CPU time of processes and of the machine.

use std::time::Duration;

/// The unit of CPU time in `/proc`: Linux reports 100 ticks per second to user space.
const TICK: Duration = Duration::from_millis(10);

/// CPU time of all threads of another process; `None` if there is no such process.
pub fn of_process(process: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program name, in parentheses, may contain spaces; the counters come after it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u32 = fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap();
    Some(TICK * ticks)
}

/// CPU time of all threads of this process.
pub fn of_this_process() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time of the whole machine since boot: busy time, and total time of all processors.
pub fn of_the_machine() -> (Duration, Duration) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let ticks: Vec<u32> =
        stat.lines().next().unwrap().split_whitespace().skip(1).map(|ticks| ticks.parse().unwrap()).collect();
    // Guest time is already included in the first two fields; the fourth and fifth are idle time.
    let all: u32 = ticks[..8].iter().sum();
    (TICK * (all - ticks[3] - ticks[4]), TICK * all)
}
