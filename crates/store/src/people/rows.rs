//! Database rows of people.

use crate::db::{Dialect, FromRow, QueryError, Row, Tx, from_row, query};
use chancery_domain::{Identity, Person, PersonId, Profile, Role, UnixMillis};

from_row!(Identity { issuer, subject });
from_row!(Person {
    id,
    identity: Identity::from_row,
    email: parse("email", "a person's address"),
    role: parse("role", "a person's role"),
    joined_at: "joined_at_ms",
    profile: Profile::from_row
});

impl FromRow for Profile {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        // A time zone may be missing from the database of a later version. Its person sees UTC.
        let time_zone = row.get::<Option<String>>("time_zone")?.and_then(|zone| zone.parse().ok());
        Ok(Self { name: row.parse_optional("name", "a person's name")?, time_zone })
    }
}

/// A person, removed or not.
pub(crate) struct PersonRow {
    pub(crate) person: Person,
    pub(crate) removed_at: Option<UnixMillis>,
}

from_row!(PersonRow { person: Person::from_row, removed_at: "removed_at_ms" });

impl PersonRow {
    /// The principal for audit rows.
    pub(crate) fn principal(&self) -> (PersonId, Role) {
        (self.person.id, self.person.role)
    }
}

/// The person of this identity, locked until the transaction ends.
pub(crate) fn lock_identity(tx: &mut Tx<'_>, identity: &Identity) -> Result<Option<PersonRow>, QueryError> {
    let find = query(match tx.dialect() {
        Dialect::Sqlite => "SELECT * FROM people WHERE issuer = $1 AND subject = $2",
        Dialect::Postgres => "SELECT * FROM people WHERE issuer = $1 AND subject = $2 FOR NO KEY UPDATE",
    });
    find.bind(identity.issuer.as_str()).bind(identity.subject.as_str()).fetch_optional(tx)
}

/// Like `lock_identity`, by id.
pub(crate) fn lock_person(tx: &mut Tx<'_>, person: PersonId) -> Result<Option<PersonRow>, QueryError> {
    let find = query(match tx.dialect() {
        Dialect::Sqlite => "SELECT * FROM people WHERE id = $1",
        Dialect::Postgres => "SELECT * FROM people WHERE id = $1 FOR NO KEY UPDATE",
    });
    find.bind(person.0).fetch_optional(tx)
}
