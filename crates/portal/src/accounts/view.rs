//! Accounts and keys as the pages show them.

use crate::drafting::settings::is_drafting;
use crate::state::Portal;
use crate::when::{Moment, long_day, short_day};
use chancery_domain::{AccountState, Currency, Day, Key, KeyState, Nanos, UnixMillis, grouped};
use chancery_store::{AccountEvent, AccountOverview, KeyUse};
use chancery_web::{Notice, capitalized};
use std::collections::HashMap;

/// An account on the list.
pub(super) struct AccountRow {
    pub(super) id: i64,
    pub(super) name: String,
    pub(super) is_closed: bool,
    pub(super) is_drafting: bool,
    pub(super) active_keys: u64,
    pub(super) rpm: String,
    pub(super) tpm: String,
    pub(super) spend: Spend,
}

impl AccountRow {
    pub(super) fn new(overview: &AccountOverview, currency: Currency) -> Self {
        let account = &overview.account;
        Self {
            id: account.id.0,
            name: account.name.to_string(),
            is_closed: account.state != AccountState::Open,
            is_drafting: is_drafting(&account.name),
            active_keys: overview.active_keys,
            rpm: grouped(account.limits.requests_per_min.into()),
            tpm: grouped(account.limits.tokens_per_min.into()),
            spend: Spend::new(overview.month.cost, account.spend_per_month, currency),
        }
    }
}

/// What was spent in a month against the cap, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spend {
    pub(super) spent: String,
    pub(super) of_cap: String,
    pub(super) is_reached: bool,
}

impl Spend {
    pub(super) fn new(spent: Nanos, cap: Option<Nanos>, currency: Currency) -> Self {
        let (of_cap, is_reached) = match cap {
            None => ("no cap".to_owned(), false),
            Some(cap) if spent >= cap => {
                (format!("of {}: the cap is reached", currency.exact_to_read(cap)), true)
            }
            Some(cap) => (format!("of {}, {}", currency.exact_to_read(cap), share(spent, cap)), false),
        };
        Self { spent: currency.exact_to_read(spent), of_cap, is_reached }
    }
}

/// `12 %`, which does not break. Never 100 % of what is not reached.
fn share(spent: Nanos, cap: Nanos) -> String {
    let percent = i128::from(spent.0) * 100 / i128::from(cap.0).max(1);
    match (percent, spent.0) {
        (0, 1..) => "less than 1\u{a0}%".to_owned(),
        _ => format!("{percent}\u{a0}%"),
    }
}

/// A key in a table, and what can be done with it.
pub(super) struct KeyRow {
    pub(super) prefix: String,
    pub(super) label: String,
    pub(super) made: Made,
    pub(super) last_use: String,
    pub(super) last_use_iso: Option<String>,
    pub(super) is_revoked: bool,
    pub(super) revoked: Option<Made>,
    /// Letters of this portal are drafted with it.
    pub(super) is_drafting: bool,
}

/// A day as a list has it.
pub(super) struct Made {
    pub(super) iso: String,
    pub(super) words: String,
}

impl Made {
    fn new(at: UnixMillis, now: UnixMillis) -> Self {
        Self { iso: at.to_iso(), words: day_words(Day::of(at), now) }
    }
}

impl KeyRow {
    pub(super) fn new(used: &KeyUse, portal: &Portal, now: UnixMillis) -> Self {
        let Key { prefix, label, created_at, state, .. } = &used.key;
        Self {
            prefix: prefix.to_string(),
            label: label.clone(),
            made: Made::new(*created_at, now),
            last_use: used.last_used.map_or_else(|| "never".to_owned(), |day| day_words(day, now)),
            last_use_iso: used.last_used.map(|day| day.to_string()),
            is_revoked: *state != KeyState::Active,
            revoked: match state {
                KeyState::Active => None,
                KeyState::Revoked { at } => Some(Made::new(*at, now)),
            },
            is_drafting: drafts_with(portal, prefix.as_str()),
        }
    }
}

fn drafts_with(portal: &Portal, prefix: &str) -> bool {
    portal.settings.drafting.as_ref().is_some_and(|drafting| drafting.api_key.starts_with(prefix))
}

/// `today`, `yesterday`, `13 Nov`, with the year where it is not this one.
fn day_words(day: Day, now: UnixMillis) -> String {
    match Day::of(now).0 - day.0 {
        0 => "today".to_owned(),
        1 => "yesterday".to_owned(),
        _ => short_day(day.start(), now),
    }
}

/// A line of the history.
pub(super) struct EventRow {
    pub(super) who: String,
    pub(super) deed: String,
    pub(super) at: Moment,
}

impl EventRow {
    pub(super) fn new(event: &AccountEvent, now: UnixMillis) -> Self {
        Self {
            who: event.by.as_ref().map_or_else(|| "The command line".to_owned(), |by| by.email.to_string()),
            deed: event.deed.clone(),
            at: Moment::new(event.at, now),
        }
    }
}

/// What the deed before this page has done, in the words of its line in the history. An address may be old, or made up: what is
/// not among the lines is not said.
pub(super) fn what_was_done(query: &HashMap<String, String>, events: &[AccountEvent]) -> Option<Notice> {
    let wanted: i64 = query.get("done")?.parse().ok()?;
    if wanted == 0 {
        return Some(Notice::good("Nothing to change.", "It was so already."));
    }
    let event = events.iter().find(|event| event.id.0 == wanted)?;
    Some(Notice::good("Done.", format!("{}.", capitalized(&event.deed))))
}

pub(super) fn long_moment(at: UnixMillis) -> Made {
    Made { iso: at.to_iso(), words: long_day(Day::of(at)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spending_is_told_against_its_cap() {
        let words = |spent, cap: Option<i64>| {
            let spend = Spend::new(Nanos(spent), cap.map(Nanos), Currency::USD);
            format!("{} {}", spend.spent, spend.of_cap)
        };
        assert_eq!(words(0, None), "$0.00 no cap");
        assert_eq!(words(128_431_000, Some(250_000_000_000)), "$0.128431 of $250.00, less than 1\u{a0}%");
        assert_eq!(words(249_999_999_999, Some(250_000_000_000)), "$249.999999999 of $250.00, 99\u{a0}%");
        assert_eq!(words(250_000_000_000, Some(250_000_000_000)), "$250.00 of $250.00: the cap is reached");
        assert_eq!(words(0, Some(0)), "$0.00 of $0.00: the cap is reached");
    }

    #[test]
    fn days_of_keys_are_named_as_people_name_them() {
        let now = UnixMillis(1_794_561_240_000);
        let today = Day::of(now);
        let words = |ago| day_words(Day(today.0 - ago), now);
        assert_eq!([words(0), words(1), words(11)], ["today", "yesterday", "2 Nov"]);
        assert_eq!(words(365), "13 Nov 2025");
    }
}
