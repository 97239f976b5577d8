//! How values of the domain are read from columns, and the authors of changes.

use super::error_codes::QueryError;
use super::row::{FromColumn, FromRow, Row, corrupt};
use chancery_domain::{
    AccountId, AccountName, ClientId, ClientName, ContactEmail, ContactField, Day, EntryId, EntryKind,
    EntryText, EntryTitle, IdempotencyKey, KeyId, KeyPrefix, LetterTemplateId, MinorUnits, Month, Nanos,
    PersonId, PersonRef, PostalAddress, RequestId, SessionId, Telephone, TokenPrice, UnixMillis, Version,
    WriterId,
};

/// Implements `FromColumn` for types that `$from` makes from what is stored.
macro_rules! from_column {
    ($stored:ty, $from:expr, $($name:ty),+) => {
        $(impl $crate::db::FromColumn for $name {
            type Stored = $stored;

            fn from_column(stored: $stored) -> Result<Self, $crate::db::QueryError> {
                $from(stored)
            }
        })*
    };
}

/// Implements `FromColumn` for types that `$from` makes from every stored value.
macro_rules! from_any_column {
    ($stored:ty, $from:path, $($name:ty),+) => {
        $(impl $crate::db::FromColumn for $name {
            type Stored = $stored;

            fn from_column(stored: $stored) -> Result<Self, $crate::db::QueryError> {
                Ok($from(stored))
            }
        })*
    };
}

pub(crate) use from_any_column;

from_column!(i64, Ok, i64);
from_column!(bool, Ok, bool);
from_column!(String, Ok, String);
from_column!(Vec<u8>, Ok, Vec<u8>);
from_column!(i64, count, u64);
from_column!(i64, small_count, u32);
from_column!(i64, day, Day);
from_column!(i64, month, Month);
from_any_column!(i64, Self, AccountId, ClientId, EntryId, KeyId, LetterTemplateId, MinorUnits, Nanos);
from_any_column!(i64, Self, PersonId, SessionId, UnixMillis, Version, WriterId);
from_any_column!(i64, Self::from_nanos_per_token, TokenPrice);
from_any_column!(String, Self::from_stored, AccountName, ClientName, ContactEmail, ContactField, EntryText);
from_any_column!(String, Self::from_stored, EntryTitle, IdempotencyKey, KeyPrefix, PostalAddress, RequestId);
from_any_column!(String, Self::from_stored, Telephone);

impl Row<'_> {
    /// The author of the change, from `actor_id` and `actor_email`. `None` for the command line.
    pub(crate) fn author(&self) -> Result<Option<PersonRef>, QueryError> {
        self.optional_person("actor_id", "actor_email")
    }

    /// `None` if the id or the address is NULL.
    pub(crate) fn joined_person(&self, id: &str, email: &str) -> Result<Option<PersonRef>, QueryError> {
        match self.get::<Option<String>>(email)? {
            Some(_) => self.optional_person(id, email),
            None => Ok(None),
        }
    }

    pub(crate) fn person(&self, id: &str, email: &str) -> Result<PersonRef, QueryError> {
        Ok(PersonRef { id: self.get(id)?, email: self.parse(email, "a person's address")? })
    }

    pub(crate) fn optional_person(&self, id: &str, email: &str) -> Result<Option<PersonRef>, QueryError> {
        let Some(id) = self.get(id)? else { return Ok(None) };
        let email = self.get::<Option<String>>(email)?.unwrap_or_default();
        let email = email.parse().map_err(|error| corrupt("a person's address", error))?;
        Ok(Some(PersonRef { id, email }))
    }
}

/// The result of a COUNT query.
impl FromRow for u64 {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        count(i64::from_row(row)?)
    }
}

fn count(stored: i64) -> Result<u64, QueryError> {
    u64::try_from(stored).map_err(|_| corrupt("a count", format!("{stored} is negative")))
}

fn small_count(stored: i64) -> Result<u32, QueryError> {
    u32::try_from(stored).map_err(|_| corrupt("a count", format!("{stored} is out of range")))
}

pub(crate) fn day(stored: i64) -> Result<Day, QueryError> {
    let day = i32::try_from(stored).map(Day);
    day.map_err(|_| corrupt("a day", format!("{stored} days after 1970 is out of range")))
}

impl FromColumn for EntryKind {
    type Stored = String;

    fn from_column(stored: String) -> Result<Self, QueryError> {
        stored.parse().map_err(|error| corrupt("an entry's kind", format!("{error}, and not {stored:?}")))
    }
}

fn month(stored: i64) -> Result<Month, QueryError> {
    i32::try_from(stored).map(Month::from_months).map_err(|_| corrupt("a month", format!("it is {stored}")))
}
