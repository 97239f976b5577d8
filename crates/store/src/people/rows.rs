//! Database rows of people.

use crate::db::{Conn, Dialect, FromRow, Row, corrupt, query};
use chancery_domain::{Identity, Person, PersonId, PersonName, Profile, Role, TimeZoneName, UnixMillis};

impl FromRow for Person {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let (email, role): (String, String) = (row.get("email")?, row.get("role")?);
        Ok(Self {
            id: PersonId(row.get("id")?),
            identity: Identity { issuer: row.get("issuer")?, subject: row.get("subject")? },
            email: email.parse().map_err(|error| corrupt("a person's address", error))?,
            role: role.parse().map_err(|error| corrupt("a person's role", error))?,
            joined_at: UnixMillis(row.get("joined_at_ms")?),
            profile: Profile::from_row(row)?,
        })
    }
}

impl FromRow for Profile {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let (name, time_zone): (Option<String>, Option<String>) = (row.get("name")?, row.get("time_zone")?);
        let name =
            name.map(|name| name.parse::<PersonName>().map_err(|error| corrupt("a person's name", error)));
        // A time zone may be missing from the database of a later version. Its person sees UTC.
        let time_zone = time_zone.and_then(|zone| zone.parse::<TimeZoneName>().ok());
        Ok(Self { name: name.transpose()?, time_zone })
    }
}

/// A person, removed or not.
pub(crate) struct PersonRow {
    pub(crate) person: Person,
    pub(crate) removed_at: Option<UnixMillis>,
}

impl FromRow for PersonRow {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let removed_at: Option<i64> = row.get("removed_at_ms")?;
        Ok(Self { person: Person::from_row(row)?, removed_at: removed_at.map(UnixMillis) })
    }
}

impl PersonRow {
    /// The principal for audit rows.
    pub(crate) fn principal(&self) -> (PersonId, Role) {
        (self.person.id, self.person.role)
    }
}

/// The person of this identity, locked until the transaction ends.
pub(crate) async fn lock_identity(
    conn: &mut Conn<'_>,
    identity: &Identity,
) -> Result<Option<PersonRow>, sqlx::Error> {
    let find = query(match conn.dialect() {
        Dialect::Sqlite => "SELECT * FROM people WHERE issuer = $1 AND subject = $2",
        Dialect::Postgres => "SELECT * FROM people WHERE issuer = $1 AND subject = $2 FOR NO KEY UPDATE",
    });
    find.bind(identity.issuer.as_str()).bind(identity.subject.as_str()).fetch_optional(conn).await
}

/// Like `lock_identity`, by id.
pub(crate) async fn lock_person(
    conn: &mut Conn<'_>,
    person: PersonId,
) -> Result<Option<PersonRow>, sqlx::Error> {
    let find = query(match conn.dialect() {
        Dialect::Sqlite => "SELECT * FROM people WHERE id = $1",
        Dialect::Postgres => "SELECT * FROM people WHERE id = $1 FOR NO KEY UPDATE",
    });
    find.bind(person.0).fetch_optional(conn).await
}
