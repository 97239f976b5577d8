//! Tokens and spend by day: their charts, and the same figures as a table.

use super::axis::short_counts;
use super::calendar::{Calendar, long_day_words, month_words, short_day_words};
use super::chart::{Chart, DayValues, Drawing, Series};
use super::money::{self, Aligned};
use super::refusals::{self, Refusals};
use crate::when::grouped;
use chancery_domain::{Currency, Day, Month, Nanos};
use chancery_store::{UsageGroup, UsageSum, UsageTotals};
use std::collections::BTreeMap;

const TOKENS: [Series; 2] =
    [Series { colour: "in", name: "Input" }, Series { colour: "out", name: "Output" }];
const SPEND: [Series; 1] = [Series { colour: "spend", name: "Spend" }];

/// Every day of a month so far.
pub(super) struct Daily {
    calendar: Calendar,
    currency: Currency,
    days: Vec<(Day, UsageTotals)>,
}

/// A day in a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DayRow {
    /// `2026-10-01`
    pub(super) iso: String,
    pub(super) words: String,
    pub(super) input: String,
    pub(super) output: String,
    pub(super) requests: String,
    /// Rounded, for reading.
    pub(super) spend: String,
    pub(super) exact: Aligned,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DayTable {
    pub(super) rows: Vec<DayRow>,
    pub(super) total: DayRow,
}

impl Daily {
    pub(super) fn new(sums: &[UsageSum], calendar: Calendar, currency: Currency) -> Self {
        let by_day: BTreeMap<Day, UsageTotals> = sums
            .iter()
            .filter_map(|sum| match sum.group {
                UsageGroup::Day(day) => Some((day, totals(sum))),
                _ => None,
            })
            .collect();
        let days = calendar.days_so_far();
        let days = days.map(|day| (day, by_day.get(&day).copied().unwrap_or_default())).collect();
        Self { calendar, currency, days }
    }

    pub(super) fn month(&self) -> Month {
        self.calendar.month
    }

    pub(super) fn tokens_chart(&self) -> Chart {
        let values = |(_, totals): &(Day, UsageTotals)| DayValues {
            values: vec![totals.input_tokens.into(), totals.output_tokens.into()],
            words: format!("{} in, {} out", grouped(totals.input_tokens), grouped(totals.output_tokens)),
        };
        let most = self.most(|totals| u128::from(totals.input_tokens) + u128::from(totals.output_tokens));
        let most = most.map(|(day, tokens)| {
            let tokens = grouped(u64::try_from(tokens).unwrap_or(u64::MAX));
            format!("The busiest day was {} with {tokens} tokens.", long_day_words(day))
        });
        Chart::draw(Drawing {
            id: "tokens",
            title: self.titled("Tokens per day"),
            description: self.described("Stacked bars, input below and output above.", most),
            calendar: self.calendar,
            series: &TOKENS,
            days: &self.days.iter().map(values).collect::<Vec<_>>(),
            labels: &short_counts,
        })
    }

    pub(super) fn spend_chart(&self) -> Chart {
        let nanos = |totals: &UsageTotals| u128::try_from(totals.cost.0).unwrap_or_default();
        let amount = |cost: Nanos| format!("{} {}", money::exact(cost), self.currency);
        let values = |(_, totals): &(Day, UsageTotals)| DayValues {
            values: vec![nanos(totals)],
            words: amount(totals.cost),
        };
        let most = self.most(nanos).map(|(day, nanos)| {
            let cost = Nanos(i64::try_from(nanos).unwrap_or(i64::MAX));
            format!("The dearest day was {} with {}.", long_day_words(day), amount(cost))
        });
        Chart::draw(Drawing {
            id: "spend",
            title: self.titled(&format!("Spend per day in {}", self.currency)),
            description: self.described("One bar for each day.", most),
            calendar: self.calendar,
            series: &SPEND,
            days: &self.days.iter().map(values).collect::<Vec<_>>(),
            labels: &|values| money::axis_labels(self.currency, values),
        })
    }

    pub(super) fn refusals_chart(&self, refusals: &Refusals) -> Chart {
        let most = refusals
            .worst_day()
            .map(|(day, count)| format!("Most were refused on {}: {}.", long_day_words(day), grouped(count)));
        let what = "Stacked bars: below, requests that were told to slow down (429); above, requests that could not be billed (402).";
        Chart::draw(Drawing {
            id: "refused",
            title: self.titled("Refused requests per day"),
            description: self.described(what, most),
            calendar: self.calendar,
            series: &refusals::SERIES,
            days: &refusals.bars(self.calendar),
            labels: &short_counts,
        })
    }

    fn titled(&self, what: &str) -> String {
        format!("{what}, {}", month_words(self.calendar.month))
    }

