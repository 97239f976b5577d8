//! Formats times for users. The portal does not know their time zone, so it uses UTC.

use chancery_domain::{Day, Month, UnixMillis};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

/// `09:14 UTC`
pub(crate) fn clock_text(at: UnixMillis) -> String {
    format_time(at, "%H:%M UTC")
}

/// `today, 09:14 UTC`, `yesterday, 09:14 UTC` or `13 Nov, 09:14 UTC`, with the year unless it is the current one.
pub(crate) fn day_and_time(at: UnixMillis, now: UnixMillis) -> String {
    let (Some(day), Some(today)) = (date(at), date(now)) else { return String::new() };
    let time = format_time(at, "%H:%M UTC");
    match day {
        day if day == today => format!("today, {time}"),
        day if day.tomorrow().is_ok_and(|next| next == today) => format!("yesterday, {time}"),
        day if day.year() == today.year() => format!("{}, {time}", format_time(at, "%-d %b")),
        _ => format!("{}, {time}", format_time(at, "%-d %b %Y")),
    }
}

/// `today, 09:14 UTC`, `yesterday` or `13 Nov`, with the year unless it is the current one: for lists, where the date is enough.
pub(crate) fn day_or_time(at: UnixMillis, now: UnixMillis) -> String {
    let text = day_and_time(at, now);
    match text.split_once(", ") {
        Some((day, _)) if day != "today" => day.to_owned(),
        _ => text,
    }
}

/// `4 March 2024`
pub(crate) fn long_day(day: Day) -> String {
    format_time(day.start(), "%-d %B %Y")
}

/// `October 2026`
pub(crate) fn long_month(month: Month) -> String {
    format_time(month.first_day().start(), "%B %Y")
}

/// Formats a day with a `strftime` format.
pub(crate) fn format_day(day: Day, format: &str) -> String {
    format_time(day.start(), format)
}

/// `13 Nov`, with the year unless it is the current one.
pub(crate) fn short_day(at: UnixMillis, now: UnixMillis) -> String {
    let is_this_year = date(at).map(|day| day.year()) == date(now).map(|day| day.year());
    format_time(at, if is_this_year { "%-d %b" } else { "%-d %b %Y" })
}

/// Value of a `datetime-local` input: `2026-11-13T09:14`.
pub(crate) fn field_time(at: UnixMillis) -> String {
    format_time(at, "%Y-%m-%dT%H:%M")
}

/// `2026-11-13 09:14 UTC`, for times that users compare.
pub(crate) fn utc_text(at: UnixMillis) -> String {
    format_time(at, "%Y-%m-%d %H:%M UTC")
}

/// A time as ISO 8601 and as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DisplayTime {
    pub(crate) iso: String,
    pub(crate) text: String,
}

impl DisplayTime {
    pub(crate) fn new(at: UnixMillis, now: UnixMillis) -> Self {
        Self { iso: at.to_iso(), text: day_and_time(at, now) }
    }

    /// `2026-11-13 09:14:05`, for a column labelled UTC.
    pub(crate) fn exact(at: UnixMillis) -> Self {
        Self { iso: at.to_iso(), text: format_time(at, "%Y-%m-%d %H:%M:%S") }
    }
}

/// Seconds to wait, rounded up.
pub(crate) fn seconds_until(at: UnixMillis, now: UnixMillis) -> u32 {
    let wait_ms = u64::try_from(at.0.saturating_sub(now.0)).unwrap_or(0);
    u32::try_from(wait_ms.div_ceil(1000)).unwrap_or(u32::MAX).max(1)
}

fn date(at: UnixMillis) -> Option<Date> {
    Timestamp::from_millisecond(at.0).ok().map(|at| at.to_zoned(TimeZone::UTC).date())
}

fn format_time(at: UnixMillis, format: &str) -> String {
    let at = Timestamp::from_millisecond(at.0).ok();
    at.map_or_else(String::new, |at| at.to_zoned(TimeZone::UTC).strftime(format).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_use_today_and_yesterday() {
        let at = |text: &str| UnixMillis(text.parse::<Timestamp>().unwrap().as_millisecond());
        let now = at("2026-11-13T09:20:00Z");
        for (then, text) in [
            ("2026-11-13T00:00:00Z", "today, 00:00 UTC"),
            ("2026-11-12T23:59:59Z", "yesterday, 23:59 UTC"),
            ("2026-11-02T08:05:00Z", "2 Nov, 08:05 UTC"),
            ("2025-12-31T08:05:00Z", "31 Dec 2025, 08:05 UTC"),
        ] {
            assert_eq!(day_and_time(at(then), now), text);
        }
        assert_eq!(long_day(Day::containing(now)), "13 November 2026");
        assert_eq!(long_month(Month::containing(now)), "November 2026");
        assert_eq!(short_day(now, now), "13 Nov");
        assert_eq!(short_day(at("2025-12-31T08:05:00Z"), now), "31 Dec 2025");
        assert_eq!(clock_text(at("2026-11-13T09:14:59Z")), "09:14 UTC");
    }

    #[test]
    fn wait_is_rounded_up_to_seconds() {
        assert_eq!(seconds_until(UnixMillis(1_001), UnixMillis(0)), 2);
        assert_eq!(seconds_until(UnixMillis(0), UnixMillis(5_000)), 1);
    }
}
