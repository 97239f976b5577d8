//! An account's history: its rows, and the text that describes each change. A change without effect has no row.

use crate::db::{QueryError, Tx, from_any_column, from_row, query};
use crate::{AccountEvent, AccountEventId, BillingContact, MAX_ACCOUNT_EVENTS};
use chancery_domain::{
    AccessRequest, Account, AccountId, AccountName, AllowedModels, Key, KeyId, KeyLimits, Nanos, RateLimits,
    UnixMillis, group_thousands,
};

const ADD: &str = "INSERT INTO account_events (account_id, key_id, kind, detail, actor_id, at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6) RETURNING id";
const OF_ACCOUNT: &str = "SELECT e.id, e.detail, e.actor_id, p.email AS actor_email, e.at_ms FROM account_events e \
    LEFT JOIN people p ON p.id = e.actor_id WHERE e.account_id = $2 ORDER BY e.id DESC LIMIT $1";
const OF_NO_ACCOUNT: &str = "SELECT e.id, e.detail, e.actor_id, p.email AS actor_email, e.at_ms FROM account_events e \
    LEFT JOIN people p ON p.id = e.actor_id WHERE e.account_id IS NULL ORDER BY e.id DESC LIMIT $1";

from_any_column!(i64, Self, AccountEventId);

from_row!(AccountEvent { id, description: "detail", by: author(), at: "at_ms" });

/// Newest first. `None`: events of keys while they billed no account.
pub(crate) fn events(tx: &mut Tx<'_>, account: Option<AccountId>) -> Result<Vec<AccountEvent>, QueryError> {
    let limit = i64::from(MAX_ACCOUNT_EVENTS);
    let read = match account {
        Some(account) => query(OF_ACCOUNT).bind(limit).bind(account.0),
        None => query(OF_NO_ACCOUNT).bind(limit),
    };
    read.fetch_all(tx)
}

/// The account and key of an event.
#[derive(Clone, Copy)]
pub(crate) struct EventSubject {
    account: Option<AccountId>,
    key: Option<KeyId>,
}

impl EventSubject {
    pub(crate) fn account(id: AccountId) -> Self {
        Self { account: Some(id), key: None }
    }

    pub(crate) fn key(key: &Key) -> Self {
        Self { account: key.account, key: Some(key.id) }
    }
}

pub(crate) fn add_event(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    subject: EventSubject,
    line: EventLine,
) -> Result<AccountEventId, QueryError> {
    let add = query(ADD)
        .bind(subject.account.map(|account| account.0))
        .bind(subject.key.map(|key| key.0))
        .bind(line.kind)
        .bind(line.text)
        .bind(access_request.by.person().map(|person| person.0))
        .bind(access_request.at.0);
    add.fetch_one(tx).map(AccountEventId)
}

/// A stored event: the kind of change, and its text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventLine {
    kind: &'static str,
    text: String,
}

impl EventLine {
    fn new(kind: &'static str, text: String) -> Self {
        Self { kind, text }
    }
}

pub(crate) fn account_created(limits: RateLimits) -> EventLine {
    let RateLimits { requests_per_min, tokens_per_min } = limits;
    let text = format!(
        "created the account with {} requests and {} tokens per minute",
        group_thousands(requests_per_min.into()),
        group_thousands(tokens_per_min.into())
    );
    EventLine::new("account_created", text)
}

pub(crate) fn limits_changed(before: &Account, after: &Account) -> Option<EventLine> {
    let cap = |cap: Option<Nanos>| cap.map_or_else(|| "none".to_owned(), |cap| cap.to_string());
    let changes = [
        (
            "requests per minute",
            group_thousands(before.limits.requests_per_min.into()),
            group_thousands(after.limits.requests_per_min.into()),
        ),
        (
            "tokens per minute",
            group_thousands(before.limits.tokens_per_min.into()),
            group_thousands(after.limits.tokens_per_min.into()),
        ),
        ("the monthly cap", cap(before.spend_per_month), cap(after.spend_per_month)),
    ];
    changed_limits(changes).map(|changed| EventLine::new("limits_set", format!("changed {changed}")))
}

/// Names only what changed.
fn changed_limits<const N: usize>(changes: [(&str, String, String); N]) -> Option<String> {
    let changed: Vec<String> = changes
        .into_iter()
        .filter(|(_, before, after)| before != after)
        .map(|(what, before, after)| format!("{what} from {before} to {after}"))
        .collect();
    (!changed.is_empty()).then(|| changed.join(", "))
}

