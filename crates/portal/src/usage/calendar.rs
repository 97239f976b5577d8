//! The days of a month, past and upcoming, in UTC.

use crate::time_format::format_day;
use chancery_domain::{Day, Month};

/// A month as seen today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Calendar {
    pub(super) month: Month,
    pub(super) today: Day,
}

impl Calendar {
    pub(super) fn is_running(self) -> bool {
        (self.month.first_day()..=self.month.last_day()).contains(&self.today)
    }

    /// Number of days in the month.
    pub(super) fn length(self) -> usize {
        usize::try_from(self.month.last_day().0 - self.month.first_day().0 + 1).unwrap_or_default()
    }

    /// From the first day to today, or to the last day of a past month.
    pub(super) fn days_so_far(self) -> impl Iterator<Item = Day> {
        (self.month.first_day().0..=self.month.last_day().0.min(self.today.0)).map(Day)
    }

    /// Days after today: the first of them, and the month's last.
    pub(super) fn future_days(self) -> Option<(Day, Day)> {
        let (first, last) = (Day(self.today.0.saturating_add(1)), self.month.last_day());
        (self.is_running() && first <= last).then_some((first, last))
    }

    /// `1 to 31 October 2026`, `1 to 15 November 2026 so far`
    pub(super) fn span_text(self) -> String {
        let last = self.month.last_day().min(self.today);
        let text = format_day(last, "%-d %B %Y");
        let from = if last == self.month.first_day() { "" } else { "1 to " };
        let so_far = if self.is_running() { " so far" } else { "" };
        format!("{from}{text}{so_far}")
    }

    /// `16 to 30 Nov`, `30 Nov`
    pub(super) fn future_days_text(self) -> Option<String> {
        let (first, last) = self.future_days()?;
        let last_text = format_day(last, "%-d %b");
        Some(match first == last {
            true => last_text,
            false => format!("{} to {last_text}", format_day(first, "%-d")),
        })
    }

    /// Name of the previous month: `September`, with the year if it differs.
    pub(super) fn previous_name(self) -> String {
        let previous = self.month.previous();
        let format = if previous.year() == self.month.year() { "%B" } else { "%B %Y" };
        format_day(previous.first_day(), format)
    }
}

/// `October 2026`
pub(super) fn month_text(month: Month) -> String {
    format_day(month.first_day(), "%B %Y")
}

/// `Thu 1 Oct`
pub(super) fn short_day_text(day: Day) -> String {
    format_day(day, "%a %-d %b")
}

/// `Thursday 15 October`
pub(super) fn long_day_text(day: Day) -> String {
    format_day(day, "%A %-d %B")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calendar(month: &str, today: &str) -> Calendar {
        Calendar { month: month.parse().unwrap(), today: today.parse().unwrap() }
    }

    #[test]
    fn past_month_has_all_days_and_no_future_ones() {
        for (month, days, text) in [
            ("2026-10", 31, "1 to 31 October 2026"),
            ("2026-02", 28, "1 to 28 February 2026"),
            ("2024-02", 29, "1 to 29 February 2024"),
            ("2026-09", 30, "1 to 30 September 2026"),
        ] {
            let calendar = calendar(month, "2026-11-13");
            assert_eq!((calendar.length(), calendar.days_so_far().count()), (days, days));
            assert_eq!((calendar.future_days(), calendar.is_running()), (None, false));
            assert_eq!(calendar.span_text(), text);
        }
    }

    #[test]
    fn current_month_ends_today() {
        for (today, so_far, text, future_days) in [
            ("2026-11-01", 1, "1 November 2026 so far", Some("2 to 30 Nov")),
            ("2026-11-13", 13, "1 to 13 November 2026 so far", Some("14 to 30 Nov")),
            ("2026-11-29", 29, "1 to 29 November 2026 so far", Some("30 Nov")),
            ("2026-11-30", 30, "1 to 30 November 2026 so far", None),
        ] {
            let calendar = calendar("2026-11", today);
            assert_eq!((calendar.length(), calendar.days_so_far().count()), (30, so_far));
            assert!(calendar.is_running());
            assert_eq!(calendar.span_text(), text);
            assert_eq!(calendar.future_days_text().as_deref(), future_days);
        }
    }

    #[test]
    fn previous_month_shows_its_year_when_different() {
        assert_eq!(calendar("2026-10", "2026-11-13").previous_name(), "September");
        assert_eq!(calendar("2026-01", "2026-11-13").previous_name(), "December 2025");
        let day = "2026-10-15".parse().unwrap();
        assert_eq!(
            (short_day_text(day), long_day_text(day)),
            ("Thu 15 Oct".into(), "Thursday 15 October".into())
        );
    }
}
