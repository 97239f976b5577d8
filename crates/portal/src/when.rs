//! Times and counts as people read them. The portal does not know where they are, so it says UTC.

use chancery_domain::{Day, Month, UnixMillis};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

/// `09:14 UTC`
pub(crate) fn clock_time(at: UnixMillis) -> String {
    written(at, "%H:%M UTC")
}

/// `today, 09:14`, `yesterday, 09:14`, `13 Nov, 09:14`, with the year where it is not this one.
pub(crate) fn day_and_time(at: UnixMillis, now: UnixMillis) -> String {
    let (Some(day), Some(today)) = (date(at), date(now)) else { return String::new() };
    let time = written(at, "%H:%M UTC");
    match day {
        day if day == today => format!("today, {time}"),
        day if day.tomorrow().is_ok_and(|next| next == today) => format!("yesterday, {time}"),
        day if day.year() == today.year() => format!("{}, {time}", written(at, "%-d %b")),
        _ => format!("{}, {time}", written(at, "%-d %b %Y")),
    }
}

/// `today, 09:14 UTC`, `yesterday`, `13 Nov`, with the year where it is not this one: for lists, where days are enough.
pub(crate) fn day_or_time(at: UnixMillis, now: UnixMillis) -> String {
    let words = day_and_time(at, now);
    match words.split_once(", ") {
        Some((day, _)) if day != "today" => day.to_owned(),
        _ => words,
    }
}

/// `4 March 2024`
pub(crate) fn long_day(day: Day) -> String {
    written(day.start(), "%-d %B %Y")
}

/// `October 2026`
pub(crate) fn long_month(month: Month) -> String {
    written(month.first_day().start(), "%B %Y")
}

/// A day in a form of its own, in the words of `strftime`.
pub(crate) fn written_day(day: Day, format: &str) -> String {
    written(day.start(), format)
}

/// `13 Nov`, with the year where it is not this one.
pub(crate) fn short_day(at: UnixMillis, now: UnixMillis) -> String {
    let is_this_year = date(at).map(|day| day.year()) == date(now).map(|day| day.year());
    written(at, if is_this_year { "%-d %b" } else { "%-d %b %Y" })
}

/// As a field of the type `datetime-local` has it: `2026-11-13T09:14`.
pub(crate) fn field_time(at: UnixMillis) -> String {
    written(at, "%Y-%m-%dT%H:%M")
}

/// `2026-11-13 09:14 UTC`, where moments are compared.
pub(crate) fn in_utc(at: UnixMillis) -> String {
    written(at, "%Y-%m-%d %H:%M UTC")
}

/// A moment for programs and for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) iso: String,
    pub(crate) words: String,
}

impl Moment {
    pub(crate) fn new(at: UnixMillis, now: UnixMillis) -> Self {
        Self { iso: at.to_iso(), words: day_and_time(at, now) }
    }

    /// `2026-11-13 09:14:05`, for a column that says UTC.
    pub(crate) fn exact(at: UnixMillis) -> Self {
        Self { iso: at.to_iso(), words: written(at, "%Y-%m-%d %H:%M:%S") }
    }
}

/// Whole seconds to wait, never fewer than it takes.
pub(crate) fn seconds_until(at: UnixMillis, now: UnixMillis) -> u32 {
    let wait_ms = u64::try_from(at.0.saturating_sub(now.0)).unwrap_or(0);
    u32::try_from(wait_ms.div_ceil(1000)).unwrap_or(u32::MAX).max(1)
}

/// `1,234,567`
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn date(at: UnixMillis) -> Option<Date> {
    Timestamp::from_millisecond(at.0).ok().map(|at| at.to_zoned(TimeZone::UTC).date())
}

fn written(at: UnixMillis, format: &str) -> String {
    let at = Timestamp::from_millisecond(at.0).ok();
    at.map_or_else(String::new, |at| at.to_zoned(TimeZone::UTC).strftime(format).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_named_as_people_name_them() {
        let at = |text: &str| UnixMillis(text.parse::<Timestamp>().unwrap().as_millisecond());
        let now = at("2026-11-13T09:20:00Z");
        for (then, words) in [
            ("2026-11-13T00:00:00Z", "today, 00:00 UTC"),
            ("2026-11-12T23:59:59Z", "yesterday, 23:59 UTC"),
            ("2026-11-02T08:05:00Z", "2 Nov, 08:05 UTC"),
            ("2025-12-31T08:05:00Z", "31 Dec 2025, 08:05 UTC"),
        ] {
            assert_eq!(day_and_time(at(then), now), words);
        }
        assert_eq!(long_day(Day::of(now)), "13 November 2026");
        assert_eq!(long_month(Month::of(now)), "November 2026");
        assert_eq!(short_day(now, now), "13 Nov");
        assert_eq!(short_day(at("2025-12-31T08:05:00Z"), now), "31 Dec 2025");
        assert_eq!(clock_time(at("2026-11-13T09:14:59Z")), "09:14 UTC");
    }

    #[test]
    fn large_numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn a_wait_is_rounded_up() {
        assert_eq!(seconds_until(UnixMillis(1_001), UnixMillis(0)), 2);
        assert_eq!(seconds_until(UnixMillis(0), UnixMillis(5_000)), 1);
    }
}
