//! The four figures on top of the page.

use super::calendar::Calendar;
use super::comparison;
use super::money::exact;
use crate::when::grouped;
use chancery_domain::Currency;
use chancery_store::UsageTotals;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) name: String,
    pub(super) figure: String,
    pub(super) notes: Vec<String>,
}

/// What a month came to, and what there is to compare it with.
pub(super) struct Month<'a> {
    pub(super) total: &'a UsageTotals,
    pub(super) previous: &'a UsageTotals,
    pub(super) refused: u64,
    pub(super) calendar: Calendar,
    pub(super) currency: Currency,
}

impl Month<'_> {
    pub(super) fn stats(&self) -> [Stat; 4] {
        let Self { total, previous, calendar, currency, .. } = *self;
        let so_far = if calendar.is_running() { " so far" } else { "" };
        let counted = |name: &str, now: u64, before: u64| Stat {
            name: format!("{name}{so_far}"),
            figure: grouped(now),
            notes: vec![comparison::in_words(now, before, calendar)],
        };
        let mut requests = counted("Requests", total.requests, previous.requests);
        requests.notes.push(match self.refused {
            0 => "none was refused".to_owned(),
            1 => "1 more was refused".to_owned(),
            more => format!("{} more were refused", grouped(more)),
        });
        [
            Stat {
                name: format!("Spend{so_far}"),
                figure: currency.to_read(currency.round(total.cost)),
                notes: vec![format!("{} exactly", exact(total.cost))],
            },
            counted("Input tokens", total.input_tokens, previous.input_tokens),
            counted("Output tokens", total.output_tokens, previous.output_tokens),
            requests,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::Nanos;

    fn stats(month: &str, refused: u64) -> Vec<(String, String, String)> {
        let total = UsageTotals {
            requests: 214_806,
            input_tokens: 280_326_703,
            output_tokens: 36_085_565,
            cost: Nanos(195_478_145_200),
        };
        let previous = UsageTotals { requests: 214_806, input_tokens: 250_000_000, ..UsageTotals::default() };
        let calendar = Calendar { month: month.parse().unwrap(), today: "2026-11-13".parse().unwrap() };
        let month = Month { total: &total, previous: &previous, refused, calendar, currency: Currency::USD };
        let plain = |stat: Stat| (stat.name, stat.figure, stat.notes.join("; ").replace('\u{a0}', " "));
        month.stats().map(plain).to_vec()
    }

    #[test]
    fn a_month_is_four_figures_each_with_what_it_means() {
        let own = |(a, b, c): (&str, &str, &str)| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(
            stats("2026-10", 431),
            [
                ("Spend", "$195.48", "195.4781452 exactly"),
                ("Input tokens", "280,326,703", "12 % more than September"),
                ("Output tokens", "36,085,565", "none in September"),
                ("Requests", "214,806", "as many as in September; 431 more were refused"),
            ]
            .map(own)
        );
        assert_eq!(
            stats("2026-11", 0),
            [
                ("Spend so far", "$195.48", "195.4781452 exactly"),
                ("Input tokens so far", "280,326,703", "all of October: 250,000,000"),
                ("Output tokens so far", "36,085,565", "none in October"),
                ("Requests so far", "214,806", "all of October: 214,806; none was refused"),
            ]
            .map(own)
        );
    }
}
