//! The queries about the portal's people.

use crate::db::both::{for_both_stores, stored_row};
use crate::db::error_codes::{answer, explain};
use crate::db::postgres::PostgresStore;
use crate::db::retry::{COMMAND_PATIENCE, patiently};
use crate::db::sqlite::SqliteStore;
use crate::db::transaction::BeginWriting;
use crate::{Arrival, People, RemovedPerson, StoreError};
use chancery_domain::{EmailAddress, Identity, Person, PersonId, Role, UnixMillis};
use sqlx::Connection;

stored_row! {
    struct StoredPerson {
        id: i64,
        issuer: String,
        subject: String,
        email: String,
        role: String,
        joined_at_ms: i64,
        removed_at_ms: Option<i64>,
    }
}

impl StoredPerson {
    pub(crate) fn into_person(self) -> Result<Person, StoreError> {
        let corrupt = |what, why: String| StoreError::Corrupt { what, why };
        Ok(Person {
            id: PersonId(self.id),
            identity: Identity { issuer: self.issuer, subject: self.subject },
            email: self.email.parse().map_err(|error| corrupt("a person's address", format!("{error}")))?,
            role: self.role.parse().map_err(|error| corrupt("a person's role", format!("{error}")))?,
            joined_at: UnixMillis(self.joined_at_ms),
        })
    }
}

/// Somebody who was removed stays so. A role is only ever raised here.
const ARRIVE: &str = "INSERT INTO people (issuer, subject, email, role, joined_at_ms) VALUES ($1, $2, $3, $4, $5) \
    ON CONFLICT (issuer, subject) DO UPDATE SET email = excluded.email, \
    role = CASE WHEN excluded.role = 'partner' THEN excluded.role ELSE people.role END RETURNING *";
const LIST: &str = "SELECT * FROM people WHERE removed_at_ms IS NULL ORDER BY email, id";
const LIST_REMOVED: &str = "SELECT * FROM people WHERE removed_at_ms IS NOT NULL ORDER BY email, id";
const RESTORE: &str =
    "UPDATE people SET removed_at_ms = NULL WHERE id = $1 AND removed_at_ms IS NOT NULL RETURNING *";
const END_SESSIONS: &str = "DELETE FROM sessions WHERE person_id = $1";
const WITH_EMAIL: &str = "SELECT * FROM people WHERE email = $1 AND removed_at_ms IS NULL ORDER BY id";
const WITH_ID: &str = "SELECT * FROM people WHERE id = $1";

/// Statements that a partner's going must pass: somebody must be left who is one.
trait KeepAPartner {
    const SET_ROLE: &'static str;
    const REMOVE: &'static str;
}

macro_rules! keeping_a_partner {
    ($change:literal, $somebody_is_left:literal) => {
        concat!(
            "UPDATE people SET ",
            $change,
            " WHERE id = $1 AND removed_at_ms IS NULL AND (role <> 'partner' OR $2 = 'partner' OR ",
            $somebody_is_left,
            ") RETURNING *"
        )
    };
}

/// SQLite has one writer, so looking and changing are one step.
impl KeepAPartner for SqliteStore {
    const SET_ROLE: &'static str = keeping_a_partner!(
        "role = $2",
        "EXISTS (SELECT 1 FROM people o WHERE o.id <> $1 AND o.role = 'partner' AND o.removed_at_ms IS NULL)"
    );
    const REMOVE: &'static str = keeping_a_partner!(
        "removed_at_ms = $3",
        "EXISTS (SELECT 1 FROM people o WHERE o.id <> $1 AND o.role = 'partner' AND o.removed_at_ms IS NULL)"
    );
}

/// The function has the same condition, and lets one at a time look.
impl KeepAPartner for PostgresStore {
    const SET_ROLE: &'static str = keeping_a_partner!("role = $2", "may_lose_partner($1)");
    const REMOVE: &'static str = keeping_a_partner!("removed_at_ms = $3", "may_lose_partner($1)");
}

