//! An open database of either kind, before the handles are created.

use crate::LedgerPartitions;
use crate::db::Db;
use crate::ledger::writer::LedgerWriter;
use chancery_domain::WriterId;

/// What to do when there is no Chancery database at the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfMissing {
    Create,
    Reject,
}

pub(crate) struct OpenDatabase {
    pub db: Db,
    pub writer_id: WriterId,
    pub writer: LedgerWriter,
    pub partitions: LedgerPartitions,
    /// How many requests may reserve spending at the same time.
    pub max_concurrent_reservations: u32,
}
