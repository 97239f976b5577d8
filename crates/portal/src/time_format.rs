//! Formats times for users: in their time zone where they have chosen one, and in the firm's otherwise. Billing days,
//! usage and invoices are in UTC for everyone.

use chancery_domain::{Day, Month, Person, TimeZoneName, UnixMillis};
use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::{TimeZone, TimeZoneDatabase};

/// The current time, and the time zone of the person who reads the page.
#[derive(Clone, Debug)]
pub(crate) struct LocalTime {
    pub(crate) now: UnixMillis,
    zone: TimeZone,
}

impl LocalTime {
    /// For what is in UTC for everyone.
    pub(crate) fn utc(now: UnixMillis) -> Self {
        Self { now, zone: TimeZone::UTC }
    }

    /// `firm_zone` is for people who have not chosen one.
    pub(crate) fn of(person: &Person, firm_zone: &TimeZoneName, now: UnixMillis) -> Self {
        Self { now, zone: zone(person.profile.time_zone.as_ref().unwrap_or(firm_zone)) }
    }

    pub(crate) fn today(&self) -> Day {
        self.day(self.now)
    }

    /// The calendar day of this time.
    pub(crate) fn day(&self, at: UnixMillis) -> Day {
        self.format(at, "%Y-%m-%d").parse().unwrap_or(Day::containing(at))
    }

    /// The time that a `datetime-local` input means. A time that a clock change skips is taken as after it, and one
    /// that it repeats as before it.
    pub(crate) fn parse_field(&self, time: DateTime) -> Option<UnixMillis> {
        let at = self.zone.to_timestamp(time).ok()?;
        Some(UnixMillis(at.as_millisecond()))
    }

    /// The first moment of a calendar day in this zone.
    pub(crate) fn start_of(&self, day: Day) -> UnixMillis {
        let date: Option<Date> = day.to_string().parse().ok();
        date.and_then(|date| self.parse_field(date.at(0, 0, 0, 0))).unwrap_or(day.start())
    }

    /// The first moment of the next day.
    pub(crate) fn end_of(&self, day: Day) -> UnixMillis {
        self.start_of(Day(day.0.saturating_add(1)))
    }

    /// The abbreviation at this time, such as `CET`. `UTC+03` where a zone has none.
    pub(crate) fn abbreviation(&self, at: UnixMillis) -> String {
        let name = self.format(at, "%Z");
        if name.starts_with(['+', '-']) { format!("UTC{name}") } else { name }
    }

    fn date(&self, at: UnixMillis) -> Option<Date> {
        Timestamp::from_millisecond(at.0).ok().map(|at| at.to_zoned(self.zone.clone()).date())
    }

    fn format(&self, at: UnixMillis, format: &str) -> String {
        let at = Timestamp::from_millisecond(at.0).ok();
        at.map_or_else(String::new, |at| at.to_zoned(self.zone.clone()).strftime(format).to_string())
    }
}

fn zone(name: &TimeZoneName) -> TimeZone {
    TimeZoneDatabase::bundled().get(name.as_str()).unwrap_or(TimeZone::UTC)
}

/// `09:14 UTC`, for people who are not signed in, and for usage.
pub(crate) fn clock_text(at: UnixMillis) -> String {
    format_time(at, "%H:%M UTC")
}

/// `today, 09:14 CET`, `yesterday, 09:14 CET` or `13 Nov, 09:14 CET`, with the year unless it is the current one.
pub(crate) fn day_and_time(at: UnixMillis, local: &LocalTime) -> String {
    let (Some(day), Some(today)) = (local.date(at), local.date(local.now)) else { return String::new() };
    let time = format!("{} {}", local.format(at, "%H:%M"), local.abbreviation(at));
    match day {
        day if day == today => format!("today, {time}"),
        day if day.tomorrow().is_ok_and(|next| next == today) => format!("yesterday, {time}"),
        day if day.year() == today.year() => format!("{}, {time}", local.format(at, "%-d %b")),
        _ => format!("{}, {time}", local.format(at, "%-d %b %Y")),
    }
}

/// `today, 09:14 CET`, `yesterday` or `13 Nov`, with the year unless it is the current one: for lists, where the date
/// is enough.
pub(crate) fn day_or_time(at: UnixMillis, local: &LocalTime) -> String {
    let text = day_and_time(at, local);
    match text.split_once(", ") {
        Some((day, _)) if day != "today" => day.to_owned(),
        _ => text,
    }
}

/// `4 March 2024`
pub(crate) fn long_day(day: Day) -> String {
    format_time(day.start(), "%-d %B %Y")
}

/// `13 November 2026`, in the reader's time zone.
pub(crate) fn long_local_day(at: UnixMillis, local: &LocalTime) -> String {
    local.format(at, "%-d %B %Y")
}

/// `October 2026`
pub(crate) fn long_month(month: Month) -> String {
    format_time(month.first_day().start(), "%B %Y")
}

/// Formats a day with a `strftime` format.
pub(crate) fn format_day(day: Day, format: &str) -> String {
    format_time(day.start(), format)
}

