//! Invitations by email. The first sign-in with an invited address consumes its invitation and gets its role. Every
//! change needs a permit and is audited; the email waits in the outbox in the same transaction.

use crate::audit::step::AuditedSteps;
use crate::db::{COMMAND_RETRY_LIMIT, Db, FromRow, QueryError, Row, Tx, from_row, query};
use crate::outbox::messages::enqueue;
use crate::throttles::counts as throttles;
use crate::{DbError, Invitation, NewInvitation, NewMessage};
use chancery_domain::{
    AuditEvent, AuditRow, EmailAddress, EventKind, Role, ThrottleDecision, ThrottleKey, UnixMillis,
};
use chancery_policy::{InvitePerson, Permit};
use std::time::Duration;

/// From the last email.
pub const INVITATION_LIFETIME: Duration = Duration::from_secs(14 * 24 * 60 * 60);
/// Most invitations that wait at the same time.
pub const MAX_INVITATIONS: u32 = 500;

/// The texts are for the command line and for logs; the portal writes its own.
#[derive(Debug, thiserror::Error)]
pub enum InvitationError {
    #[error("{0} is already on the team")]
    AlreadyOnTeam(EmailAddress),
    #[error("{0} belongs to a person who was removed; restore the person instead")]
    PersonRemoved(EmailAddress),
    #[error("there is no invitation for {0}")]
    NoSuchInvitation(EmailAddress),
    #[error("too many invitations were sent to {email}; try again after {}", until.to_iso())]
    TooManyEmails { email: EmailAddress, until: UnixMillis },
    #[error("there are {MAX_INVITATIONS} unused invitations; cancel some first")]
    TooManyInvitations,
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<QueryError> for InvitationError {
    fn from(error: QueryError) -> Self {
        Self::Database(error.into())
    }
}

const LIST: &str = "SELECT i.email, i.role, i.invited_by, i.created_at_ms, i.last_sent_at_ms, \
    p.email AS inviter_email FROM invitations i LEFT JOIN people p ON p.id = i.invited_by WHERE i.last_sent_at_ms > $1";
const COUNT: &str = "SELECT COUNT(*) FROM invitations WHERE last_sent_at_ms > $1 AND email <> $2";
const INVITE: &str = "INSERT INTO invitations (email, role, invited_by, created_at_ms, last_sent_at_ms) \
    VALUES ($1, $2, $3, $4, $4) ON CONFLICT (email) DO UPDATE SET role = excluded.role, \
    invited_by = excluded.invited_by, created_at_ms = excluded.created_at_ms, \
    last_sent_at_ms = excluded.last_sent_at_ms";
const PENDING: &str = "SELECT role FROM invitations WHERE email = $1 AND last_sent_at_ms > $2";
const RESEND: &str = "UPDATE invitations SET last_sent_at_ms = $2 WHERE email = $1";
const CANCEL: &str = "DELETE FROM invitations WHERE email = $1 AND last_sent_at_ms > $2 RETURNING role";
const CONSUME: &str = "DELETE FROM invitations WHERE email = $1 RETURNING role, last_sent_at_ms";
const ACTIVE_WITH_MAILBOX: &str = "SELECT COUNT(*) FROM people WHERE mailbox = $1 AND removed_at_ms IS NULL";
const REMOVED_WITH_MAILBOX: &str =
    "SELECT COUNT(*) FROM people WHERE mailbox = $1 AND removed_at_ms IS NOT NULL";
const DELETE_EXPIRED: &str = "DELETE FROM invitations WHERE email IN \
    (SELECT email FROM invitations WHERE last_sent_at_ms <= $1 LIMIT $2)";

from_row!(Invitation {
    email: parse("email", "an invited address"),
    role: read_role,
    invited_by: joined_person("invited_by", "inviter_email"),
    created_at: "created_at_ms",
    last_sent_at: "last_sent_at_ms"
});

struct ConsumedInvitation {
    role: Role,
    last_sent_at: UnixMillis,
}

from_row!(ConsumedInvitation { role: read_role, last_sent_at: "last_sent_at_ms" });

/// The only column that sending again and canceling return.
struct OfferedRole(Role);

impl FromRow for OfferedRole {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        read_role(row).map(Self)
    }
}

