//! Errors of people and their sessions. The texts are for logs; surfaces write their own.

use crate::DbError;
use crate::db::QueryError;
use chancery_domain::{Person, PersonId};

#[derive(Debug, thiserror::Error)]
pub enum PersonError {
    #[error("there is no person number {0}")]
    NoSuchPerson(PersonId),
    #[error("person number {0} was removed from the firm")]
    PersonRemoved(PersonId),
    #[error("this is the last partner")]
    LastPartner,
    /// A removal would remove these people, and the caller has not confirmed as many.
    #[error("the removal of {} people is not confirmed", .0.len())]
    Unconfirmed(Vec<Person>),
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<QueryError> for PersonError {
    fn from(error: QueryError) -> Self {
        Self::Database(error.into())
    }
}
