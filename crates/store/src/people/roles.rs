//! Who belongs to the firm, and in which role. What is changed about somebody takes a permit, and is on record with its old and
//! new value in the same transaction. Sessions and sign-ins are elsewhere in this folder.

use super::rows::{KnownPerson, lock_identity, lock_person};
use super::sessions::end_sessions_of;
use crate::DbError;
use crate::audit::step::AuditedSteps;
use crate::db::Db;
use crate::db::{Conn, Dialect, TxError, query};
use crate::{Arrival, PersonError, RemovedPerson};
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
const WITH_EMAIL: &str = "SELECT * FROM people WHERE email = $1 AND removed_at_ms IS NULL ORDER BY id";

/// The firm keeps at least one partner. SQLite has one writer, so looking and changing are one step; PostgreSQL's function
/// has the same condition and lets one at a time look.
fn set_role(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => {
            "UPDATE people SET role = $2 WHERE id = $1 AND removed_at_ms IS NULL \
             AND (role <> 'partner' OR $2 = 'partner' OR EXISTS \
                (SELECT 1 FROM people o WHERE o.id <> $1 AND o.role = 'partner' AND o.removed_at_ms IS NULL)) RETURNING *"
        }
        Dialect::Postgres => {
            "UPDATE people SET role = $2 WHERE id = $1 AND removed_at_ms IS NULL \
             AND (role <> 'partner' OR $2 = 'partner' OR may_lose_partner($1)) RETURNING *"
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
             AND (role <> 'partner' OR may_lose_partner($1))"
        }
    }
}

/// Somebody who was removed stays so. A role is only ever raised here.
async fn admit(
    conn: &mut Conn<'_>,
    arrival: &Arrival,
) -> Result<(KnownPerson, Option<AuditEvent>), TxError<PersonError>> {
    let Arrival { identity, email, role, origin } = arrival;
    let known = match lock_identity(conn, identity).await? {
        Some(known) => known,
        None => {
            let join = query(JOIN)
                .bind(identity.issuer.as_str())
                .bind(identity.subject.as_str())
                .bind(email.as_str())
                .bind(role.as_str())
                .bind(origin.at.0);
            let joined: Option<KnownPerson> = join.fetch_optional(conn).await?;
            if let Some(joined) = joined {
                let event = AuditEvent::new(EventKind::PersonJoined, joined.person.id);
                return Ok((joined, Some(AuditEvent { new_role: Some(*role), ..event })));
            }
            // The same sign-in of another browser was quicker.
            let missing = || DbError::Unavailable("the person was not given back".to_owned());
            lock_identity(conn, identity).await?.ok_or_else(missing)?
        }
    };
    let (id, old_role, new_role) = (known.person.id, known.person.role, known.person.role.max(*role));
    if known.person.email == *email && old_role == new_role {
        return Ok((known, None));
    }
    let set = query(SET_EMAIL_AND_ROLE).bind(id.0).bind(email.as_str()).bind(new_role.as_str());
    let now: KnownPerson = set.fetch_one(conn).await?;
    let promoted = (old_role != new_role).then(|| AuditEvent {
        old_role: Some(old_role),
        new_role: Some(new_role),
        ..AuditEvent::new(EventKind::PersonPromoted, id)
    });
    Ok((now, promoted))
}

/// Why a statement about somebody changed nothing.
async fn why_not_changed(conn: &mut Conn<'_>, person: PersonId) -> Result<PersonError, sqlx::Error> {
    Ok(match lock_person(conn, person).await? {
        Some(KnownPerson { removed_at: None, .. }) => PersonError::LastPartner,
        _ => PersonError::NoSuchPerson(person),
    })
}

/// What a change of somebody ends with: what was done, or why it was not, which leaves the decision on record all the same.
type Outcome<T> = (Result<T, PersonError>, Vec<AuditRow>);