fn read_role(row: &Row<'_>) -> Result<Role, QueryError> {
    row.parse("role", "an invitation's role")
}

/// An invitation whose last email is not after this has expired.
fn cutoff(now: UnixMillis) -> UnixMillis {
    let lifetime_ms = i64::try_from(INVITATION_LIFETIME.as_millis()).unwrap_or(i64::MAX);
    UnixMillis(now.0.saturating_sub(lifetime_ms))
}

/// Deletes the invitation of an address that signs in for the first time, and returns its role unless it has expired.
pub(super) fn consume(
    tx: &mut Tx<'_>,
    email: &EmailAddress,
    now: UnixMillis,
) -> Result<Option<Role>, QueryError> {
    let consumed: Option<ConsumedInvitation> = query(CONSUME).bind(email.as_str()).fetch_optional(tx)?;
    Ok(consumed.filter(|invitation| invitation.last_sent_at > cutoff(now)).map(|invitation| invitation.role))
}

/// The outcome of a change, or why it was rejected. The decision is audited in either case.
type Outcome = (Result<(), InvitationError>, Vec<AuditRow>);

fn done(permit: &Permit<InvitePerson>, kind: EventKind, email: &EmailAddress, role: Role) -> Outcome {
    let effect = AuditEvent { kind, subject: None, old_role: None, new_role: Some(role) };
    (Ok(()), vec![permit.to_audit_row_with_invitation(effect, email)])
}

fn rejected(permit: &Permit<InvitePerson>, why: InvitationError) -> Outcome {
    (Err(why), vec![permit.to_audit_row()])
}

/// Counts one more email to the mailbox. `Some` if there were too many.
fn count_email(
    tx: &mut Tx<'_>,
    email: &EmailAddress,
    now: UnixMillis,
) -> Result<Option<InvitationError>, QueryError> {
    Ok(match throttles::count(tx, ThrottleKey::InvitationEmail(email), now)? {
        ThrottleDecision::Allowed(_) => None,
        ThrottleDecision::Denied(count) => {
            Some(InvitationError::TooManyEmails { email: email.clone(), until: count.expires_at })
        }
    })
}

fn invite(
    tx: &mut Tx<'_>,
    permit: &Permit<InvitePerson>,
    new: &NewInvitation,
) -> Result<Outcome, InvitationError> {
    let NewInvitation { email, role, message } = new;
    let now = permit.access_request().at;
    let active: u64 = query(ACTIVE_WITH_MAILBOX).bind(email.mailbox()).fetch_one(tx)?;
    if active > 0 {
        return Ok(rejected(permit, InvitationError::AlreadyOnTeam(email.clone())));
    }
    let removed: u64 = query(REMOVED_WITH_MAILBOX).bind(email.mailbox()).fetch_one(tx)?;
    if removed > 0 {
        return Ok(rejected(permit, InvitationError::PersonRemoved(email.clone())));
    }
    let pending: u64 = query(COUNT).bind(cutoff(now).0).bind(email.as_str()).fetch_one(tx)?;
    if pending >= u64::from(MAX_INVITATIONS) {
        return Ok(rejected(permit, InvitationError::TooManyInvitations));
    }
    if let Some(too_many) = count_email(tx, email, now)? {
        return Ok(rejected(permit, too_many));
    }
    let invite = query(INVITE)
        .bind(email.as_str())
        .bind(role.as_str())
        .bind(permit.by().person().map(|person| person.0))
        .bind(now.0);
    invite.execute(tx)?;
    enqueue(tx, std::slice::from_ref(message))?;
    Ok(done(permit, EventKind::PersonInvited, email, *role))
}

