//! The firm's people and their roles. Every change needs a permit and is audited with its old and new value in the same
//! transaction. Sessions and sign-ins are elsewhere in this folder.

use super::invitations;
use super::rows::{PersonRow, lock_identity, lock_person};
use super::sessions::end_sessions_of;
use crate::DbError;
use crate::audit::principal::ensure_principal_unchanged;
use crate::audit::step::AuditedSteps;
use crate::clients::unsaved_rows::delete_unsaved_texts_of;
use crate::db::{Db, Dialect, QueryError, Tx, query};
use crate::{IsConfirmed, PersonError, RemovedPerson, VerifiedIdentity};
use chancery_domain::{
    AuditEvent, AuditRow, AuditedEvent, EmailAddress, EventKind, Identity, Person, PersonId, Role, UnixMillis,
};
use chancery_policy::{ManageTeam, Permit};

const JOIN: &str = "INSERT INTO people (issuer, subject, email, role, joined_at_ms, mailbox) \
    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (issuer, subject) DO NOTHING RETURNING *";
const SET_EMAIL_AND_ROLE: &str =
    "UPDATE people SET email = $2, role = $3, mailbox = $4 WHERE id = $1 RETURNING *";
const REMOVED_WITH_MAILBOX: &str =
    "SELECT * FROM people WHERE mailbox = $1 AND removed_at_ms IS NOT NULL ORDER BY id LIMIT 1";
const LIST: &str = "SELECT * FROM people WHERE removed_at_ms IS NULL ORDER BY email, id";
const LIST_REMOVED: &str = "SELECT * FROM people WHERE removed_at_ms IS NOT NULL ORDER BY email, id";
const RESTORE: &str =
    "UPDATE people SET removed_at_ms = NULL WHERE id = $1 AND removed_at_ms IS NOT NULL RETURNING *";
const REMOVE: &str = "UPDATE people SET removed_at_ms = $2 WHERE id = $1";
const END_SESSIONS: &str = "DELETE FROM sessions WHERE person_id = $1";
const BY_EMAIL: &str = "SELECT * FROM people WHERE email = $1 AND removed_at_ms IS NULL ORDER BY id";

/// The firm always has at least one partner. SQLite has one writer, so check and update are atomic; PostgreSQL's
/// function has the same condition and serializes callers.
fn set_role(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => {
            "UPDATE people SET role = $2 WHERE id = $1 AND removed_at_ms IS NULL \
             AND (role <> 'partner' OR $2 = 'partner' OR EXISTS \
                (SELECT 1 FROM people o WHERE o.id <> $1 AND o.role = 'partner' AND o.removed_at_ms IS NULL)) RETURNING *"
        }
        Dialect::Postgres => {
            "UPDATE people SET role = $2 WHERE id = $1 AND removed_at_ms IS NULL \
             AND (role <> 'partner' OR $2 = 'partner' OR other_partner_exists($1)) RETURNING *"
        }
    }
}

/// Everyone with the mailbox of this person, if the person is not removed. They are locked until the transaction ends, in
/// the order of their ids, to avoid deadlocks.
fn same_mailbox(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => {
            "SELECT * FROM people WHERE removed_at_ms IS NULL \
             AND mailbox = (SELECT p.mailbox FROM people p WHERE p.id = $1 AND p.removed_at_ms IS NULL) ORDER BY id"
        }
        Dialect::Postgres => {
            "SELECT * FROM people WHERE removed_at_ms IS NULL \
             AND mailbox = (SELECT p.mailbox FROM people p WHERE p.id = $1 AND p.removed_at_ms IS NULL) ORDER BY id \
             FOR NO KEY UPDATE"
        }
    }
}

/// The partners who remain when everyone with a mailbox is removed. PostgreSQL's function serializes callers, as for
/// `set_role`.
fn partners_outside_mailbox(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => {
            "SELECT COUNT(*) FROM people WHERE mailbox <> $1 AND role = 'partner' AND removed_at_ms IS NULL"
        }
        Dialect::Postgres => "SELECT partners_outside_mailbox($1)",
    }
}

