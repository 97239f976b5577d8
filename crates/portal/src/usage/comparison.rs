//! Compares a month's count with the previous month, as text. A running month is not compared with a complete one; the previous
//! count is shown beside it instead.

use super::calendar::Calendar;
use chancery_domain::group_thousands;

/// From this factor on, a multiple is clearer than a percentage.
const MIN_MULTIPLE: u128 = 10;

pub(super) fn describe(now: u64, before: u64, calendar: Calendar) -> String {
    let name = calendar.previous_name();
    if calendar.is_running() {
        return match before {
            0 => format!("none in {name}"),
            _ => format!("{name} total: {}", group_thousands(before)),
        };
    }
    let more_or_fewer = if now > before { "more" } else { "fewer" };
    match (now, before) {
        (_, 0) => format!("none in {name}"),
        (0, _) => format!("{} in {name}", group_thousands(before)),
        (now, before) if now == before => format!("same as {name}"),
        (now, before) => {
            let (now, before) = (u128::from(now), u128::from(before));
            let percent = (now.abs_diff(before) * 100 + before / 2) / before;
            match percent {
                _ if now >= before * MIN_MULTIPLE => {
                    format!("{} times {name}", times(now, before))
                }
                0 => format!("less than 1% {more_or_fewer} than {name}"),
                // Rounded to 100%, but something is left.
                100 if now < before => format!("over 99% fewer than {name}"),
                percent => format!("{percent}% {more_or_fewer} than {name}"),
            }
        }
    }
}

fn times(now: u128, before: u128) -> String {
    let times = (now + before / 2) / before;
    format!("about {}", group_thousands(u64::try_from(times).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(now: u64, before: u64, month: &str) -> String {
        let calendar = Calendar { month: month.parse().unwrap(), today: "2026-11-13".parse().unwrap() };
        describe(now, before, calendar)
    }

    #[test]
    fn past_months_are_compared_in_percent() {
        for (now, before, text) in [
            (280_326_703, 250_000_000, "12% more than September"),
            (91, 100, "9% fewer than September"),
            (100, 100, "same as September"),
            (1_001, 1_000, "less than 1% more than September"),
            (999, 1_000, "less than 1% fewer than September"),
            (1, 1_000, "over 99% fewer than September"),
            (999, 100, "899% more than September"),
            (1_000, 100, "about 10 times September"),
            (u64::MAX, 1, "about 18,446,744,073,709,551,615 times September"),
            (5, 0, "none in September"),
            (0, 0, "none in September"),
            (0, 1_200, "1,200 in September"),
        ] {
            assert_eq!(description(now, before, "2026-10"), text);
        }
        assert_eq!(description(5, 4, "2026-01"), "25% more than December 2025");
    }

    #[test]
    fn current_month_is_not_compared_with_a_full_one() {
        assert_eq!(description(7, 280_326_703, "2026-11"), "October total: 280,326,703");
        assert_eq!(description(7, 0, "2026-11"), "none in October");
    }
}
