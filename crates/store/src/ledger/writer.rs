//! Writes settled requests to disk, many per commit.
//!
//! 1. `settle` puts its row into a bounded queue and waits for the result, up to `SETTLE_TIMEOUT`. From then on the row does
//!    not depend on the caller: if the caller goes away, its row is still written.
//! 2. The writer takes all queued rows, up to a bound, links them into this process's chain and sums them by day. One
//!    transaction writes the rows, the sums and the new chain head, releases the spending reservations, and stores
//!    replies under their idempotency keys: one disk flush for all. Rows that arrive meanwhile form the next batch. Before it
//!    takes them it lets everything run that can: on a busy machine many are about to settle, and a commit costs much more
//!    than a row. On an idle one there is nothing to wait for. On SQLite, whose commits block, the writer has a thread of its own;
//!    on PostgreSQL it is a task.
//! 3. The writer knows the chain head from its last successful commit. After any other outcome it reads the head again. A
//!    transaction that expects another head than the stored one changes nothing.
//! 4. A transaction with an existing request id changes nothing either. Each row is then compared with the stored one.
//!    Equal means settled before, different is `RequestAlreadyBilled`; the other rows are written without it.
//! 5. A batch that violates a rule of the ledger, or whose reservation or claim is gone, is halved until the faulty row
//!    is alone. So only its caller gets the error.
//! 6. When the connection is lost, it is unknown whether the batch was committed. It is sent once more on a new
//!    connection; by (3) and (4) that never bills twice. If that fails too, every caller in the batch gets
//!    `Unavailable`. A read of a stored row is retried once in the same way.
//! 7. Where other processes can write only between two commits, the writer leaves gaps (`write_gaps`).

use crate::DbError;
use crate::db::error_codes::{
    RESPONSE_TIMEOUT, is_connection_lost, is_month_invoiced, is_retryable, is_row_error, map_db_error,
    store_closed,
};
use crate::ledger::batch::Batch;
use crate::ledger::write_gaps::WriteGaps;
use crate::{LedgerError, Settlement, StoredReply};
use async_trait::async_trait;
use chancery_domain::{ChainHead, Clock, Month, RequestId, UsageRow, WriterId};
use futures_util::future::BoxFuture;
use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::sync::{Mutex, Notify, mpsc, oneshot};
use tokio::time::timeout;

pub(crate) const MAX_BATCH: usize = 256;

/// Most bytes of stored replies in one transaction, unless one alone has more. Log probabilities can make a reply
/// megabytes long, and PostgreSQL rejects a statement of a gigabyte.
const MAX_BATCH_REPLY_BYTES: usize = 16 * 1024 * 1024;

/// Most rows that wait during a commit. Beyond that, `settle` waits before it queues its row.
const MAX_QUEUE: usize = 4096;

/// How long a caller waits. It is above what a batch takes that is retried once; on SQLite nothing else bounds a commit that
/// hangs on the disk.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(25);
const _: () = assert!(SETTLE_TIMEOUT.as_secs() > 2 * RESPONSE_TIMEOUT.as_secs());

/// Attempts to write rows while the chain head or another row changes concurrently. Only another process with the same
/// writer id can cause more than one retry.
const MAX_ATTEMPTS: u32 = 4;

/// A settlement and its waiting caller. Without one, the caller asks whether settlements can be written.
struct PendingSettlement {
    settlement: Option<Settlement>,
    responder: oneshot::Sender<Result<(), LedgerError>>,
}

pub(crate) struct LedgerWriter {
    queue: mpsc::Sender<PendingSettlement>,
    closing: Arc<Notify>,
    commits: Arc<AtomicU64>,
    /// Completes when the writer has ended.
    ended: Mutex<Option<BoxFuture<'static, ()>>>,
}

