//! An open database of either kind, before the handles are created.

use crate::LedgerPartitions;
use crate::db::Db;
use crate::db::postgres::PostgresConnector;
use crate::db::sqlite::SqliteConnector;
use crate::db::write_slot::WriteSlot;
use crate::ledger::writer::LedgerWriter;
use chancery_domain::WriterId;
use std::sync::Arc;

/// What to do when there is no Chancery database at the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfMissing {
    Create,
    Reject,
}

/// The connection that writes: on SQLite all but the ledger, on PostgreSQL the ledger.
pub(crate) enum WriteConnection {
    Sqlite(Arc<WriteSlot<SqliteConnector>>),
    Postgres(Arc<WriteSlot<PostgresConnector>>),
}

pub(crate) struct OpenDatabase {
    pub db: Db,
    pub writer_id: WriterId,
    pub writer: LedgerWriter,
    pub slot: WriteConnection,
    pub partitions: LedgerPartitions,
    /// How many requests may reserve spending at the same time.
    pub max_concurrent_reservations: u32,
}
