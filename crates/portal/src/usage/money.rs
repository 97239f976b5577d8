//! Money as the page about usage writes it: exact amounts that line up on the point, and amounts beside an axis.

use crate::when::grouped;
use chancery_domain::{Currency, Nanos};

const NANOS_PER_UNIT: u128 = 1_000_000_000;
/// An exact amount has at least these.
const MIN_DECIMALS: usize = 2;

/// An exact amount in a column: `118.8121347`, and zeros that take room and are not seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Aligned {
    pub(super) amount: String,
    pub(super) padding: String,
}

impl Aligned {
    /// An empty cell.
    pub(super) fn nothing() -> Self {
        Self { amount: String::new(), padding: String::new() }
    }
}

/// The exact amount with commas between thousands: `1,284.50`.
pub(crate) fn exact(amount: Nanos) -> String {
    let plain = amount.to_string();
    let (sign, plain) = plain.strip_prefix('-').map_or(("", plain.as_str()), |rest| ("-", rest));
    let (units, decimals) = plain.split_once('.').unwrap_or((plain, "00"));
    match units.parse() {
        Ok(units) => format!("{sign}{}.{decimals}", grouped(units)),
        Err(_) => format!("{sign}{plain}"),
    }
}

/// The amounts of one column, each with as many places after the point as the longest.
pub(super) fn aligned(amounts: impl IntoIterator<Item = Nanos>) -> Vec<Aligned> {
    let amounts: Vec<String> = amounts.into_iter().map(exact).collect();
    let decimals = |amount: &String| amount.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let longest = amounts.iter().map(decimals).max().unwrap_or_default();
    let align = |amount: String| {
        let padding = "0".repeat(longest - decimals(&amount));
        Aligned { amount, padding }
    };
    amounts.into_iter().map(align).collect()
}

/// Beside an axis: `$0`, `$5`, `$10`, or all with as many decimals as one of them needs: `$0.00`, `$2.50`, `$5.00`. A currency
/// without a sign of its own here has none; the chart's title names it.
pub(super) fn axis_labels(currency: Currency, values: &[u128]) -> Vec<String> {
    let sign = match currency.as_str() {
        "USD" => "$",
        "EUR" => "€",
        "GBP" => "£",
        _ => "",
    };
    let decimals = |value: &u128| {
        let decimals = format!("{:09}", value % NANOS_PER_UNIT);
        decimals.trim_end_matches('0').len()
    };
    let longest = match values.iter().map(decimals).max().unwrap_or_default() {
        0 => 0,
        some => some.max(MIN_DECIMALS),
    };
    let label = |value: &u128| {
        let units = grouped(u64::try_from(value / NANOS_PER_UNIT).unwrap_or(u64::MAX));
        let decimals = format!("{:09}", value % NANOS_PER_UNIT);
        let point = if longest == 0 { "" } else { "." };
        format!("{sign}{units}{point}{}", &decimals[..longest])
    };
    values.iter().map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_amounts_line_up_on_the_point() {
        let column =
            aligned([Nanos(118_812_134_700), Nanos(166_912_600), Nanos(0), Nanos(1_284_500_000_000)]);
        let written: Vec<_> =
            column.iter().map(|cell| (cell.amount.as_str(), cell.padding.as_str())).collect();
        assert_eq!(
            written,
            [("118.8121347", ""), ("0.1669126", ""), ("0.00", "00000"), ("1,284.50", "00000")]
        );
        assert_eq!(aligned([]), []);
        assert_eq!(exact(Nanos(i64::MAX)), "9,223,372,036.854775807");
        assert_eq!(exact(Nanos(-1_500_000_000_000)), "-1,500.00");
    }

    #[test]
    fn an_axis_of_money_has_as_many_decimals_as_it_needs() {
        let labels = |step: u128| axis_labels(Currency::USD, &[0, step, 2 * step]);
        assert_eq!(labels(5_000_000_000), ["$0", "$5", "$10"]);
        assert_eq!(labels(2_500_000_000), ["$0.00", "$2.50", "$5.00"]);
        assert_eq!(labels(500_000), ["$0.0000", "$0.0005", "$0.0010"]);
        assert_eq!(labels(1), ["$0.000000000", "$0.000000001", "$0.000000002"]);
        assert_eq!(labels(2_500_000_000_000), ["$0", "$2,500", "$5,000"]);
        assert_eq!(axis_labels("CHF".parse().unwrap(), &[0, 1_000_000_000]), ["0", "1"]);
    }
}
