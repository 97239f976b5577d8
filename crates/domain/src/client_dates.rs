//! Bounds on the dates in client records. Dates beyond them are typing errors.

use crate::Day;

/// 1 January 1800.
const EARLIEST_CLIENT_SINCE: Day = Day(-62_091);

/// Letters are post-dated, and meetings are noted before they take place.
const MAX_ENTRY_LEAD_DAYS: i32 = 366;

/// Five years. Some disputes wait for a court.
const MAX_DUE_LEAD_DAYS: i32 = 1_827;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientDateError {
    #[error("the date is in the future; enter today or an earlier day")]
    SinceInFuture,
    #[error("the date is before 1800; check the year")]
    SinceTooEarly,
    #[error("the date is more than a year ahead; check the year")]
    EntryInFuture,
    #[error("the date is more than five years ahead; check the year")]
    DueInFuture,
}

/// Checks the day of `since` in a client's details.
pub fn check_client_since(day: Day, today: Day) -> Result<Day, ClientDateError> {
    match day {
        day if day > today => Err(ClientDateError::SinceInFuture),
        day if day < EARLIEST_CLIENT_SINCE => Err(ClientDateError::SinceTooEarly),
        day => Ok(day),
    }
}

/// Checks the day of an entry.
pub fn check_entry_day(day: Day, today: Day) -> Result<Day, ClientDateError> {
    match day.0 > today.0.saturating_add(MAX_ENTRY_LEAD_DAYS) {
        true => Err(ClientDateError::EntryInFuture),
        false => Ok(day),
    }
}

/// Checks the day on which a dispute is due.
pub fn check_due_day(day: Day, today: Day) -> Result<Day, ClientDateError> {
    match day.0 > today.0.saturating_add(MAX_DUE_LEAD_DAYS) {
        true => Err(ClientDateError::DueInFuture),
        false => Ok(day),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(text: &str) -> Day {
        text.parse().unwrap()
    }

    #[test]
    fn client_since_is_between_1800_and_today() {
        let today = day("2026-11-13");
        for good in ["1800-01-01", "2024-03-04", "2026-11-13"] {
            assert_eq!(check_client_since(day(good), today), Ok(day(good)));
        }
        assert_eq!(check_client_since(day("2026-11-14"), today), Err(ClientDateError::SinceInFuture));
        assert_eq!(check_client_since(day("2099-01-01"), today), Err(ClientDateError::SinceInFuture));
        assert_eq!(check_client_since(day("1799-12-31"), today), Err(ClientDateError::SinceTooEarly));
    }

    #[test]
    fn entries_are_dated_a_year_ahead_at_most() {
        let today = day("2026-11-13");
        for good in ["1950-01-01", "2026-11-13", "2027-11-14"] {
            assert_eq!(check_entry_day(day(good), today), Ok(day(good)));
        }
        assert_eq!(check_entry_day(day("2027-11-15"), today), Err(ClientDateError::EntryInFuture));
        assert_eq!(check_entry_day(Day(i32::MAX), Day(i32::MAX)), Ok(Day(i32::MAX)));
    }
}