impl LedgerWriter {
    /// Writes in a task.
    pub(crate) fn start(writer: WriterId, database: impl LedgerDatabase, clock: impl Clock) -> Self {
        let (writer, writing) = Self::new(writer, database, clock);
        let task = tokio::spawn(writing);
        writer.ending_with(async move {
            if let Err(error) = task.await {
                tracing::error!(%error, "ledger writer task failed");
            }
        })
    }

    /// Writes on a thread of its own, for a database that blocks.
    pub(crate) fn start_on_thread(
        writer: WriterId,
        database: impl LedgerDatabase,
        clock: impl Clock,
    ) -> io::Result<Self> {
        let (writer, writing) = Self::new(writer, database, clock);
        let (ending, ended) = oneshot::channel();
        let write = move || match Builder::new_current_thread().enable_time().build() {
            Ok(runtime) => {
                runtime.block_on(writing);
                let _ = ending.send(());
            }
            // Whoever settles finds the store closed.
            Err(error) => tracing::error!(%error, "cannot start the ledger writer's runtime"),
        };
        thread::Builder::new().name("ledger-writer".to_owned()).spawn(write)?;
        Ok(writer.ending_with(async move {
            if ended.await.is_err() {
                tracing::error!("ledger writer thread failed");
            }
        }))
    }

    /// Also returns what writes.
    fn new(
        writer: WriterId,
        database: impl LedgerDatabase,
        clock: impl Clock,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (queue, waiting) = mpsc::channel(MAX_QUEUE);
        let closing = Arc::new(Notify::new());
        let commits = Arc::new(AtomicU64::new(0));
        let batches = BatchWriter { writer, head: None, database, clock, commits: Arc::clone(&commits) };
        let writing = batches.write(waiting, Arc::clone(&closing));
        (Self { queue, closing, commits, ended: Mutex::new(None) }, writing)
    }

    fn ending_with(self, ended: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { ended: Mutex::new(Some(Box::pin(ended))), ..self }
    }

    pub(crate) async fn settle(&self, settlement: Settlement) -> Result<(), LedgerError> {
        let row = &settlement.row;
        if row.model.contains('\0') {
            return Err(DbError::NulCharacter { what: "the model's name" }.into());
        }
        if row.request_id.as_str().contains('\0') {
            return Err(DbError::NulCharacter { what: "the request id" }.into());
        }
        self.enqueue(Some(settlement)).await
    }

    /// Writes as much as settlements do, in their turn, and deletes it again.
    pub(crate) async fn probe_write(&self) -> Result<(), LedgerError> {
        self.enqueue(None).await
    }

