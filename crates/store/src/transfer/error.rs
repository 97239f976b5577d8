//! Errors of a transfer from SQLite to PostgreSQL.

use crate::db::QueryError;
use crate::{DbError, OpenError};

#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error("the target database is not empty (table {table}); transfer into an empty database")]
    TargetNotEmpty { table: &'static str },
    #[error(
        "{table}.{column} of the row {row} contains a NUL character, which PostgreSQL cannot store; the target is unchanged. Edit the text in Chancery, or truncate it in the SQLite file (`UPDATE {table} SET {column} = substr({column}, 1, instr({column}, char(0)) - 1) WHERE instr({column}, char(0)) > 0`), and try again"
    )]
    NulInTable { table: &'static str, column: String, row: String },
    #[error("the rows of {table} could not be transferred: {why}; the target is unchanged")]
    TableNotTransferred { table: &'static str, why: String },
    /// A bug, or a schema that was changed by hand.
    #[error(
        "the schemas of the two databases differ: {why}; the target is unchanged. Use the version that created the source, and report this"
    )]
    SchemasDiffer { why: String },
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<QueryError> for TransferError {
    fn from(error: QueryError) -> Self {
        Self::Database(error.into())
    }
}

impl From<rusqlite::Error> for TransferError {
    fn from(error: rusqlite::Error) -> Self {
        QueryError::from(error).into()
    }
}

impl From<tokio_postgres::Error> for TransferError {
    fn from(error: tokio_postgres::Error) -> Self {
        QueryError::from(error).into()
    }
}