for_both_stores! {
    impl People {
        async fn arrive(&self, arrival: Arrival) -> Result<Person, StoreError> {
            let Identity { issuer, subject } = &arrival.identity;
            if issuer.contains('\0') || subject.contains('\0') {
                return Err(StoreError::NulCharacter { what: "the identity" });
            }
            let arrived = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query_as(ARRIVE)
                    .bind(issuer.as_str())
                    .bind(subject.as_str())
                    .bind(arrival.email.as_str())
                    .bind(arrival.role.as_str())
                    .bind(arrival.at.0)
                    .fetch_all(&mut *connection)
            });
            let rows: Vec<StoredPerson> = arrived.map_err(|error| explain(&error))?;
            match rows.into_iter().next() {
                Some(StoredPerson { removed_at_ms: Some(_), id, .. }) => Err(StoreError::PersonRemoved(PersonId(id))),
                Some(row) => row.into_person(),
                None => Err(StoreError::Unavailable("the person was not given back".to_owned())),
            }
        }

        async fn list_people(&self) -> Result<Vec<Person>, StoreError> {
            let rows: Vec<StoredPerson> = answer(sqlx::query_as(LIST).fetch_all(&self.reader)).await?;
            rows.into_iter().map(StoredPerson::into_person).collect()
        }

        async fn list_removed_people(&self) -> Result<Vec<RemovedPerson>, StoreError> {
            let rows: Vec<StoredPerson> = answer(sqlx::query_as(LIST_REMOVED).fetch_all(&self.reader)).await?;
            let removed = |row: StoredPerson| {
                let removed_at = UnixMillis(row.removed_at_ms.unwrap_or(0));
                row.into_person().map(|person| RemovedPerson { person, removed_at })
            };
            rows.into_iter().map(removed).collect()
        }

        async fn people_with_email(&self, email: &EmailAddress) -> Result<Vec<Person>, StoreError> {
            let found = sqlx::query_as(WITH_EMAIL).bind(email.as_str()).fetch_all(&self.reader);
            let rows: Vec<StoredPerson> = answer(found).await?;
            rows.into_iter().map(StoredPerson::into_person).collect()
        }

        async fn set_role(&self, person: PersonId, role: Role) -> Result<Person, StoreError> {
            let changed = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query_as(Self::SET_ROLE).bind(person.0).bind(role.as_str()).fetch_all(&mut *connection)
            });
            let rows: Vec<StoredPerson> = changed.map_err(|error| explain(&error))?;
            match rows.into_iter().next() {
                Some(row) => row.into_person(),
                None => Err(self.why_not_changed(person).await),
            }
        }

        async fn remove_person(&self, person: PersonId, at: UnixMillis) -> Result<(), StoreError> {
            let removed = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query_as(Self::REMOVE).bind(person.0).bind("").bind(at.0).fetch_all(&mut *connection)
            });
            let rows: Vec<StoredPerson> = removed.map_err(|error| explain(&error))?;
            // The person's sessions open nothing from now on; they are forgotten with those that have ended.
            if rows.is_empty() { Err(self.why_not_changed(person).await) } else { Ok(()) }
        }

        async fn restore_person(&self, person: PersonId) -> Result<Person, StoreError> {
            let restored = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| async {
                let mut transaction = connection.begin_with(Self::BEGIN).await?;
                // Those that were not forgotten yet would open everything again.
                sqlx::query(END_SESSIONS).bind(person.0).execute(&mut *transaction).await?;
                let restored = sqlx::query_as(RESTORE).bind(person.0).fetch_all(&mut *transaction).await?;
                if !restored.is_empty() {
                    transaction.commit().await?;
                }
                Ok(restored)
            });
            let rows: Vec<StoredPerson> = restored.map_err(|error| explain(&error))?;
            match rows.into_iter().next() {
                Some(row) => row.into_person(),
                None => Err(StoreError::NoSuchPerson(person)),
            }
        }
    }
}

/// Why a statement about somebody changed nothing.
#[async_trait::async_trait]
trait WhyNot {
    async fn why_not_changed(&self, person: PersonId) -> StoreError;
}

for_both_stores! {
    impl WhyNot {
        async fn why_not_changed(&self, person: PersonId) -> StoreError {
            let found = sqlx::query_as(WITH_ID).bind(person.0).fetch_optional(&self.reader);
            match answer(found).await {
                Err(error) => error,
                Ok(Some(StoredPerson { removed_at_ms: None, .. })) => StoreError::LastPartner,
                Ok(_) => StoreError::NoSuchPerson(person),
            }
        }
    }
}
