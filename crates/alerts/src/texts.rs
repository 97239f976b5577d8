//! What alerts say: emails for people, and events for programs.

use chancery_domain::{Currency, LimitScope, Month, Nanos, UnixMillis};
use chancery_store::{AlertKind, AlertNames};
use serde_json::{Value, json};

/// Subject and text of an email.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AlertText {
    pub(crate) subject: String,
    pub(crate) text: String,
}

/// An alert about a spending cap.
#[derive(Clone, Debug)]
pub(crate) struct SpendingAlert<'a> {
    pub(crate) names: &'a AlertNames,
    pub(crate) scope: LimitScope,
    pub(crate) kind: AlertKind,
    pub(crate) month: Month,
    pub(crate) cap: Nanos,
    pub(crate) spent: Nanos,
    pub(crate) currency: Currency,
}

/// An alert about a key that expires.
#[derive(Clone, Debug)]
pub(crate) struct ExpiryAlert<'a> {
    pub(crate) names: &'a AlertNames,
    pub(crate) days: u8,
    pub(crate) expires_at: UnixMillis,
}

/// `the key ck_7f3a9x4d (backend) of Hale & Ward`, `the account Hale & Ward`.
fn describe(names: &AlertNames) -> String {
    let account = names.account.as_ref().map(ToString::to_string);
    match (&names.key, account) {
        (Some((prefix, label)), account) => {
            let label = if label.is_empty() { String::new() } else { format!(" ({label})") };
            let of = account.map(|account| format!(" of {account}")).unwrap_or_default();
            format!("the key {prefix}{label}{of}")
        }
        (None, Some(account)) => format!("the account {account}"),
        (None, None) => "an account".to_owned(),
    }
}

/// The text with its first letter in upper case.
fn capitalized(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

impl SpendingAlert<'_> {
    pub(crate) fn email(&self) -> AlertText {
        let Self { names, kind, month, cap, spent, currency, .. } = self;
        let name = capitalized(&describe(names));
        let resets = month.next().first_day();
        let so_far =
            format!("{name} has spent {spent} {currency} of its cap of {cap} {currency} for {month}");
        let (subject, what) = match kind {
            AlertKind::Spent { percent } => (
                format!("{name} has spent {percent} % of its cap for {month}"),
                format!(
                    "{so_far}.\n\nAt 100 %, requests are rejected with 402 spending_cap_reached until {resets} (UTC)."
                ),
            ),
            AlertKind::CapRejection | AlertKind::ExpiresWithin { .. } => (
                format!("{name}: request rejected by its spending cap for {month}"),
                format!(
                    "{so_far}. A request that could exceed it was rejected with 402 spending_cap_reached.\n\n\
                     Requests that could exceed the cap are rejected until {resets} (UTC)."
                ),
            ),
        };
        let text = format!("{what} A partner can change the cap on the account's page of the portal.\n");
        AlertText { subject, text }
    }

    pub(crate) fn event(&self, at: UnixMillis) -> String {
        let percent = match self.kind {
            AlertKind::Spent { percent } => Some(percent),
            AlertKind::CapRejection | AlertKind::ExpiresWithin { .. } => None,
        };
        let data = json!({
            "scope": self.scope.as_str(),
            "account": self.names.account.as_ref().map(ToString::to_string),
            "key": key_prefix(self.names),
            "month": self.month.to_string(),
            "cap": self.cap.to_string(),
            "spent": self.spent.to_string(),
            "currency": self.currency.as_str(),
            "threshold_percent": percent,
            "rejected": percent.is_none(),
        });
        event("spending.threshold", at, &data)
    }
}

