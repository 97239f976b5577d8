//! How a busy ledger leaves SQLite's write lock to other processes. SQLite keeps no line: whoever looks while the lock is
//! free has it. A writer that commits one batch right after the other leaves it free for a moment too short to be met,
//! and on a slow disk `chancery key revoke` would wait for seconds. So the lock is left free for a tenth of the time
//! that it was held; a writer that rests anyway owes nothing.

use std::time::Duration;

/// The lock is held this many times as long as it is free.
const HELD_PER_FREE: u32 = 10;

/// The timer's tick: a shorter rest would take as long, so what is owed is saved up.
const SHORTEST_REST: Duration = Duration::from_millis(1);

/// Whoever waits looks every millisecond or two (`patience`), so a longer rest would serve nobody.
const LONGEST_REST: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
pub(crate) struct Gaps {
    owed: Duration,
    /// Free time beyond what was owed, which counts for later: a timer often wakes late. Zero while anything is owed.
    ahead: Duration,
}

impl Gaps {
    pub(crate) fn held_for(&mut self, held: Duration) {
        let due = held / HELD_PER_FREE;
        let paid = due.min(self.ahead);
        self.ahead -= paid;
        self.owed = (self.owed + (due - paid)).min(LONGEST_REST);
    }

    pub(crate) fn free_for(&mut self, free: Duration) {
        let paid = free.min(self.owed);
        self.owed -= paid;
        self.ahead = (self.ahead + (free - paid)).min(LONGEST_REST);
    }

    /// How long to rest before the next commit, if it is time to.
    pub(crate) fn rest(&self) -> Option<Duration> {
        (self.owed >= SHORTEST_REST).then_some(self.owed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commits of this length for ten seconds, with this pause between them anyway, by a timer that wakes this late: the
    /// rests that are added.
    fn rests_of(commit: Duration, pause: Duration, late: Duration) -> Vec<Duration> {
        let (mut gaps, mut rests, mut passed) = (Gaps::default(), Vec::new(), Duration::ZERO);
        while passed < Duration::from_secs(10) {
            gaps.held_for(commit);
            gaps.free_for(pause);
            passed += commit + pause;
            if let Some(rest) = gaps.rest() {
                gaps.free_for(rest + late);
                passed += rest + late;
                rests.push(rest);
            }
        }
        rests
    }

    fn rests(commit: Duration, pause: Duration) -> Vec<Duration> {
        rests_of(commit, pause, Duration::ZERO)
    }

    #[test]
    fn a_timer_that_wakes_late_does_not_make_the_share_larger() {
        let late = Duration::from_millis(1);
        let rests = rests_of(Duration::from_micros(300), Duration::ZERO, late);
        let free: Duration = rests.iter().map(|rest| *rest + late).sum();
        let share = free.as_secs_f64() / 10.0;
        assert!((0.085..=0.095).contains(&share), "{share}");
    }

    #[test]
    fn a_writer_without_pause_leaves_the_lock_free_for_a_tenth() {
        for commit_us in [100, 900, 5000, 20_000] {
            let rests = rests(Duration::from_micros(commit_us), Duration::ZERO);
            let free: Duration = rests.iter().sum();
            let share = free.as_secs_f64() / 10.0;
            assert!((0.085..=0.095).contains(&share), "commits of {commit_us} us: {share}");
            assert!(rests.iter().all(|rest| (SHORTEST_REST..=LONGEST_REST).contains(rest)));
        }
    }

    #[test]
    fn a_slow_disk_makes_no_rest_longer_than_a_look_takes() {
        let rests = rests(Duration::from_millis(200), Duration::ZERO);
        assert!(rests.iter().all(|rest| *rest == LONGEST_REST));
        assert_eq!(rests.len(), 50, "one between every two commits");
    }

    #[test]
    fn a_writer_that_pauses_anyway_never_rests() {
        assert!(rests(Duration::from_millis(5), Duration::from_micros(500)).is_empty());
        assert!(rests(Duration::from_millis(20), Duration::from_secs(1)).is_empty());
    }
}
