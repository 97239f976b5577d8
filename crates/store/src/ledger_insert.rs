//! How a batch of rows is added, the one write that each database does its own way: SQLite takes a list of rows with a
//! parameter per value, PostgreSQL a column per parameter. Both are one statement, and so one transaction.

use crate::failure::{STATEMENT_TIMEOUT, is_connection_lost, within_time};
use crate::ledger::StoredUsageRow;
use crate::ledger_writer::{LedgerDatabase, MAX_BATCH};
use crate::patience::patiently;
use crate::postgres::PostgresConnector;
use crate::slot::{Connector, WriteSlot};
use crate::sqlite::SqliteConnector;
use async_trait::async_trait;
use chancery_domain::{RequestId, UsageRow};
use sqlx::AssertSqlSafe;
use std::sync::Arc;

const STORED: &str = "SELECT * FROM ledger WHERE request_id = $1";

/// Lets go of a connection that broke.
async fn settled<C: Connector, T>(
    slot: &WriteSlot<C>,
    outcome: Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    if outcome.as_ref().is_err_and(is_connection_lost) {
        slot.discard().await;
    }
    outcome
}

pub(crate) struct SqliteLedger {
    slot: Arc<WriteSlot<SqliteConnector>>,
    /// The statement for 1, 2, 4, … `MAX_BATCH` rows.
    statements: Vec<Arc<str>>,
}

const COLUMNS: usize = 11;

/// SQLite's own bound on the parameters of a statement.
const MAX_PARAMETERS: usize = 32_766;

const _: () = assert!(MAX_BATCH.is_power_of_two() && MAX_BATCH * COLUMNS <= MAX_PARAMETERS);

impl SqliteLedger {
    pub(crate) fn new(slot: Arc<WriteSlot<SqliteConnector>>) -> Self {
        let statements = (0..=MAX_BATCH.ilog2()).map(|class| sqlite_insert(1 << class).into()).collect();
        Self { slot, statements }
    }
}

/// The parameters are bare (`?`). SQLite knows `$1` too, but as a name that it looks up in a list for every parameter
/// of every run, which costs more than the rows themselves once there are hundreds.
fn sqlite_insert(rows: usize) -> String {
    let row = format!("({})", ["?"; COLUMNS].join(", "));
    format!(
        "INSERT INTO ledger (request_id, account_id, key_id, model, input_tokens, output_tokens, \
         input_price_nanos, output_price_nanos, cost_nanos, at_ms, ended) \
         VALUES {} ON CONFLICT (request_id) DO NOTHING",
        vec![row; rows].join(", ")
    )
}

#[async_trait]
impl LedgerDatabase for SqliteLedger {
    const LEAVES_GAPS: bool = true;

    async fn insert(&self, rows: &[UsageRow]) -> Result<u64, sqlx::Error> {
        // Filled up to the statement's size with copies of the last row, which it skips like any row that is there.
        // So nine statements stay prepared instead of one for every length.
        let class = rows.len().next_power_of_two().ilog2() as usize;
        let fill = (1_usize << class) - rows.len();
        let outcome = patiently!(STATEMENT_TIMEOUT, self.slot.hold().await?, |connection| {
            let mut insert = sqlx::query(AssertSqlSafe(Arc::clone(&self.statements[class])));
            for row in rows.iter().chain(rows.last().into_iter().cycle().take(fill)) {
                insert = insert
                    .bind(row.request_id.as_str())
                    .bind(row.account.0)
                    .bind(row.key.0)
                    .bind(row.model.as_str())
                    .bind(i64::from(row.input_tokens))
                    .bind(i64::from(row.output_tokens))
                    .bind(row.prices.input.nanos_per_token())
                    .bind(row.prices.output.nanos_per_token())
                    .bind(row.cost.0)
                    .bind(row.at.0)
                    .bind(row.ended.as_str());
            }
            insert.execute(&mut *connection)
        });
        settled(&self.slot, outcome.map(|done| done.rows_affected())).await
    }

    async fn stored(&self, request: &RequestId) -> Result<Option<StoredUsageRow>, sqlx::Error> {
        let outcome = patiently!(STATEMENT_TIMEOUT, self.slot.hold().await?, |connection| {
            sqlx::query_as(STORED).bind(request.as_str()).fetch_optional(&mut *connection)
        });
        settled(&self.slot, outcome).await
    }
}

const POSTGRES_INSERT: &str = "INSERT INTO ledger (request_id, account_id, key_id, model, input_tokens, \
    output_tokens, input_price_nanos, output_price_nanos, cost_nanos, at_ms, ended) \
    SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[], \
    $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::text[]) ON CONFLICT (request_id) DO NOTHING";

#[async_trait]
impl LedgerDatabase for Arc<WriteSlot<PostgresConnector>> {
    const LEAVES_GAPS: bool = false;

    async fn insert(&self, rows: &[UsageRow]) -> Result<u64, sqlx::Error> {
        let texts = |column: fn(&UsageRow) -> &str| rows.iter().map(column).collect::<Vec<_>>();
        let numbers = |column: fn(&UsageRow) -> i64| rows.iter().map(column).collect::<Vec<_>>();
        let outcome = {
            let mut connection = self.hold().await?;
            let insert = sqlx::query(POSTGRES_INSERT)
                .bind(texts(|row| row.request_id.as_str()))
                .bind(numbers(|row| row.account.0))
                .bind(numbers(|row| row.key.0))
                .bind(texts(|row| &row.model))
                .bind(numbers(|row| i64::from(row.input_tokens)))
                .bind(numbers(|row| i64::from(row.output_tokens)))
                .bind(numbers(|row| row.prices.input.nanos_per_token()))
                .bind(numbers(|row| row.prices.output.nanos_per_token()))
                .bind(numbers(|row| row.cost.0))
                .bind(numbers(|row| row.at.0))
                .bind(texts(|row| row.ended.as_str()))
                .execute(&mut *connection);
            within_time(insert).await.map(|done| done.rows_affected())
        };
        settled(self, outcome).await
    }

    async fn stored(&self, request: &RequestId) -> Result<Option<StoredUsageRow>, sqlx::Error> {
        let outcome = {
            let mut connection = self.hold().await?;
            within_time(sqlx::query_as(STORED).bind(request.as_str()).fetch_optional(&mut *connection)).await
        };
        settled(self, outcome).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_has_a_parameter_for_every_column_of_every_row() {
        let statement = sqlite_insert(MAX_BATCH);
        assert_eq!(statement.matches('?').count(), MAX_BATCH * COLUMNS);
        assert_eq!(statement.matches("(?").count(), MAX_BATCH);
    }
}
