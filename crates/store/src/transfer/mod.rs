//! Transfers all data from a SQLite file to PostgreSQL:
//!
//! 1. Lock both databases against servers. The source's write lock is held too, so that no command writes meanwhile:
//!    what is verified is what is copied. The source is never written to.
//! 2. On the target everything is one transaction, including its schema: a failure or a kill leaves it unchanged.
//! 3. Reject a target with a row in any table. From then on no other session can read or write these tables.
//! 4. Create the ledger's monthly partitions. Disable foreign keys and insert triggers (`constraints`).
//! 5. Stream each table from a SELECT into a COPY, with a digest of what was sent (`copy_format`).
//! 6. Restore the rules and validate all rows. Identity columns continue where the source stopped.
//! 7. Read every table back and compare its digest with the one sent. Then commit.
//!
//! Chains, sums and documents are not verified here, because those rules live above the store. The caller verifies the
//! source before (`TransferSource::store`) and the target after.

mod constraints;
mod copy_format;
mod error;
mod source;
mod tables;
mod target;

pub use error::TransferError;
pub use source::TransferSource;
pub use target::TransferTarget;

use crate::db::error_codes::{detail, is_row_error, map_db_error};
use crate::db::{FromRow, QueryError, Row};
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

/// Progress of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferProgress {
    /// Number of rows to transfer.
    Started {
        rows: u64,
    },
    Table {
        name: &'static str,
        rows: u64,
    },
    /// Number of rows sent or read back so far.
    Rows(u64),
    /// All rows were sent; foreign keys are being validated.
    RestoringConstraints,
    /// The rows are being read back and compared.
    Verifying,
}

/// Progress callback.
pub type ProgressCallback<'a> = dyn FnMut(TransferProgress) + Send + 'a;

/// Number of rows transferred of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferredTable {
    pub name: &'static str,
    pub rows: u64,
}

fn schemas_differ(why: String) -> TransferError {
    TransferError::SchemasDiffer { why }
}

/// Maps a failure of the target, which may have rejected a row.
fn map_target_error(table: &'static str, error: tokio_postgres::Error) -> TransferError {
    let error = QueryError::from(error);
    if is_row_error(&error) {
        TransferError::TableNotTransferred { table, why: detail(&error) }
    } else {
        map_db_error(&error).into()
    }
}

/// Reads from the target.
async fn fetch_all<T: FromRow>(
    target: &Client,
    sql: &str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Vec<T>, TransferError> {
    let rows = target.query(sql, values).await?;
    Ok(rows.iter().map(|row| T::read(&Row::Postgres(row))).collect::<Result<_, _>>()?)
}
