//! Rejected requests by error code, with text for each.

use super::calendar::{Calendar, short_day_text};
use super::chart::{DayValues, Series};
use crate::time_format::{DisplayTime, LocalTime, day_and_time};
use chancery_domain::{Day, UnixMillis, group_thousands};
use chancery_store::DailyRejectionTotals;
use std::collections::BTreeMap;

/// The chart's series, from the bottom up.
pub(super) const SERIES: [Series; 2] = [
    Series { colour: "slow", name: "Rate limited (429)" },
    Series { colour: "unpaid", name: "Billing (402)" },
];

/// Whether the code is a billing error (402). All others are rate limits (429).
fn is_payment(code: &str) -> bool {
    matches!(code, "no_billing_account" | "spending_cap_reached")
}

/// The code's meaning for users, and its status and code as programs get them.
fn describe(code: &str) -> (String, String) {
    let (text, status) = match code {
        "rate_limited" => ("Rate limit exceeded", "429"),
        "no_billing_account" => ("No open billing account", "402"),
        "spending_cap_reached" => ("Monthly cap reached", "402"),
        other => return ("Rejected".to_owned(), other.to_owned()),
    };
    (text.to_owned(), format!("{status} {code}"))
}

/// A row of the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RejectionRow {
    pub(super) text: String,
    pub(super) code: String,
    pub(super) count: String,
    pub(super) last: DisplayTime,
}

/// A row of the table below the chart: a day and one of its codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RejectionDayRow {
    pub(super) iso: String,
    pub(super) text: String,
    pub(super) code: String,
    pub(super) count: String,
}

/// The rejected requests of a month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejections {
    pub(super) total: u64,
    /// Most frequent first.
    codes: Vec<String>,
    by_code: BTreeMap<String, (u64, UnixMillis)>,
    by_day: BTreeMap<Day, BTreeMap<String, u64>>,
}

impl Rejections {
    pub(super) fn of(rejected: &[DailyRejectionTotals]) -> Self {
        let mut by_code: BTreeMap<String, (u64, UnixMillis)> = BTreeMap::new();
        let mut by_day: BTreeMap<Day, BTreeMap<String, u64>> = BTreeMap::new();
        let mut total: u64 = 0;
        for DailyRejectionTotals { day, code, rejections, last_at } in rejected {
            // Saturating is fine: these are counts for display, not money.
            total = total.saturating_add(*rejections);
            let sum = by_code.entry(code.clone()).or_insert((0, *last_at));
            *sum = (sum.0.saturating_add(*rejections), sum.1.max(*last_at));
            let of_day = by_day.entry(*day).or_default().entry(code.clone()).or_default();
            *of_day = of_day.saturating_add(*rejections);
        }
        let mut codes: Vec<String> = by_code.keys().cloned().collect();
        codes.sort_by_key(|code| std::cmp::Reverse(by_code.get(code).map(|(count, _)| *count)));
        Self { total, codes, by_code, by_day }
    }

    pub(super) fn any(&self) -> bool {
        self.total > 0
    }

    pub(super) fn reasons(&self, now: UnixMillis) -> Vec<RejectionRow> {
        let row = |code: &String| {
            let (count, last_at) = *self.by_code.get(code)?;
            let (text, code) = describe(code);
            let last =
                DisplayTime { iso: last_at.to_iso(), text: day_and_time(last_at, &LocalTime::utc(now)) };
            Some(RejectionRow { text, code, count: group_thousands(count), last })
        };
        self.codes.iter().filter_map(row).collect()
    }

    /// Days with rejections, in order.
    pub(super) fn day_lines(&self) -> Vec<RejectionDayRow> {
        let line = |(day, code, count): (Day, &str, u64)| RejectionDayRow {
            iso: day.to_string(),
            text: short_day_text(day),
            code: describe(code).1,
            count: group_thousands(count),
        };
        self.by_day_and_code().map(line).collect()
    }

    /// In order of day and code.
    pub(super) fn by_day_and_code(&self) -> impl Iterator<Item = (Day, &str, u64)> {
        self.by_day
            .iter()
            .flat_map(|(day, counts)| counts.iter().map(move |(code, count)| (*day, code.as_str(), *count)))
    }

