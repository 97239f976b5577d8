//! The firm's people and their roles. Every change needs a permit and is audited with its old and new value in the same
//! transaction. Sessions and sign-ins are elsewhere in this folder.

use super::rows::{PersonRow, lock_identity, lock_person};
use super::sessions::end_sessions_of;
use crate::DbError;
use crate::audit::step::AuditedSteps;
use crate::db::Db;
use crate::db::{Conn, Dialect, TxError, query};
use crate::{PersonError, RemovedPerson, VerifiedIdentity};
use chancery_domain::{
    AuditEvent, AuditRow, AuditedEvent, EmailAddress, EventKind, Identity, Person, PersonId, Role, UnixMillis,
};
use chancery_policy::{ManageTeam, Permit};

const JOIN: &str = "INSERT INTO people (issuer, subject, email, role, joined_at_ms) VALUES ($1, $2, $3, $4, $5) \
    ON CONFLICT (issuer, subject) DO NOTHING RETURNING *";
const SET_EMAIL_AND_ROLE: &str = "UPDATE people SET email = $2, role = $3 WHERE id = $1 RETURNING *";
const LIST: &str = "SELECT * FROM people WHERE removed_at_ms IS NULL ORDER BY email, id";
const LIST_REMOVED: &str = "SELECT * FROM people WHERE removed_at_ms IS NOT NULL ORDER BY email, id";
const RESTORE: &str =
    "UPDATE people SET removed_at_ms = NULL WHERE id = $1 AND removed_at_ms IS NOT NULL RETURNING *";
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

fn remove(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => {
            "UPDATE people SET removed_at_ms = $2 WHERE id = $1 AND removed_at_ms IS NULL AND (role <> 'partner' OR EXISTS \
                (SELECT 1 FROM people o WHERE o.id <> $1 AND o.role = 'partner' AND o.removed_at_ms IS NULL))"
        }
        Dialect::Postgres => {
            "UPDATE people SET removed_at_ms = $2 WHERE id = $1 AND removed_at_ms IS NULL \
             AND (role <> 'partner' OR other_partner_exists($1))"
        }
    }
}

/// A removed person stays removed. A role is only ever promoted here.
async fn upsert_person(
    conn: &mut Conn<'_>,
    verified: &VerifiedIdentity,
) -> Result<(PersonRow, Option<AuditEvent>), TxError<PersonError>> {
    let VerifiedIdentity { identity, email, role, origin } = verified;
    let known = match lock_identity(conn, identity).await? {
        Some(known) => known,
        None => {
            let join = query(JOIN)
                .bind(identity.issuer.as_str())
                .bind(identity.subject.as_str())
                .bind(email.as_str())
                .bind(role.as_str())
                .bind(origin.at.0);
            let joined: Option<PersonRow> = join.fetch_optional(conn).await?;
            if let Some(joined) = joined {
                let event = AuditEvent::new(EventKind::PersonJoined, joined.person.id);
                return Ok((joined, Some(AuditEvent { new_role: Some(*role), ..event })));
            }
            // A concurrent sign-in of the same identity created the person.
            let missing = || DbError::Unavailable("the database returned no row for the person".to_owned());
            lock_identity(conn, identity).await?.ok_or_else(missing)?
        }
    };
    let (id, old_role, new_role) = (known.person.id, known.person.role, known.person.role.max(*role));
    if known.person.email == *email && old_role == new_role {
        return Ok((known, None));
    }
    let set = query(SET_EMAIL_AND_ROLE).bind(id.0).bind(email.as_str()).bind(new_role.as_str());
    let updated: PersonRow = set.fetch_one(conn).await?;
    let promoted = (old_role != new_role).then(|| AuditEvent {
        old_role: Some(old_role),
        new_role: Some(new_role),
        ..AuditEvent::new(EventKind::PersonPromoted, id)
    });
    Ok((updated, promoted))
}

