//! What can go wrong with client records. The texts are for logs; surfaces choose their own words.

use crate::DbError;
use crate::db::Rejection;
use chancery_domain::{ClientId, ClientName, PersonId};

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The decision was made for another owner: ask the policy again.
    #[error("client number {0} has changed hands in this moment")]
    OwnerChanged(ClientId),
    #[error("there is no client number {0}")]
    NoSuchClient(ClientId),
    #[error("there is no person number {0}")]
    NoSuchPerson(PersonId),
    #[error(
        "the record of {client} would have more than {max} entries, which is the most; begin another client for what is new"
    )]
    TooManyEntries { client: ClientName, max: u64 },
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<sqlx::Error> for ClientError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

impl Rejection for ClientError {}
