//! What an account's history says of a deed, in words. A deed that changes nothing says nothing.

use crate::BillingContact;
use chancery_domain::{Account, AccountName, Key, Nanos, RateLimits, grouped};

/// A line of the history as it is kept: what was done, for programs, and in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) deed: &'static str,
    pub(crate) words: String,
}

impl Line {
    fn new(deed: &'static str, words: String) -> Self {
        Self { deed, words }
    }
}

pub(crate) fn account_made(limits: RateLimits) -> Line {
    let RateLimits { requests_per_min, tokens_per_min } = limits;
    let words = format!(
        "made the account, with {} requests and {} tokens per minute",
        grouped(requests_per_min.into()),
        grouped(tokens_per_min.into())
    );
    Line::new("account_made", words)
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

pub(crate) fn key_made(key: &Key) -> Line {
    let words = match key.label.as_str() {
        "" => format!("made the key {}", key.prefix),
        label => format!("made the key {} “{label}”", key.prefix),
    };
    Line::new("key_made", words)
}

pub(crate) fn key_labelled(before: &Key, label: &str) -> Option<Line> {
    let words = || {
        let quoted =
            |label: &str| if label.is_empty() { "none".to_owned() } else { format!("“{label}”") };
        let (from, to) = (quoted(&before.label), quoted(label));
        format!("changed the label of the key {} from {from} to {to}", before.prefix)
    };
    (before.label != label).then(|| Line::new("key_labelled", words()))
}

/// For the account that the key bills from now on.
pub(crate) fn key_attached(key: &Key, from: Option<&AccountName>) -> Line {
    let words = match from {
        None => format!("attached the key {}", key.prefix),
        Some(from) => format!("moved the key {} here from {from}", key.prefix),
    };
    Line::new("key_attached", words)
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
        let words = |before: &Account, after: &Account| limits_set(before, after).map(|line| line.words);
        assert_eq!(words(&account(60, None), &account(60, None)), None);
        assert_eq!(
            words(&account(60, None), &account(1_200, Some(250_000_000_001))).unwrap(),
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
            billing_set(&none, &some).unwrap().words,
            "gave the address that invoices go to, changed the e-mail address for invoices from none to a@b.example"
        );
        assert!(billing_set(&some, &none).unwrap().words.starts_with("took away the address"));
    }
}