/// Why an update of a person changed no row.
async fn rejection_reason(conn: &mut Conn<'_>, person: PersonId) -> Result<PersonError, sqlx::Error> {
    Ok(match lock_person(conn, person).await? {
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

/// People of the firm and their roles.
#[derive(Clone)]
pub struct People {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
}

impl People {
    /// Returns the person of this identity, created if new, with the email address updated. A new person or a promotion
    /// to partner is audited. Fails with `PersonRemoved`.
    pub async fn sign_in(&self, verified: VerifiedIdentity) -> Result<Person, PersonError> {
        let Identity { issuer, subject } = &verified.identity;
        if issuer.contains('\0') || subject.contains('\0') {
            return Err(DbError::NulCharacter { what: "the identity" }.into());
        }
        let PersonRow { person, removed_at } = self
            .audited
            .run_then_record(&verified, |conn, verified| {
                Box::pin(async move {
                    let (known, event) = upsert_person(conn, verified).await?;
                    let by = Some((known.person.id, known.person.role));
                    let row =
                        |event| AuditRow::Event(AuditedEvent { by, event, origin: verified.origin.clone() });
                    Ok((known, event.map(row).into_iter().collect()))
                })
            })
            .await?;
        match removed_at {
            Some(_) => Err(PersonError::PersonRemoved(person.id)),
            None => Ok(person),
        }
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
            .run_then_record::<_, _, PersonError>(&(&permit, person, role), |conn, (permit, person, role)| {
                Box::pin(async move {
                    let old_role = lock_person(conn, *person).await?.map(|known| known.person.role);
                    let change = query(set_role(conn.dialect())).bind(person.0).bind(role.as_str());
                    let changed: Option<Person> = change.fetch_optional(conn).await?;
                    let Some(changed) = changed else {
                        return Ok(rejected(permit, rejection_reason(conn, *person).await?));
                    };
                    let effect = AuditEvent {
                        old_role,
                        new_role: Some(*role),
                        ..AuditEvent::new(EventKind::RoleChanged, *person)
                    };
                    Ok(done(permit, effect, changed))
                })
            })
            .await?
    }

    /// Ends the person's access: their sessions stop working, and no new one can start. Fails with `LastPartner`.
    pub async fn remove_person(
        &self,
        permit: Permit<ManageTeam>,
        person: PersonId,
    ) -> Result<(), PersonError> {
        self.audited
            .run_then_record::<_, _, PersonError>(&(&permit, person), |conn, (permit, person)| {
                Box::pin(async move {
                    // The person's sessions stop working now, and are deleted with the expired ones.
                    let remove =
                        query(remove(conn.dialect())).bind(person.0).bind(permit.access_request().at.0);
                    match remove.execute(conn).await? {
                        0 => Ok(rejected(permit, rejection_reason(conn, *person).await?)),
                        _ => Ok(done(permit, AuditEvent::new(EventKind::PersonRemoved, *person), ())),
                    }
                })
            })
            .await?
    }

    /// Lets the person sign in again, in their previous role. Their old sessions stay ended. Fails with `NoSuchPerson`
    /// for a person who is not removed.
    pub async fn restore_person(
        &self,
        permit: Permit<ManageTeam>,
        person: PersonId,
    ) -> Result<Person, PersonError> {
        self.audited
            .run_then_record::<_, _, PersonError>(&(&permit, person), |conn, (permit, person)| {
                Box::pin(async move {
                    let restored: Option<Person> = query(RESTORE).bind(person.0).fetch_optional(conn).await?;
                    let Some(restored) = restored else {
                        return Ok(rejected(permit, PersonError::NoSuchPerson(*person)));
                    };
                    // Sessions that are not deleted yet would work again.
                    query(END_SESSIONS).bind(person.0).execute(conn).await?;
                    Ok(done(permit, AuditEvent::new(EventKind::PersonRestored, *person), restored))
                })
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
            .run_then_record::<_, _, PersonError>(&(&permit, person), |conn, (permit, person)| {
                Box::pin(async move {
                    let Some(known) = lock_person(conn, *person).await? else {
                        return Ok(rejected(permit, PersonError::NoSuchPerson(*person)));
                    };
                    let ended = end_sessions_of(conn, &known.person.identity).await?;
                    Ok(done(permit, AuditEvent::new(EventKind::SessionsEnded, *person), ended))
                })
            })
            .await?
    }
}
