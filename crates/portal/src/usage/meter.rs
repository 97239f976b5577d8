//! How much of a limit is used, as a bar and in words.

use super::axis::percent;

/// From these shares of the limit on, in percent, a meter warns.
const WARN_FROM: u128 = 80;
const DANGER_FROM: u128 = 95;

/// Hundredths of a percent.
const WHOLE: u128 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Well,
    Warn,
    Danger,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meter {
    /// Of its elements, unlike every other on the page.
    pub(super) id: &'static str,
    pub(super) label: String,
    /// `214 of 600`
    pub(super) words: String,
    /// For programs that read the meter aloud: what it holds and what it could.
    pub(super) now: String,
    pub(super) max: String,
    pub(super) fill: String,
    pub(super) level: Level,
    /// When it was, and what the level means.
    pub(super) hints: Vec<String>,
}

/// What is measured against what; both in the same unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    pub(super) used: u128,
    pub(super) limit: u128,
}

impl Share {
    /// Hundredths of a percent, rounded down, so that no warning comes early; never above the whole. Anything is all of nothing.
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
            _ => Level::Well,
        }
    }

    pub(super) fn fill(self) -> String {
        percent(u32::try_from(self.hundredths()).unwrap_or_default())
    }

    /// Whole percents, rounded down: a cap that is not reached is not called reached.
    pub(super) fn whole_percents(self) -> u128 {
        self.hundredths() / 100
    }
}

impl Level {
    /// The stylesheet's name for it.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Well => "",
            Self::Warn => " meter-warn",
            Self::Danger => " meter-danger",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_warns_from_80_and_again_from_95_percent() {
        for (used, limit, fill, level) in [
            (0, 600, "0.00%", Level::Well),
            (214, 600, "35.66%", Level::Well),
            (79_999, 100_000, "79.99%", Level::Well),
            (80, 100, "80.00%", Level::Warn),
            (373_904, 400_000, "93.47%", Level::Warn),
            (95, 100, "95.00%", Level::Danger),
            (600, 600, "100.00%", Level::Danger),
            (700, 600, "100.00%", Level::Danger),
            (0, 0, "0.00%", Level::Well),
            (1, 0, "100.00%", Level::Danger),
        ] {
            let share = Share { used, limit };
            assert_eq!((share.fill().as_str(), share.level()), (fill, level), "{used} of {limit}");
        }
    }
}