    /// What one sees: the kind of drawing, its highest bar, and where it ends.
    fn described(&self, what: &str, most: Option<String>) -> String {
        let most = most.unwrap_or_else(|| "There are no bars, because there is nothing to show.".to_owned());
        let to_come = self.calendar.to_come_words();
        let to_come = to_come.map(|days| format!(" {days} are still to come.")).unwrap_or_default();
        format!("{what} {most}{to_come} The table below has every figure.")
    }

    /// The first of the days with the most, unless there is nothing on any.
    fn most(&self, value: impl Fn(&UsageTotals) -> u128) -> Option<(Day, u128)> {
        let days = self.days.iter().rev().map(|(day, totals)| (*day, value(totals)));
        days.max_by_key(|(_, value)| *value).filter(|(_, value)| *value > 0)
    }

    /// Every day so far, the oldest first; and all of them together.
    pub(super) fn table(&self, total: &UsageTotals) -> DayTable {
        let costs = self.days.iter().map(|(_, totals)| totals.cost);
        let mut exact = money::aligned(costs.chain([total.cost]));
        let row = |day: Option<Day>, totals: &UsageTotals, exact: Aligned| DayRow {
            iso: day.map(|day| day.to_string()).unwrap_or_default(),
            words: day.map(short_day_words).unwrap_or_default(),
            input: grouped(totals.input_tokens),
            output: grouped(totals.output_tokens),
            requests: grouped(totals.requests),
            spend: self.currency.to_read(self.currency.round(totals.cost)),
            exact,
        };
        let of_total = exact.pop().unwrap_or_else(Aligned::nothing);
        let rows = self.days.iter().zip(exact).map(|((day, totals), exact)| row(Some(*day), totals, exact));
        DayTable { rows: rows.collect(), total: row(None, total, of_total) }
    }
}

fn totals(sum: &UsageSum) -> UsageTotals {
    let UsageSum { requests, input_tokens, output_tokens, cost, .. } = sum;
    UsageTotals {
        requests: *requests,
        input_tokens: *input_tokens,
        output_tokens: *output_tokens,
        cost: *cost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(day: &str, input_tokens: u64, output_tokens: u64, cost: i64) -> UsageSum {
        let group = UsageGroup::Day(day.parse().unwrap());
        UsageSum { group, requests: 2, input_tokens, output_tokens, cost: Nanos(cost) }
    }

    fn daily(month: &str, sums: &[UsageSum]) -> Daily {
        let calendar = Calendar { month: month.parse().unwrap(), today: "2026-11-13".parse().unwrap() };
        Daily::new(sums, calendar, Currency::USD)
    }

    #[test]
    fn every_day_so_far_has_its_row_and_its_slot_with_usage_or_without() {
        let sums = [sum("2026-11-02", 1_200, 30, 128_431_000), sum("2026-11-12", 900, 10, 5_000_000_000)];
        let total = UsageTotals::of(&sums).unwrap();
        let daily = daily("2026-11", &sums);
        let table = daily.table(&total);
        assert_eq!(table.rows.len(), 13);
        let row = &table.rows[1];
        assert_eq!(
            (row.iso.as_str(), row.words.as_str(), row.input.as_str(), row.spend.as_str()),
            ("2026-11-02", "Mon 2 Nov", "1,200", "$0.13")
        );
        assert_eq!(row.exact.amount, "0.128431");
        assert_eq!((table.rows[0].input.as_str(), table.rows[0].requests.as_str()), ("0", "0"));
        assert_eq!((table.total.exact.amount.as_str(), table.total.requests.as_str()), ("5.128431", "4"));
        let chart = daily.tokens_chart();
        assert_eq!(chart.days.len(), 13);
        assert_eq!(
            chart.description,
            "Stacked bars, input below and output above. The busiest day was Monday 2 November with 1,230 tokens. \
             14 to 30 Nov are still to come. The table below has every figure."
        );
        assert_eq!(chart.days[11].title, "Thu 12 Nov: 900 in, 10 out");
        let chart = daily.spend_chart();
        assert!(chart.description.contains("The dearest day was Thursday 12 November with 5.00 USD."));
        assert_eq!(chart.days[1].title, "Mon 2 Nov: 0.128431 USD");
        assert_eq!(chart.lines[4].label, "$6.00", "{:?}", chart.lines);
    }

    #[test]
    fn of_equal_days_the_first_is_named_and_of_nothing_none() {
        let sums = [sum("2026-10-02", 5, 5, 1), sum("2026-10-03", 5, 5, 1)];
        assert!(
            daily("2026-10", &sums).tokens_chart().description.contains("Friday 2 October with 10 tokens")
        );
        assert!(daily("2026-10", &[]).tokens_chart().description.contains("There are no bars"));
    }
}
