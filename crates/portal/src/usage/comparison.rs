//! A month's count beside that of the month before, in words. A month that still runs is not compared with a whole one: what the
//! whole one came to stands beside it.

use super::calendar::Calendar;
use crate::when::grouped;

/// From here on, percents say less than multiples.
const MIN_MULTIPLE: u128 = 10;

pub(super) fn in_words(now: u64, before: u64, calendar: Calendar) -> String {
    let name = calendar.previous_name();
    if calendar.is_running() {
        return match before {
            0 => format!("none in {name}"),
            _ => format!("all of {name}: {}", grouped(before)),
        };
    }
    let more_or_fewer = if now > before { "more" } else { "fewer" };
    match (now, before) {
        (0, 0) => format!("none in {name} either"),
        (_, 0) => format!("none in {name}"),
        (0, _) => format!("{} in {name}", grouped(before)),
        (now, before) if now == before => format!("as many as in {name}"),
        (now, before) => {
            let (now, before) = (u128::from(now), u128::from(before));
            let percent = (now.abs_diff(before) * 100 + before / 2) / before;
            match percent {
                _ if now >= before * MIN_MULTIPLE => {
                    format!("{} times {name}", times(now, before))
                }
                0 => format!("less than 1\u{a0}% {more_or_fewer} than {name}"),
                // Something is left, so it is not all of it.
                100 if now < before => format!("over 99\u{a0}% fewer than {name}"),
                percent => format!("{percent}\u{a0}% {more_or_fewer} than {name}"),
            }
        }
    }
}

fn times(now: u128, before: u128) -> String {
    let times = (now + before / 2) / before;
    format!("about {}", grouped(u64::try_from(times).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(now: u64, before: u64, month: &str) -> String {
        let calendar = Calendar { month: month.parse().unwrap(), today: "2026-11-13".parse().unwrap() };
        in_words(now, before, calendar).replace('\u{a0}', " ")
    }

    #[test]
    fn two_whole_months_are_compared_in_percent() {
        for (now, before, text) in [
            (280_326_703, 250_000_000, "12 % more than September"),
            (91, 100, "9 % fewer than September"),
            (100, 100, "as many as in September"),
            (1_001, 1_000, "less than 1 % more than September"),
            (999, 1_000, "less than 1 % fewer than September"),
            (1, 1_000, "over 99 % fewer than September"),
            (999, 100, "899 % more than September"),
            (1_000, 100, "about 10 times September"),
            (u64::MAX, 1, "about 18,446,744,073,709,551,615 times September"),
            (5, 0, "none in September"),
            (0, 0, "none in September either"),
            (0, 1_200, "1,200 in September"),
        ] {
            assert_eq!(words(now, before, "2026-10"), text);
        }
        assert_eq!(words(5, 4, "2026-01"), "25 % more than December 2025");
    }

    #[test]
    fn a_month_that_runs_is_not_held_against_a_whole_one() {
        assert_eq!(words(7, 280_326_703, "2026-11"), "all of October: 280,326,703");
        assert_eq!(words(7, 0, "2026-11"), "none in October");
    }
}
