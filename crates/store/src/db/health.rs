//! Whether the database answers, and letting go of it.

use crate::StoreError;
use crate::db::query;
use crate::ledger::writer::HasLedger;

#[async_trait::async_trait]
pub trait Health: Send + Sync + 'static {
    /// Whether the database answers now.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Finishes the writes under way and lets go of the database, without waiting long for sums that take long. Later
    /// calls are `Unavailable`.
    async fn close(&self);
}

/// Reads a table, for SQLite would answer a bare `SELECT 1` without looking at its file.
const PING: &str = "SELECT COUNT(*) FROM schema_migrations";

#[async_trait::async_trait]
impl<S: HasLedger> Health for S {
    async fn ping(&self) -> Result<(), StoreError> {
        self.db().fetch_one::<u64>(query(PING)).await?;
        Ok(())
    }

    async fn close(&self) {
        self.ledger().close().await;
        self.lease().give_up().await;
        self.db().close_reads().await;
        self.close_write_slot().await;
    }
}
