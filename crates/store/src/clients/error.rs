//! Errors of client records. The texts are for logs; surfaces write their own.

use crate::DbError;
use crate::db::QueryError;
use chancery_domain::{ClientId, ClientName, EntryId, PersonId};

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The policy decided for another owner: ask it again.
    #[error("the owner of client {0} changed during this request")]
    OwnerChanged(ClientId),
    #[error("there is no client number {0}")]
    NoSuchClient(ClientId),
    #[error("there is no person number {0}")]
    NoSuchPerson(PersonId),
    #[error("the record of {client} would exceed {max} entries; create another client for new ones")]
    TooManyEntries { client: ClientName, max: u64 },
    #[error("letter {letter} of client {client} was sent and cannot be changed")]
    LetterSent { client: ClientId, letter: EntryId },
    #[error(
        "the imported file was not read to its end, or changed meanwhile; nothing was imported; import it again"
    )]
    ImportIncomplete,
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<QueryError> for ClientError {
    fn from(error: QueryError) -> Self {
        Self::Database(error.into())
    }
}
