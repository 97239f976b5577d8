//! Usage of a limit, as a bar and as text.

use super::axis::percent;

/// Thresholds of the warning levels, in percent of the limit.
const WARN_FROM: u128 = 80;
const DANGER_FROM: u128 = 95;

/// 100 %, in hundredths of a percent.
const WHOLE: u128 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Normal,
    Warn,
    Danger,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meter {
    /// Element id, unique on the page.
    pub(super) id: &'static str,
    pub(super) label: String,
    /// `214 of 600`
    pub(super) text: String,
    /// Value and maximum for screen readers.
    pub(super) now: String,
    pub(super) max: String,
    pub(super) fill: String,
    pub(super) level: Level,
    /// The time of the peak, and the meaning of the level.
    pub(super) hints: Vec<String>,
}

/// Usage and limit, in the same unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) used: u128,
    pub(super) limit: u128,
}

impl Share {
    /// Hundredths of a percent, rounded down so that no warning comes early, and at most 100 %. Any usage of a zero limit is 100 %.
    fn hundredths(self) -> u128 {
        match (self.used, self.limit) {
            (0, _) => 0,
            (used, limit) if used >= limit => WHOLE,
            (used, limit) => used * WHOLE / limit,
        }
    }

    pub(super) fn level(self) -> Level {
        match self.hundredths() / 100 {
            share if share >= DANGER_FROM => Level::Danger,
            share if share >= WARN_FROM => Level::Warn,
            _ => Level::Normal,
        }
    }

    pub(super) fn fill(self) -> String {
        percent(u32::try_from(self.hundredths()).unwrap_or_default())
    }

    /// Rounded down, so that 100 % means that the cap is reached.
    pub(super) fn whole_percents(self) -> u128 {
        self.hundredths() / 100
    }
}

impl Level {
    /// CSS class of the level.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Normal => "",
            Self::Warn => " meter-warn",
            Self::Danger => " meter-danger",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meter_warns_at_80_and_95_percent() {
        for (used, limit, fill, level) in [
            (0, 600, "0.00%", Level::Normal),
            (214, 600, "35.66%", Level::Normal),
            (79_999, 100_000, "79.99%", Level::Normal),
            (80, 100, "80.00%", Level::Warn),
            (373_904, 400_000, "93.47%", Level::Warn),
            (95, 100, "95.00%", Level::Danger),
            (600, 600, "100.00%", Level::Danger),
            (700, 600, "100.00%", Level::Danger),
            (0, 0, "0.00%", Level::Normal),
            (1, 0, "100.00%", Level::Danger),
        ] {
            let share = Share { used, limit };
            assert_eq!((share.fill().as_str(), share.level()), (fill, level), "{used} of {limit}");
        }
    }
}
