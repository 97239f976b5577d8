//! CPU time of processes and of the machine.

use std::time::Duration;

/// The unit of CPU time in `/proc`: Linux reports 100 ticks per second to user space.
const TICK_MS: u64 = 10;

/// What `/proc/PID/stat` says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stat {
    name: String,
    parent: u32,
    own: Duration,
    /// Of children that have ended and were waited for.
    ended_children: Duration,
}

/// CPU time of all threads of another process; `None` if there is no such process.
pub fn of_process(process: u32) -> Option<Duration> {
    Some(read(process)?.own)
}

/// CPU time of a process and all its descendants; `None` if there is no such process.
pub fn of_process_tree(root: u32) -> Option<Duration> {
    of_tree(&all_processes(), root)
}

/// CPU time of all processes whose program has one of these names, such as the sessions of a database server.
pub fn of_programs(names: &[&str]) -> Duration {
    all_processes()
        .iter()
        .filter(|(_, stat)| names.contains(&stat.name.as_str()))
        .map(|(_, stat)| stat.own)
        .sum()
}

/// CPU time of all threads of this process.
pub fn of_this_process() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time of the whole machine since boot: busy time, and total time of all processors.
pub fn of_the_machine() -> (Duration, Duration) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let ticks: Vec<u64> =
        stat.lines().next().unwrap().split_whitespace().skip(1).map(|ticks| ticks.parse().unwrap()).collect();
    // Guest time is already included in the first two fields; the fourth and fifth are idle time.
    let all: u64 = ticks[..8].iter().sum();
    (time_of(all - ticks[3] - ticks[4]), time_of(all))
}

fn time_of(ticks: u64) -> Duration {
    Duration::from_millis(TICK_MS * ticks)
}

fn read(process: u32) -> Option<Stat> {
    parse(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

fn all_processes() -> Vec<(u32, Stat)> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    ids.filter_map(|id| Some((id, read(id)?))).collect()
}

fn of_tree(processes: &[(u32, Stat)], root: u32) -> Option<Duration> {
    let mut tree = vec![root];
    let mut checked = 0;
    while let Some(parent) = tree.get(checked).copied() {
        tree.extend(processes.iter().filter(|(_, stat)| stat.parent == parent).map(|(id, _)| *id));
        checked += 1;
    }
    let members: Vec<&(u32, Stat)> = processes.iter().filter(|(id, _)| tree.contains(id)).collect();
    let is_there = members.iter().any(|(id, _)| *id == root);
    is_there.then(|| members.iter().map(|(_, stat)| stat.own + stat.ended_children).sum())
}

/// The program name, in parentheses, may contain spaces and parentheses; the numbers come after it.
fn parse(stat: &str) -> Option<Stat> {
    let (head, numbers) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let numbers: Vec<&str> = numbers.split_whitespace().collect();
    let ticks = |index: usize| numbers.get(index)?.parse::<u64>().ok();
    Some(Stat {
        name: name.to_owned(),
        parent: numbers.get(1)?.parse().ok()?,
        own: time_of(ticks(11)? + ticks(12)?),
        ended_children: time_of(ticks(13)? + ticks(14)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "12 (a (b) c) S 7 12 12 0 -1 4194304 90 0 0 0 70 30 4 1 20 0 1 0 555 1000 20";

    #[test]
    fn process_name_with_spaces_does_not_shift_stat_fields() {
        let ms = Duration::from_millis;
        let expected = Stat { name: "a (b) c".to_owned(), parent: 7, own: ms(1_000), ended_children: ms(50) };
        assert_eq!(parse(LINE), Some(expected));
        assert_eq!(parse("12 (a) S 7"), None);
    }

    #[test]
    fn process_tree_includes_descendants_and_children_that_have_ended() {
        let process = |id: u32, parent: u32, own: u64, ended: u64| {
            let (own, ended_children) = (Duration::from_secs(own), Duration::from_secs(ended));
            (id, Stat { name: String::new(), parent, own, ended_children })
        };
        let processes =
            [process(1, 0, 100, 0), process(5, 3, 1, 0), process(3, 2, 10, 0), process(2, 1, 4, 30)];
        assert_eq!(of_tree(&processes, 2), Some(Duration::from_secs(45)));
        assert_eq!(of_tree(&processes, 9), None);
    }
}
