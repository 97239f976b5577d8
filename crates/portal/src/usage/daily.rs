//! Tokens and spend by day: charts, and the same figures as a table.

use super::axis::short_counts;
use super::calendar::{Calendar, long_day_text, month_text, short_day_text};
use super::chart::{Chart, ChartSpec, DayValues, Series};
use super::money;
use super::rejections::{self, Rejections};
use chancery_domain::{AlignedAmount, Currency, Day, Month, Nanos, align_amounts, group_thousands};
use chancery_store::{UsageGroup, UsageSum, UsageTotals};
use std::collections::BTreeMap;

const TOKENS: [Series; 2] =
    [Series { colour: "in", name: "Input" }, Series { colour: "out", name: "Output" }];
const SPEND: [Series; 1] = [Series { colour: "spend", name: "Spend" }];

pub(super) struct Daily {
    calendar: Calendar,
    currency: Currency,
    days: Vec<(Day, UsageTotals)>,
}

/// A day's row in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DayRow {
    /// `2026-10-01`
    pub(super) iso: String,
    pub(super) text: String,
    pub(super) input: String,
    /// The part of the input that was cached.
    pub(super) cached_input: String,
    pub(super) output: String,
    pub(super) requests: String,
    /// Rounded for display.
    pub(super) spend: String,
    pub(super) exact: AlignedAmount,
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
            text: format!(
                "{} in, {} out",
                group_thousands(totals.input_tokens),
                group_thousands(totals.output_tokens)
            ),
        };
        let peak = self.peak(|totals| u128::from(totals.input_tokens) + u128::from(totals.output_tokens));
        let peak = peak.map(|(day, tokens)| {
            let tokens = group_thousands(u64::try_from(tokens).unwrap_or(u64::MAX));
            format!("The busiest day was {} with {tokens} tokens.", long_day_text(day))
        });
        Chart::draw(ChartSpec {
            id: "tokens",
            title: self.chart_title("Tokens per day"),
            description: self.chart_description("Stacked bars, input below and output above.", peak),
            calendar: self.calendar,
            series: &TOKENS,
            days: &self.days.iter().map(values).collect::<Vec<_>>(),
            labels: &short_counts,
        })
    }

    pub(super) fn spend_chart(&self) -> Chart {
        let nanos = |totals: &UsageTotals| u128::try_from(totals.cost.0).unwrap_or_default();
        let amount = |cost: Nanos| format!("{} {}", cost.figures(), self.currency);
        let values = |(_, totals): &(Day, UsageTotals)| DayValues {
            values: vec![nanos(totals)],
            text: amount(totals.cost),
        };
        let peak = self.peak(nanos).map(|(day, nanos)| {
            let cost = Nanos(i64::try_from(nanos).unwrap_or(i64::MAX));
            format!("The most expensive day was {} with {}.", long_day_text(day), amount(cost))
        });
        Chart::draw(ChartSpec {
            id: "spend",
            title: self.chart_title(&format!("Spend per day in {}", self.currency)),
            description: self.chart_description("One bar for each day.", peak),
            calendar: self.calendar,
            series: &SPEND,
            days: &self.days.iter().map(values).collect::<Vec<_>>(),
            labels: &|values| money::axis_labels(self.currency, values),
        })
    }

    pub(super) fn rejections_chart(&self, rejections: &Rejections) -> Chart {
        let peak = rejections.peak_day().map(|(day, count)| {
            format!("The most rejections were on {}: {}.", long_day_text(day), group_thousands(count))
        });
        let what = "Stacked bars: rate-limited requests (429) below, billing errors (402) above.";
        Chart::draw(ChartSpec {
            id: "refused",
            title: self.chart_title("Rejected requests per day"),
            description: self.chart_description(what, peak),
            calendar: self.calendar,
            series: &rejections::SERIES,
            days: &rejections.bars(self.calendar),
            labels: &short_counts,
        })
    }

    fn chart_title(&self, what: &str) -> String {
        format!("{what}, {}", month_text(self.calendar.month))
    }

    /// Describes the kind of chart, its highest bar and the upcoming days.
    fn chart_description(&self, what: &str, peak: Option<String>) -> String {
        let peak = peak.unwrap_or_else(|| "There is nothing to show.".to_owned());
        let future_days = self.calendar.future_days_text();
        let future_days = future_days.map(|days| format!(" Upcoming: {days}.")).unwrap_or_default();
        format!("{what} {peak}{future_days} The table below has every figure.")
    }

    /// The day with the highest value, the first of equal ones. `None` if all are zero.
    fn peak(&self, value: impl Fn(&UsageTotals) -> u128) -> Option<(Day, u128)> {
        let days = self.days.iter().rev().map(|(day, totals)| (*day, value(totals)));
        days.max_by_key(|(_, value)| *value).filter(|(_, value)| *value > 0)
    }

    /// Every day so far, oldest first, and the total.
    pub(super) fn table(&self, total: &UsageTotals) -> DayTable {
        let costs = self.days.iter().map(|(_, totals)| totals.cost);
        let mut exact = align_amounts(costs.chain([total.cost]));
        let row = |day: Option<Day>, totals: &UsageTotals, exact: AlignedAmount| DayRow {
            iso: day.map(|day| day.to_string()).unwrap_or_default(),
            text: day.map(short_day_text).unwrap_or_default(),
            input: group_thousands(totals.input_tokens),
            cached_input: group_thousands(totals.cached_input_tokens),
            output: group_thousands(totals.output_tokens),
            requests: group_thousands(totals.requests),
            spend: self.currency.format_amount(self.currency.round(totals.cost)),
            exact,
        };
        let of_total = exact.pop().unwrap_or_else(AlignedAmount::default);
        let rows = self.days.iter().zip(exact).map(|((day, totals), exact)| row(Some(*day), totals, exact));
        DayTable { rows: rows.collect(), total: row(None, total, of_total) }
    }
}