    async fn enqueue(&self, settlement: Option<Settlement>) -> Result<(), LedgerError> {
        let (responder, response) = oneshot::channel();
        self.queue.send(PendingSettlement { settlement, responder }).await.map_err(|_| store_closed())?;
        match timeout(SETTLE_TIMEOUT, response).await {
            Ok(response) => response.map_err(|_| store_closed())?,
            // The row may still be written. Settling it again is safe.
            Err(_) => Err(DbError::Unavailable(format!(
                "a commit took longer than {} s; check the disk or the database server, and its load",
                SETTLE_TIMEOUT.as_secs()
            ))
            .into()),
        }
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Writes the queued rows, then ends. A second call waits for the same end. Neither waits long for a commit that hangs.
    pub(crate) async fn close(&self) {
        self.closing.notify_one();
        if let Some(ended) = self.ended.lock().await.take()
            && timeout(RESPONSE_TIMEOUT, ended).await.is_err()
        {
            tracing::error!("ledger writer did not end in time");
        }
    }
}

struct BatchWriter<D, C> {
    writer: WriterId,
    /// The chain head, while it is certain.
    head: Option<ChainHead>,
    database: D,
    clock: C,
    commits: Arc<AtomicU64>,
}

/// Some of a batch's rows, by index, for one transaction.
struct SubBatch {
    indices: Vec<usize>,
    attempts: u32,
}

impl<D: LedgerDatabase, C: Clock> BatchWriter<D, C> {
    async fn write(mut self, mut queue: mpsc::Receiver<PendingSettlement>, closing: Arc<Notify>) {
        let mut batch = Vec::with_capacity(MAX_BATCH);
        let mut open = true;
        let mut gaps = WriteGaps::default();
        let mut free_since = self.clock.monotonic();
        loop {
            tokio::select! {
                taken = queue.recv_many(&mut batch, MAX_BATCH) => {
                    if taken == 0 {
                        return;
                    }
                }
                () = closing.notified(), if open => {
                    // Accepts no more rows; queued rows are still taken above.
                    queue.close();
                    open = false;
                    continue;
                }
            }
            // Requests run on other threads, and in tests in tasks of this one.
            thread::yield_now();
            tokio::task::yield_now().await;
            take_queued(&mut queue, &mut batch);
            let mut held_since = self.clock.monotonic();
            gaps.record_free(held_since - free_since);
            if D::YIELDS_WRITE_LOCK
                && let Some(next_pause) = gaps.next_pause()
            {
                tokio::time::sleep(next_pause).await;
                // Rows that arrived during the pause join the batch.
                take_queued(&mut queue, &mut batch);
                let rested_until = self.clock.monotonic();
                gaps.record_free(rested_until - held_since);
                held_since = rested_until;
            }
            let (mut settlements, mut responders) =
                (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
            let mut probes = Vec::new();
            for PendingSettlement { settlement, responder } in batch.drain(..) {
                if let Some(settlement) = settlement {
                    settlements.push(settlement);
                    responders.push(Some(responder));
                } else {
                    probes.push(responder);
                }
            }
            self.settle_batch(&settlements, responders).await;
            for responder in probes {
                let outcome = self.database.probe_write(self.writer).await;
                let _ = responder.send(outcome.map_err(|error| map_db_error(&error).into()));
            }
            free_since = self.clock.monotonic();
            metrics::histogram!("chancery_ledger_batch_seconds")
                .record((free_since - held_since).as_secs_f64());
            metrics::gauge!("chancery_ledger_waiting_rows").set(queue.len() as f64);
            gaps.record_held(free_since - held_since);
        }
    }

    async fn settle_batch(
        &mut self,
        settlements: &[Settlement],
        mut responders: Vec<Option<oneshot::Sender<Result<(), LedgerError>>>>,
    ) {
        let mut respond = |index: usize, outcome: Result<(), LedgerError>| {
            if let Some(responder) = responders[index].take() {
                // The caller may have gone away.
                let _ = responder.send(outcome);
            }
        };
        let mut waiting: Vec<usize> = (0..settlements.len()).collect();
        while !waiting.is_empty() {
            // Of duplicate requests, the first is written; the others find it stored in the next round.
            let mut requests = HashSet::new();
            let is_first = |index: &usize| requests.insert(&settlements[*index].row.request_id);
            let (indices, duplicates) = waiting.into_iter().partition::<Vec<_>, _>(is_first);
            self.settle_distinct(settlements, indices, &mut respond).await;
            waiting = duplicates;
        }
    }

    /// The indexes are of rows with distinct request ids.
    async fn settle_distinct(
        &mut self,
        settlements: &[Settlement],
        indices: Vec<usize>,
        respond: &mut (impl FnMut(usize, Result<(), LedgerError>) + Send),
    ) {
        let mut parts = split_by_size(settlements, indices);
        while let Some(SubBatch { indices, attempts }) = parts.pop() {
            match self.append(settlements, &indices).await {
                Ok(AppendOutcome::Appended) => indices.into_iter().for_each(|index| respond(index, Ok(()))),
                Ok(AppendOutcome::DuplicateRequest | AppendOutcome::ChainHeadConflict)
                    if attempts < MAX_ATTEMPTS =>
                {
                    let mut others = Vec::new();
                    for index in indices {
                        match self.is_stored(&settlements[index].row).await {
                            Ok(true) => respond(index, Ok(())),
                            Ok(false) => others.push(index),
                            Err(error) => respond(index, Err(error)),
                        }
                    }
                    if !others.is_empty() {
                        parts.push(SubBatch { indices: others, attempts: attempts + 1 });
                    }
                }
                outcome if may_be_row_error(&outcome) && indices.len() > 1 => {
                    parts.extend(split_in_half(indices));
                }
                outcome => {
                    for index in indices {
                        respond(index, self.rejection_reason(&settlements[index].row, &outcome).await);
                    }
                }
            }
        }
    }

    /// The result for a row that could not be added. It may have been stored before.
    async fn rejection_reason(
        &self,
        row: &UsageRow,
        outcome: &Result<AppendOutcome, sqlx::Error>,
    ) -> Result<(), LedgerError> {
        let request = || row.request_id.clone();
        Err(match outcome {
            Ok(AppendOutcome::ReservationLost | AppendOutcome::ClaimLost) if self.is_stored(row).await? => {
                return Ok(());
            }
            // It may have been settled before its month was invoiced.
            Err(error) if is_row_error(error) && self.is_stored(row).await? => return Ok(()),
            Ok(AppendOutcome::ReservationLost) => LedgerError::ReservationLost(request()),
            Ok(AppendOutcome::ClaimLost) => LedgerError::ClaimLost(request()),
            Ok(AppendOutcome::SumOverflow) => DbError::SumTooLarge.into(),
            Err(error) if is_month_invoiced(error) => {
                LedgerError::MonthInvoiced { request: request(), month: Month::containing(row.at) }
            }
            Err(error) if is_row_error(error) => {
                LedgerError::RowRejected { request: request(), why: error.to_string() }
            }
            Err(error) => map_db_error(error).into(),
            Ok(
                AppendOutcome::Appended | AppendOutcome::DuplicateRequest | AppendOutcome::ChainHeadConflict,
            ) => {
                let why = "the ledger's chain head keeps changing";
                DbError::Unavailable(why.to_owned()).into()
            }
        })
    }

    /// Adds the rows in one commit, or changes nothing.
    async fn append(
        &mut self,
        settlements: &[Settlement],
        indices: &[usize],
    ) -> Result<AppendOutcome, sqlx::Error> {
        match self.append_once(settlements, indices).await {
            Err(error) if is_retryable(&error) => {
                tracing::warn!(%error, rows = indices.len(), "ledger write failed, retrying");
                self.append_once(settlements, indices).await
            }
            outcome => outcome,
        }
    }

    async fn append_once(
        &mut self,
        settlements: &[Settlement],
        indices: &[usize],
    ) -> Result<AppendOutcome, sqlx::Error> {
        let before = match self.head.take() {
            Some(head) => head,
            None => self.database.head(self.writer).await?,
        };
        let chosen = indices.iter().map(|index| &settlements[*index]);
        let Ok(batch) = Batch::link(self.writer, before, chosen) else {
            return Ok(AppendOutcome::SumOverflow);
        };
        let outcome = self.database.append(&batch).await?;
        if let AppendOutcome::Appended = outcome {
            self.head = Some(batch.after);
            self.commits.fetch_add(1, Ordering::Relaxed);
            metrics::counter!("chancery_ledger_rows_total").increment(indices.len() as u64);
        }
        Ok(outcome)
    }

    /// Whether an equal row is stored; a different one is an error.
    async fn is_stored(&self, row: &UsageRow) -> Result<bool, LedgerError> {
        let found = match self.database.find_row(&row.request_id).await {
            Err(error) if is_connection_lost(&error) => {
                tracing::warn!(%error, "ledger connection lost, retrying read");
                self.database.find_row(&row.request_id).await
            }
            outcome => outcome,
        };
        match found.map_err(|error| map_db_error(&error))? {
            Some(found) if found == *row => Ok(true),
            Some(_) => Err(LedgerError::RequestAlreadyBilled(row.request_id.clone())),
            None => Ok(false),
        }
    }
}

fn take_queued(queue: &mut mpsc::Receiver<PendingSettlement>, batch: &mut Vec<PendingSettlement>) {
    while batch.len() < MAX_BATCH
        && let Ok(waiting) = queue.try_recv()
    {
        batch.push(waiting);
    }
}

/// Parts with at most `MAX_BATCH_REPLY_BYTES` each. The last part comes first, because parts are taken from the end.
fn split_by_size(settlements: &[Settlement], indices: Vec<usize>) -> Vec<SubBatch> {
    let mut parts: Vec<SubBatch> = Vec::with_capacity(1);
    let mut part_bytes = 0_usize;
    for index in indices {
        let bytes = settlements[index].stored_reply.as_ref().map_or(0, StoredReply::content_bytes);
        part_bytes = part_bytes.saturating_add(bytes);
        match parts.last_mut() {
            Some(part) if part_bytes <= MAX_BATCH_REPLY_BYTES => part.indices.push(index),
            _ => {
                parts.push(SubBatch { indices: vec![index], attempts: 1 });
                part_bytes = bytes;
            }
        }
    }
    parts.reverse();
    parts
}

/// The second half comes first, because parts are taken from the end.
fn split_in_half(mut indices: Vec<usize>) -> [SubBatch; 2] {
    let second = indices.split_off(indices.len() / 2);
    [SubBatch { indices: second, attempts: 1 }, SubBatch { indices, attempts: 1 }]
}

/// The outcome of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendOutcome {
    Appended,
    DuplicateRequest,
    ChainHeadConflict,
    SumOverflow,
    ReservationLost,
    ClaimLost,
}

/// Whether parts of the batch may succeed without the rest.
fn may_be_row_error(outcome: &Result<AppendOutcome, sqlx::Error>) -> bool {
    match outcome {
        Ok(AppendOutcome::SumOverflow | AppendOutcome::ReservationLost | AppendOutcome::ClaimLost) => true,
        Ok(_) => false,
        Err(error) => is_row_error(error),
    }
}

/// What the writer needs from a database. A broken connection is dropped before the error is returned.
#[async_trait]
pub(crate) trait LedgerDatabase: Send + Sync + 'static {
    /// Whether other processes can write only while this one is between two commits.
    const YIELDS_WRITE_LOCK: bool;

