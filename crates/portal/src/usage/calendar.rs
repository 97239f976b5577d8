//! The days of a month as the page shows them: those that have been, and those that are still to come. Days are in UTC.

use crate::when::written_day;
use chancery_domain::{Day, Month};

/// A month, seen on some day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Calendar {
    pub(super) month: Month,
    pub(super) today: Day,
}

impl Calendar {
    pub(super) fn is_running(self) -> bool {
        (self.month.first_day()..=self.month.last_day()).contains(&self.today)
    }

    /// How many days the month has.
    pub(super) fn length(self) -> usize {
        usize::try_from(self.month.last_day().0 - self.month.first_day().0 + 1).unwrap_or_default()
    }

    /// From the first to today, or to the last where the month has passed.
    pub(super) fn days_so_far(self) -> impl Iterator<Item = Day> {
        (self.month.first_day().0..=self.month.last_day().0.min(self.today.0)).map(Day)
    }

    /// Days after today: the first of them, and the month's last.
    pub(super) fn to_come(self) -> Option<(Day, Day)> {
        let (first, last) = (Day(self.today.0.saturating_add(1)), self.month.last_day());
        (self.is_running() && first <= last).then_some((first, last))
    }

    /// `1 to 31 October 2026`, `1 to 15 November 2026 so far`
    pub(super) fn span_words(self) -> String {
        let last = self.month.last_day().min(self.today);
        let words = written_day(last, "%-d %B %Y");
        let from = if last == self.month.first_day() { "" } else { "1 to " };
        let so_far = if self.is_running() { " so far" } else { "" };
        format!("{from}{words}{so_far}")
    }

    /// `16 to 30 Nov`, `30 Nov`
    pub(super) fn to_come_words(self) -> Option<String> {
        let (first, last) = self.to_come()?;
        let last_words = written_day(last, "%-d %b");
        Some(match first == last {
            true => last_words,
            false => format!("{} to {last_words}", written_day(first, "%-d")),
        })
    }

    /// The month before as it is named beside this one: `September`, with the year where it is another.
    pub(super) fn previous_name(self) -> String {
        let previous = self.month.previous();
        let format = if previous.year() == self.month.year() { "%B" } else { "%B %Y" };
        written_day(previous.first_day(), format)
    }
}

/// `October 2026`
pub(super) fn month_words(month: Month) -> String {
    written_day(month.first_day(), "%B %Y")
}

/// `Thu 1 Oct`
pub(super) fn short_day_words(day: Day) -> String {
    written_day(day, "%a %-d %b")
}

/// `Thursday 15 October`
pub(super) fn long_day_words(day: Day) -> String {
    written_day(day, "%A %-d %B")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calendar(month: &str, today: &str) -> Calendar {
        Calendar { month: month.parse().unwrap(), today: today.parse().unwrap() }
    }

    #[test]
    fn a_month_that_has_passed_has_all_its_days_and_none_to_come() {
        for (month, days, words) in [
            ("2026-10", 31, "1 to 31 October 2026"),
            ("2026-02", 28, "1 to 28 February 2026"),
            ("2024-02", 29, "1 to 29 February 2024"),
            ("2026-09", 30, "1 to 30 September 2026"),
        ] {
            let calendar = calendar(month, "2026-11-13");
            assert_eq!((calendar.length(), calendar.days_so_far().count()), (days, days));
            assert_eq!((calendar.to_come(), calendar.is_running()), (None, false));
            assert_eq!(calendar.span_words(), words);
        }
    }

    #[test]
    fn a_month_that_runs_ends_today_so_far() {
        for (today, so_far, words, to_come) in [
            ("2026-11-01", 1, "1 November 2026 so far", Some("2 to 30 Nov")),
            ("2026-11-13", 13, "1 to 13 November 2026 so far", Some("14 to 30 Nov")),
            ("2026-11-29", 29, "1 to 29 November 2026 so far", Some("30 Nov")),
            ("2026-11-30", 30, "1 to 30 November 2026 so far", None),
        ] {
            let calendar = calendar("2026-11", today);
            assert_eq!((calendar.length(), calendar.days_so_far().count()), (30, so_far));
            assert!(calendar.is_running());
            assert_eq!(calendar.span_words(), words);
            assert_eq!(calendar.to_come_words().as_deref(), to_come);
        }
    }

    #[test]
    fn the_month_before_has_its_year_where_it_is_another() {
        assert_eq!(calendar("2026-10", "2026-11-13").previous_name(), "September");
        assert_eq!(calendar("2026-01", "2026-11-13").previous_name(), "December 2025");
        let day = "2026-10-15".parse().unwrap();
        assert_eq!(
            (short_day_words(day), long_day_words(day)),
            ("Thu 15 Oct".into(), "Thursday 15 October".into())
        );
    }
}
