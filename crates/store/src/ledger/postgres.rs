//! Writes a batch to PostgreSQL: one statement with an array per column, and so one round trip and one transaction.

use crate::StoredReply;
use crate::db::error_codes::{STATEMENT_TIMEOUT, abort_reason, is_connection_lost, is_unique_violation};
use crate::db::postgres::PostgresOptions;
use crate::db::{Driver, PostgresSession, QueryError, Tx, query};
use crate::ledger::batch::{Batch, DailyUsageDelta, to_db_count};
use crate::ledger::chains::{read_head, read_row};
use crate::ledger::partitions::PartitionTracker;
use crate::ledger::writer::{AppendOutcome, END_PROBE, LedgerDatabase, PROBE, probe_key, probe_text};
use chancery_domain::{ChainHead, RequestId, UsageRow, WriterId};
use std::sync::Arc;
use tokio_postgres::types::ToSql;

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

/// The connection of the ledger's writer, which reads cannot starve.
pub(crate) struct PostgresLedger {
    options: PostgresOptions,
    months: Arc<PartitionTracker>,
    /// `None` until it is needed, and after it was lost.
    session: Option<PostgresSession>,
}

impl PostgresLedger {
    pub(crate) fn new(options: PostgresOptions, months: Arc<PartitionTracker>) -> Self {
        Self { options, months, session: None }
    }

    fn run<T>(
        &mut self,
        step: impl FnOnce(&mut PostgresSession) -> Result<T, QueryError>,
    ) -> Result<T, QueryError> {
        let session = match &mut self.session {
            Some(session) => session,
            None => self.session.insert(PostgresSession::connect(&self.options, STATEMENT_TIMEOUT)?),
        };
        let outcome = step(session);
        if outcome.as_ref().is_err_and(is_connection_lost) {
            self.session = None;
        }
        outcome
    }

    fn read<T>(&mut self, read: impl FnOnce(&mut Tx<'_>) -> Result<T, QueryError>) -> Result<T, QueryError> {
        self.run(|session| read(&mut Tx::outside(Driver::Postgres(session))))
    }
}

impl LedgerDatabase for PostgresLedger {
    const COMMITS_BATCHES: bool = true;

    fn head(&mut self, writer: WriterId) -> Result<ChainHead, QueryError> {
        Ok(self.read(|tx| read_head(tx, writer))?.unwrap_or_default())
    }

    fn append(&mut self, batch: &Batch<'_>) -> Result<AppendOutcome, QueryError> {
        let months = Arc::clone(&self.months);
        let appended = self.run(|session| {
            months.ensure_partitions(session, batch)?;
            append(session, batch)
        });
        match appended {
            Ok(()) => Ok(AppendOutcome::Appended),
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

    fn find_row(&mut self, request: &RequestId) -> Result<Option<UsageRow>, QueryError> {
        self.read(|tx| read_row(tx, request))
    }

    fn probe_write(&mut self, writer: WriterId) -> Result<(), QueryError> {
        let key = probe_key(writer);
        let add =
            query(PROBE).bind(key.as_str()).bind([0_u8; 32].as_slice()).bind(probe_text()).bind(writer.0);
        self.read(|tx| {
            add.execute(tx)?;
            query(END_PROBE).bind(key.as_str()).execute(tx)?;
            Ok(())
        })
    }
}

fn append(session: &mut PostgresSession, batch: &Batch<'_>) -> Result<(), QueryError> {
    let rows = || batch.rows.iter().map(|linked| linked.row);
    let texts = |column: fn(&UsageRow) -> &str| rows().map(column).collect::<Vec<_>>();
    let numbers = |column: fn(&UsageRow) -> i64| rows().map(column).collect::<Vec<_>>();
    let sums = |column: fn(&DailyUsageDelta<'_>) -> i64| batch.sums.iter().map(column).collect::<Vec<_>>();
    let mut values: Vec<Box<dyn ToSql + Sync + '_>> = vec![
        Box::new(batch.writer.0),
        Box::new(to_db_count(batch.before.rows)),
        Box::new(batch.before.hash.0.as_slice()),
        Box::new(to_db_count(batch.after.rows)),
        Box::new(batch.after.hash.0.as_slice()),
        Box::new(texts(|row| row.request_id.as_str())),
        Box::new(numbers(|row| row.account.0)),
        Box::new(numbers(|row| row.key.0)),
        Box::new(texts(|row| row.model.as_str())),
        Box::new(numbers(|row| i64::from(row.input_tokens))),
        Box::new(numbers(|row| i64::from(row.cached_input_tokens))),
        Box::new(numbers(|row| i64::from(row.output_tokens))),
        Box::new(numbers(|row| row.prices.input.nanos_per_token())),
        Box::new(numbers(|row| row.prices.cached_input.nanos_per_token())),
        Box::new(numbers(|row| row.prices.output.nanos_per_token())),
        Box::new(numbers(|row| row.cost.0)),
        Box::new(numbers(|row| row.at.0)),
        Box::new(texts(|row| row.stop_reason.as_str())),
        Box::new(batch.rows.iter().map(|linked| to_db_count(linked.position)).collect::<Vec<_>>()),
        Box::new(batch.rows.iter().map(|linked| linked.hash.0.as_slice()).collect::<Vec<_>>()),
        Box::new(sums(|sum| sum.account.0)),
        Box::new(sums(|sum| i64::from(sum.day.0))),
        Box::new(sums(|sum| sum.key.0)),
        Box::new(batch.sums.iter().map(|sum| sum.model).collect::<Vec<_>>()),
        Box::new(sums(|sum| sum.prices.input.nanos_per_token())),
        Box::new(sums(|sum| sum.prices.cached_input.nanos_per_token())),
        Box::new(sums(|sum| sum.prices.output.nanos_per_token())),
        Box::new(sums(|sum| sum.requests)),
        Box::new(sums(|sum| sum.input_tokens)),
        Box::new(sums(|sum| sum.cached_input_tokens)),
        Box::new(sums(|sum| sum.output_tokens)),
        Box::new(sums(|sum| sum.cost.0)),
        Box::new(batch.reserved.as_slice()),
    ];
    let mut sql = APPEND;
    if !batch.stored_replies.is_empty() {
        let (rows, replies): (Vec<&UsageRow>, Vec<&StoredReply>) =
            batch.stored_replies.iter().copied().unzip();
        let texts =
            |column: fn(&StoredReply) -> &[u8]| replies.iter().map(|reply| column(reply)).collect::<Vec<_>>();
        let numbers =
            |column: fn(&StoredReply) -> i64| replies.iter().map(|reply| column(reply)).collect::<Vec<_>>();
        let of_replies: [Box<dyn ToSql + Sync + '_>; 8] = [
            Box::new(rows.iter().map(|row| row.account.0).collect::<Vec<_>>()),
            Box::new(replies.iter().map(|reply| reply.key.as_str()).collect::<Vec<_>>()),
            Box::new(rows.iter().map(|row| row.request_id.as_str()).collect::<Vec<_>>()),
            Box::new(texts(|reply| reply.reasoning_text.as_bytes())),
            Box::new(texts(|reply| reply.output_text.as_bytes())),
            Box::new(replies.iter().map(|reply| reply.logprobs.as_deref()).collect::<Vec<_>>()),
            Box::new(numbers(|reply| i64::from(reply.reasoning_tokens))),
            Box::new(numbers(|reply| reply.expires_at.0)),
        ];
        values.extend(of_replies);
        sql = APPEND_WITH_REPLIES;
    }
    let values: Vec<&(dyn ToSql + Sync)> =
        values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect();
    session.execute_raw(sql, &values)?;
    Ok(())
}
