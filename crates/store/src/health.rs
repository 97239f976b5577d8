//! Whether the database answers, and letting go of it.

use crate::both::for_both_stores;
use crate::failure::{STATEMENT_TIMEOUT, answer};
use crate::{Health, StoreError};

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
