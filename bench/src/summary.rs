//! Summaries of repeated measurements, and how they are printed.

use std::time::Duration;

/// The median of several rounds, and their range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None` without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let median = f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self { median, min, max })
    }

    /// The median, and the range in parentheses, such as `15,230 (14,900–15,400)`.
    pub fn shown(self) -> String {
        format!("{} ({}–{})", number(self.median), number(self.min), number(self.max))
    }
}

/// A number with a comma between thousands, and with decimals only where they matter.
pub fn number(value: f64) -> String {
    if value.abs() < 9.95 {
        return format!("{value:.2}");
    }
    if value.abs() < 99.5 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |digits| ("-", digits));
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    format!("{sign}{}", groups.join(","))
}

/// Nearest-rank percentile of sorted times.
pub fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

pub fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_uses_the_nearest_rank() {
        let times: Vec<Duration> = (1..=20).map(Duration::from_millis).collect();
        assert_eq!(percentile(&times, 50), Some(Duration::from_millis(10)));
        assert_eq!(percentile(&times, 95), Some(Duration::from_millis(19)));
        assert_eq!(percentile(&times[..1], 95), Some(Duration::from_millis(1)));
        assert_eq!(percentile(&[], 95), None);
    }

    #[test]
    fn spread_has_the_median_of_odd_and_even_numbers_of_rounds() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of([4.0, 1.0]), Some(Spread { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn numbers_have_commas_between_thousands_and_decimals_only_when_small() {
        let shown: Vec<String> =
            [0.25, 84.3, 440.0, 15_230.4, 1_234_567.0, -1_500.0].into_iter().map(number).collect();
        assert_eq!(shown, ["0.25", "84.3", "440", "15,230", "1,234,567", "-1,500"]);
        let rounds = Spread { median: 1_500.0, min: 1_400.0, max: 1_600.0 };
        assert_eq!(rounds.shown(), "1,500 (1,400–1,600)");
    }
}
