//! An account's usage relative to its limits: spend against the cap, and the busiest minute against the rate limits.

use super::calendar::Calendar;
use super::meter::{Level, Meter, Share};
use crate::time_format::{clock_text, format_day};
use chancery_domain::{Account, AccountState, Currency, Day, MinorUnits, Nanos, UnixMillis, group_thousands};
use chancery_store::DailyPeak;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitsCard {
    pub(super) account: i64,
    pub(super) is_closed: bool,
    pub(super) meters: Vec<Meter>,
    /// Text for limits without a meter.
    pub(super) notes: Vec<String>,
}

/// The maximum of a month, and its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peak {
    pub(super) count: u64,
    pub(super) at: UnixMillis,
}

/// The busiest minute of these days by requests and by tokens, the first of equal ones.
pub(super) fn peaks(days: &[DailyPeak]) -> (Option<Peak>, Option<Peak>) {
    let peak = |peak: fn(&DailyPeak) -> Peak| days.iter().rev().map(peak).max_by_key(|peak| peak.count);
    (
        peak(|day| Peak { count: day.requests, at: day.requests_at }),
        peak(|day| Peak { count: day.tokens, at: day.tokens_at }),
    )
}

impl LimitsCard {
    pub(super) fn new(
        account: &Account,
        spent: Nanos,
        days: &[DailyPeak],
        calendar: Calendar,
        currency: Currency,
    ) -> Self {
        let mut notes = Vec::new();
        let mut meters = Vec::new();
        match account.spend_per_month {
            Some(cap) => meters.push(spend_meter(spent, cap, calendar, currency)),
            None => notes.push("No monthly cap.".to_owned()),
        }
        let limits = account.limits;
        match peaks(days) {
            (Some(requests), Some(tokens)) => {
                let (label, limit) = ("Requests, busiest minute", limits.requests_per_min);
                meters.push(minute_meter("requests-meter", label, requests, limit));
                let (label, limit) = ("Tokens, busiest minute", limits.tokens_per_min);
                meters.push(minute_meter("tokens-meter", label, tokens, limit));
            }
            _ => notes.push(format!(
                "Limits: {} requests and {} tokens per minute. Busiest minute: not recorded.",
                group_thousands(limits.requests_per_min.into()),
                group_thousands(limits.tokens_per_min.into())
            )),
        }
        if !calendar.is_running() {
            notes.push("Current limits are shown.".to_owned());
        }
        let is_closed = matches!(account.state, AccountState::Closed { .. });
        Self { account: account.id.0, is_closed, meters, notes }
    }
}

fn spend_meter(spent: Nanos, cap: Nanos, calendar: Calendar, currency: Currency) -> Meter {
    // An amount below the currency's minor unit would round to zero, or to more than it is.
    let is_whole = |amount: Nanos| currency.to_nanos(currency.round(amount)) == Ok(amount);
    let is_seen = |amount: Nanos| amount == Nanos(0) || currency.round(amount) != MinorUnits(0);
    let are_rounded = is_whole(cap) && is_seen(spent);
    let format_amount = |amount: Nanos| match are_rounded {
        true => currency.format_amount(currency.round(amount)),
        false => currency.format_exact(amount),
    };
    let nanos = |amount: Nanos| u128::try_from(amount.0).unwrap_or_default();
    let share = Share { used: nanos(spent), limit: nanos(cap) };
    let mut hints = Vec::new();
    if share.level() != Level::Normal {
        hints.push(match spent >= cap {
            true => {
                "Cap reached: requests are rejected until next month or until you raise the cap.".to_owned()
            }
            false => format!("{}% of the cap used.", share.whole_percents()),
        });
    }
    if calendar.is_running() {
        hints.push("Running requests are not included.".to_owned());
    } else if spent >= cap {
        // The month is over, and the cap may have been different then.
        hints = vec!["At or above the current cap.".to_owned()];
    }
    Meter {
        id: "spend-meter",
        label: format!("Spend in {}", format_day(calendar.month.first_day(), "%B")),
        text: format!("{} of {}", format_amount(spent), format_amount(cap)),
        now: spent.min(cap).to_string(),
        max: cap.to_string(),
        fill: share.fill(),
        level: share.level(),
        hints,
    }
}

