//! A calendar month in UTC, the unit of spending caps and invoices.

use crate::{Day, UnixMillis};
use std::fmt;
use std::str::FromStr;

/// Months since January of the year 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Month(i32);

impl Month {
    pub fn containing(at: UnixMillis) -> Self {
        let date = Day::containing(at).to_date();
        Self(i32::from(date.year()) * 12 + i32::from(date.month()) - 1)
    }

    /// `number` counts months since January of the year 0.
    pub fn from_months(number: i32) -> Self {
        Self(number)
    }

    pub fn number(self) -> i32 {
        self.0
    }

    pub fn year(self) -> i32 {
        self.0.div_euclid(12)
    }

    pub fn previous(self) -> Self {
        Self(self.0 - 1)
    }

    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    pub fn first_day(self) -> Day {
        let (year, month) = (self.0.div_euclid(12), self.0.rem_euclid(12) + 1);
        // The month always fits. Years after 9999, jiff's last, have no dates.
        let date = i16::try_from(year).ok().zip(i8::try_from(month).ok());
        let date = date.and_then(|(year, month)| jiff::civil::Date::new(year, month, 1).ok());
        date.map_or(Day(i32::MAX), Day::from_date)
    }

    pub fn last_day(self) -> Day {
        match self.next().first_day() {
            // No later month has dates, so this one extends to the last representable day.
            Day(i32::MAX) => Day(i32::MAX),
            Day(next) => Day(next - 1),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid month; use YYYY-MM, for example 2026-10")]
pub struct MonthError;

/// Parses `2026-11`, for the years 1970 to 9998.
impl FromStr for Month {
    type Err = MonthError;

    fn from_str(text: &str) -> Result<Self, MonthError> {
        let bytes = text.as_bytes();
        let is_shaped = bytes.len() == 7 && bytes[4] == b'-';
        let (year, month) = text.split_once('-').filter(|_| is_shaped).ok_or(MonthError)?;
        let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(year) || !digits(month) {
            return Err(MonthError);
        }
        let (year, month): (i32, i32) = year.parse().ok().zip(month.parse().ok()).ok_or(MonthError)?;
        match (1970..=9998).contains(&year) && (1..=12).contains(&month) {
            true => Ok(Self(year * 12 + month - 1)),
            false => Err(MonthError),
        }
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
            let found = Month::containing(day.parse::<Day>().unwrap().start());
            assert_eq!(found.to_string(), month);
            assert_eq!(
                (found.first_day().to_string(), found.last_day().to_string()),
                (first.into(), last.into())
            );
        }
    }

    #[test]
    fn invalid_month_is_rejected_with_format() {
        for text in
            ["", "2026", "2026-13", "2026-00", "2026-1", "26-01", "2026-011", "+026-01", "1969-12", "9999-01"]
        {
            let error = text.parse::<Month>().unwrap_err().to_string();
            assert!(error.contains("YYYY-MM"), "{error}");
        }
        assert_eq!("2026-11".parse::<Month>().unwrap().to_string(), "2026-11");
    }

    proptest! {
        #[test]
        fn months_follow_each_other_without_gap_or_overlap(at_ms in 0_i64..200_000_000_000_000) {
            let month = Month::containing(UnixMillis(at_ms));
            prop_assert!((month.first_day()..=month.last_day()).contains(&Day::containing(UnixMillis(at_ms))));
            prop_assert_eq!(Month::containing(month.first_day().start()), month);
            prop_assert_eq!(Month::containing(month.last_day().end()), month.next());
        }

        #[test]
        fn every_timestamp_falls_within_its_month(at_ms in 0_i64..=i64::MAX) {
            let month = Month::containing(UnixMillis(at_ms));
            prop_assert!((month.first_day()..=month.last_day()).contains(&Day::containing(UnixMillis(at_ms))));
        }
    }
}
