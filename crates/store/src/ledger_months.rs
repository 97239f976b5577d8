//! PostgreSQL's ledger has a partition for each month, made before the month begins. Where one cannot be made, its rows go
//! into the partition that takes what no other does; nothing is refused for it.

use crate::failure::{is_connection_lost, within_time};
use crate::ledger_batch::Batch;
use chancery_domain::{Month, RequestId};
use sqlx::PgConnection;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

const ADD_MONTH: &str = "SELECT add_ledger_month($1, $2, $3)";

#[derive(Default)]
pub(crate) struct LedgerMonths {
    /// Those that this process has seen to.
    covered: Mutex<BTreeSet<Month>>,
}

impl LedgerMonths {
    /// Sees to the months of these rows and to the ones after. Fails only when the connection breaks.
    pub(crate) async fn cover(
        &self,
        connection: &mut PgConnection,
        batch: &Batch<'_>,
    ) -> Result<(), sqlx::Error> {
        for month in self.uncovered(batch) {
            match within_time(add(month, connection)).await {
                Err(error) if is_connection_lost(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, %month, "the ledger's partition for this month could not be made; its rows go with the others");
                }
                Ok(()) => {}
            }
            self.covered.lock().unwrap_or_else(PoisonError::into_inner).insert(month);
        }
        Ok(())
    }

    fn uncovered(&self, batch: &Batch<'_>) -> BTreeSet<Month> {
        let covered = self.covered.lock().unwrap_or_else(PoisonError::into_inner);
        let months = batch.rows.iter().map(|linked| Month::of(linked.row.at));
        months.flat_map(|month| [month, month.next()]).filter(|month| !covered.contains(month)).collect()
    }
}

async fn add(month: Month, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let first_id = |month: Month| RequestId::beginning_at(month.first_day().start());
    sqlx::query(ADD_MONTH)
        .bind(format!("ledger_{}", month.to_string().replace('-', "_")))
        .bind(first_id(month))
        .bind(first_id(month.next()))
        .execute(connection)
        .await
        .map(|_| ())
}
