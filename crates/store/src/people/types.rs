//! The portal's people, sessions and sign-ins as the rest of Chancery sees them.

use chancery_domain::{
    EmailAddress, EventOrigin, Identity, LocalPath, Person, PersonId, Role, Session, TokenHash, UnixMillis,
};

/// Somebody comes back from the identity provider with a proven mailbox.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub identity: Identity,
    pub email: EmailAddress,
    /// For somebody new; somebody known becomes a partner by it, and is never made less.
    pub role: Role,
    pub origin: EventOrigin,
}

/// Somebody who may not sign in any more.
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
    pub place: String,
    pub browser: String,
    /// The session that this browser had until now, whoever's it was. It ends.
    pub replaces: Option<TokenHash>,
}

/// A session and its owner, as they are at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedIn {
    pub session: Session,
    pub person: Person,
}

/// What a sign-in must come back with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignIn {
    pub state: String,
    pub nonce: String,
    pub pkce_verifier: String,
    pub return_to: LocalPath,
    pub expires_at: UnixMillis,
}

/// Somebody whom the identity provider knows and who has yet to type the code from the mail.
#[derive(Clone, Debug)]
pub struct HalfSignIn {
    pub identity: Identity,
    pub email: EmailAddress,
    pub return_to: LocalPath,
    pub code: MailedCode,
    /// Whether the mail server has taken any letter yet.
    pub is_code_sent: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct MailedCode {
    pub hash: TokenHash,
    pub expires_at: UnixMillis,
    /// How many were sent for this sign-in, this one included.
    pub sent: u32,
    pub sent_at: UnixMillis,
}

/// Whether a code may go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeSending {
    /// It is counted as sent.
    Yes,
    /// The last letter of this sign-in is too young.
    NotBefore(UnixMillis),
    /// Very many letters went to this identity, or to its mailbox, and none was used.
    TooMany { until: UnixMillis },
    /// This sign-in has had all its letters.
    NoMore,
    /// Too many wrong codes were typed.
    NoTriesLeft { until: UnixMillis },
    /// There is no such sign-in, or its time is over.
    Gone,
}

#[derive(Clone, Debug)]
pub enum CodeTry {
    /// The sign-in may go on; it is no longer half.
    Right(HalfSignIn),
    Wrong {
        left: u32,
    },
    /// Too many wrong tries: all sign-ins of this identity, or of its mailbox, are gone. `is_news` for the one whose try it was.
    Destroyed {
        half: HalfSignIn,
        is_news: bool,
    },
    /// There is no such sign-in, or its time is over.
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamMember {
    pub person: Person,
    pub removed_at: Option<UnixMillis>,
    /// Clients that are theirs and not archived.
    pub clients: u64,
    /// Clients that are theirs and archived.
    pub archived_clients: u64,
    /// Sessions that are alive.
    pub sessions: u64,
    /// When a session that is alive was last used.
    pub last_used_at: Option<UnixMillis>,
}