    async fn head(&self, writer: WriterId) -> Result<ChainHead, sqlx::Error>;

    /// Adds rows, sums and the chain head in one transaction, or changes nothing.
    async fn append(&self, batch: &Batch<'_>) -> Result<AppendOutcome, sqlx::Error>;

    async fn find_row(&self, request: &RequestId) -> Result<Option<UsageRow>, sqlx::Error>;

    /// Commits a [`probe_text`] and its deletion.
    async fn probe_write(&self, writer: WriterId) -> Result<(), sqlx::Error>;
}

/// Adds an expired idempotency key that is in progress, which counts as absent. What a probe leaves behind is deleted with
/// other expired keys.
pub(crate) const PROBE: &str = "INSERT INTO idempotency_keys \
    (account_id, idempotency_key, fingerprint, request_id, writer_id, expires_at_ms) \
    SELECT id, $1, $2, $3, $4, 0 FROM accounts WHERE id = (SELECT MIN(id) FROM accounts) \
    ON CONFLICT (account_id, idempotency_key) DO UPDATE SET request_id = excluded.request_id";

pub(crate) const END_PROBE: &str = "DELETE FROM idempotency_keys \
    WHERE account_id = (SELECT MIN(id) FROM accounts) AND idempotency_key = $1";

/// Bytes of a probe: more than one settlement writes, so that a disk with room for a probe has room for settlements.
const PROBE_BYTES: usize = 64 * 1024;

/// No caller's key has a space.
pub(crate) fn probe_key(writer: WriterId) -> String {
    format!("write probe {}", writer.0)
}

/// Text that PostgreSQL cannot compress.
pub(crate) fn probe_text() -> String {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'0' + (state >> 26) as u8)
    };
    (0..PROBE_BYTES).map(|_| next()).collect()
}

