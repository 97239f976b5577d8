//! Public types of the portal's people, sessions and sign-ins.

use chancery_domain::{
    EmailAddress, EventOrigin, Identity, LocalPath, Person, PersonId, Role, Session, TokenHash, UnixMillis,
};

/// A verified identity: signed in at the identity provider, with a verified mailbox.
#[derive(Clone, Debug)]
pub struct VerifiedIdentity {
    pub identity: Identity,
    pub email: EmailAddress,
    /// The role of a new person. A known person is only ever promoted.
    pub role: Role,
    pub origin: EventOrigin,
}

/// A person who may no longer sign in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedPerson {
    pub person: Person,
    pub removed_at: UnixMillis,
}

#[derive(Clone, Debug)]
pub struct NewSession {
    pub token: TokenHash,
    pub person: PersonId,
    pub origin: EventOrigin,
    pub ip_address: String,
    pub user_agent: String,
    /// The browser's previous session, which may be another person's. It ends.
    pub replaces: Option<TokenHash>,
}

/// A session and its owner, as currently stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedIn {
    pub session: Session,
    pub person: Person,
}

/// What the identity provider's response must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingSignIn {
    pub state: String,
    pub nonce: String,
    pub pkce_verifier: String,
    pub return_to: LocalPath,
    pub expires_at: UnixMillis,
}

/// A sign-in that waits for the code from an email.
#[derive(Clone, Debug)]
pub struct PendingEmailCode {
    pub identity: Identity,
    pub email: EmailAddress,
    pub return_to: LocalPath,
    pub code: SentEmailCode,
    /// Whether the mail server has accepted any email yet.
    pub is_email_sent: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct SentEmailCode {
    pub hash: TokenHash,
    pub expires_at: UnixMillis,
    /// Number of emails for this sign-in, including this one.
    pub sent: u32,
    pub sent_at: UnixMillis,
}

/// Whether a code may be emailed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeEmailOutcome {
    /// The email is counted as sent.
    Allowed,
    /// The last email of this sign-in was too recent.
    TooSoon(UnixMillis),
    /// Too many emails went to this identity or its mailbox, and no code was used.
    TooMany { until: UnixMillis },
    /// This sign-in has used up its emails.
    SignInLimitReached,
    /// Too many wrong codes were entered.
    LockedOut { until: UnixMillis },
    /// The sign-in does not exist or has expired.
    Gone,
}

#[derive(Clone, Debug)]
pub enum CodeOutcome {
    /// The sign-in may proceed, and no longer waits for a code.
    Accepted(PendingEmailCode),
    Rejected {
        left: u32,
    },
    /// Too many wrong codes: all sign-ins of this identity, or of its mailbox, are deleted. `is_first` for the attempt
    /// that caused it.
    LockedOut {
        pending: PendingEmailCode,
        is_first: bool,
    },
    /// The sign-in does not exist or has expired.
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamMember {
    pub person: Person,
    pub removed_at: Option<UnixMillis>,
    pub clients: u64,
    pub archived_clients: u64,
    /// Active sessions.
    pub sessions: u64,
    /// Last use of any active session.
    pub last_used_at: Option<UnixMillis>,
}
