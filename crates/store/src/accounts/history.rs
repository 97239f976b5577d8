//! An account's history: its rows, and the text that describes each change. A change without effect has no row.

use crate::db::{Conn, FromRow, Row, query};
use crate::{AccountEvent, AccountEventId, BillingContact, MAX_ACCOUNT_EVENTS};
use chancery_domain::{
    AccessRequest, Account, AccountId, AccountName, Key, KeyId, Nanos, RateLimits, group_thousands,
};

const ADD: &str = "INSERT INTO account_events (account_id, key_id, kind, detail, actor_id, at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6) RETURNING id";
const OF_ACCOUNT: &str = "SELECT e.id, e.detail, e.actor_id, p.email AS actor_email, e.at_ms FROM account_events e \
    LEFT JOIN people p ON p.id = e.actor_id WHERE e.account_id = $2 ORDER BY e.id DESC LIMIT $1";
const OF_NO_ACCOUNT: &str = "SELECT e.id, e.detail, e.actor_id, p.email AS actor_email, e.at_ms FROM account_events e \
    LEFT JOIN people p ON p.id = e.actor_id WHERE e.account_id IS NULL ORDER BY e.id DESC LIMIT $1";

impl FromRow for AccountEvent {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: AccountEventId(row.get("id")?),
            description: row.get("detail")?,
            by: row.author()?,
            at: row.time("at_ms")?,
        })
    }
}

/// Newest first. `None`: events of keys while they billed no account.
pub(crate) async fn events(
    conn: &mut Conn<'_>,
    account: Option<AccountId>,
) -> Result<Vec<AccountEvent>, sqlx::Error> {
    let limit = i64::from(MAX_ACCOUNT_EVENTS);
    let read = match account {
        Some(account) => query(OF_ACCOUNT).bind(limit).bind(account.0),
        None => query(OF_NO_ACCOUNT).bind(limit),
    };
    read.fetch_all(conn).await
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

pub(crate) async fn add_event(
    conn: &mut Conn<'_>,
    access_request: &AccessRequest,
    subject: EventSubject,
    line: EventLine,
) -> Result<AccountEventId, sqlx::Error> {
    let add = query(ADD)
        .bind(subject.account.map(|account| account.0))
        .bind(subject.key.map(|key| key.0))
        .bind(line.kind)
        .bind(line.text)
        .bind(access_request.by.person().map(|person| person.0))
        .bind(access_request.at.0);
    add.fetch_one(conn).await.map(AccountEventId)
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
    let changed: Vec<String> = changes
        .into_iter()
        .filter(|(_, before, after)| before != after)
        .map(|(what, before, after)| format!("{what} from {before} to {after}"))
        .collect();
    (!changed.is_empty()).then(|| EventLine::new("limits_set", format!("changed {}", changed.join(", "))))
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
    EventLine::new("key_created", text)
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
    use chancery_domain::{AccountId, AccountState, UnixMillis};

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