/// So that a test can keep the database.
#[cfg(test)]
#[async_trait]
impl<D: LedgerDatabase> LedgerDatabase for Arc<D> {
    const YIELDS_WRITE_LOCK: bool = D::YIELDS_WRITE_LOCK;

    async fn head(&self, writer: WriterId) -> Result<ChainHead, sqlx::Error> {
        D::head(self, writer).await
    }

    async fn append(&self, batch: &Batch<'_>) -> Result<AppendOutcome, sqlx::Error> {
        D::append(self, batch).await
    }

    async fn find_row(&self, request: &RequestId) -> Result<Option<UsageRow>, sqlx::Error> {
        D::find_row(self, request).await
    }

    async fn probe_write(&self, writer: WriterId) -> Result<(), sqlx::Error> {
        D::probe_write(self, writer).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{
        AccountId, IdempotencyKey, KeyId, Nanos, Prices, StopReason, SystemClock, TokenPrice, UnixMillis,
    };
    use std::collections::{BTreeMap, VecDeque};

    /// The outcome of a scripted insert. Without a script it succeeds.
    enum Script {
        LoseResponse,
        LoseBeforeCommit,
        WaitFor(oneshot::Receiver<()>),
    }

    #[derive(Default)]
    struct ScriptedDatabase {
        rows: Mutex<BTreeMap<String, UsageRow>>,
        head: Mutex<ChainHead>,
        turns: Mutex<VecDeque<Script>>,
        /// How many of the next reads of a stored row lose their connection.
        failing_reads: AtomicU64,
    }

    fn lost() -> sqlx::Error {
        sqlx::Error::Io(io::Error::from(io::ErrorKind::ConnectionReset))
    }

    impl ScriptedDatabase {
        async fn commit(&self, batch: &Batch<'_>) -> AppendOutcome {
            let (mut find_row, mut head) = (self.rows.lock().await, self.head.lock().await);
            if *head != batch.before {
                return AppendOutcome::ChainHeadConflict;
            }
            if batch.rows.iter().any(|link| find_row.contains_key(link.row.request_id.as_str())) {
                return AppendOutcome::DuplicateRequest;
            }
            let rows = batch.rows.iter().map(|link| link.row);
            find_row.extend(rows.map(|row| (row.request_id.to_string(), row.clone())));
            *head = batch.after;
            AppendOutcome::Appended
        }
    }

    #[async_trait]
    impl LedgerDatabase for ScriptedDatabase {
        const YIELDS_WRITE_LOCK: bool = true;

        async fn head(&self, _: WriterId) -> Result<ChainHead, sqlx::Error> {
            Ok(*self.head.lock().await)
        }

        async fn append(&self, batch: &Batch<'_>) -> Result<AppendOutcome, sqlx::Error> {
            let turn = self.turns.lock().await.pop_front();
            match turn {
                Some(Script::LoseResponse) => {
                    self.commit(batch).await;
                    Err(lost())
                }
                Some(Script::LoseBeforeCommit) => Err(lost()),
                Some(Script::WaitFor(gate)) => {
                    gate.await.unwrap();
                    Ok(self.commit(batch).await)
                }
                None => Ok(self.commit(batch).await),
            }
        }

        async fn find_row(&self, request: &RequestId) -> Result<Option<UsageRow>, sqlx::Error> {
            let still_lost = |lookups: u64| lookups.checked_sub(1);
            if self.failing_reads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, still_lost).is_ok() {
                return Err(lost());
            }
            Ok(self.rows.lock().await.get(request.as_str()).cloned())
        }

        async fn probe_write(&self, _: WriterId) -> Result<(), sqlx::Error> {
            Ok(())
        }
    }

