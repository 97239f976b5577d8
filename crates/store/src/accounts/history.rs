//! An account's history: its lines in the database, and what a line says of a change. A change that changes nothing has none.

use crate::db::{Conn, FromRow, Row, query};
use crate::{AccountEvent, AccountEventId, BillingContact, MAX_ACCOUNT_EVENTS};
use chancery_domain::{Account, AccountId, AccountName, Asked, Key, KeyId, Nanos, RateLimits, grouped};

const ADD: &str = "INSERT INTO account_events (account_id, key_id, deed, detail, by_id, at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6) RETURNING id";
const OF_ACCOUNT: &str = "SELECT e.id, e.detail, e.by_id, p.email AS by_email, e.at_ms FROM account_events e \
    LEFT JOIN people p ON p.id = e.by_id WHERE e.account_id = $2 ORDER BY e.id DESC LIMIT $1";
const OF_NO_ACCOUNT: &str = "SELECT e.id, e.detail, e.by_id, p.email AS by_email, e.at_ms FROM account_events e \
    LEFT JOIN people p ON p.id = e.by_id WHERE e.account_id IS NULL ORDER BY e.id DESC LIMIT $1";

impl FromRow for AccountEvent {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            id: AccountEventId(row.get("id")?),
            deed: row.get("detail")?,
            by: row.author()?,
            at: row.time("at_ms")?,
        })
    }
}

/// The newest first. None: what was done with keys while they billed no account.
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

/// What a line is about.
#[derive(Clone, Copy)]
pub(crate) struct About {
    account: Option<AccountId>,
    key: Option<KeyId>,
}

impl About {
    pub(crate) fn account(id: AccountId) -> Self {
        Self { account: Some(id), key: None }
    }

    pub(crate) fn key(key: &Key) -> Self {
        Self { account: key.account, key: Some(key.id) }
    }
}

pub(crate) async fn add_event(
    conn: &mut Conn<'_>,
    asked: &Asked,
    about: About,
    line: Line,
) -> Result<AccountEventId, sqlx::Error> {
    let add = query(ADD)
        .bind(about.account.map(|account| account.0))
        .bind(about.key.map(|key| key.0))
        .bind(line.change)
        .bind(line.text)
        .bind(asked.by.person().map(|person| person.0))
        .bind(asked.at.0);
    add.fetch_one(conn).await.map(AccountEventId)
}

/// A line as it is stored: the change for programs, and in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    change: &'static str,
    text: String,
}

impl Line {
    fn new(change: &'static str, text: String) -> Self {
        Self { change, text }
    }
}

pub(crate) fn account_created(limits: RateLimits) -> Line {
    let RateLimits { requests_per_min, tokens_per_min } = limits;
    let text = format!(
        "made the account, with {} requests and {} tokens per minute",
        grouped(requests_per_min.into()),
        grouped(tokens_per_min.into())
    );
    Line::new("account_made", text)
}

pub(crate) fn limits_set(before: &Account, after: &Account) -> Option<Line> {
    let cap = |cap: Option<Nanos>| cap.map_or_else(|| "none".to_owned(), |cap| cap.to_string());
    let changes = [
        (
            "requests per minute",
            grouped(before.limits.requests_per_min.into()),
            grouped(after.limits.requests_per_min.into()),
        ),
        (
            "tokens per minute",
            grouped(before.limits.tokens_per_min.into()),
            grouped(after.limits.tokens_per_min.into()),
        ),
        ("the cap per month", cap(before.spend_per_month), cap(after.spend_per_month)),
    ];
    let changed: Vec<String> = changes
        .into_iter()
        .filter(|(_, before, after)| before != after)
        .map(|(what, before, after)| format!("{what} from {before} to {after}"))
        .collect();
    (!changed.is_empty()).then(|| Line::new("limits_set", format!("changed {}", changed.join(", "))))
}

pub(crate) fn billing_set(before: &BillingContact, after: &BillingContact) -> Option<Line> {
    let mut changed = Vec::new();
    if before.address != after.address {
        changed.push(match (before.address.as_str(), after.address.as_str()) {
            ("", _) => "gave the address that invoices go to".to_owned(),
            (_, "") => "took away the address that invoices go to".to_owned(),
            _ => "changed the address that invoices go to".to_owned(),
        });
    }
    if before.email != after.email {
        let (before, after) = (or_none(before.email.as_str()), or_none(after.email.as_str()));
        changed.push(format!("changed the e-mail address for invoices from {before} to {after}"));
    }
    (!changed.is_empty()).then(|| Line::new("billing_set", changed.join(", ")))
}

pub(crate) fn account_closed() -> Line {
    Line::new("account_closed", "closed the account".to_owned())
}

pub(crate) fn key_created(key: &Key) -> Line {
    let text = match key.label.as_str() {
        "" => format!("made the key {}", key.prefix),
        label => format!("made the key {} “{label}”", key.prefix),
    };
    Line::new("key_made", text)
}

pub(crate) fn key_labelled(before: &Key, label: &str) -> Option<Line> {
    let text = || {
        let quoted =
            |label: &str| if label.is_empty() { "none".to_owned() } else { format!("“{label}”") };
        let (from, to) = (quoted(&before.label), quoted(label));
        format!("changed the label of the key {} from {from} to {to}", before.prefix)
    };
    (before.label != label).then(|| Line::new("key_labelled", text()))
}

/// For the account that the key bills from now on.
pub(crate) fn key_attached(key: &Key, from: Option<&AccountName>) -> Line {
    let text = match from {
        None => format!("attached the key {}", key.prefix),
        Some(from) => format!("moved the key {} here from {from}", key.prefix),
    };
    Line::new("key_attached", text)
}

/// For the account that the key billed before.
pub(crate) fn key_gone(key: &Key, to: &AccountName) -> Line {
    Line::new("key_gone", format!("moved the key {} to {to}", key.prefix))
}

pub(crate) fn key_revoked(key: &Key) -> Line {
    Line::new("key_revoked", format!("revoked the key {}", key.prefix))
}

fn or_none(text: &str) -> &str {
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
    fn a_line_names_what_changed_and_nothing_else() {
        let text = |before: &Account, after: &Account| limits_set(before, after).map(|line| line.text);
        assert_eq!(text(&account(60, None), &account(60, None)), None);
        assert_eq!(
            text(&account(60, None), &account(1_200, Some(250_000_000_001))).unwrap(),
            "changed requests per minute from 60 to 1,200, the cap per month from none to 250.000000001"
        );
    }

    #[test]
    fn where_invoices_go_is_told_without_the_whole_address() {
        let contact = |address: &str, email: &str| BillingContact {
            address: address.parse().unwrap(),
            email: email.parse().unwrap(),
        };
        let (none, some) = (contact("", ""), contact("12 Harbour Lane\nBoston", "a@b.example"));
        assert_eq!(billing_set(&some, &some), None);
        assert_eq!(
            billing_set(&none, &some).unwrap().text,
            "gave the address that invoices go to, changed the e-mail address for invoices from none to a@b.example"
        );
        assert!(billing_set(&some, &none).unwrap().text.starts_with("took away the address"));
    }
}
