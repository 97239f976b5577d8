//! Writes a batch to PostgreSQL: one statement with an array per column, and so one round trip and one transaction.

use crate::StoredReply;
use crate::db::Conn;
use crate::db::error_codes::{abort_reason, is_unique_violation, with_timeout};
use crate::db::postgres::PostgresConnector;
use crate::db::write_slot::WriteSlot;
use crate::ledger::batch::{Batch, DailyUsageDelta, to_db_count};
use crate::ledger::chains::{read_head, read_row};
use crate::ledger::partitions::PartitionTracker;
use crate::ledger::writer::{AppendOutcome, END_PROBE, LedgerDatabase, PROBE, probe_key, probe_text};
use async_trait::async_trait;
use chancery_domain::{ChainHead, RequestId, UsageRow, WriterId};
use std::sync::Arc;

/// An existing request id makes the statement fail. So does `undo_settlement`, if the stored chain head has moved, or
/// if a reservation or claim is gone.
macro_rules! append {
    ($also:literal, $undone_also:literal) => {
        concat!(
            "WITH head AS ( \
                INSERT INTO ledger_writers (id, row_count, head) VALUES ($1, $4, $5) \
                ON CONFLICT (id) DO UPDATE SET row_count = excluded.row_count, head = excluded.head \
                WHERE ledger_writers.row_count = $2 AND ledger_writers.head = $3 \
                RETURNING 1 \
            ), added AS ( \
                INSERT INTO ledger (writer_id, request_id, account_id, key_id, model, input_tokens, \
                    cached_input_tokens, output_tokens, input_price_nanos, cached_price_nanos, output_price_nanos, \
                    cost_nanos, at_ms, stop_reason, position, hash) \
                SELECT $1, * FROM unnest($6::text[], $7::bigint[], $8::bigint[], $9::text[], $10::bigint[], \
                    $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], \
                    $16::bigint[], $17::bigint[], $18::text[], $19::bigint[], $20::bytea[]) \
            ), summed AS ( \
                INSERT INTO daily_usage AS d \
                    (account_id, day, key_id, model, input_price_nanos, cached_price_nanos, output_price_nanos, \
                    requests, input_tokens, cached_input_tokens, output_tokens, cost_nanos) \
                SELECT * FROM unnest($21::bigint[], $22::bigint[], $23::bigint[], $24::text[], \
                    $25::bigint[], $26::bigint[], $27::bigint[], $28::bigint[], $29::bigint[], $30::bigint[], \
                    $31::bigint[], $32::bigint[]) \
                ON CONFLICT (account_id, day, key_id, model, input_price_nanos, cached_price_nanos, \
                    output_price_nanos) DO UPDATE SET \
                    requests = d.requests + excluded.requests, input_tokens = d.input_tokens + excluded.input_tokens, \
                    cached_input_tokens = d.cached_input_tokens + excluded.cached_input_tokens, \
                    output_tokens = d.output_tokens + excluded.output_tokens, \
                    cost_nanos = d.cost_nanos + excluded.cost_nanos \
            ), released AS ( \
                DELETE FROM spending_reservations WHERE request_id = ANY($33::text[]) RETURNING 1 \
            )",
            $also,
            " SELECT CASE \
                WHEN NOT EXISTS (SELECT 1 FROM head) THEN abort_settlement('chain_head_conflict') \
                WHEN (SELECT COUNT(*) FROM released) <> cardinality($33::text[]) \
                    THEN abort_settlement('reservation_lost') ",
            $undone_also,
            " ELSE 0 END"
        )
    };
}

const APPEND: &str = append!("", "");