impl ExpiryAlert<'_> {
    pub(crate) fn email(&self) -> AlertText {
        let (key, expires_at) = (describe(self.names), self.expires_at.to_iso());
        let when = if self.days == 1 { "1 day".to_owned() } else { format!("{} days", self.days) };
        AlertText {
            subject: format!("{} expires within {when}", capitalized(&key)),
            text: format!(
                "{} expires at {expires_at}. From then on, its requests are rejected with 401 invalid_api_key.\n\n\
                 A partner can extend it, or create another key, on the account's page of the portal.\n",
                capitalized(&key)
            ),
        }
    }

    pub(crate) fn event(&self, at: UnixMillis) -> String {
        let label = self.names.key.as_ref().map(|(_, label)| label.as_str());
        let data = json!({
            "account": self.names.account.as_ref().map(ToString::to_string),
            "key": key_prefix(self.names),
            "label": label,
            "expires_at": self.expires_at.to_iso(),
            "days": self.days,
        });
        event("key.expiring", at, &data)
    }
}

/// The body of the event that `chancery webhook test` sends.
pub fn test_event(at: UnixMillis) -> String {
    event("webhook.test", at, &json!({}))
}

fn key_prefix(names: &AlertNames) -> Option<String> {
    names.key.as_ref().map(|(prefix, _)| prefix.to_string())
}

fn event(kind: &str, at: UnixMillis, data: &Value) -> String {
    json!({ "type": kind, "timestamp": at.to_iso(), "data": data }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{AccountName, KeyPrefix};

    fn names(has_key: bool) -> AlertNames {
        AlertNames {
            account: Some(AccountName::from_stored("Hale & Ward".to_owned())),
            billing_email: None,
            key: has_key.then(|| (KeyPrefix::from_stored("ck_7f3a9x4d".to_owned()), "backend".to_owned())),
        }
    }

    fn spending(names: &AlertNames, kind: AlertKind) -> SpendingAlert<'_> {
        SpendingAlert {
            names,
            scope: if names.key.is_some() { LimitScope::Key } else { LimitScope::Account },
            kind,
            month: "2026-11".parse().unwrap(),
            cap: "250".parse().unwrap(),
            spent: "201.2".parse().unwrap(),
            currency: Currency::USD,
        }
    }

    #[test]
    fn spending_email_says_how_much_which_month_and_what_happens() {
        let names = names(false);
        let AlertText { subject, text } = spending(&names, AlertKind::Spent { percent: 80 }).email();
        assert_eq!(subject, "The account Hale & Ward has spent 80 % of its cap for 2026-11");
        for part in ["201.20 USD of its cap of 250.00 USD for 2026-11", "At 100 %", "until 2026-12-01 (UTC)"]
        {
            assert!(text.contains(part), "{text}");
        }
        let AlertText { subject, text } = spending(&names, AlertKind::CapRejection).email();
        assert_eq!(subject, "The account Hale & Ward: request rejected by its spending cap for 2026-11");
        for part in
            ["was rejected with 402", "Requests that could exceed the cap are rejected until 2026-12-01"]
        {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn events_have_type_timestamp_and_data() {
        let at = UnixMillis(1_794_744_000_000);
        let names = names(true);
        let body = spending(&names, AlertKind::Spent { percent: 50 }).event(at);
        let event: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(event["type"], "spending.threshold");
        assert_eq!(event["timestamp"], "2026-11-15T12:00:00.000Z");
        assert_eq!(
            event["data"],
            json!({
                "scope": "key", "account": "Hale & Ward", "key": "ck_7f3a9x4d", "month": "2026-11",
                "cap": "250.00", "spent": "201.20", "currency": "USD", "threshold_percent": 50, "rejected": false,
            })
        );
        let expiry = ExpiryAlert { names: &names, days: 7, expires_at: at };
        let event: Value = serde_json::from_str(&expiry.event(at)).unwrap();
        assert_eq!((&event["type"], &event["data"]["days"]), (&json!("key.expiring"), &json!(7)));
        assert_eq!(event["data"]["expires_at"], "2026-11-15T12:00:00.000Z");
        let AlertText { subject, .. } = expiry.email();
        assert_eq!(subject, "The key ck_7f3a9x4d (backend) of Hale & Ward expires within 7 days");
    }
}