    fn row(number: u32) -> UsageRow {
        UsageRow {
            request_id: RequestId::from_stored(format!("req_{number}")),
            account: AccountId(1),
            key: KeyId(1),
            model: "m".to_owned(),
            input_tokens: number,
            cached_input_tokens: 0,
            output_tokens: 0,
            prices: Prices {
                input: TokenPrice::from_nanos_per_token(1),
                cached_input: TokenPrice::from_nanos_per_token(1),
                output: TokenPrice::from_nanos_per_token(2),
            },
            cost: Nanos(number.into()),
            at: UnixMillis(0),
            stop_reason: StopReason::Complete,
        }
    }

    fn writer(turns: impl IntoIterator<Item = Script>) -> (Arc<ScriptedDatabase>, LedgerWriter) {
        let turns = Mutex::new(turns.into_iter().collect());
        let database = Arc::new(ScriptedDatabase { turns, ..ScriptedDatabase::default() });
        (Arc::clone(&database), LedgerWriter::start(WriterId(7), database, SystemClock))
    }

    #[tokio::test]
    async fn lost_commit_response_settles_without_double_billing() {
        let (database, writer) = writer([Script::LoseResponse]);
        let (one, two) = tokio::join!(writer.settle(row(1).into()), writer.settle(row(2).into()));
        assert!(one.is_ok() && two.is_ok());
        assert_eq!(database.rows.lock().await.len(), 2);
        assert_eq!(database.head.lock().await.rows, 2);
    }

