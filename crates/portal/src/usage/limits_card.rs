//! What an account used of its limits: spend against its cap, and its busiest minute against what a minute may have.

use super::calendar::Calendar;
use super::meter::{Level, Meter, Share};
use super::money::exact;
use crate::when::{clock_time, grouped, written_day};
use chancery_domain::{Account, AccountState, Currency, Day, Nanos, UnixMillis};
use chancery_store::PeakDay;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitsCard {
    pub(super) account: i64,
    pub(super) is_closed: bool,
    pub(super) meters: Vec<Meter>,
    /// What has no meter, in words.
    pub(super) notes: Vec<String>,
}

/// The most of a month, and when it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peak {
    pub(super) count: u64,
    pub(super) at: UnixMillis,
}

/// The busiest minute of all these days, by requests and by tokens; of equal ones the first.
pub(super) fn peaks(days: &[PeakDay]) -> (Option<Peak>, Option<Peak>) {
    let most = |peak: fn(&PeakDay) -> Peak| days.iter().rev().map(peak).max_by_key(|peak| peak.count);
    (
        most(|day| Peak { count: day.requests, at: day.requests_at }),
        most(|day| Peak { count: day.tokens, at: day.tokens_at }),
    )
}

impl LimitsCard {
    pub(super) fn new(
        account: &Account,
        spent: Nanos,
        days: &[PeakDay],
        calendar: Calendar,
        currency: Currency,
    ) -> Self {
        let mut notes = Vec::new();
        let mut meters = Vec::new();
        match account.spend_per_month {
            Some(cap) => meters.push(spend_meter(spent, cap, calendar, currency)),
            None => notes.push("This account has no spending cap.".to_owned()),
        }
        let limits = account.limits;
        match peaks(days) {
            (Some(requests), Some(tokens)) => {
                let (label, most) = ("Requests, busiest minute", limits.requests_per_min);
                meters.push(minute_meter("requests-meter", label, requests, most));
                let (label, most) = ("Tokens, busiest minute", limits.tokens_per_min);
                meters.push(minute_meter("tokens-meter", label, tokens, most));
            }
            _ => notes.push(format!(
                "A minute may have {} requests and {} tokens. No busiest minute is on record for this month.",
                grouped(limits.requests_per_min.into()),
                grouped(limits.tokens_per_min.into())
            )),
        }
        if !calendar.is_running() {
            notes.push("The limits are those of today.".to_owned());
        }
        let is_closed = matches!(account.state, AccountState::Closed { .. });
        Self { account: account.id.0, is_closed, meters, notes }
    }
}

fn spend_meter(spent: Nanos, cap: Nanos, calendar: Calendar, currency: Currency) -> Meter {
    let to_read = |amount: Nanos| currency.to_read(currency.round(amount));
    let nanos = |amount: Nanos| u128::try_from(amount.0).unwrap_or_default();
    let share = Share { used: nanos(spent), limit: nanos(cap) };
    let mut hints = Vec::new();
    if share.level() != Level::Well {
        hints.push(match spent >= cap {
            true => "The cap is reached: requests are refused until the next month, or until it is raised."
                .to_owned(),
            false => format!("{}\u{a0}% of the cap is spent.", share.whole_percents()),
        });
    }
    if calendar.is_running() {
        hints.push("Requests under way are not counted yet.".to_owned());
    } else if spent >= cap {
        // The month is over, and the cap may have been another then.
        hints = vec!["As much as the cap, or more.".to_owned()];
    }
    Meter {
        id: "spend-meter",
        label: format!("Spend in {}", written_day(calendar.month.first_day(), "%B")),
        words: format!("{} of {}", to_read(spent), to_read(cap)),
        now: exact(spent.min(cap)).replace(',', ""),
        max: exact(cap).replace(',', ""),
        fill: share.fill(),
        level: share.level(),
        hints,
    }
}

fn minute_meter(id: &'static str, label: &str, peak: Peak, limit: u32) -> Meter {
    let limit = u64::from(limit);
    let share = Share { used: peak.count.into(), limit: limit.into() };
    let when = format!("{}, {}.", written_day(Day::of(peak.at), "%-d %B"), clock_time(peak.at));
    let hint = match share.level() {
        Level::Well => when,
        Level::Warn => format!("{when} Close to the limit: raise it, or spread the work."),
        Level::Danger => {
            format!("{when} At the limit: more would have been refused. Raise it, or spread the work.")
        }
    };
    Meter {
        id,
        label: label.to_owned(),
        words: format!("{} of {}", grouped(peak.count), grouped(limit)),
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

    fn peak(day: &str, requests: u64, tokens: u64) -> PeakDay {
        let day: Day = day.parse().unwrap();
        let at = |minutes: i64| UnixMillis(day.start().0 + minutes * 60_000);
        PeakDay { account: AccountId(7), day, requests, requests_at: at(61), tokens, tokens_at: at(847) }
    }

    fn card(cap: Option<i64>, spent: i64, month: &str, peaks: &[PeakDay]) -> LimitsCard {
        let calendar = Calendar { month: month.parse().unwrap(), today: "2026-11-13".parse().unwrap() };
        LimitsCard::new(&account(cap), Nanos(spent), peaks, calendar, Currency::USD)
    }

    #[test]
    fn spend_and_the_busiest_minute_stand_against_their_limits() {
        let peaks =
            [peak("2026-10-02", 214, 12_000), peak("2026-10-15", 214, 373_904), peak("2026-10-20", 3, 9)];
        let card = card(Some(250_000_000_000), 195_478_145_200, "2026-10", &peaks);
        let meters: Vec<_> = card
            .meters
            .iter()
            .map(|meter| {
                (meter.label.as_str(), meter.words.as_str(), meter.fill.as_str(), meter.hints.join(" "))
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
                    "15 October, 14:07 UTC. Close to the limit: raise it, or spread the work.".to_owned()
                ),
            ]
        );
        assert_eq!((card.meters[0].now.as_str(), card.meters[0].max.as_str()), ("195.4781452", "250.00"));
        assert_eq!(card.notes, ["The limits are those of today."]);
    }

    #[test]
    fn a_cap_that_is_near_or_reached_is_said_in_words() {
        let hints = |spent, month| card(Some(100_000_000_000), spent, month, &[]).meters[0].hints.join(" ");
        assert_eq!(hints(79_999_999_999, "2026-11"), "Requests under way are not counted yet.");
        assert_eq!(
            hints(80_000_000_000, "2026-11"),
            "80\u{a0}% of the cap is spent. Requests under way are not counted yet."
        );
        assert!(hints(99_999_999_999, "2026-11").starts_with("99\u{a0}% of the cap is spent."));
        assert!(hints(100_000_000_000, "2026-11").starts_with("The cap is reached: requests are refused"));
        assert_eq!(hints(100_000_000_000, "2026-10"), "As much as the cap, or more.");
    }

    #[test]
    fn without_a_cap_or_peaks_the_card_says_so() {
        let card = card(None, 5, "2026-11", &[]);
        assert!(card.meters.is_empty());
        assert_eq!(
            card.notes,
            [
                "This account has no spending cap.",
                "A minute may have 600 requests and 400,000 tokens. No busiest minute is on record for this month.",
            ]
        );
    }
}
