//! The portal's people, sessions and sign-ins as the rest of Chancery sees them.

use crate::StoreError;
use async_trait::async_trait;
use chancery_domain::{
    EmailAddress, EventOrigin, Identity, LocalPath, Person, PersonId, Role, Session, SessionId, SessionTimes,
    TokenHash, UnixMillis,
};
use chancery_policy::{ManageTeam, Permit};

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

#[async_trait]
pub trait People: Send + Sync + 'static {
    /// The one person of this identity, created if it is new, with the address as it is now. Somebody new and somebody who
    /// becomes a partner by it are on record. Rejected with `PersonRemoved`.
    async fn arrive(&self, arrival: Arrival) -> Result<Person, StoreError>;

    /// Everybody who was not removed, by address.
    async fn list_people(&self) -> Result<Vec<Person>, StoreError>;

    /// By address.
    async fn list_removed_people(&self) -> Result<Vec<RemovedPerson>, StoreError>;

    /// More than one where several identities have one address.
    async fn people_with_email(&self, email: &EmailAddress) -> Result<Vec<Person>, StoreError>;

    /// Rejected with `LastPartner` where nobody would be left who is one. A change that is rejected leaves the decision on
    /// record, without a change.
    async fn set_role(
        &self,
        permit: Permit<ManageTeam>,
        person: PersonId,
        role: Role,
    ) -> Result<Person, StoreError>;

    /// From now on none of the person's sessions opens anything, and none is started. Rejected with `LastPartner`.
    async fn remove_person(&self, permit: Permit<ManageTeam>, person: PersonId) -> Result<(), StoreError>;

    /// The person may sign in again, in the role they had; the sessions they had do not come back. Rejected with
    /// `NoSuchPerson` for somebody who was not removed.
    async fn restore_person(
        &self,
        permit: Permit<ManageTeam>,
        person: PersonId,
    ) -> Result<Person, StoreError>;

    /// Ends the person's sessions, and their sign-ins that wait for a code. How many sessions there were.
    async fn sign_out_person(&self, permit: Permit<ManageTeam>, person: PersonId) -> Result<u64, StoreError>;
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

#[async_trait]
pub trait Sessions: Send + Sync + 'static {
    /// Refused with `NoSuchPerson` for somebody who was removed. Of very many sessions of one person, those go that were
    /// not used for longest.
    async fn start_session(&self, new: NewSession) -> Result<(), StoreError>;

    /// Whose session this is, if it is alive. Notes that it was used, now and then.
    async fn signed_in(
        &self,
        token: TokenHash,
        place: &str,
        times: SessionTimes,
        now: UnixMillis,
    ) -> Result<Option<SignedIn>, StoreError>;

    /// Those that are alive, the last used first.
    async fn sessions_of(
        &self,
        person: PersonId,
        times: SessionTimes,
        now: UnixMillis,
    ) -> Result<Vec<Session>, StoreError>;

    /// Whether there was such a session of that person.
    async fn end_session(
        &self,
        person: PersonId,
        session: SessionId,
        origin: &EventOrigin,
    ) -> Result<bool, StoreError>;

    /// How many there were.
    async fn end_all_sessions(
        &self,
        person: PersonId,
        except: Option<SessionId>,
        origin: &EventOrigin,
    ) -> Result<u64, StoreError>;

    /// For somebody whose password was changed: their sign-ins under way that wait for a code end too. How many sessions
    /// there were; none for an identity that never came here.
    async fn end_sessions_of_identity(
        &self,
        identity: &Identity,
        origin: &EventOrigin,
    ) -> Result<u64, StoreError>;

    async fn forget_ended_sessions(
        &self,
        times: SessionTimes,
        now: UnixMillis,
        limit: u32,
    ) -> Result<u64, StoreError>;
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

#[async_trait]
pub trait SignIns: Send + Sync + 'static {
    async fn begin_sign_in(&self, token: TokenHash, sign_in: SignIn) -> Result<(), StoreError>;

    /// Gives it once; None where there is none or its time is over.
    async fn take_sign_in(&self, token: TokenHash, now: UnixMillis) -> Result<Option<SignIn>, StoreError>;

    /// With its first code, which is counted as sent.
    async fn begin_half_sign_in(
        &self,
        token: TokenHash,
        half: HalfSignIn,
        now: UnixMillis,
    ) -> Result<CodeSending, StoreError>;

    async fn half_sign_in(&self, token: TokenHash, now: UnixMillis)
    -> Result<Option<HalfSignIn>, StoreError>;

    /// Whether one more letter may go out; counts it if so. The code of the last one stays in force.
    async fn may_send_code(&self, token: TokenHash, now: UnixMillis) -> Result<CodeSending, StoreError>;

    /// The mail server has taken a letter: its code is in force in the place of the last one. Not where the sign-in is over.
    async fn code_was_sent(
        &self,
        token: TokenHash,
        hash: TokenHash,
        expires_at: UnixMillis,
        now: UnixMillis,
    ) -> Result<bool, StoreError>;

    /// A letter that was counted could not be sent: it counts no more, and the next one may go out after a moment.
    async fn code_was_not_sent(&self, token: TokenHash, now: UnixMillis) -> Result<(), StoreError>;

    /// A wrong code is on record.
    async fn try_code(
        &self,
        token: TokenHash,
        typed: TokenHash,
        origin: &EventOrigin,
    ) -> Result<CodeTry, StoreError>;

    /// Removes up to `limit` of each kind that nobody can use any more, and of more sign-ins than `keep` those that were
    /// begun first; says how much.
    async fn forget_old_sign_ins(&self, now: UnixMillis, limit: u32, keep: u32) -> Result<u64, StoreError>;
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
