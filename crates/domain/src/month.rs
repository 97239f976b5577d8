//! A calendar month in UTC, the unit that spending is capped and invoiced by.

use crate::{Day, UnixMillis};
use std::fmt;

/// Months since January of the year 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Month(i32);

impl Month {
    pub fn of(at: UnixMillis) -> Self {
        let date = Day::of(at).to_date();
        Self(i32::from(date.year()) * 12 + i32::from(date.month()) - 1)
    }

    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    pub fn first_day(self) -> Day {
        let (year, month) = (self.0.div_euclid(12), self.0.rem_euclid(12) + 1);
        // Both fit: the month is from 1 to 12, and years past jiff's own end at 9999 have no days to name.
        let date = i16::try_from(year).ok().zip(i8::try_from(month).ok());
        let date = date.and_then(|(year, month)| jiff::civil::Date::new(year, month, 1).ok());
        date.map_or(Day(i32::MAX), Day::from_date)
    }

    pub fn last_day(self) -> Day {
        Day(self.next().first_day().0 - 1)
    }
}

/// As `2026-11`.
impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}", self.0.div_euclid(12), self.0.rem_euclid(12) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_month_runs_from_its_first_to_its_last_day() {
        for (day, month, first, last) in [
            ("2026-11-15", "2026-11", "2026-11-01", "2026-11-30"),
            ("2026-12-31", "2026-12", "2026-12-01", "2026-12-31"),
            ("2028-02-29", "2028-02", "2028-02-01", "2028-02-29"),
            ("1969-12-31", "1969-12", "1969-12-01", "1969-12-31"),
        ] {
            let found = Month::of(day.parse::<Day>().unwrap().start());
            assert_eq!(found.to_string(), month);
            assert_eq!(
                (found.first_day().to_string(), found.last_day().to_string()),
                (first.into(), last.into())
            );
        }
    }

    proptest! {
        #[test]
        fn months_follow_each_other_without_gap_or_overlap(at_ms in 0_i64..200_000_000_000_000) {
            let month = Month::of(UnixMillis(at_ms));
            prop_assert!((month.first_day()..=month.last_day()).contains(&Day::of(UnixMillis(at_ms))));
            prop_assert_eq!(Month::of(month.first_day().start()), month);
            prop_assert_eq!(Month::of(month.last_day().end()), month.next());
        }
    }
}