fn minute_meter(id: &'static str, label: &str, peak: Peak, limit: u32) -> Meter {
    let limit = u64::from(limit);
    let share = Share { used: peak.count.into(), limit: limit.into() };
    let peak_time = format!("{}, {}.", format_day(Day::containing(peak.at), "%-d %B"), clock_text(peak.at));
    let hint = match share.level() {
        Level::Normal => peak_time,
        Level::Warn => format!("{peak_time} Close to the limit: raise it, or spread requests over time."),
        Level::Danger => {
            format!("{peak_time} At the limit: raise it, or spread requests over time.")
        }
    };
    Meter {
        id,
        label: label.to_owned(),
        text: format!("{} of {}", group_thousands(peak.count), group_thousands(limit)),
        now: peak.count.min(limit).to_string(),
        max: limit.to_string(),
        fill: share.fill(),
        level: share.level(),
        hints: vec![hint],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{AccountId, RateLimits};

    fn account(cap: Option<i64>) -> Account {
        Account {
            id: AccountId(7),
            name: "Hale & Ward".parse().unwrap(),
            limits: RateLimits { requests_per_min: 600, tokens_per_min: 400_000 },
            spend_per_month: cap.map(Nanos),
            created_at: UnixMillis(0),
            state: AccountState::Open,
        }
    }

    fn peak(day: &str, requests: u64, tokens: u64) -> DailyPeak {
        let day: Day = day.parse().unwrap();
        let at = |minutes: i64| UnixMillis(day.start().0 + minutes * 60_000);
        DailyPeak { account: AccountId(7), day, requests, requests_at: at(61), tokens, tokens_at: at(847) }
    }

    fn card(cap: Option<i64>, spent: i64, month: &str, peaks: &[DailyPeak]) -> LimitsCard {
        let calendar = Calendar { month: month.parse().unwrap(), today: "2026-11-13".parse().unwrap() };
        LimitsCard::new(&account(cap), Nanos(spent), peaks, calendar, Currency::USD)
    }

    #[test]
    fn spend_and_peak_minute_are_shown_against_limits() {
        let peaks =
            [peak("2026-10-02", 214, 12_000), peak("2026-10-15", 214, 373_904), peak("2026-10-20", 3, 9)];
        let card = card(Some(250_000_000_000), 195_478_145_200, "2026-10", &peaks);
        let meters: Vec<_> = card
            .meters
            .iter()
            .map(|meter| {
                (meter.label.as_str(), meter.text.as_str(), meter.fill.as_str(), meter.hints.join(" "))
            })
            .collect();
        assert_eq!(
            meters,
            [
                ("Spend in October", "$195.48 of $250.00", "78.19%", String::new()),
                ("Requests, busiest minute", "214 of 600", "35.66%", "2 October, 01:01 UTC.".to_owned()),
                (
                    "Tokens, busiest minute",
                    "373,904 of 400,000",
                    "93.47%",
                    "15 October, 14:07 UTC. Close to the limit: raise it, or spread requests over time."
                        .to_owned()
                ),
            ]
        );
        assert_eq!((card.meters[0].now.as_str(), card.meters[0].max.as_str()), ("195.4781452", "250.00"));
        assert_eq!(card.notes, ["Current limits are shown."]);
    }

    #[test]
    fn amounts_below_a_cent_are_exact() {
        let text = |cap, spent| card(Some(cap), spent, "2026-11", &[]).meters[0].text.clone();
        assert_eq!(text(1_000_000_000, 4_999_000), "$0.004999 of $1.00");
        assert_eq!(text(4_000_000, 15_000), "$0.000015 of $0.004");
        assert_eq!(text(1_000_000_000, 0), "$0.00 of $1.00");
        assert_eq!(text(1_000_000_000, 5_100_000), "$0.01 of $1.00");
    }

    #[test]
    fn near_or_reached_cap_has_a_hint() {
        let hints = |spent, month| card(Some(100_000_000_000), spent, month, &[]).meters[0].hints.join(" ");
        assert_eq!(hints(79_999_999_999, "2026-11"), "Running requests are not included.");
        assert_eq!(
            hints(80_000_000_000, "2026-11"),
            "80% of the cap used. Running requests are not included."
        );
        assert!(hints(99_999_999_999, "2026-11").starts_with("99% of the cap used."));
        assert!(
            hints(100_000_000_000, "2026-11")
                .starts_with("Cap reached: requests are rejected until next month")
        );
        assert_eq!(hints(100_000_000_000, "2026-10"), "At or above the current cap.");
    }

    #[test]
    fn limits_card_states_missing_cap_and_peaks() {
        let card = card(None, 5, "2026-11", &[]);
        assert!(card.meters.is_empty());
        assert_eq!(
            card.notes,
            [
                "No monthly cap.",
                "Limits: 600 requests and 400,000 tokens per minute. Busiest minute: not recorded.",
            ]
        );
    }
}
