//! Names and time zones that people choose for themselves. They decide nothing, so a change is not audited.

use crate::db::{COMMAND_RETRY_LIMIT, from_row, query};
use crate::{NamedPerson, People, PersonError};
use chancery_domain::{PersonId, PersonName, Profile, TimeZoneName};

const SET: &str = "UPDATE people SET name = $2, time_zone = $3 WHERE id = $1 AND removed_at_ms IS NULL";
const NAMES: &str = "SELECT id, name FROM people WHERE name IS NOT NULL ORDER BY id";

from_row!(NamedPerson { id, name: parse("name", "a person's name") });

impl People {
    /// For the person's own profile. Fails with `NoSuchPerson` if they were removed.
    pub async fn set_profile(&self, person: PersonId, profile: &Profile) -> Result<(), PersonError> {
        let set = query(SET)
            .bind(person.0)
            .bind(profile.name.as_ref().map(PersonName::as_str))
            .bind(profile.time_zone.as_ref().map(TimeZoneName::as_str));
        match self.db.execute(set, COMMAND_RETRY_LIMIT).await? {
            0 => Err(PersonError::NoSuchPerson(person)),
            _ => Ok(()),
        }
    }

    /// Everyone who has a name, removed people included.
    pub async fn list_names(&self) -> Result<Vec<NamedPerson>, PersonError> {
        Ok(self.db.fetch_all(query(NAMES)).await?)
    }
}