/// What a sign-in does to the role of a known person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoleRule {
    /// `portal.partners`: the role is only ever promoted.
    PromoteOnly,
    /// The firm's directory: the role follows, up and down, except that the last partner is never demoted.
    Follow,
}

/// A removed person stays removed, and keeps their address: no other identity can join with its mailbox, whose removed
/// person is returned instead.
fn upsert_person(
    tx: &mut Tx<'_>,
    verified: &VerifiedIdentity,
    rule: RoleRule,
) -> Result<(PersonRow, Option<AuditEvent>), PersonError> {
    let VerifiedIdentity { identity, email, role, origin } = verified;
    let known = match lock_identity(tx, identity)? {
        Some(known) => known,
        None => {
            let removed: Option<PersonRow> =
                query(REMOVED_WITH_MAILBOX).bind(email.mailbox()).fetch_optional(tx)?;
            if let Some(removed) = removed {
                return Ok((removed, None));
            }
            let invited = invitations::consume(tx, email, origin.at)?;
            let role = match (rule, invited) {
                (RoleRule::PromoteOnly, Some(invited)) => invited.max(*role),
                _ => *role,
            };
            let join = query(JOIN)
                .bind(identity.issuer.as_str())
                .bind(identity.subject.as_str())
                .bind(email.as_str())
                .bind(role.as_str())
                .bind(origin.at.0)
                .bind(email.mailbox());
            let joined: Option<PersonRow> = join.fetch_optional(tx)?;
            if let Some(joined) = joined {
                let event = AuditEvent::new(EventKind::PersonJoined, joined.person.id);
                return Ok((joined, Some(AuditEvent { new_role: Some(role), ..event })));
            }
            // A concurrent sign-in of the same identity created the person.
            let missing = || DbError::Unavailable("the database returned no row for the person".to_owned());
            lock_identity(tx, identity)?.ok_or_else(missing)?
        }
    };
    if known.removed_at.is_some() {
        return Ok((known, None));
    }
    let (id, old_role) = (known.person.id, known.person.role);
    let new_role = match rule {
        RoleRule::PromoteOnly => old_role.max(*role),
        RoleRule::Follow => followed_role(tx, id, old_role, *role)?,
    };
    if known.person.email == *email && old_role == new_role {
        return Ok((known, None));
    }
    let set = query(SET_EMAIL_AND_ROLE)
        .bind(id.0)
        .bind(email.as_str())
        .bind(new_role.as_str())
        .bind(email.mailbox());
    let updated: PersonRow = set.fetch_one(tx)?;
    let promoted = (old_role != new_role).then(|| AuditEvent {
        old_role: Some(old_role),
        new_role: Some(new_role),
        ..AuditEvent::new(
            match rule {
                RoleRule::PromoteOnly => EventKind::PersonPromoted,
                RoleRule::Follow => EventKind::RoleChanged,
            },
            id,
        )
    });
    Ok((updated, promoted))
}

/// The role that the directory gives, or the old one for the last partner.
fn followed_role(tx: &mut Tx<'_>, id: PersonId, old_role: Role, role: Role) -> Result<Role, QueryError> {
    if role >= old_role {
        return Ok(role);
    }
    let demote = query(set_role(tx.dialect())).bind(id.0).bind(role.as_str());
    let demoted: Option<Person> = demote.fetch_optional(tx)?;
    Ok(demoted.map_or(old_role, |person| person.role))
}

/// Why an update of a person changed no row.
fn rejection_reason(tx: &mut Tx<'_>, person: PersonId) -> Result<PersonError, QueryError> {
    Ok(match lock_person(tx, person)? {
        Some(PersonRow { removed_at: None, .. }) => PersonError::LastPartner,
        _ => PersonError::NoSuchPerson(person),
    })
}

/// The outcome of a change, or why it was rejected. The decision is audited in either case.
type Outcome<T> = (Result<T, PersonError>, Vec<AuditRow>);

