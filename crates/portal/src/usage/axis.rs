//! The vertical axis of a chart: from 0 to a round number above the largest value, in four equal steps. Pure arithmetic, no
//! drawing.

/// Grid lines above the base; the last one is the end of the axis.
pub(super) const STEPS: u32 = 4;

/// Allowed steps, in tenths of a power of ten. The axis then ends at 4, 6, 8, 10, 12, 16, 20, 24 or 32 times that power.
const ROUND_TENTHS: [u128; 9] = [10, 15, 20, 25, 30, 40, 50, 60, 80];

/// Full height of the plot, in hundredths of a percent.
pub(super) const WHOLE: u32 = 10_000;

/// In the unit of the values: tokens, nano-units or rejected requests. Steps are integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    step: u128,
}

impl Axis {
    /// The lowest axis that ends above this value. For zero it has steps of one.
    pub(super) fn above(largest: u128) -> Self {
        let mut power: u128 = 1;
        loop {
            let steps = ROUND_TENTHS.iter().map(|tenths| tenths * power);
            let whole = steps.filter(|tenths| tenths.is_multiple_of(10)).map(|tenths| tenths / 10);
            let mut fitting = whole.filter(|step| step * u128::from(STEPS) > largest);
            if let Some(step) = fitting.next() {
                return Self { step };
            }
            power *= 10;
        }
    }

    pub(super) fn end(self) -> u128 {
        self.step * u128::from(STEPS)
    }

    /// The values of its lines, from the base up.
    pub(super) fn grid_lines(self) -> impl Iterator<Item = u128> {
        (0..=STEPS).map(move |line| self.step * u128::from(line))
    }

    /// Height of a value, in hundredths of a percent of the plot, rounded and clamped.
    pub(super) fn height(self, value: u128) -> u32 {
        let whole = u128::from(WHOLE);
        let end = self.end();
        let height = (value.min(end) * whole + end / 2) / end;
        u32::try_from(height.min(whole)).unwrap_or(WHOLE)
    }
}

/// Abbreviated counts for the axis: `500`, `7.5 k`, `15 M`, `2 bn`. Counts are abbreviated nowhere else.
pub(super) fn short_counts(values: &[u128]) -> Vec<String> {
    values.iter().copied().map(short_count).collect()
}

fn short_count(value: u128) -> String {
    const UNITS: [(u128, &str); 4] =
        [(1_000_000_000_000, "tn"), (1_000_000_000, "bn"), (1_000_000, "M"), (1_000, "k")];
    match UNITS.into_iter().find(|(unit, _)| value >= *unit) {
        None => value.to_string(),
        Some((unit, name)) => {
            // Three decimals represent any grid line exactly: a step has two significant digits.
            let decimals = format!("{:03}", value % unit / (unit / 1_000));
            let decimals = decimals.trim_end_matches('0');
            let point = if decimals.is_empty() { "" } else { "." };
            format!("{}{point}{decimals}\u{a0}{name}", value / unit)
        }
    }
}

/// Formats hundredths of a percent for SVG, always with two decimals: `58.38%`.
pub(super) fn percent(hundredths: u32) -> String {
    format!("{}.{:02}%", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn axis_ends_on_a_round_number_above_the_maximum() {
        for (largest, end) in [
            (0, 4),
            (3, 4),
            (4, 8),
            (5, 8),
            (8, 12),
            (19, 20),
            (20, 24),
            (99, 100),
            (100, 120),
            (250, 320),
            (399, 400),
            (400, 600),
            (19_138_831, 20_000_000),
            (20_000_000, 24_000_000),
            (11_590_000_000, 12_000_000_000),
        ] {
            assert_eq!(Axis::above(largest).end(), end, "{largest}");
        }
        let steps: Vec<_> = Axis::above(19_138_831).grid_lines().map(short_count).collect();
        assert_eq!(steps, ["0", "5\u{a0}M", "10\u{a0}M", "15\u{a0}M", "20\u{a0}M"]);
    }

    #[test]
    fn axis_counts_are_short_and_exact() {
        for (value, text) in [
            (0, "0"),
            (750, "750"),
            (1_000, "1 k"),
            (7_500, "7.5 k"),
            (22_500_000, "22.5 M"),
            (1_250_000, "1.25 M"),
            (3_000_000_000, "3 bn"),
            (40_000_000_000_000_000, "40000 tn"),
        ] {
            assert_eq!(short_count(value), text.replace(' ', "\u{a0}"));
        }
    }

    #[test]
    fn shares_are_percentages_with_two_decimals() {
        for (hundredths, text) in
            [(0, "0.00%"), (5, "0.05%"), (219, "2.19%"), (5_838, "58.38%"), (WHOLE, "100.00%")]
        {
            assert_eq!(percent(hundredths), text);
        }
    }

    proptest! {
        #[test]
        fn axis_end_is_above_but_at_most_twice_the_maximum(largest: u64) {
            let axis = Axis::above(largest.into());
            prop_assert!(axis.end() > u128::from(largest));
            prop_assert!(axis.end() <= (u128::from(largest) * 2).max(4), "{largest}: {axis:?}");
            prop_assert_eq!(axis.grid_lines().count(), 5);
            prop_assert_eq!(axis.grid_lines().last(), Some(axis.end()));
        }

        #[test]
        fn bar_heights_are_proportional_and_bounded(largest: u64, share in 0_u64..=1_000) {
            let axis = Axis::above(largest.into());
            let value = u128::from(largest) * u128::from(share) / 1_000;
            let height = axis.height(value);
            prop_assert!(height <= WHOLE);
            // Within half of the last decimal.
            let exact = value * u128::from(WHOLE);
            let off = (u128::from(height) * axis.end()).abs_diff(exact);
            prop_assert!(off * 2 <= axis.end());
        }
    }
}