fn done<T>(permit: &Permit<ManageTeam>, effect: AuditEvent, done: T) -> Outcome<T> {
    (Ok(done), vec![permit.to_audit_row_with(effect)])
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
    /// The one person of this identity, created if it is new, with the address as it is now. Somebody new and somebody who
    /// becomes a partner by it are on record. Rejected with `PersonRemoved`.
    pub async fn arrive(&self, arrival: Arrival) -> Result<Person, PersonError> {
        let Identity { issuer, subject } = &arrival.identity;
        if issuer.contains('\0') || subject.contains('\0') {
            return Err(DbError::NulCharacter { what: "the identity" }.into());
        }
        let KnownPerson { person, removed_at } = self
            .audited
            .run_then_link(&arrival, |conn, arrival| {
                Box::pin(async move {
                    let (known, event) = admit(conn, arrival).await?;
                    let by = Some((known.person.id, known.person.role));
                    let row =
                        |event| AuditRow::Event(AuditedEvent { by, event, origin: arrival.origin.clone() });
                    Ok((known, event.map(row).into_iter().collect()))
                })
            })
            .await?;
        match removed_at {
            Some(_) => Err(PersonError::PersonRemoved(person.id)),
            None => Ok(person),
        }
    }

    /// Everybody who was not removed, by address.
    pub async fn list_people(&self) -> Result<Vec<Person>, PersonError> {
        Ok(self.db.fetch_all(query(LIST)).await?)
    }

    /// By address.
    pub async fn list_removed_people(&self) -> Result<Vec<RemovedPerson>, PersonError> {
        let found: Vec<KnownPerson> = self.db.fetch_all(query(LIST_REMOVED)).await?;
        let removed = found.into_iter().map(|KnownPerson { person, removed_at }| RemovedPerson {
            person,
            removed_at: removed_at.unwrap_or(UnixMillis(0)),
        });
        Ok(removed.collect())
    }

    /// More than one where several identities have one address.
    pub async fn people_with_email(&self, email: &EmailAddress) -> Result<Vec<Person>, PersonError> {
        Ok(self.db.fetch_all(query(WITH_EMAIL).bind(email.as_str())).await?)
    }

    /// Rejected with `LastPartner` where nobody would be left who is one. A change that is rejected leaves the decision on
    /// record, without a change.
    pub async fn set_role(
        &self,
        permit: Permit<ManageTeam>,
        person: PersonId,
        role: Role,
    ) -> Result<Person, PersonError> {
        self.audited
            .run_then_link::<_, _, PersonError>(&(&permit, person, role), |conn, (permit, person, role)| {
                Box::pin(async move {
                    let old_role = lock_person(conn, *person).await?.map(|known| known.person.role);
                    let change = query(set_role(conn.dialect())).bind(person.0).bind(role.as_str());
                    let changed: Option<Person> = change.fetch_optional(conn).await?;
                    let Some(changed) = changed else {
                        return Ok(rejected(permit, why_not_changed(conn, *person).await?));
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

    /// From now on none of the person's sessions opens anything, and none is started. Rejected with `LastPartner`.
    pub async fn remove_person(
        &self,
        permit: Permit<ManageTeam>,
        person: PersonId,
    ) -> Result<(), PersonError> {
        self.audited
            .run_then_link::<_, _, PersonError>(&(&permit, person), |conn, (permit, person)| {
                Box::pin(async move {
                    // The person's sessions open nothing from now on; they are deleted with those that have ended.
                    let remove = query(remove(conn.dialect())).bind(person.0).bind(permit.asked().at.0);
                    match remove.execute(conn).await? {
                        0 => Ok(rejected(permit, why_not_changed(conn, *person).await?)),
                        _ => Ok(done(permit, AuditEvent::new(EventKind::PersonRemoved, *person), ())),
                    }
                })
            })
            .await?
    }

    /// The person may sign in again, in the role they had; the sessions they had do not come back. Rejected with
    /// `NoSuchPerson` for somebody who was not removed.
    pub async fn restore_person(
        &self,
        permit: Permit<ManageTeam>,
        person: PersonId,
    ) -> Result<Person, PersonError> {
        self.audited
            .run_then_link::<_, _, PersonError>(&(&permit, person), |conn, (permit, person)| {
                Box::pin(async move {
                    let restored: Option<Person> = query(RESTORE).bind(person.0).fetch_optional(conn).await?;
                    let Some(restored) = restored else {
                        return Ok(rejected(permit, PersonError::NoSuchPerson(*person)));
                    };
                    // Those that were not deleted yet would open everything again.
                    query(END_SESSIONS).bind(person.0).execute(conn).await?;
                    Ok(done(permit, AuditEvent::new(EventKind::PersonRestored, *person), restored))
                })
            })
            .await?
    }

    /// Ends the person's sessions, and their sign-ins that wait for a code. How many sessions there were.
    pub async fn sign_out_person(
        &self,
        permit: Permit<ManageTeam>,
        person: PersonId,
    ) -> Result<u64, PersonError> {
        self.audited
            .run_then_link::<_, _, PersonError>(&(&permit, person), |conn, (permit, person)| {
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