    #[tokio::test]
    async fn moved_chain_head_is_reread() {
        let (database, writer) = writer([]);
        writer.settle(row(1).into()).await.unwrap();
        let moved = ChainHead::default().with_row(WriterId(7), &row(9));
        *database.head.lock().await = moved;
        writer.settle(row(2).into()).await.unwrap();
        assert_eq!(*database.head.lock().await, moved.with_row(WriterId(7), &row(2)));
    }

    #[test]
    fn large_replies_are_split_over_transactions_in_order() {
        let settlement = |(number, bytes): (u32, usize)| {
            let stored_reply = StoredReply {
                key: IdempotencyKey::from_stored(format!("order-{number}")),
                reasoning_text: String::new(),
                output_text: String::new(),
                logprobs: Some(vec![0; bytes]),
                reasoning_tokens: 0,
                expires_at: UnixMillis(0),
            };
            Settlement { stored_reply: Some(stored_reply), ..Settlement::from(row(number)) }
        };
        let sizes = [1, MAX_BATCH_REPLY_BYTES - 1, 1, 2 * MAX_BATCH_REPLY_BYTES, 0, 1];
        let mut settlements: Vec<Settlement> = (0..).zip(sizes).map(settlement).collect();
        settlements.push(row(6).into());
        let parts = split_by_size(&settlements, (0..settlements.len()).collect());
        let parts: Vec<Vec<usize>> = parts.into_iter().rev().map(|part| part.indices).collect();
        assert_eq!(parts, [vec![0, 1], vec![2], vec![3], vec![4, 5, 6]]);
    }

    #[tokio::test(start_paused = true)]
    async fn commit_that_hangs_fails_its_caller_and_bills_once_when_it_ends() {
        let (open_gate, gate) = oneshot::channel();
        let (database, writer) = writer([Script::WaitFor(gate)]);
        let settled = timeout(10 * SETTLE_TIMEOUT, writer.settle(row(1).into())).await;
        assert!(matches!(settled, Ok(Err(LedgerError::Database(DbError::Unavailable(_))))), "{settled:?}");
        open_gate.send(()).unwrap();
        writer.settle(row(1).into()).await.unwrap();
        assert_eq!(database.rows.lock().await.len(), 1);
    }

