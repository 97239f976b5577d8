//! Formats amounts for an axis.

use chancery_domain::{Currency, group_thousands};

const NANOS_PER_UNIT: u128 = 1_000_000_000;
/// If there are decimals at all, there are at least this many.
const MIN_DECIMALS: usize = 2;

/// Axis labels: `$0`, `$5`, `$10`, or all with the same number of decimals: `$0.00`, `$2.50`, `$5.00`. A currency without a
/// known symbol gets none; the chart's title names it.
pub(super) fn axis_labels(currency: Currency, values: &[u128]) -> Vec<String> {
    let symbol = currency.symbol().unwrap_or_default();
    let decimals = |value: &u128| {
        let decimals = format!("{:09}", value % NANOS_PER_UNIT);
        decimals.trim_end_matches('0').len()
    };
    let longest = match values.iter().map(decimals).max().unwrap_or_default() {
        0 => 0,
        some => some.max(MIN_DECIMALS),
    };
    let label = |value: &u128| {
        let units = group_thousands(u64::try_from(value / NANOS_PER_UNIT).unwrap_or(u64::MAX));
        let decimals = format!("{:09}", value % NANOS_PER_UNIT);
        let point = if longest == 0 { "" } else { "." };
        format!("{symbol}{units}{point}{}", &decimals[..longest])
    };
    values.iter().map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_axis_has_as_many_decimals_as_needed() {
        let labels = |step: u128| axis_labels(Currency::USD, &[0, step, 2 * step]);
        assert_eq!(labels(5_000_000_000), ["$0", "$5", "$10"]);
        assert_eq!(labels(2_500_000_000), ["$0.00", "$2.50", "$5.00"]);
        assert_eq!(labels(500_000), ["$0.0000", "$0.0005", "$0.0010"]);
        assert_eq!(labels(1), ["$0.000000000", "$0.000000001", "$0.000000002"]);
        assert_eq!(labels(2_500_000_000_000), ["$0", "$2,500", "$5,000"]);
        assert_eq!(axis_labels("CHF".parse().unwrap(), &[0, 1_000_000_000]), ["0", "1"]);
    }
}