pub(crate) fn key_limits_changed(before: &Key, after: &KeyLimits) -> Option<EventLine> {
    fn text<T>(limit: Option<&T>, format: impl Fn(&T) -> String) -> String {
        limit.map_or_else(|| "none".to_owned(), format)
    }
    let number = |limit: &u32| group_thousands(u64::from(*limit));
    let each = |what, of: &dyn Fn(&KeyLimits) -> String| (what, of(&before.limits), of(after));
    let changes = [
        each("requests per minute", &|limits| text(limits.requests_per_min.as_ref(), number)),
        each("tokens per minute", &|limits| text(limits.tokens_per_min.as_ref(), number)),
        each("the monthly cap", &|limits| text(limits.spend_per_month.as_ref(), Nanos::to_string)),
        each("the allowed models", &|limits| text(limits.models.as_ref(), AllowedModels::to_string)),
        each("the expiry", &|limits| text(limits.expires_at.as_ref(), |at| at.to_iso())),
    ];
    let prefix = &before.prefix;
    changed_limits(changes)
        .map(|changed| EventLine::new("key_limits_set", format!("changed, for the key {prefix}, {changed}")))
}

/// `key` is the key after the rotation.
pub(crate) fn key_rotated(key: &Key, now: UnixMillis, ends_overlap: bool) -> EventLine {
    let prefix = &key.prefix;
    let earlier = if ends_overlap { " and ended its earlier overlap" } else { "" };
    let old = match key.overlap_ends_at(now) {
        Some(until) => format!("works until {}", until.to_utc_minute()),
        None => "no longer works".to_owned(),
    };
    EventLine::new("key_rotated", format!("rotated the key {prefix}{earlier}; its old secret {old}"))
}

pub(crate) fn billing_changed(before: &BillingContact, after: &BillingContact) -> Option<EventLine> {
    let mut changed = Vec::new();
    if before.address != after.address {
        changed.push(match (before.address.as_str(), after.address.as_str()) {
            ("", _) => "added the billing address".to_owned(),
            (_, "") => "removed the billing address".to_owned(),
            _ => "changed the billing address".to_owned(),
        });
    }
    if before.email != after.email {
        let (before, after) = (none_if_empty(before.email.as_str()), none_if_empty(after.email.as_str()));
        changed.push(format!("changed the billing email from {before} to {after}"));
    }
    (!changed.is_empty()).then(|| EventLine::new("billing_set", changed.join(" and ")))
}

pub(crate) fn account_closed() -> EventLine {
    EventLine::new("account_closed", "closed the account".to_owned())
}

pub(crate) fn key_created(key: &Key) -> EventLine {
    let text = match key.label.as_str() {
        "" => format!("created the key {}", key.prefix),
        label => format!("created the key {} “{label}”", key.prefix),
    };
    let limits = limits_set(&key.limits);
    let text = if limits.is_empty() { text } else { format!("{text} with {}", limits.join(", ")) };
    EventLine::new("key_created", text)
}

/// The limits that are set, each with its value.
fn limits_set(limits: &KeyLimits) -> Vec<String> {
    let KeyLimits { requests_per_min, tokens_per_min, spend_per_month, models, expires_at } = limits;
    let set = [
        requests_per_min.map(|limit| format!("{} requests per minute", group_thousands(limit.into()))),
        tokens_per_min.map(|limit| format!("{} tokens per minute", group_thousands(limit.into()))),
        spend_per_month.map(|cap| format!("the monthly cap {cap}")),
        models.as_ref().map(|models| format!("the allowed models {models}")),
        expires_at.map(|at| format!("the expiry {}", at.to_iso())),
    ];
    set.into_iter().flatten().collect()
}

pub(crate) fn key_labelled(before: &Key, label: &str) -> Option<EventLine> {
    let text = || {
        let quoted =
            |label: &str| if label.is_empty() { "none".to_owned() } else { format!("“{label}”") };
        let (from, to) = (quoted(&before.label), quoted(label));
        format!("changed the label of the key {} from {from} to {to}", before.prefix)
    };
    (before.label != label).then(|| EventLine::new("key_labelled", text()))
}

/// The event for the account that the key now bills.
pub(crate) fn key_attached(key: &Key, from: Option<&AccountName>) -> EventLine {
    let text = match from {
        None => format!("attached the key {}", key.prefix),
        Some(from) => format!("moved the key {} from {from}", key.prefix),
    };
    EventLine::new("key_attached", text)
}

