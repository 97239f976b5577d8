//! Yields SQLite's write lock to other processes. SQLite does not queue writers, so on a slow disk a ledger that
//! commits back to back starves `chancery key revoke` for seconds. The writer therefore keeps the lock free for a tenth
//! of the time that it held it. Time that it was idle anyway counts.

use std::time::Duration;

/// How many times longer the lock may be held than it is free.
const HELD_TO_FREE_RATIO: u32 = 10;

/// The timer's tick. A shorter pause would take as long, so smaller debts add up first.
const MIN_PAUSE: Duration = Duration::from_millis(1);

/// Waiting processes poll every 1 to 2 ms (`retry`), so a longer pause would not help.
const MAX_PAUSE: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
pub(crate) struct WriteGaps {
    deficit: Duration,
    /// Free time beyond what was owed, credited to later commits: timers often wake late. Zero while anything is owed.
    surplus: Duration,
}

impl WriteGaps {
    pub(crate) fn record_held(&mut self, held: Duration) {
        let due = held / HELD_TO_FREE_RATIO;
        let paid = due.min(self.surplus);
        self.surplus -= paid;
        self.deficit = (self.deficit + (due - paid)).min(MAX_PAUSE);
    }

    pub(crate) fn record_free(&mut self, free: Duration) {
        let paid = free.min(self.deficit);
        self.deficit -= paid;
        self.surplus = (self.surplus + (free - paid)).min(MAX_PAUSE);
    }

    /// How long to pause before the next commit, if a pause is due.
    pub(crate) fn next_pause(&self) -> Option<Duration> {
        (self.deficit >= MIN_PAUSE).then_some(self.deficit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates 10 s of commits of length `commit`, with `pause` between them, and a timer that wakes `late`. Returns
    /// the pauses that were added.
    fn pauses_with(commit: Duration, pause: Duration, late: Duration) -> Vec<Duration> {
        let (mut gaps, mut pauses, mut passed) = (WriteGaps::default(), Vec::new(), Duration::ZERO);
        while passed < Duration::from_secs(10) {
            gaps.record_held(commit);
            gaps.record_free(pause);
            passed += commit + pause;
            if let Some(next_pause) = gaps.next_pause() {
                gaps.record_free(next_pause + late);
                passed += next_pause + late;
                pauses.push(next_pause);
            }
        }
        pauses
    }

    fn pauses(commit: Duration, pause: Duration) -> Vec<Duration> {
        pauses_with(commit, pause, Duration::ZERO)
    }

    #[test]
    fn late_timer_does_not_increase_free_share() {
        let late = Duration::from_millis(1);
        let pauses = pauses_with(Duration::from_micros(300), Duration::ZERO, late);
        let free: Duration = pauses.iter().map(|next_pause| *next_pause + late).sum();
        let share = free.as_secs_f64() / 10.0;
        assert!((0.085..=0.095).contains(&share), "{share}");
    }

    #[test]
    fn busy_writer_frees_lock_for_a_tenth_of_time() {
        for commit_us in [100, 900, 5000, 20_000] {
            let pauses = pauses(Duration::from_micros(commit_us), Duration::ZERO);
            let free: Duration = pauses.iter().sum();
            let share = free.as_secs_f64() / 10.0;
            assert!((0.085..=0.095).contains(&share), "commits of {commit_us} us: {share}");
            assert!(pauses.iter().all(|next_pause| (MIN_PAUSE..=MAX_PAUSE).contains(next_pause)));
        }
    }

    #[test]
    fn pause_never_exceeds_poll_interval() {
        let pauses = pauses(Duration::from_millis(200), Duration::ZERO);
        assert!(pauses.iter().all(|next_pause| *next_pause == MAX_PAUSE));
        assert_eq!(pauses.len(), 50, "one between every two commits");
    }

    #[test]
    fn idle_writer_adds_no_pauses() {
        assert!(pauses(Duration::from_millis(5), Duration::from_micros(500)).is_empty());
        assert!(pauses(Duration::from_millis(20), Duration::from_secs(1)).is_empty());
    }
}
