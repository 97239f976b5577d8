//! Moves a firm from its SQLite file to PostgreSQL, as a whole:
//!
//! 1. Both databases are locked against servers. The source's write lock is held too, so that no command writes there
//!    meanwhile: what is verified is what moves. The source is never written to.
//! 2. On the target everything is one transaction, its schema included: a failure or a kill leaves it as it was.
//! 3. A target that holds a row of any table is refused; from there on nobody else can read or write these tables.
//! 4. The ledger gets the partitions of its months. The rules that act on new rows are taken down (`rules`).
//! 5. Table by table, rows stream from a SELECT into a COPY, with a digest of what was sent (`copy_format`).
//! 6. The rules are put back and hold for all rows, or nothing moves. Numbers go on where the source has stopped.
//! 7. Every table is read back, and its digest must be that of what was sent. Then comes the commit.
//!
//! Verifying chains, sums and documents is not done here, for the rules of that live above the store: the caller does it on
//! the source before (`MoveSource::store`), and on the target after.

mod copy_format;
mod error;
mod rules;
mod source;
mod tables;
mod target;

pub use error::TransferError;
pub use source::MoveSource;
pub use target::MoveTarget;

use crate::db::error_codes::{detail, explain, is_the_rows_fault};

/// What a move has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveStep {
    /// So many rows are to be moved.
    Begins { rows: u64 },
    /// This table is next.
    Table { name: &'static str, rows: u64 },
    /// So many rows were sent, or read back, by now.
    Rows(u64),
    /// All rows were sent; what they refer to is looked for.
    Rules,
    /// Everything is read back.
    Compares,
}

/// Who is told of the steps.
pub type Steps<'a> = dyn FnMut(MoveStep) + Send + 'a;

/// How much of a table has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedTable {
    pub name: &'static str,
    pub rows: u64,
}

fn not_alike(why: String) -> TransferError {
    TransferError::NotAlike { why }
}

/// A failure of the target, which may be about a row that it does not take.
fn refused_by_target(table: &'static str, error: &sqlx::Error) -> TransferError {
    match is_the_rows_fault(error) {
        true => TransferError::NotMoved { table, why: detail(error) },
        false => explain(error).into(),
    }
}