fn totals(sum: &UsageSum) -> UsageTotals {
    let UsageSum { requests, input_tokens, cached_input_tokens, output_tokens, cost, .. } = *sum;
    UsageTotals { requests, input_tokens, cached_input_tokens, output_tokens, cost }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(day: &str, input_tokens: u64, output_tokens: u64, cost: i64) -> UsageSum {
        let group = UsageGroup::Day(day.parse().unwrap());
        let (cached_input_tokens, cost) = (input_tokens / 100, Nanos(cost));
        UsageSum { group, requests: 2, input_tokens, cached_input_tokens, output_tokens, cost }
    }

    fn daily(month: &str, sums: &[UsageSum]) -> Daily {
        let calendar = Calendar { month: month.parse().unwrap(), today: "2026-11-13".parse().unwrap() };
        Daily::new(sums, calendar, Currency::USD)
    }

    #[test]
    fn every_day_so_far_has_a_row_and_a_slot() {
        let sums = [sum("2026-11-02", 1_200, 30, 128_431_000), sum("2026-11-12", 900, 10, 5_000_000_000)];
        let total = UsageTotals::of(&sums).unwrap();
        let daily = daily("2026-11", &sums);
        let table = daily.table(&total);
        assert_eq!(table.rows.len(), 13);
        let row = &table.rows[1];
        assert_eq!(
            (row.iso.as_str(), row.text.as_str(), row.input.as_str(), row.spend.as_str()),
            ("2026-11-02", "Mon 2 Nov", "1,200", "$0.13")
        );
        assert_eq!((row.cached_input.as_str(), table.total.cached_input.as_str()), ("12", "21"));
        assert_eq!(row.exact.text, "0.128431");
        assert_eq!((table.rows[0].input.as_str(), table.rows[0].requests.as_str()), ("0", "0"));
        assert_eq!((table.total.exact.text.as_str(), table.total.requests.as_str()), ("5.128431", "4"));
        let chart = daily.tokens_chart();
        assert_eq!(chart.days.len(), 13);
        assert_eq!(
            chart.description,
            "Stacked bars, input below and output above. The busiest day was Monday 2 November with 1,230 tokens. \
             Upcoming: 14 to 30 Nov. The table below has every figure."
        );
        assert_eq!(chart.days[11].title, "Thu 12 Nov: 900 in, 10 out");
        let chart = daily.spend_chart();
        assert!(chart.description.contains("The most expensive day was Thursday 12 November with 5.00 USD."));
        assert_eq!(chart.days[1].title, "Mon 2 Nov: 0.128431 USD");
        assert_eq!(chart.grid_lines[4].label, "$6.00", "{:?}", chart.grid_lines);
    }

    #[test]
    fn first_of_equal_peak_days_is_named() {
        let sums = [sum("2026-10-02", 5, 5, 1), sum("2026-10-03", 5, 5, 1)];
        assert!(
            daily("2026-10", &sums).tokens_chart().description.contains("Friday 2 October with 10 tokens")
        );
        assert!(daily("2026-10", &[]).tokens_chart().description.contains("There is nothing to show."));
    }
}
