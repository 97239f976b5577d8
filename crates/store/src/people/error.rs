//! Errors of people and their sessions. The texts are for logs; surfaces write their own.

use crate::DbError;
use crate::db::Rejection;
use chancery_domain::PersonId;

#[derive(Debug, thiserror::Error)]
pub enum PersonError {
    #[error("there is no person number {0}")]
    NoSuchPerson(PersonId),
    #[error("person number {0} was removed from the firm")]
    PersonRemoved(PersonId),
    #[error("this is the last partner")]
    LastPartner,
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<sqlx::Error> for PersonError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

impl Rejection for PersonError {}