    /// Values for the chart: `SERIES` for each day so far.
    pub(super) fn bars(&self, calendar: Calendar) -> Vec<DayValues> {
        calendar.days_so_far().map(|day| self.day_bars(day)).collect()
    }

    fn day_bars(&self, day: Day) -> DayValues {
        let counts = self.by_day.get(&day);
        let of_kind = |payment: bool| -> u128 {
            let counts = counts.into_iter().flatten();
            counts.filter(|(code, _)| is_payment(code) == payment).map(|(_, count)| u128::from(*count)).sum()
        };
        let (slow, unpaid) = (of_kind(false), of_kind(true));
        let text = format!("{slow} with 429, {unpaid} with 402");
        DayValues { values: vec![slow, unpaid], text }
    }

    /// The day with the most rejections, and their number.
    pub(super) fn peak_day(&self) -> Option<(Day, u64)> {
        let sum = |counts: &BTreeMap<String, u64>| {
            counts.values().fold(0_u64, |sum, count| sum.saturating_add(*count))
        };
        // The first of equal days.
        self.by_day.iter().rev().map(|(day, counts)| (*day, sum(counts))).max_by_key(|(_, count)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(day: &str, minute: i64, code: &str, rejections: u64) -> DailyRejectionTotals {
        let day: Day = day.parse().unwrap();
        let last_at = UnixMillis(day.start().0 + minute * 60_000);
        DailyRejectionTotals { day, code: code.to_owned(), rejections, last_at }
    }

    fn sample() -> Rejections {
        Rejections::of(&[
            rejected("2026-11-02", 1, "spending_cap_reached", 3),
            rejected("2026-11-02", 2, "rate_limited", 5),
            rejected("2026-11-04", 3, "rate_limited", 6),
            rejected("2026-11-04", 3, "no_billing_account", 1),
        ])
    }

    #[test]
    fn rejections_are_summed_by_code_most_frequent_first() {
        let now = UnixMillis("2026-11-05".parse::<Day>().unwrap().start().0);
        let rows = sample().reasons(now);
        let short: Vec<_> =
            rows.iter().map(|row| (row.code.as_str(), row.count.as_str(), row.last.text.as_str())).collect();
        assert_eq!(
            short,
            [
                ("429 rate_limited", "11", "yesterday, 00:03 UTC"),
                ("402 spending_cap_reached", "3", "2 Nov, 00:01 UTC"),
                ("402 no_billing_account", "1", "yesterday, 00:03 UTC"),
            ]
        );
        assert_eq!(sample().total, 15);
        let unknown = Rejections::of(&[rejected("2026-11-02", 1, "something_new", 3)]);
        assert_eq!(unknown.reasons(now)[0].code, "something_new", "what is not known here is shown as it is");
    }

    #[test]
    fn rejections_are_split_by_429_and_402_per_day() {
        let calendar = Calendar { month: "2026-11".parse().unwrap(), today: "2026-11-05".parse().unwrap() };
        let bars = sample().bars(calendar);
        let values: Vec<_> = bars.iter().map(|day| (day.values[0], day.values[1])).collect();
        assert_eq!(values, [(0, 0), (5, 3), (0, 0), (6, 1), (0, 0)]);
        assert_eq!(bars[3].text, "6 with 429, 1 with 402");
        assert_eq!(sample().peak_day(), Some(("2026-11-02".parse().unwrap(), 8)));
        let lines = sample().day_lines();
        let lines: Vec<_> =
            lines.iter().map(|line| (line.text.as_str(), line.code.as_str(), line.count.as_str())).collect();
        assert_eq!(
            lines,
            [
                ("Mon 2 Nov", "429 rate_limited", "5"),
                ("Mon 2 Nov", "402 spending_cap_reached", "3"),
                ("Wed 4 Nov", "402 no_billing_account", "1"),
                ("Wed 4 Nov", "429 rate_limited", "6"),
            ]
        );
        assert!(!Rejections::of(&[]).any() && Rejections::of(&[]).peak_day().is_none());
    }
}
