//! Public types of the portal's people, sessions and sign-ins.

use crate::NewMessage;
use chancery_domain::{
    EmailAddress, EventOrigin, Identity, LocalPath, Person, PersonId, PersonName, PersonRef, Role, Session,
    TokenHash, UnixMillis,
};

/// Whether the caller has agreed to change this many things. It is asked in the transaction of the change, which
/// may run more than once.
pub type IsConfirmed = Box<dyn Fn(u64) -> bool + Send>;

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

/// How the person of a session authenticated at the identity provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionAuthentication {
    pub authenticated_at: UnixMillis,
    /// The provider's own session (`sid`), if it named one.
    pub sid: Option<String>,
    /// The ID token, encrypted with a key that only the browser's cookie gives. The store encrypts it once more.
    pub id_token: Option<Vec<u8>>,
}

impl SessionAuthentication {
    /// Nothing but the time is known.
    pub fn at(authenticated_at: UnixMillis) -> Self {
        Self { authenticated_at, sid: None, id_token: None }
    }
}

#[derive(Clone, Debug)]
pub struct NewSession {
    pub token: TokenHash,
    /// The second cookie that must match, with `portal.bind_session`.
    pub binding: Option<TokenHash>,
    pub person: PersonId,
    pub authentication: SessionAuthentication,
    pub origin: EventOrigin,
    pub ip_address: String,
    pub user_agent: String,
    /// The browser's previous session, which may be another person's. It ends.
    pub replaces: Option<TokenHash>,
}

/// A session whose person authenticated again, or whom the identity provider confirmed.
#[derive(Clone, Debug)]
pub struct RenewedSession {
    pub person: PersonId,
    pub old_token: TokenHash,
    /// Equal to the old one, or its replacement.
    pub token: TokenHash,
    /// `None` leaves the second cookie as it is.
    pub binding: Option<TokenHash>,
    pub authentication: SessionAuthentication,
    pub confirmed_at: UnixMillis,
    /// The request with which the person authenticated again, for the audit log. `None` if the provider only confirmed
    /// the session.
    pub step_up: Option<EventOrigin>,
}

/// A verified logout token of the identity provider.
#[derive(Clone, Debug)]
pub struct ProviderLogout {
    /// Hash of issuer and `jti`.
    pub token_id: TokenHash,
    /// Until then the same token would be accepted, so its ID is stored.
    pub token_expires_at: UnixMillis,
    pub issuer: String,
    pub target: LogoutTarget,
}

/// The sessions that a logout token ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogoutTarget {
    /// All sessions of this subject.
    Subject(String),
    /// Those of one session at the provider; of this subject only, if it is named.
    ProviderSession { sid: String, subject: Option<String> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderLogoutOutcome {
    /// The number of sessions that ended.
    Ended(u64),
    /// The token was used before.
    Replayed,
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
    pub purpose: SignInPurpose,
    pub expires_at: UnixMillis,
}

chancery_domain::closed_enum! {
    /// Why the browser was sent to the identity provider.
    pub enum SignInPurpose {
        SignIn = "sign-in",
        /// To authenticate again, for an action that needs it.
        StepUp = "step-up",
        /// To confirm that the person is still signed in there.
        Recheck = "recheck",
    }
}

/// A sign-in that waits for the code from an email.
#[derive(Clone, Debug)]
pub struct PendingEmailCode {
    pub identity: Identity,
    pub email: EmailAddress,
    /// Whether the identity provider has verified the address, too.
    pub is_email_verified: bool,
    /// The role that the firm's directory gives, if roles come from there.
    pub directory_role: Option<Role>,
    /// Its ID token is encrypted with the sign-in's token.
    pub authentication: SessionAuthentication,
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
    /// Too many emails went to this identity or its mailbox today.
    TooManyToday { until: UnixMillis },
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

/// A person who has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPerson {
    pub id: PersonId,
    pub name: PersonName,
}

/// An unused invitation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    pub email: EmailAddress,
    pub role: Role,
    /// `None` for the command line.
    pub invited_by: Option<PersonRef>,
    pub created_at: UnixMillis,
    pub last_sent_at: UnixMillis,
}

/// An invitation with the email that tells the person.
#[derive(Clone, Debug)]
pub struct NewInvitation {
    pub email: EmailAddress,
    pub role: Role,
    pub message: NewMessage,
}
