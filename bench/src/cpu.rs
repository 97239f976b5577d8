//! How much time on a processor a program has taken.

use std::time::Duration;

/// How `/proc` counts CPU time: Linux has had 100 ticks a second for programs since ever.
const TICK: Duration = Duration::from_millis(10);

/// Of another process, in all its threads. None where there is none of this number.
pub fn of_process(process: u32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program, in brackets, may have blanks; what is counted comes after it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u32 = fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap();
    Some(TICK * ticks)
}

/// Of this process, in all its threads.
pub fn of_this_process() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Of the whole machine since it started: what all processors did, and what they could have done.
pub fn of_the_machine() -> (Duration, Duration) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let ticks: Vec<u32> =
        stat.lines().next().unwrap().split_whitespace().skip(1).map(|ticks| ticks.parse().unwrap()).collect();
    // Guests are counted in the first two fields already; the fourth and fifth are time in which nothing ran.
    let all: u32 = ticks[..8].iter().sum();
    (TICK * (all - ticks[3] - ticks[4]), TICK * all)
}
