//! Whether the database answers, and letting go of it.

use crate::StoreError;
use crate::db::both::for_both_stores;
use crate::db::error_codes::{STATEMENT_TIMEOUT, answer};

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

for_both_stores! {
    impl Health {
        async fn ping(&self) -> Result<(), StoreError> {
            let _: i64 = answer(sqlx::query_scalar(PING).fetch_one(&self.reader)).await?;
            Ok(())
        }

        async fn close(&self) {
            self.ledger.close().await;
            self.give_up_lease().await;
            let (reads, long_reads) = (self.reader.close(), self.long_reader.close());
            reads.await;
            // A sum that takes minutes has nothing to lose, so it does not hold up the end.
            let _ = tokio::time::timeout(STATEMENT_TIMEOUT, long_reads).await;
            self.write_slot.close().await;
        }
    }
}
