//! Columns that several aggregates read the same way: counts, days, and authors.

use super::row::{FromRow, Row, corrupt};
use chancery_domain::{Day, PersonId, PersonRef, UnixMillis};

impl Row {
    pub(crate) fn count(&self, column: &str) -> Result<u64, sqlx::Error> {
        count(self.get(column)?)
    }

    pub(crate) fn day(&self, column: &str) -> Result<Day, sqlx::Error> {
        day(self.get(column)?)
    }

    pub(crate) fn time(&self, column: &str) -> Result<UnixMillis, sqlx::Error> {
        self.get(column).map(UnixMillis)
    }

    /// The author of the change, from `by_id` and `by_email`. `None` for the command line.
    pub(crate) fn author(&self) -> Result<Option<PersonRef>, sqlx::Error> {
        let Some(id) = self.get("actor_id")? else { return Ok(None) };
        let email: Option<String> = self.get("actor_email")?;
        let email =
            email.unwrap_or_default().parse().map_err(|error| corrupt("a person's address", error))?;
        Ok(Some(PersonRef { id: PersonId(id), email }))
    }
}

/// The result of a COUNT query.
impl FromRow for u64 {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        count(i64::from_row(row)?)
    }
}

fn count(stored: i64) -> Result<u64, sqlx::Error> {
    u64::try_from(stored).map_err(|_| corrupt("a count", format!("{stored} is negative")))
}

pub(crate) fn day(stored: i64) -> Result<Day, sqlx::Error> {
    let day = i32::try_from(stored).map(Day);
    day.map_err(|_| corrupt("a day", format!("{stored} days after 1970 is out of range")))
}