/// A separate statement, so that batches without stored replies, which most are, do not touch `idempotency_keys`.
const APPEND_WITH_REPLIES: &str = append!(
    ", kept AS ( \
        UPDATE idempotency_keys k \
        SET writer_id = NULL, reasoning_text = r.reasoning_text, output_text = r.output_text, \
            logprobs = r.logprobs, reasoning_tokens = r.reasoning_tokens, expires_at_ms = r.expires_at_ms \
        FROM unnest($34::bigint[], $35::text[], $36::text[], $37::bytea[], $38::bytea[], $39::bytea[], \
                $40::bigint[], $41::bigint[]) \
            AS r (account_id, idempotency_key, request_id, reasoning_text, output_text, logprobs, \
                reasoning_tokens, expires_at_ms) \
        WHERE k.account_id = r.account_id AND k.idempotency_key = r.idempotency_key \
            AND k.request_id = r.request_id AND k.writer_id IS NOT NULL \
        RETURNING 1 \
    )",
    "WHEN (SELECT COUNT(*) FROM kept) <> cardinality($35::text[]) THEN abort_settlement('claim_lost')"
);

pub(crate) struct PostgresLedger {
    slot: Arc<WriteSlot<PostgresConnector>>,
    months: Arc<PartitionTracker>,
}

impl PostgresLedger {
    pub(crate) fn new(slot: Arc<WriteSlot<PostgresConnector>>, months: Arc<PartitionTracker>) -> Self {
        Self { slot, months }
    }
}

#[async_trait]
impl LedgerDatabase for PostgresLedger {
    const YIELDS_WRITE_LOCK: bool = false;

    async fn head(&self, writer: WriterId) -> Result<ChainHead, sqlx::Error> {
        let mut open = self.slot.acquire().await?;
        let outcome = with_timeout(read_head(&mut Conn::from(&mut open.connection), writer)).await;
        Ok(open.checked(outcome)?.unwrap_or_default())
    }

