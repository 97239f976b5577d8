//! A calendar day in UTC, the unit of usage totals and due dates.

use crate::UnixMillis;
use std::fmt;
use std::str::FromStr;

const MILLIS_PER_DAY: i64 = 86_400_000;

const EPOCH: jiff::civil::Date = jiff::civil::Date::constant(1970, 1, 1);

/// Days since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(pub i32);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a day; write it as YYYY-MM-DD, for example 2026-11-15")]
pub struct DayError {
    text: String,
}

impl Day {
    pub fn containing(at: UnixMillis) -> Self {
        Self(i32::try_from(at.0.div_euclid(MILLIS_PER_DAY)).unwrap_or(i32::MAX))
    }

    /// The first moment of the day.
    pub fn start(self) -> UnixMillis {
        UnixMillis(i64::from(self.0) * MILLIS_PER_DAY)
    }

    /// The first moment of the next day.
    pub fn end(self) -> UnixMillis {
        UnixMillis((i64::from(self.0) + 1) * MILLIS_PER_DAY)
    }

    pub(crate) fn from_date(date: jiff::civil::Date) -> Self {
        // Any two jiff dates are fewer than 2^23 days apart.
        Self(EPOCH.until(date).map_or(i32::MAX, |span| span.get_days()))
    }

    /// Clamps to jiff's first and last dates.
    pub(crate) fn to_date(self) -> jiff::civil::Date {
        let past_the_end = if self.0 < 0 { jiff::civil::Date::MIN } else { jiff::civil::Date::MAX };
        self.checked_date().unwrap_or(past_the_end)
    }

    fn checked_date(self) -> Result<jiff::civil::Date, jiff::Error> {
        let days = jiff::Span::new().try_days(self.0)?;
        EPOCH.checked_add(days)
    }
}

impl FromStr for Day {
    type Err = DayError;

    fn from_str(text: &str) -> Result<Self, DayError> {
        let bad = || DayError { text: text.to_owned() };
        if text.len() != 10 {
            return Err(bad());
        }
        Ok(Self::from_date(jiff::civil::Date::from_str(text).map_err(|_| bad())?))
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.checked_date() {
            Ok(date) => date.fmt(f),
            Err(_) => write!(f, "day {}", self.0),
        }
    }
}

impl serde::Serialize for Day {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_day_runs_from_midnight_to_midnight_utc() {
        let day: Day = "2026-11-15".parse().unwrap();
        assert_eq!(Day::containing(day.start()), day);
        assert_eq!(Day::containing(UnixMillis(day.end().0 - 1)), day);
        assert_eq!(Day::containing(day.end()), Day(day.0 + 1));
        assert_eq!(Day::containing(UnixMillis(-1)), "1969-12-31".parse().unwrap());
    }

    #[test]
    fn invalid_day_is_rejected_with_format() {
        for text in ["", "2026-02-30", "15.11.2026", "2026-1-1", "2026-11-15T00:00", "yesterday"] {
            let error = text.parse::<Day>().unwrap_err().to_string();
            assert!(error.contains("YYYY-MM-DD"), "{error}");
        }
    }

    #[test]
    fn out_of_range_day_still_formats() {
        for days in [i32::MIN, i32::MAX] {
            assert_eq!(Day(days).to_string(), format!("day {days}"));
        }
    }

    proptest! {
        #[test]
        fn day_round_trips(days in -100_000_i32..100_000) {
            prop_assert_eq!(Day(days).to_string().parse::<Day>(), Ok(Day(days)));
        }
    }
}