/// The event for the account that the key billed before.
pub(crate) fn key_moved_away(key: &Key, to: &AccountName) -> EventLine {
    EventLine::new("key_gone", format!("moved the key {} to {to}", key.prefix))
}

pub(crate) fn key_revoked(key: &Key) -> EventLine {
    EventLine::new("key_revoked", format!("revoked the key {}", key.prefix))
}

fn none_if_empty(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{AccountState, ApiKey, KeyPrefix, KeyState, PreviousSecret, SeededRandomness};

    fn account(requests_per_min: u32, cap: Option<i64>) -> Account {
        Account {
            id: AccountId(1),
            name: "Hale & Ward".parse().unwrap(),
            limits: RateLimits { requests_per_min, tokens_per_min: 60_000 },
            spend_per_month: cap.map(Nanos),
            created_at: UnixMillis(0),
            state: AccountState::Open,
        }
    }

    #[test]
    fn history_line_names_only_changed_limits() {
        let text = |before: &Account, after: &Account| limits_changed(before, after).map(|line| line.text);
        assert_eq!(text(&account(60, None), &account(60, None)), None);
        assert_eq!(
            text(&account(60, None), &account(1_200, Some(250_000_000_001))).unwrap(),
            "changed requests per minute from 60 to 1,200, the monthly cap from none to 250.000000001"
        );
    }

    fn key(limits: KeyLimits) -> Key {
        let secret = ApiKey::generate(&SeededRandomness::new(1));
        Key {
            id: KeyId(1),
            prefix: KeyPrefix::from_stored("ck_7k2m9x4d".to_owned()),
            hash: secret.hash(),
            label: String::new(),
            account: None,
            created_at: UnixMillis(0),
            state: KeyState::Active,
            limits,
            previous_secret: None,
        }
    }

    #[test]
    fn history_line_of_a_new_key_names_the_limits_that_it_was_given() {
        assert_eq!(key_created(&key(KeyLimits::default())).text, "created the key ck_7k2m9x4d");
        let limits = KeyLimits {
            requests_per_min: Some(1_200),
            tokens_per_min: None,
            spend_per_month: Some(Nanos(12_500_000_000)),
            models: Some("b,a".parse().unwrap()),
            expires_at: Some(UnixMillis(0)),
        };
        let created = Key { label: "backend".to_owned(), ..key(limits) };
        assert_eq!(
            key_created(&created).text,
            "created the key ck_7k2m9x4d “backend” with 1,200 requests per minute, the monthly cap 12.50, \
             the allowed models a,b, the expiry 1970-01-01T00:00:00.000Z"
        );
    }

    #[test]
    fn history_line_of_a_rotation_says_how_long_the_old_secret_works() {
        let rotated = |overlap_ends_at: i64, expires_at: Option<i64>, ends_overlap| {
            let key = key(KeyLimits { expires_at: expires_at.map(UnixMillis), ..KeyLimits::default() });
            let previous = PreviousSecret { hash: key.hash, expires_at: UnixMillis(overlap_ends_at) };
            key_rotated(&Key { previous_secret: Some(previous), ..key }, UnixMillis(1_000), ends_overlap).text
        };
        let until = |minute| {
            format!("rotated the key ck_7k2m9x4d; its old secret works until 1970-01-01 00:0{minute} UTC")
        };
        assert_eq!(rotated(180_000, None, false), until(3));
        assert_eq!(rotated(180_000, Some(120_000), false), until(2));
        assert_eq!(
            rotated(1_000, None, true),
            "rotated the key ck_7k2m9x4d and ended its earlier overlap; its old secret no longer works"
        );
    }

    #[test]
    fn history_line_omits_full_billing_address() {
        let contact = |address: &str, email: &str| BillingContact {
            address: address.parse().unwrap(),
            email: email.parse().unwrap(),
        };
        let (none, some) = (contact("", ""), contact("12 Harbour Lane\nBoston", "a@b.example"));
        assert_eq!(billing_changed(&some, &some), None);
        assert_eq!(
            billing_changed(&none, &some).unwrap().text,
            "added the billing address and changed the billing email from none to a@b.example"
        );
        assert!(billing_changed(&some, &none).unwrap().text.starts_with("removed the billing address"));
    }
}