    #[tokio::test]
    async fn overflowing_batch_is_split() {
        let (database, writer) = writer([]);
        let expensive = |number| UsageRow { cost: Nanos(i64::MAX), ..row(number) };
        let (one, two, three) = tokio::join!(
            writer.settle(expensive(1).into()),
            writer.settle(expensive(2).into()),
            writer.settle(row(3).into())
        );
        assert!(one.is_ok() && two.is_ok() && three.is_ok());
        assert_eq!(database.rows.lock().await.len(), 3);
    }

    #[tokio::test]
    async fn batch_lost_before_commit_is_retried() {
        let (database, writer) = writer([Script::LoseBeforeCommit]);
        writer.settle(row(1).into()).await.unwrap();
        assert_eq!(database.rows.lock().await.len(), 1);
    }

    #[tokio::test]
    async fn second_failure_fails_batch_and_writer_continues() {
        let (database, writer) = writer([Script::LoseBeforeCommit, Script::LoseBeforeCommit]);
        let (one, two) = tokio::join!(writer.settle(row(1).into()), writer.settle(row(2).into()));
        assert!(
            matches!(one, Err(LedgerError::Database(DbError::Unavailable(_))))
                && matches!(two, Err(LedgerError::Database(DbError::Unavailable(_))))
        );
        assert!(database.rows.lock().await.is_empty());
        writer.settle(row(1).into()).await.unwrap();
        assert_eq!(writer.commits(), 1);
    }

    #[tokio::test]
    async fn duplicate_check_survives_lost_connection() {
        let (database, writer) = writer([]);
        writer.settle(row(1).into()).await.unwrap();
        database.failing_reads.store(1, Ordering::Relaxed);
        writer.settle(row(1).into()).await.unwrap();
        database.failing_reads.store(2, Ordering::Relaxed);
        assert!(matches!(
            writer.settle(row(1).into()).await,
            Err(LedgerError::Database(DbError::Unavailable(_)))
        ));
        assert_eq!(database.rows.lock().await.len(), 1);
    }

    #[tokio::test]
    async fn rows_of_tasks_that_can_run_share_the_commit() {
        let (database, writer) = writer([]);
        let (writer, go) = (Arc::new(writer), Arc::new(Notify::new()));
        let mut others = tokio::task::JoinSet::new();
        for number in 1..10 {
            let (writer, go) = (Arc::clone(&writer), Arc::clone(&go));
            others.spawn(async move {
                go.notified().await;
                writer.settle(row(number).into()).await
            });
        }
        // From here on they wait.
        tokio::task::yield_now().await;
        // The writer is woken first, the others after it.
        let (first, ()) = tokio::join!(writer.settle(row(0).into()), async { go.notify_waiters() });
        first.unwrap();
        assert!(others.join_all().await.iter().all(Result::is_ok));
        assert_eq!((writer.commits(), database.rows.lock().await.len()), (1, 10));
    }

    #[tokio::test]
    async fn rows_arriving_during_commit_share_the_next() {
        let (open_gate, gate) = oneshot::channel();
        let (database, writer) = writer([Script::WaitFor(gate)]);
        let writer = Arc::new(writer);
        let first = tokio::spawn({
            let writer = Arc::clone(&writer);
            async move { writer.settle(row(0).into()).await }
        });
        // The first commit is running once it has taken its script entry.
        while !database.turns.lock().await.is_empty() {
            tokio::task::yield_now().await;
        }
        let mut next_pause = tokio::task::JoinSet::new();
        for number in 1..=100 {
            let writer = Arc::clone(&writer);
            next_pause.spawn(async move { writer.settle(row(number).into()).await });
        }
        while writer.queue.capacity() > MAX_QUEUE - 100 {
            tokio::task::yield_now().await;
        }
        assert!(!first.is_finished(), "nobody is answered before the commit");
        open_gate.send(()).unwrap();
        first.await.unwrap().unwrap();
        assert!(next_pause.join_all().await.iter().all(Result::is_ok));
        assert_eq!(writer.commits(), 2);
        assert_eq!(database.rows.lock().await.len(), 101);
    }
}
