//! What can go wrong with moving a firm from SQLite to PostgreSQL.

use crate::{DbError, OpenError};

#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error("the target already holds rows (in {table}), and a firm moves into an empty database")]
    TargetHoldsRows { table: &'static str },
    #[error(
        "{table}.{column} of the row {row} holds a NUL character, which PostgreSQL cannot keep; the target is as it was. Write that text anew in Chancery, or cut it off there in the SQLite file (`UPDATE {table} SET {column} = substr({column}, 1, instr({column}, char(0)) - 1) WHERE instr({column}, char(0)) > 0`), and try again"
    )]
    NulInTable { table: &'static str, column: String, row: String },
    #[error("the rows of {table} could not be moved: {why}; the target is as it was")]
    NotMoved { table: &'static str, why: String },
    /// A defect of ours, or of somebody who changed the schema.
    #[error(
        "the two databases are not made alike: {why}; the target is as it was; move with the version that made the source, and report this"
    )]
    NotAlike { why: String },
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Database(#[from] DbError),
}

impl From<sqlx::Error> for TransferError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}
