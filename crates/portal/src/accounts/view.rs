//! View models of accounts and keys.

use crate::drafting::settings::is_drafting;
use crate::person_names::{DisplayPerson, PersonNames};
use crate::state::Portal;
use crate::time_format::{DisplayTime, LocalTime, long_day, short_day};
use chancery_domain::{
    AccountState, Currency, Day, Key, KeyLimits, KeyState, Nanos, UnixMillis, group_thousands,
};
use chancery_store::{AccountEvent, AccountOverview, KeyWithLastUse};
use chancery_web::{Notice, capitalize};
use std::collections::HashMap;

/// An account in the list.
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
            rpm: group_thousands(account.limits.requests_per_min.into()),
            tpm: group_thousands(account.limits.tokens_per_min.into()),
            spend: Spend::new(overview.month.cost, account.spend_per_month, currency),
        }
    }
}

/// A month's spend relative to the cap, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spend {
    pub(super) spent: String,
    pub(super) cap_text: String,
    pub(super) is_reached: bool,
}

impl Spend {
    pub(super) fn new(spent: Nanos, cap: Option<Nanos>, currency: Currency) -> Self {
        let (cap_text, is_reached) = match cap {
            None => ("no cap".to_owned(), false),
            Some(cap) if spent >= cap => (format!("of {}, cap reached", currency.format_exact(cap)), true),
            Some(cap) => (format!("of {}, {}", currency.format_exact(cap), percent_text(spent, cap)), false),
        };
        Self { spent: currency.format_exact(spent), cap_text, is_reached }
    }
}

/// `12%`. Rounded down, so 100 % means that the cap is reached.
fn percent_text(spent: Nanos, cap: Nanos) -> String {
    let percent = i128::from(spent.0) * 100 / i128::from(cap.0).max(1);
    match (percent, spent.0) {
        (0, 1..) => "less than 1%".to_owned(),
        _ => format!("{percent}%"),
    }
}

/// A key in a table, with its actions.
pub(super) struct KeyRow {
    pub(super) prefix: String,
    pub(super) label: String,
    pub(super) created: DisplayDate,
    pub(super) last_use: String,
    pub(super) last_use_iso: Option<String>,
    pub(super) is_revoked: bool,
    pub(super) revoked: Option<DisplayDate>,
    /// The last day on which it works, or worked.
    pub(super) expires: Option<DisplayDate>,
    pub(super) is_expired: bool,
    /// Its own limits, in one line; empty if it has none.
    pub(super) limits: String,
    /// Until when the secret before the last rotation works.
    pub(super) old_secret_until: Option<DisplayTime>,
    /// Whether this portal drafts letters with the key.
    pub(super) is_drafting: bool,
}

/// A date in a list.
pub(super) struct DisplayDate {
    pub(super) iso: String,
    pub(super) text: String,
}

impl DisplayDate {
    fn new(at: UnixMillis, local: &LocalTime) -> Self {
        Self { iso: at.to_iso(), text: day_text(local.day(at), local) }
    }
}

impl KeyRow {
    pub(super) fn new(used: &KeyWithLastUse, portal: &Portal, local: &LocalTime) -> Self {
        let now = local.now;
        let Key { prefix, label, created_at, state, limits, .. } = &used.key;
        // Days of usage are in UTC, so the last one may not have begun here.
        let last_billed = used.last_used.map(|day| day.min(local.today()));
        let last_use = used.last_used_at.map(|at| local.day(at)).max(last_billed);
        let last_use_day = used.last_used.map(|day| day.to_string());
        Self {
            prefix: prefix.to_string(),
            label: label.clone(),
            created: DisplayDate::new(*created_at, local),
            last_use: last_use.map_or_else(|| "never".to_owned(), |day| day_text(day, local)),
            last_use_iso: used.last_used_at.map(UnixMillis::to_iso).or(last_use_day),
            is_revoked: *state != KeyState::Active,
            revoked: match state {
                KeyState::Active => None,
                KeyState::Revoked { at } => Some(DisplayDate::new(*at, local)),
            },
            // Its last moment, because a key that expires at midnight (UTC) works on the day before.
            expires: limits.expires_at.map(|at| long_date(UnixMillis(at.0 - 1), &LocalTime::utc(now))),
            is_expired: limits.is_expired(now),
            limits: limits_text(limits, portal.settings.invoice_terms.currency),
            old_secret_until: used.key.overlap_ends_at(now).map(|at| DisplayTime::new(at, local)),
            is_drafting: is_drafting_key(portal, prefix.as_str()),
        }
    }
}