fn done<T>(permit: &Permit<ManageTeam>, effect: AuditEvent, done: T) -> Outcome<T> {
    (Ok(done), vec![permit.to_audit_row_with_effect(effect)])
}

fn rejected<T>(permit: &Permit<ManageTeam>, why: PersonError) -> Outcome<T> {
    (Err(why), vec![permit.to_audit_row()])
}

fn remove(
    tx: &mut Tx<'_>,
    permit: &Permit<ManageTeam>,
    person: PersonId,
    is_confirmed: &IsConfirmed,
) -> Result<Outcome<Vec<Person>>, PersonError> {
    let same = query(same_mailbox(tx.dialect())).bind(person.0);
    let people: Vec<Person> = same.fetch_all(tx)?;
    ensure_principal_unchanged::<PersonError>(tx, permit.by())?;
    let Some(mailbox) = people.iter().find(|own| own.id == person).map(|own| own.email.mailbox()) else {
        return Ok(rejected(permit, PersonError::NoSuchPerson(person)));
    };
    if people.iter().any(|person| person.role == Role::Partner) {
        let outside = query(partners_outside_mailbox(tx.dialect())).bind(mailbox);
        let partners: u64 = outside.fetch_one(tx)?;
        if partners == 0 {
            return Ok(rejected(permit, PersonError::LastPartner));
        }
    }
    if !is_confirmed(people.len() as u64) {
        return Ok(rejected(permit, PersonError::Unconfirmed(people)));
    }
    // Their sessions stop working now, and are deleted with the expired ones.
    for person in &people {
        query(REMOVE).bind(person.id.0).bind(permit.access_request().at.0).execute(tx)?;
        delete_unsaved_texts_of(tx, person.id)?;
    }
    let event = |person: &Person| AuditEvent::new(EventKind::PersonRemoved, person.id);
    let rows = people.iter().map(|person| permit.to_audit_row_with_effect(event(person))).collect();
    Ok((Ok(people), rows))
}

/// The person of this identity, created or updated. A removed person is rejected.
async fn admit(
    audited: &AuditedSteps,
    verified: VerifiedIdentity,
    rule: RoleRule,
) -> Result<Person, PersonError> {
    let Identity { issuer, subject } = &verified.identity;
    if issuer.contains('\0') || subject.contains('\0') {
        return Err(DbError::NulCharacter { what: "the identity" }.into());
    }
    let step = move |tx: &mut Tx<'_>| {
        let (known, event) = upsert_person(tx, &verified, rule)?;
        let by = Some(known.principal());
        let row = |event| AuditRow::Event(AuditedEvent { by, event, origin: verified.origin.clone() });
        Ok::<_, PersonError>((known, event.map(row).into_iter().collect()))
    };
    let PersonRow { person, removed_at } = audited.run_then_record(step).await?;
    match removed_at {
        Some(_) => Err(PersonError::PersonRemoved(person.id)),
        None => Ok(person),
    }
}

/// People of the firm and their roles.
#[derive(Clone)]
pub struct People {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
}

impl People {
    /// Returns the person of this identity, created if new, with the email address updated. A new person gets the role of
    /// an invitation to this address. A new person or a promotion to partner is audited. Fails with `PersonRemoved` for a
    /// removed person, and for a new one with the mailbox of a removed person.
    pub async fn sign_in(&self, verified: VerifiedIdentity) -> Result<Person, PersonError> {
        admit(&self.audited, verified, RoleRule::PromoteOnly).await
    }

    /// Like `sign_in`, but the role of a known person becomes the given one, which is the firm's directory's. The last
    /// partner stays a partner. A change is audited.
    pub async fn sign_in_from_directory(&self, verified: VerifiedIdentity) -> Result<Person, PersonError> {
        admit(&self.audited, verified, RoleRule::Follow).await
    }

    /// People who are not removed, by email address.
    pub async fn list_people(&self) -> Result<Vec<Person>, PersonError> {
        Ok(self.db.fetch_all(query(LIST)).await?)
    }