/// `13 Nov`, with the year unless it is the current one. In UTC.
pub(crate) fn short_day(at: UnixMillis, now: UnixMillis) -> String {
    short_local_day(at, &LocalTime::utc(now))
}

/// The same in the reader's time zone.
pub(crate) fn short_local_day(at: UnixMillis, local: &LocalTime) -> String {
    let is_this_year = local.date(at).map(Date::year) == local.date(local.now).map(Date::year);
    local.format(at, if is_this_year { "%-d %b" } else { "%-d %b %Y" })
}

/// Value of a `datetime-local` input: `2026-11-13T09:14`.
pub(crate) fn field_time(at: UnixMillis, local: &LocalTime) -> String {
    local.format(at, "%Y-%m-%dT%H:%M")
}

/// `2026-11-13 09:14 CET`, for times that users compare.
pub(crate) fn comparable_time(at: UnixMillis, local: &LocalTime) -> String {
    format!("{} {}", local.format(at, "%Y-%m-%d %H:%M"), local.abbreviation(at))
}

/// `2026-11-13 09:14 UTC`, for billing.
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
    pub(crate) fn new(at: UnixMillis, local: &LocalTime) -> Self {
        Self { iso: at.to_iso(), text: day_and_time(at, local) }
    }

    /// `2026-11-13 09:14:05 CET`
    pub(crate) fn exact(at: UnixMillis, local: &LocalTime) -> Self {
        let text = format!("{} {}", local.format(at, "%Y-%m-%d %H:%M:%S"), local.abbreviation(at));
        Self { iso: at.to_iso(), text }
    }
}

/// Seconds to wait, rounded up.
pub(crate) fn seconds_until(at: UnixMillis, now: UnixMillis) -> u32 {
    let wait_ms = u64::try_from(at.0.saturating_sub(now.0)).unwrap_or(0);
    u32::try_from(wait_ms.div_ceil(1000)).unwrap_or(u32::MAX).max(1)
}

/// In UTC.
fn format_time(at: UnixMillis, format: &str) -> String {
    LocalTime::utc(at).format(at, format)
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
            assert_eq!(day_and_time(at(then), &LocalTime::utc(now)), text);
        }
        assert_eq!(long_day(Day::containing(now)), "13 November 2026");
        assert_eq!(long_month(Month::containing(now)), "November 2026");
        assert_eq!(short_day(now, now), "13 Nov");
        assert_eq!(short_day(at("2025-12-31T08:05:00Z"), now), "31 Dec 2025");
        assert_eq!(clock_text(at("2026-11-13T09:14:59Z")), "09:14 UTC");
    }

    fn local(zone: &str, now: UnixMillis) -> LocalTime {
        LocalTime { now, zone: super::zone(&zone.parse().unwrap()) }
    }

    #[test]
    fn times_are_in_the_readers_zone_with_its_abbreviation() {
        let at = |text: &str| UnixMillis(text.parse::<Timestamp>().unwrap().as_millisecond());
        let now = at("2026-11-13T23:30:00Z");
        let berlin = local("Europe/Berlin", now);
        assert_eq!(day_and_time(now, &berlin), "today, 00:30 CET");
        assert_eq!(day_and_time(at("2026-11-13T09:14:00Z"), &berlin), "yesterday, 10:14 CET");
        assert_eq!(day_and_time(at("2026-07-01T09:14:00Z"), &berlin), "1 Jul, 11:14 CEST");
        assert_eq!(comparable_time(now, &berlin), "2026-11-14 00:30 CET");
        assert_eq!(DisplayTime::exact(now, &berlin).text, "2026-11-14 00:30:00 CET");
        assert_eq!(day_and_time(now, &local("America/Sao_Paulo", now)), "today, 20:30 UTC-03");
        assert_eq!(day_or_time(at("2026-11-02T23:59:00Z"), &berlin), "3 Nov");
        assert_eq!(berlin.today().to_string(), "2026-11-14");
        // The day of a clock change has 25 hours.
        let day = "2026-10-25".parse().unwrap();
        assert_eq!(berlin.start_of(day).to_iso(), "2026-10-24T22:00:00.000Z");
        assert_eq!(berlin.end_of(day).to_iso(), "2026-10-25T23:00:00.000Z");
    }

    #[test]
    fn field_times_round_trip_and_survive_clock_changes() {
        let now = UnixMillis(1_794_561_240_000);
        let berlin = local("Europe/Berlin", now);
        let parse = |text: &str| berlin.parse_field(text.parse().unwrap()).unwrap();
        assert_eq!(field_time(now, &berlin), "2026-11-13T10:14");
        assert_eq!(parse("2026-11-13T10:14"), now);
        // Skipped on 29 March 2026, and repeated on 25 October 2026.
        assert_eq!(parse("2026-03-29T02:30").to_iso(), "2026-03-29T01:30:00.000Z");
        assert_eq!(parse("2026-10-25T02:30").to_iso(), "2026-10-25T00:30:00.000Z");
    }

    #[test]
    fn wait_is_rounded_up_to_seconds() {
        assert_eq!(seconds_until(UnixMillis(1_001), UnixMillis(0)), 2);
        assert_eq!(seconds_until(UnixMillis(0), UnixMillis(5_000)), 1);
    }
}
