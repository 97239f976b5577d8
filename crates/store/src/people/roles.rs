//! Who belongs to the firm, and in which role. Sessions and sign-ins are elsewhere in this folder.

use crate::db::{COMMAND_WAIT, Db, Dialect, FromRow, HasDb, Row, TxError, corrupt, query};
use crate::{Arrival, People, RemovedPerson, StoreError};
use chancery_domain::{EmailAddress, Identity, Person, PersonId, Role, UnixMillis};

impl FromRow for Person {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let (email, role): (String, String) = (row.get("email")?, row.get("role")?);
        Ok(Self {
            id: PersonId(row.get("id")?),
            identity: Identity { issuer: row.get("issuer")?, subject: row.get("subject")? },
            email: email.parse().map_err(|error| corrupt("a person's address", error))?,
            role: role.parse().map_err(|error| corrupt("a person's role", error))?,
            joined_at: UnixMillis(row.get("joined_at_ms")?),
        })
    }
}

/// Somebody in the firm or no longer in it.
pub(super) struct KnownPerson {
    pub(super) person: Person,
    pub(super) removed_at: Option<UnixMillis>,
}

impl FromRow for KnownPerson {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let removed_at: Option<i64> = row.get("removed_at_ms")?;
        Ok(Self { person: Person::from_row(row)?, removed_at: removed_at.map(UnixMillis) })
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

#[async_trait::async_trait]
impl<S: HasDb> People for S {
    async fn arrive(&self, arrival: Arrival) -> Result<Person, StoreError> {
        let Identity { issuer, subject } = &arrival.identity;
        if issuer.contains('\0') || subject.contains('\0') {
            return Err(StoreError::NulCharacter { what: "the identity" });
        }
        let arrive = query(ARRIVE)
            .bind(issuer.as_str())
            .bind(subject.as_str())
            .bind(arrival.email.as_str())
            .bind(arrival.role.as_str())
            .bind(arrival.at.0);
        let found: Vec<KnownPerson> = self.db().write_returning(arrive, COMMAND_WAIT).await?;
        match found.into_iter().next() {
            Some(KnownPerson { removed_at: Some(_), person }) => Err(StoreError::PersonRemoved(person.id)),
            Some(KnownPerson { person, .. }) => Ok(person),
            None => Err(StoreError::Unavailable("the person was not given back".to_owned())),
        }
    }

    async fn list_people(&self) -> Result<Vec<Person>, StoreError> {
        Ok(self.db().fetch_all(query(LIST)).await?)
    }

    async fn list_removed_people(&self) -> Result<Vec<RemovedPerson>, StoreError> {
        let found: Vec<KnownPerson> = self.db().fetch_all(query(LIST_REMOVED)).await?;
        let removed = found.into_iter().map(|KnownPerson { person, removed_at }| RemovedPerson {
            person,
            removed_at: removed_at.unwrap_or(UnixMillis(0)),
        });
        Ok(removed.collect())
    }

    async fn people_with_email(&self, email: &EmailAddress) -> Result<Vec<Person>, StoreError> {
        Ok(self.db().fetch_all(query(WITH_EMAIL).bind(email.as_str())).await?)
    }

    async fn set_role(&self, person: PersonId, role: Role) -> Result<Person, StoreError> {
        let change = query(set_role(self.db().dialect())).bind(person.0).bind(role.as_str());
        let changed: Vec<Person> = self.db().write_returning(change, COMMAND_WAIT).await?;
        match changed.into_iter().next() {
            Some(person) => Ok(person),
            None => Err(why_not_changed(self.db(), person).await),
        }
    }

    async fn remove_person(&self, person: PersonId, at: UnixMillis) -> Result<(), StoreError> {
        let remove = query(remove(self.db().dialect())).bind(person.0).bind(at.0);
        // The person's sessions open nothing from now on; they are deleted with those that have ended.
        match self.db().execute(remove, COMMAND_WAIT).await? {
            0 => Err(why_not_changed(self.db(), person).await),
            _ => Ok(()),
        }
    }

    async fn restore_person(&self, person: PersonId) -> Result<Person, StoreError> {
        let restored = self.db().run(&person, |conn, person| {
            Box::pin(async move {
                // Those that were not deleted yet would open everything again.
                query(END_SESSIONS).bind(person.0).execute(conn).await?;
                let restored: Option<Person> = query(RESTORE).bind(person.0).fetch_optional(conn).await?;
                restored.ok_or(TxError::Rejected(StoreError::NoSuchPerson(*person)))
            })
        });
        restored.await
    }
}

/// Why a statement about somebody changed nothing.
async fn why_not_changed(db: &Db, person: PersonId) -> StoreError {
    match db.fetch_optional(query(WITH_ID).bind(person.0)).await {
        Err(error) => error.into(),
        Ok(Some(KnownPerson { removed_at: None, .. })) => StoreError::LastPartner,
        Ok(_) => StoreError::NoSuchPerson(person),
    }
}
