//! Requests that were refused, by the code that their callers got, in words.

use super::calendar::{Calendar, short_day_words};
use super::chart::{DayValues, Series};
use crate::when::{Moment, day_and_time, grouped};
use chancery_domain::{Day, UnixMillis};
use chancery_store::RefusedDay;
use std::collections::BTreeMap;

/// In the order in which they stand on each other.
pub(super) const SERIES: [Series; 2] = [
    Series { colour: "slow", name: "Slow down (429)" },
    Series { colour: "unpaid", name: "Cannot be billed (402)" },
];

/// Whether a refusal asked for payment; every other one asks to slow down.
fn is_payment(code: &str) -> bool {
    matches!(code, "no_billing_account" | "spending_cap_reached")
}

/// What the code means, for people; and with its status, as programs get it.
fn in_words(code: &str) -> (String, String) {
    let (words, status) = match code {
        "rate_limited" => ("Too many requests or tokens in a minute", "429"),
        "no_billing_account" => ("The key bills no account, or a closed one", "402"),
        "spending_cap_reached" => ("The month’s spending cap was reached", "402"),
        other => return ("Refused".to_owned(), other.to_owned()),
    };
    (words.to_owned(), format!("{status} {code}"))
}

/// One line of the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Why {
    pub(super) words: String,
    pub(super) code: String,
    pub(super) count: String,
    pub(super) last: Moment,
}

/// One line of the table below the chart: a day and one of its codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DayLine {
    pub(super) iso: String,
    pub(super) words: String,
    pub(super) code: String,
    pub(super) count: String,
}

/// The refusals of a month.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusals {
    pub(super) total: u64,
    /// The most frequent first.
    codes: Vec<String>,
    by_code: BTreeMap<String, (u64, UnixMillis)>,
    by_day: BTreeMap<Day, BTreeMap<String, u64>>,
}

impl Refusals {
    pub(super) fn of(refused: &[RefusedDay]) -> Self {
        let mut by_code: BTreeMap<String, (u64, UnixMillis)> = BTreeMap::new();
        let mut by_day: BTreeMap<Day, BTreeMap<String, u64>> = BTreeMap::new();
        let mut total: u64 = 0;
        for RefusedDay { day, code, refusals, last_at, .. } in refused {
            // They are counts to read and no money: past 64 bits nobody counts.
            total = total.saturating_add(*refusals);
            let sum = by_code.entry(code.clone()).or_insert((0, *last_at));
            *sum = (sum.0.saturating_add(*refusals), sum.1.max(*last_at));
            let of_day = by_day.entry(*day).or_default().entry(code.clone()).or_default();
            *of_day = of_day.saturating_add(*refusals);
        }
        let mut codes: Vec<String> = by_code.keys().cloned().collect();
        codes.sort_by_key(|code| std::cmp::Reverse(by_code.get(code).map(|(count, _)| *count)));
        Self { total, codes, by_code, by_day }
    }

    pub(super) fn any(&self) -> bool {
        self.total > 0
    }

    pub(super) fn why(&self, now: UnixMillis) -> Vec<Why> {
        let why = |code: &String| {
            let (count, last_at) = *self.by_code.get(code)?;
            let (words, code) = in_words(code);
            let last = Moment { iso: last_at.to_iso(), words: day_and_time(last_at, now) };
            Some(Why { words, code, count: grouped(count), last })
        };
        self.codes.iter().filter_map(why).collect()
    }

    /// Days with refusals, in order.
    pub(super) fn day_lines(&self) -> Vec<DayLine> {
        let line = |(day, code, count): (Day, &str, u64)| DayLine {
            iso: day.to_string(),
            words: short_day_words(day),
            code: in_words(code).1,
            count: grouped(count),
        };
        self.by_day_and_code().map(line).collect()
    }

    /// In the order of days and codes.
    pub(super) fn by_day_and_code(&self) -> impl Iterator<Item = (Day, &str, u64)> {
        self.by_day
            .iter()
            .flat_map(|(day, counts)| counts.iter().map(move |(code, count)| (*day, code.as_str(), *count)))
    }

    /// As the chart has them: `SERIES` for each day so far.
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
        let words = format!("{slow} with 429, {unpaid} with 402");
        DayValues { values: vec![slow, unpaid], words }
    }

    /// The day with the most, and how many they are.
    pub(super) fn worst_day(&self) -> Option<(Day, u64)> {
        let sum = |counts: &BTreeMap<String, u64>| {
            counts.values().fold(0_u64, |sum, count| sum.saturating_add(*count))
        };
        // Of equal days the first.
        self.by_day.iter().rev().map(|(day, counts)| (*day, sum(counts))).max_by_key(|(_, count)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{AccountId, KeyId};

    fn refused(day: &str, key: i64, code: &str, refusals: u64) -> RefusedDay {
        let day: Day = day.parse().unwrap();
        let last_at = UnixMillis(day.start().0 + key * 60_000);
        RefusedDay {
            account: Some(AccountId(1)),
            day,
            key: KeyId(key),
            code: code.to_owned(),
            refusals,
            last_at,
        }
    }

    fn sample() -> Refusals {
        Refusals::of(&[
            refused("2026-11-02", 1, "spending_cap_reached", 3),
            refused("2026-11-02", 2, "rate_limited", 5),
            refused("2026-11-04", 1, "rate_limited", 4),
            refused("2026-11-04", 3, "rate_limited", 2),
            refused("2026-11-04", 3, "no_billing_account", 1),
        ])
    }

    #[test]
    fn refusals_are_summed_by_code_the_most_frequent_first_with_their_last_moment() {
        let now = UnixMillis("2026-11-05".parse::<Day>().unwrap().start().0);
        let why = sample().why(now);
        let short: Vec<_> =
            why.iter().map(|why| (why.code.as_str(), why.count.as_str(), why.last.words.as_str())).collect();
        assert_eq!(
            short,
            [
                ("429 rate_limited", "11", "yesterday, 00:03 UTC"),
                ("402 spending_cap_reached", "3", "2 Nov, 00:01 UTC"),
                ("402 no_billing_account", "1", "yesterday, 00:03 UTC"),
            ]
        );
        assert_eq!(sample().total, 15);
        let unknown = Refusals::of(&[refused("2026-11-02", 1, "something_new", 3)]);
        assert_eq!(unknown.why(now)[0].code, "something_new", "what is not known here is shown as it is");
    }

    #[test]
    fn every_day_has_its_refusals_by_429_and_402() {
        let calendar = Calendar { month: "2026-11".parse().unwrap(), today: "2026-11-05".parse().unwrap() };
        let bars = sample().bars(calendar);
        let values: Vec<_> = bars.iter().map(|day| (day.values[0], day.values[1])).collect();
        assert_eq!(values, [(0, 0), (5, 3), (0, 0), (6, 1), (0, 0)]);
        assert_eq!(bars[3].words, "6 with 429, 1 with 402");
        assert_eq!(sample().worst_day(), Some(("2026-11-02".parse().unwrap(), 8)));
        let lines = sample().day_lines();
        let lines: Vec<_> =
            lines.iter().map(|line| (line.words.as_str(), line.code.as_str(), line.count.as_str())).collect();
        assert_eq!(
            lines,
            [
                ("Mon 2 Nov", "429 rate_limited", "5"),
                ("Mon 2 Nov", "402 spending_cap_reached", "3"),
                ("Wed 4 Nov", "402 no_billing_account", "1"),
                ("Wed 4 Nov", "429 rate_limited", "6"),
            ]
        );
        assert!(!Refusals::of(&[]).any() && Refusals::of(&[]).worst_day().is_none());
    }
}