    async fn append(&self, batch: &Batch<'_>) -> Result<AppendOutcome, sqlx::Error> {
        let rows = || batch.rows.iter().map(|linked| linked.row);
        let texts = |column: fn(&UsageRow) -> &str| rows().map(column).collect::<Vec<_>>();
        let numbers = |column: fn(&UsageRow) -> i64| rows().map(column).collect::<Vec<_>>();
        let sums =
            |column: fn(&DailyUsageDelta<'_>) -> i64| batch.sums.iter().map(column).collect::<Vec<_>>();
        let reply_numbers = |column: fn(&StoredReply) -> i64| {
            batch.stored_replies.iter().map(|(_, stored_reply)| column(stored_reply)).collect::<Vec<_>>()
        };
        let mut open = self.slot.acquire().await?;
        let connection = &mut open.connection;
        let outcome: Result<_, sqlx::Error> = async {
            self.months.ensure_partitions(connection, batch).await?;
            let append =
                sqlx::query(if batch.stored_replies.is_empty() { APPEND } else { APPEND_WITH_REPLIES })
                    .bind(batch.writer.0)
                    .bind(to_db_count(batch.before.rows))
                    .bind(batch.before.hash.0.as_slice())
                    .bind(to_db_count(batch.after.rows))
                    .bind(batch.after.hash.0.as_slice())
                    .bind(texts(|row| row.request_id.as_str()))
                    .bind(numbers(|row| row.account.0))
                    .bind(numbers(|row| row.key.0))
                    .bind(texts(|row| row.model.as_str()))
                    .bind(numbers(|row| i64::from(row.input_tokens)))
                    .bind(numbers(|row| i64::from(row.cached_input_tokens)))
                    .bind(numbers(|row| i64::from(row.output_tokens)))
                    .bind(numbers(|row| row.prices.input.nanos_per_token()))
                    .bind(numbers(|row| row.prices.cached_input.nanos_per_token()))
                    .bind(numbers(|row| row.prices.output.nanos_per_token()))
                    .bind(numbers(|row| row.cost.0))
                    .bind(numbers(|row| row.at.0))
                    .bind(texts(|row| row.stop_reason.as_str()))
                    .bind(batch.rows.iter().map(|linked| to_db_count(linked.position)).collect::<Vec<_>>())
                    .bind(batch.rows.iter().map(|linked| linked.hash.0.as_slice()).collect::<Vec<_>>())
                    .bind(sums(|sum| sum.account.0))
                    .bind(sums(|sum| i64::from(sum.day.0)))
                    .bind(sums(|sum| sum.key.0))
                    .bind(batch.sums.iter().map(|sum| sum.model).collect::<Vec<_>>())
                    .bind(sums(|sum| sum.prices.input.nanos_per_token()))
                    .bind(sums(|sum| sum.prices.cached_input.nanos_per_token()))
                    .bind(sums(|sum| sum.prices.output.nanos_per_token()))
                    .bind(sums(|sum| sum.requests))
                    .bind(sums(|sum| sum.input_tokens))
                    .bind(sums(|sum| sum.cached_input_tokens))
                    .bind(sums(|sum| sum.output_tokens))
                    .bind(sums(|sum| sum.cost.0))
                    .bind(batch.reserved.as_slice());
            let append = match batch.stored_replies.is_empty() {
                true => append,
                false => append
                    .bind(batch.stored_replies.iter().map(|(row, _)| row.account.0).collect::<Vec<_>>())
                    .bind(
                        batch
                            .stored_replies
                            .iter()
                            .map(|(_, stored_reply)| stored_reply.key.as_str())
                            .collect::<Vec<_>>(),
                    )
                    .bind(
                        batch
                            .stored_replies
                            .iter()
                            .map(|(row, _)| row.request_id.as_str())
                            .collect::<Vec<_>>(),
                    )
                    .bind(
                        batch
                            .stored_replies
                            .iter()
                            .map(|(_, stored_reply)| stored_reply.reasoning_text.as_bytes())
                            .collect::<Vec<_>>(),
                    )
                    .bind(
                        batch
                            .stored_replies
                            .iter()
                            .map(|(_, stored_reply)| stored_reply.output_text.as_bytes())
                            .collect::<Vec<_>>(),
                    )
                    .bind(
                        batch
                            .stored_replies
                            .iter()
                            .map(|(_, stored_reply)| stored_reply.logprobs.as_deref())
                            .collect::<Vec<_>>(),
                    )
                    .bind(reply_numbers(|stored_reply| i64::from(stored_reply.reasoning_tokens)))
                    .bind(reply_numbers(|stored_reply| stored_reply.expires_at.0)),
            };
            with_timeout(append.execute(connection)).await
        }
        .await;
        match open.checked(outcome) {
            Ok(_) => Ok(AppendOutcome::Appended),
            // The sums and the chain head are upserts, so only a ledger row can conflict.
            Err(error) if is_unique_violation(&error) => Ok(AppendOutcome::DuplicateRequest),
            Err(error) => match abort_reason(&error) {
                Some("chain_head_conflict") => Ok(AppendOutcome::ChainHeadConflict),
                Some("reservation_lost") => Ok(AppendOutcome::ReservationLost),
                Some("claim_lost") => Ok(AppendOutcome::ClaimLost),
                _ => Err(error),
            },
        }
    }

    async fn find_row(&self, request: &RequestId) -> Result<Option<UsageRow>, sqlx::Error> {
        let mut open = self.slot.acquire().await?;
        let outcome = with_timeout(read_row(&mut Conn::from(&mut open.connection), request)).await;
        open.checked(outcome)
    }

    async fn probe_write(&self, writer: WriterId) -> Result<(), sqlx::Error> {
        let key = probe_key(writer);
        let mut open = self.slot.acquire().await?;
        let add = sqlx::query(PROBE).bind(&key).bind([0_u8; 32].as_slice()).bind(probe_text()).bind(writer.0);
        let outcome = with_timeout(add.execute(&mut open.connection)).await;
        open.checked(outcome)?;
        let outcome = with_timeout(sqlx::query(END_PROBE).bind(&key).execute(&mut open.connection)).await;
        open.checked(outcome).map(drop)
    }
}
