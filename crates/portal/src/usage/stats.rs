//! The four key figures at the top of the page.

use super::calendar::Calendar;
use super::comparison;
use chancery_domain::{Currency, group_thousands};
use chancery_store::UsageTotals;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) name: String,
    pub(super) figure: String,
    pub(super) notes: Vec<String>,
}

/// A month's totals, and those to compare them with.
pub(super) struct Month<'a> {
    pub(super) total: &'a UsageTotals,
    pub(super) previous: &'a UsageTotals,
    pub(super) rejected: u64,
    pub(super) calendar: Calendar,
    pub(super) currency: Currency,
}

impl Month<'_> {
    pub(super) fn stats(&self) -> [Stat; 4] {
        let Self { total, previous, calendar, currency, .. } = *self;
        let so_far = if calendar.is_running() { " so far" } else { "" };
        let counted = |name: &str, now: u64, before: u64| Stat {
            name: format!("{name}{so_far}"),
            figure: group_thousands(now),
            notes: vec![comparison::describe(now, before, calendar)],
        };
        let mut input = counted("Input tokens", total.input_tokens, previous.input_tokens);
        if total.cached_input_tokens > 0 {
            input.notes.push(format!("{} of them cached", group_thousands(total.cached_input_tokens)));
        }
        let mut requests = counted("Requests", total.requests, previous.requests);
        requests.notes.push(match self.rejected {
            0 => "none rejected".to_owned(),
            1 => "plus 1 rejected".to_owned(),
            more => format!("plus {} rejected", group_thousands(more)),
        });
        [
            Stat {
                name: format!("Spend{so_far}"),
                figure: currency.format_amount(currency.round(total.cost)),
                notes: vec![format!("exactly {}", total.cost.figures())],
            },
            input,
            counted("Output tokens", total.output_tokens, previous.output_tokens),
            requests,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::Nanos;

    fn stats(month: &str, rejected: u64) -> Vec<(String, String, String)> {
        let total = UsageTotals {
            requests: 214_806,
            input_tokens: 280_326_703,
            cached_input_tokens: 0,
            output_tokens: 36_085_565,
            cost: Nanos(195_478_145_200),
        };
        let previous = UsageTotals { requests: 214_806, input_tokens: 250_000_000, ..UsageTotals::default() };
        let calendar = Calendar { month: month.parse().unwrap(), today: "2026-11-13".parse().unwrap() };
        let month = Month { total: &total, previous: &previous, rejected, calendar, currency: Currency::USD };
        let plain = |stat: Stat| (stat.name, stat.figure, stat.notes.join("; ").replace('\u{a0}', " "));
        month.stats().map(plain).to_vec()
    }

    #[test]
    fn cached_input_is_noted_where_there_is_any() {
        let total = UsageTotals { input_tokens: 9_000, cached_input_tokens: 1_600, ..UsageTotals::default() };
        let calendar = Calendar { month: "2026-10".parse().unwrap(), today: "2026-11-13".parse().unwrap() };
        let previous = UsageTotals::default();
        let month =
            Month { total: &total, previous: &previous, rejected: 0, calendar, currency: Currency::USD };
        let [_, input, ..] = month.stats();
        assert_eq!(input.notes.last().map(String::as_str), Some("1,600 of them cached"));
    }

    #[test]
    fn month_has_four_stats_with_notes() {
        let own = |(a, b, c): (&str, &str, &str)| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(
            stats("2026-10", 431),
            [
                ("Spend", "$195.48", "exactly 195.4781452"),
                ("Input tokens", "280,326,703", "12% more than September"),
                ("Output tokens", "36,085,565", "none in September"),
                ("Requests", "214,806", "same as September; plus 431 rejected"),
            ]
            .map(own)
        );
        assert_eq!(
            stats("2026-11", 0),
            [
                ("Spend so far", "$195.48", "exactly 195.4781452"),
                ("Input tokens so far", "280,326,703", "October total: 250,000,000"),
                ("Output tokens so far", "36,085,565", "none in October"),
                ("Requests so far", "214,806", "October total: 214,806; none rejected"),
            ]
            .map(own)
        );
    }
}