fn resend(
    tx: &mut Tx<'_>,
    permit: &Permit<InvitePerson>,
    email: &EmailAddress,
    message: &NewMessage,
) -> Result<Outcome, InvitationError> {
    let now = permit.access_request().at;
    let missing = || InvitationError::NoSuchInvitation(email.clone());
    let pending = query(PENDING).bind(email.as_str()).bind(cutoff(now).0);
    let Some(OfferedRole(role)) = pending.fetch_optional(tx)? else {
        return Ok(rejected(permit, missing()));
    };
    if let Some(too_many) = count_email(tx, email, now)? {
        return Ok(rejected(permit, too_many));
    }
    // It may have been used or canceled meanwhile.
    if query(RESEND).bind(email.as_str()).bind(now.0).execute(tx)? == 0 {
        return Ok(rejected(permit, missing()));
    }
    enqueue(tx, std::slice::from_ref(message))?;
    Ok(done(permit, EventKind::PersonInvited, email, role))
}

fn cancel(
    tx: &mut Tx<'_>,
    permit: &Permit<InvitePerson>,
    email: &EmailAddress,
) -> Result<Outcome, InvitationError> {
    let cancel = query(CANCEL).bind(email.as_str()).bind(cutoff(permit.access_request().at).0);
    let Some(OfferedRole(role)) = cancel.fetch_optional(tx)? else {
        return Ok(rejected(permit, InvitationError::NoSuchInvitation(email.clone())));
    };
    Ok(done(permit, EventKind::InvitationCanceled, email, role))
}

/// Invitations that wait for their first sign-in.
#[derive(Clone)]
pub struct Invitations {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
}

impl Invitations {
    /// Invites the address, or renews its invitation with this role. A rejected invitation is audited as a decision
    /// without an effect. Wake the outbox's worker afterwards.
    pub async fn invite_person(
        &self,
        permit: Permit<InvitePerson>,
        new: &NewInvitation,
    ) -> Result<(), InvitationError> {
        let new = new.clone();
        self.audited.run_as(vec![permit.by()], move |tx| invite(tx, &permit, &new)).await?
    }

    /// Sends the invitation again, which renews it. Fails with `NoSuchInvitation` if it was used or canceled or has
    /// expired.
    pub async fn resend_invitation(
        &self,
        permit: Permit<InvitePerson>,
        email: &EmailAddress,
        message: &NewMessage,
    ) -> Result<(), InvitationError> {
        let (email, message) = (email.clone(), message.clone());
        self.audited.run_as(vec![permit.by()], move |tx| resend(tx, &permit, &email, &message)).await?
    }

    pub async fn cancel_invitation(
        &self,
        permit: Permit<InvitePerson>,
        email: &EmailAddress,
    ) -> Result<(), InvitationError> {
        let email = email.clone();
        self.audited.run_as(vec![permit.by()], move |tx| cancel(tx, &permit, &email)).await?
    }

    /// Audits the decision that the principal may invite people, if there is nothing to change.
    pub async fn record_invitation_decision(
        &self,
        permit: Permit<InvitePerson>,
    ) -> Result<(), InvitationError> {
        Ok(self.audited.record(vec![permit.to_audit_row()]).await?)
    }

    /// Invitations that have not expired, by address.
    pub async fn list_invitations(&self, now: UnixMillis) -> Result<Vec<Invitation>, InvitationError> {
        let mut found: Vec<Invitation> = self.db.fetch_all(query(LIST).bind(cutoff(now).0)).await?;
        // Sorted here, because the databases sort addresses differently.
        found.sort_by(|one, other| one.email.cmp(&other.email));
        Ok(found)
    }

    /// Deletes up to `limit` expired invitations and returns how many.
    pub async fn delete_expired_invitations(
        &self,
        now: UnixMillis,
        limit: u32,
    ) -> Result<u64, InvitationError> {
        let delete = query(DELETE_EXPIRED).bind(cutoff(now).0).bind(i64::from(limit));
        Ok(self.db.execute(delete, COMMAND_RETRY_LIMIT).await?)
    }
}