fn limits_text(limits: &KeyLimits, currency: Currency) -> String {
    let set = [
        limits.requests_per_min.map(|limit| format!("{} requests per minute", group_thousands(limit.into()))),
        limits.tokens_per_min.map(|limit| format!("{} tokens per minute", group_thousands(limit.into()))),
        limits.spend_per_month.map(|cap| format!("{} per month", currency.format_exact(cap))),
        limits.models.as_ref().map(|models| format!("only {}", models.names().join(", "))),
    ];
    set.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

fn is_drafting_key(portal: &Portal, prefix: &str) -> bool {
    portal.settings.drafting.as_ref().is_some_and(|drafting| drafting.api_key.starts_with(prefix))
}

/// `today`, `yesterday` or `13 Nov`, with the year unless it is the current one.
fn day_text(day: Day, local: &LocalTime) -> String {
    match local.today().0 - day.0 {
        0 => "today".to_owned(),
        1 => "yesterday".to_owned(),
        _ => short_day(day.start(), local.now),
    }
}

/// A history event.
pub(super) struct EventRow {
    /// `None` for the command line.
    pub(super) by: Option<DisplayPerson>,
    pub(super) description: String,
    pub(super) at: DisplayTime,
}

impl EventRow {
    pub(super) fn new(event: &AccountEvent, names: &PersonNames, local: &LocalTime) -> Self {
        Self {
            by: event.by.as_ref().map(|person| names.of_ref(person)),
            description: event.description.clone(),
            at: DisplayTime::new(event.at, local),
        }
    }
}

/// The confirmation of the last change, in the words of its history event. The URL may be old or made up, so an unknown event
/// shows nothing.
pub(super) fn change_notice(query: &HashMap<String, String>, events: &[AccountEvent]) -> Option<Notice> {
    let event_id: i64 = query.get("done")?.parse().ok()?;
    if event_id == 0 {
        return Some(Notice::success("No changes.", "The saved values are the same."));
    }
    let event = events.iter().find(|event| event.id.0 == event_id)?;
    Some(Notice::success("Saved.", format!("{}.", capitalize(&event.description))))
}

pub(super) fn long_date(at: UnixMillis, local: &LocalTime) -> DisplayDate {
    DisplayDate { iso: at.to_iso(), text: long_day(local.day(at)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spend_is_shown_against_its_cap() {
        let text = |spent, cap: Option<i64>| {
            let spend = Spend::new(Nanos(spent), cap.map(Nanos), Currency::USD);
            format!("{} {}", spend.spent, spend.cap_text)
        };
        assert_eq!(text(0, None), "$0.00 no cap");
        assert_eq!(text(128_431_000, Some(250_000_000_000)), "$0.128431 of $250.00, less than 1%");
        assert_eq!(text(249_999_999_999, Some(250_000_000_000)), "$249.999999999 of $250.00, 99%");
        assert_eq!(text(250_000_000_000, Some(250_000_000_000)), "$250.00 of $250.00, cap reached");
        assert_eq!(text(0, Some(0)), "$0.00 of $0.00, cap reached");
    }

    #[test]
    fn key_limits_are_shown_in_one_line() {
        let limits = KeyLimits {
            requests_per_min: Some(1_200),
            spend_per_month: Some(Nanos(50_000_000_000)),
            models: Some("b,a".parse().unwrap()),
            ..KeyLimits::default()
        };
        let text = limits_text(&limits, Currency::USD);
        assert_eq!(text, "1,200 requests per minute; $50.00 per month; only a, b");
        assert_eq!(limits_text(&KeyLimits::default(), Currency::USD), "");
    }

    #[test]
    fn key_dates_use_today_and_yesterday() {
        let now = UnixMillis(1_794_561_240_000);
        let today = Day::containing(now);
        let local = LocalTime::utc(now);
        let text = |ago| day_text(Day(today.0 - ago), &local);
        assert_eq!([text(0), text(1), text(11)], ["today", "yesterday", "2 Nov"]);
        assert_eq!(text(365), "13 Nov 2025");
    }
}
