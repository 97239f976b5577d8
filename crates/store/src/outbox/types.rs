//! Public types of the outbox, webhooks and alerts.

use chancery_domain::{
    AccountId, AccountName, ContactEmail, KeyId, KeyPrefix, LimitScope, Month, Nanos, UnixMillis,
};
use std::fmt;

/// Every event is sent to every webhook, so there are few.
pub const MAX_WEBHOOKS: u32 = 20;

chancery_domain::closed_enum! {
    pub enum MessageKind {
        Email = "email",
        Webhook = "webhook",
    }
}

/// A message to be sent. An event goes to a destination once.
#[derive(Clone, PartialEq, Eq)]
pub struct NewMessage {
    pub kind: MessageKind,
    /// An email address or a webhook's id.
    pub destination: String,
    /// The same at every attempt, so that the receiver recognizes a message that arrives twice.
    pub event_id: String,
    pub payload: String,
    pub created_at: UnixMillis,
    /// The last attempt is made then.
    pub expires_at: UnixMillis,
}

/// Emails may contain codes, so logs do not show the payload.
impl fmt::Debug for NewMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewMessage")
            .field("kind", &self.kind)
            .field("event_id", &self.event_id)
            .field("created_at", &self.created_at)
            .finish_non_exhaustive()
    }
}

/// A message that this process sends now. Nobody else does until the claim ends.
#[derive(Clone, Debug)]
pub struct ClaimedMessage {
    pub message: NewMessage,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    pub(crate) claim: String,
}

/// How an attempt to send a message ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    Sent,
    Retry { at: UnixMillis, error: String },
    Failed { error: String },
}

/// A receiver of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    pub id: String,
    pub url: String,
    pub secret: WebhookSecret,
    pub created_at: UnixMillis,
    pub disabled_at: Option<UnixMillis>,
}

/// A webhook without its secret, which can be read without the key of the secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedWebhook {
    pub id: String,
    pub url: String,
    pub created_at: UnixMillis,
    pub disabled_at: Option<UnixMillis>,
}

/// `whsec_…`, with which events are signed. Its `Debug` shows nothing, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(pub(crate) String);

impl WebhookSecret {
    pub fn from_text(text: String) -> Self {
        Self(text)
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(…)")
    }
}

/// What has a spending cap, or expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlertSubject {
    Account(AccountId),
    Key(KeyId),
}

impl AlertSubject {
    pub fn scope(self) -> LimitScope {
        match self {
            Self::Account(_) => LimitScope::Account,
            Self::Key(_) => LimitScope::Key,
        }
    }

    pub(crate) fn id(self) -> i64 {
        match self {
            Self::Account(account) => account.0,
            Self::Key(key) => key.0,
        }
    }
}

/// A cap that rejected a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CapRejection {
    pub subject: AlertSubject,
    pub month: Month,
    pub cap: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlertKind {
    /// Spending reached this percentage of the cap.
    Spent { percent: u8 },
    /// The cap rejected a request.
    CapRejection,
    /// The key expires within this many days.
    ExpiresWithin { days: u8 },
}

impl AlertKind {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Spent { percent } => format!("spent_{percent}"),
            Self::CapRejection => "cap_rejection".to_owned(),
            Self::ExpiresWithin { days } => format!("expires_{days}d"),
        }
    }
}

/// What identifies an alert. A new cap, month or expiry makes it another alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alert {
    pub subject: AlertSubject,
    pub kind: AlertKind,
    pub period: AlertPeriod,
    /// Zero for a key that expires.
    pub cap: Nanos,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlertPeriod {
    Month(Month),
    Expiry(UnixMillis),
}

impl AlertPeriod {
    pub(crate) fn to_db(self) -> i64 {
        match self {
            Self::Month(month) => i64::from(month.first_day().0),
            Self::Expiry(at) => at.0,
        }
    }
}

/// The account and the key that an alert names, and the account's billing contact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertNames {
    pub account: Option<AccountName>,
    pub billing_email: Option<ContactEmail>,
    /// Prefix and label, for an alert about a key.
    pub key: Option<(KeyPrefix, String)>,
}

/// Spending of an account or key with a cap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CappedSpending {
    pub subject: AlertSubject,
    pub names: AlertNames,
    pub cap: Nanos,
    pub spent: Nanos,
    /// Whether this cap has rejected a request in the month.
    pub has_rejected: bool,
}

/// An active key that expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiringKey {
    pub key: KeyId,
    pub names: AlertNames,
    pub expires_at: UnixMillis,
}