    /// By email address.
    pub async fn list_removed_people(&self) -> Result<Vec<RemovedPerson>, PersonError> {
        let found: Vec<PersonRow> = self.db.fetch_all(query(LIST_REMOVED)).await?;
        let removed = found.into_iter().map(|PersonRow { person, removed_at }| RemovedPerson {
            person,
            removed_at: removed_at.unwrap_or(UnixMillis(0)),
        });
        Ok(removed.collect())
    }

    /// Several identities may have the same address.
    pub async fn people_by_email(&self, email: &EmailAddress) -> Result<Vec<Person>, PersonError> {
        Ok(self.db.fetch_all(query(BY_EMAIL).bind(email.as_str())).await?)
    }

    /// Fails with `LastPartner` if no partner would remain. A rejected change is audited as a decision without an
    /// effect.
    pub async fn set_role(
        &self,
        permit: Permit<ManageTeam>,
        person: PersonId,
        role: Role,
    ) -> Result<Person, PersonError> {
        self.audited
            .run_as::<_, PersonError>(vec![permit.by()], move |tx| {
                let old_role = lock_person(tx, person)?.map(|known| known.person.role);
                ensure_principal_unchanged::<PersonError>(tx, permit.by())?;
                let change = query(set_role(tx.dialect())).bind(person.0).bind(role.as_str());
                let changed: Option<Person> = change.fetch_optional(tx)?;
                let Some(changed) = changed else {
                    return Ok(rejected(&permit, rejection_reason(tx, person)?));
                };
                let event = AuditEvent::new(EventKind::RoleChanged, person);
                Ok(done(&permit, AuditEvent { old_role, new_role: Some(role), ..event }, changed))
            })
            .await?
    }

    /// Ends the access of the person and of everyone else with the same mailbox, which is probably the same human: their
    /// sessions stop working, and no new one can start. Returns all of them; end their sessions at the provider. Fails
    /// with `LastPartner` if no partner would remain, and with `Unconfirmed` if their number is not confirmed.
    pub async fn remove_person(
        &self,
        permit: Permit<ManageTeam>,
        person: PersonId,
        is_confirmed: IsConfirmed,
    ) -> Result<Vec<Person>, PersonError> {
        self.audited.run_as(vec![permit.by()], move |tx| remove(tx, &permit, person, &is_confirmed)).await?
    }

    /// Lets the person sign in again, in their previous role. Their old sessions stay ended. Fails with `NoSuchPerson`
    /// for a person who is not removed.
    pub async fn restore_person(
        &self,
        permit: Permit<ManageTeam>,
        person: PersonId,
    ) -> Result<Person, PersonError> {
        self.audited
            .run_as::<_, PersonError>(vec![permit.by()], move |tx| {
                lock_person(tx, person)?;
                ensure_principal_unchanged::<PersonError>(tx, permit.by())?;
                let restored: Option<Person> = query(RESTORE).bind(person.0).fetch_optional(tx)?;
                let Some(restored) = restored else {
                    return Ok(rejected(&permit, PersonError::NoSuchPerson(person)));
                };
                // Sessions that are not deleted yet would work again.
                query(END_SESSIONS).bind(person.0).execute(tx)?;
                Ok(done(&permit, AuditEvent::new(EventKind::PersonRestored, person), restored))
            })
            .await?
    }

    /// Ends the person's sessions, and their sign-ins that wait for a code. Returns the number of sessions.
    pub async fn sign_out_person(
        &self,
        permit: Permit<ManageTeam>,
        person: PersonId,
    ) -> Result<u64, PersonError> {
        self.audited
            .run_as::<_, PersonError>(vec![permit.by()], move |tx| {
                let Some(known) = lock_person(tx, person)? else {
                    return Ok(rejected(&permit, PersonError::NoSuchPerson(person)));
                };
                let ended = end_sessions_of(tx, &known.person.identity)?;
                Ok(done(&permit, AuditEvent::new(EventKind::SessionsEnded, person), ended))
            })
            .await?
    }
}
