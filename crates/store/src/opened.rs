//! An open database with what its two kinds have in common, before the handles are made.

use crate::LedgerPartitions;
use crate::db::Db;
use crate::db::postgres::PostgresConnector;
use crate::db::sqlite::SqliteConnector;
use crate::db::write_slot::WriteSlot;
use crate::ledger::writer::LedgerWriter;
use chancery_domain::WriterId;
use std::sync::Arc;

/// What becomes of a place without a database of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Create,
    Reject,
}

/// The one connection that the ledger is written with.
pub(crate) enum LedgerSlot {
    Sqlite(Arc<WriteSlot<SqliteConnector>>),
    Postgres(Arc<WriteSlot<PostgresConnector>>),
}

/// An open database, before the handles.
pub(crate) struct Opened {
    pub db: Db,
    pub writer_id: WriterId,
    pub writer: LedgerWriter,
    pub slot: LedgerSlot,
    pub partitions: LedgerPartitions,
    /// How many may reserve spending at the same time.
    pub max_reserving: u32,
}
