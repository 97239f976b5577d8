//! Writes settled requests to disk, many per commit.
//! Long because the whole protocol is in one place, with its tests.
//!
//! 1. `settle` puts its row into a bounded queue and waits for the result, up to `SETTLE_TIMEOUT`. From then on the row does
//!    not depend on the caller: if the caller goes away, its row is still written.
//! 2. The writer takes all queued rows, up to a bound, links them into this process's chain and sums them by day. One
//!    transaction writes the rows, the sums and the new chain head, releases the spending reservations, and stores
//!    replies under their idempotency keys: one disk flush for all. Rows that arrive meanwhile form the next batch. Before it
//!    takes them it lets everything run that can: on a busy machine many are about to settle, and a commit costs much more
//!    than a row. On an idle one there is nothing to wait for. On PostgreSQL, the writer is a thread with a connection of its
//!    own. On SQLite, the thread of all writes settles at the end of each group of steps (`ledger/sqlite.rs`).
//! 3. The writer knows the chain head from its last successful commit. After any other outcome it reads the head again. A
//!    transaction that expects another head than the stored one changes nothing.
//! 4. A transaction with an existing request id changes nothing either. Each row is then compared with the stored one.
//!    Equal means settled before, different is `RequestAlreadyBilled`; the other rows are written without it.
//! 5. A batch that violates a rule of the ledger, or whose reservation or claim is gone, is halved until the faulty row
//!    is alone. So only its caller gets the error.
//! 6. When the connection is lost, it is unknown whether the batch was committed. It is sent once more on a new
//!    connection; by (3) and (4) that never bills twice. If that fails too, every caller in the batch gets
//!    `Unavailable`. A read of a stored row is retried once in the same way.

use crate::DbError;
use crate::db::error_codes::{
    RESPONSE_TIMEOUT, is_connection_lost, is_month_invoiced, is_retryable, is_row_error, map_db_error,
    store_closed,
};
use crate::db::{Db, QueryError};
use crate::ledger::batch::Batch;
use crate::{LedgerError, Settlement, StoredReply};
use chancery_domain::{ChainHead, Clock, Month, RequestId, UsageRow, WriterId};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Most rows of a batch.
const MAX_BATCH: usize = 256;

/// Most bytes of stored replies in one batch, unless one alone has more. Log probabilities can make a reply megabytes long, and
/// PostgreSQL rejects a statement of a gigabyte.
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

type Responder = oneshot::Sender<Result<(), LedgerError>>;

#[expect(clippy::large_enum_variant, reason = "nearly every item is a settlement")]
enum QueueItem {
    Settle(PendingSettlement),
    /// Asks whether settlements can be written.
    Probe(Responder),
    /// Rejects what is queued after it.
    Close,
}

/// A settlement and its waiting caller.
struct PendingSettlement {
    settlement: Settlement,
    responder: Responder,
}

pub(crate) struct LedgerWriter {
    queue: mpsc::Sender<QueueItem>,
    pub(super) wake: Arc<WriterWake>,
    pub(super) commits: Arc<AtomicU64>,
    /// Completes when the writer has ended.
    ended: tokio::sync::Mutex<Option<oneshot::Receiver<()>>>,
}

impl LedgerWriter {
    /// The database whose writer settles.
    pub(crate) fn with_db(self, db: Db) -> Self {
        *self.wake.db() = Some(db);
        self
    }

    /// Settles on a thread of its own, for PostgreSQL.
    pub(crate) fn start_thread(
        writer_id: WriterId,
        database: impl LedgerDatabase + Send + 'static,
        clock: impl Clock,
    ) -> io::Result<Self> {
        let (writer, queue, ending) = Self::new();
        let batches = BatchWriter::new(writer_id, Arc::clone(&writer.commits));
        thread::Builder::new().name("ledger-writer".to_owned()).spawn(move || {
            write(queue, batches, database, &clock);
            let _ = ending.send(());
        })?;
        Ok(writer)
    }

    /// Returns the writer, the other end of its queue, and the channel on which the thread says that it has ended.
    pub(super) fn new() -> (Self, BatchQueue, oneshot::Sender<()>) {
        let (queue, receiver) = mpsc::channel(MAX_QUEUE);
        let (ending, ended) = oneshot::channel();
        let writer = Self {
            queue,
            wake: Arc::default(),
            commits: Arc::default(),
            ended: tokio::sync::Mutex::new(Some(ended)),
        };
        (writer, BatchQueue::new(receiver), ending)
    }

    pub(crate) async fn settle(&self, settlement: Settlement) -> Result<(), LedgerError> {
        let row = &settlement.row;
        if row.model.contains('\0') {
            return Err(DbError::NulCharacter { what: "the model's name" }.into());
        }
        if row.request_id.as_str().contains('\0') {
            return Err(DbError::NulCharacter { what: "the request id" }.into());
        }
        self.enqueue(|responder| QueueItem::Settle(PendingSettlement { settlement, responder })).await
    }

    /// Writes as much as settlements do, in their turn, and deletes it again.
    pub(crate) async fn probe_write(&self) -> Result<(), LedgerError> {
        self.enqueue(QueueItem::Probe).await
    }

    async fn enqueue(&self, item: impl FnOnce(Responder) -> QueueItem) -> Result<(), LedgerError> {
        let (responder, response) = oneshot::channel();
        self.queue.send(item(responder)).await.map_err(|_| store_closed())?;
        self.wake.wake();
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
        let mut ended = self.ended.lock().await;
        let Some(ended) = ended.take() else { return };
        let closing = async {
            let _ = self.queue.send(QueueItem::Close).await;
            self.wake.wake();
            ended.await
        };
        match timeout(RESPONSE_TIMEOUT, closing).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => tracing::error!("ledger writer failed"),
            Err(_) => tracing::error!("ledger writer did not end in time"),
        }
    }
}

/// SQLite's writer ends with the last way to it, and it has one itself.
impl Drop for LedgerWriter {
    fn drop(&mut self) {
        self.wake.db().take();
    }
}

/// Wakes SQLite's writer. The thread that writes to PostgreSQL needs no more than the queue.
#[derive(Default)]
pub(super) struct WriterWake {
    /// Whether the writer was woken and has not looked into the queue since. Waking it once is enough.
    is_woken: AtomicBool,
    db: Mutex<Option<Db>>,
}

impl WriterWake {
    pub(super) fn wake(&self) {
        if !self.is_woken.swap(true, Ordering::AcqRel)
            && let Some(db) = &*self.db()
        {
            db.wake_writer();
        }
    }

    /// The writer is about to look into the queue. Whoever comes later wakes it again.
    pub(super) fn reset(&self) {
        self.is_woken.swap(false, Ordering::AcqRel);
    }

    fn db(&self) -> MutexGuard<'_, Option<Db>> {
        self.db.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writer's end of the queue, with the batch that it has taken and not answered.
pub(super) struct BatchQueue {
    receiver: mpsc::Receiver<QueueItem>,
    settlements: Vec<Settlement>,
    /// The callers of the settlements, in their order.
    callers: Vec<Responder>,
    probes: Vec<Responder>,
    reply_bytes: usize,
}

impl BatchQueue {
    fn new(receiver: mpsc::Receiver<QueueItem>) -> Self {
        Self { receiver, settlements: Vec::new(), callers: Vec::new(), probes: Vec::new(), reply_bytes: 0 }
    }

    /// Waits for an item. Returns false once the queue is closed and empty.
    fn wait(&mut self) -> bool {
        match self.receiver.blocking_recv() {
            Some(item) => {
                self.put(item);
                true
            }
            None => false,
        }
    }

    /// Takes what waits, as far as it fits into the batch.
    pub(super) fn take_waiting(&mut self) {
        while self.settlements.len() + self.probes.len() < MAX_BATCH
            && self.reply_bytes < MAX_BATCH_REPLY_BYTES
            && let Ok(item) = self.receiver.try_recv()
        {
            self.put(item);
        }
    }

    fn put(&mut self, item: QueueItem) {
        match item {
            QueueItem::Settle(PendingSettlement { settlement, responder }) => {
                self.reply_bytes += reply_bytes(&settlement);
                self.settlements.push(settlement);
                self.callers.push(responder);
            }
            QueueItem::Probe(responder) => self.probes.push(responder),
            QueueItem::Close => self.receiver.close(),
        }
    }

    /// Whether nothing was taken that is not answered.
    pub(super) fn is_empty(&self) -> bool {
        self.settlements.is_empty() && self.probes.is_empty()
    }

    /// Whether more waits than was taken.
    pub(super) fn has_waiting(&self) -> bool {
        !self.receiver.is_empty()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.receiver.is_closed()
    }

    pub(super) fn settlements(&self) -> &[Settlement] {
        &self.settlements
    }

    pub(super) fn has_probes(&self) -> bool {
        !self.probes.is_empty()
    }

    /// Answers all callers and empties the batch. There is an outcome for each settlement.
    pub(super) fn answer(
        &mut self,
        outcomes: impl IntoIterator<Item = Result<(), LedgerError>>,
        mut probe: impl FnMut() -> Result<(), LedgerError>,
    ) {
        // Callers may have gone away.
        for (responder, outcome) in self.callers.drain(..).zip(outcomes) {
            let _ = responder.send(outcome);
        }
        for responder in self.probes.drain(..) {
            let _ = responder.send(probe());
        }
        self.settlements.clear();
        self.reply_bytes = 0;
    }

    /// `duration` is how long the batch took.
    pub(super) fn record(&self, duration: Duration) {
        metrics::histogram!("chancery_ledger_batch_seconds").record(duration.as_secs_f64());
        metrics::gauge!("chancery_ledger_waiting_rows").set(self.receiver.len() as f64);
    }
}

/// Settles what is queued until the queue is closed and empty. Blocks its thread.
fn write(
    mut queue: BatchQueue,
    mut batches: BatchWriter,
    mut database: impl LedgerDatabase,
    clock: &impl Clock,
) {
    while queue.wait() {
        // Requests run on other threads.
        thread::yield_now();
        queue.take_waiting();
        if queue.is_empty() {
            continue;
        }
        let since = clock.monotonic();
        let outcomes = batches.settle(&mut database, queue.settlements());
        let writer = batches.writer;
        queue.answer(outcomes, || database.probe_write(writer).map_err(|error| map_db_error(&error).into()));
        queue.record(clock.monotonic() - since);
    }
}

/// Writes batches, and knows the end of the chain.
pub(super) struct BatchWriter {
    pub(super) writer: WriterId,
    /// The chain head, while it is certain.
    head: Option<ChainHead>,
    /// Rows that were appended and not counted.
    appended_rows: u64,
    commits: Arc<AtomicU64>,
}

/// Some of a batch's rows, by index, for one transaction.
struct SubBatch {
    indices: Vec<usize>,
    attempts: u32,
}

impl BatchWriter {
    pub(super) fn new(writer: WriterId, commits: Arc<AtomicU64>) -> Self {
        Self { writer, head: None, appended_rows: 0, commits }
    }

    /// What was appended is on disk.
    pub(super) fn committed(&mut self) {
        if self.appended_rows > 0 {
            self.commits.fetch_add(1, Ordering::Relaxed);
            metrics::counter!("chancery_ledger_rows_total").increment(self.appended_rows);
            self.appended_rows = 0;
        }
    }

    /// What was appended since the last commit may be lost. The head is read again.
    pub(super) fn forget(&mut self) {
        (self.head, self.appended_rows) = (None, 0);
    }

    /// Returns the outcome of each settlement.
    pub(super) fn settle(
        &mut self,
        database: &mut impl LedgerDatabase,
        settlements: &[Settlement],
    ) -> Vec<Result<(), LedgerError>> {
        let mut outcomes: Vec<Option<Result<(), LedgerError>>> = Vec::new();
        outcomes.resize_with(settlements.len(), || None);
        let mut waiting: Vec<usize> = (0..settlements.len()).collect();
        while !waiting.is_empty() {
            // Of duplicate requests, the first is written; the others find it stored in the next round.
            let mut requests = HashSet::new();
            let is_first = |index: &usize| requests.insert(&settlements[*index].row.request_id);
            let (indices, duplicates) = waiting.into_iter().partition::<Vec<_>, _>(is_first);
            self.settle_distinct(database, settlements, indices, &mut |index, outcome| {
                outcomes[index] = Some(outcome);
            });
            waiting = duplicates;
        }
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Err(store_closed().into()))).collect()
    }

    /// The indexes are of rows with distinct request ids.
    fn settle_distinct(
        &mut self,
        database: &mut impl LedgerDatabase,
        settlements: &[Settlement],
        indices: Vec<usize>,
        respond: &mut impl FnMut(usize, Result<(), LedgerError>),
    ) {
        let mut parts = split_by_size(settlements, indices);
        while let Some(SubBatch { indices, attempts }) = parts.pop() {
            match self.append(database, settlements, &indices) {
                Ok(AppendOutcome::Appended) => indices.into_iter().for_each(|index| respond(index, Ok(()))),
                Ok(AppendOutcome::DuplicateRequest | AppendOutcome::ChainHeadConflict)
                    if attempts < MAX_ATTEMPTS =>
                {
                    let mut others = Vec::new();
                    for index in indices {
                        match is_stored(database, &settlements[index].row) {
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
                        respond(index, rejection_reason(database, &settlements[index].row, &outcome));
                    }
                }
            }
        }
    }

    /// Adds the rows in one transaction, or changes nothing.
    fn append(
        &mut self,
        database: &mut impl LedgerDatabase,
        settlements: &[Settlement],
        indices: &[usize],
    ) -> Result<AppendOutcome, QueryError> {
        match self.append_once(database, settlements, indices) {
            Err(error) if is_retryable(&error) => {
                tracing::warn!(%error, rows = indices.len(), "ledger write failed, retrying");
                self.append_once(database, settlements, indices)
            }
            outcome => outcome,
        }
    }

    fn append_once<D: LedgerDatabase>(
        &mut self,
        database: &mut D,
        settlements: &[Settlement],
        indices: &[usize],
    ) -> Result<AppendOutcome, QueryError> {
        let before = match self.head.take() {
            Some(head) => head,
            None => database.head(self.writer)?,
        };
        let chosen = indices.iter().map(|index| &settlements[*index]);
        let Ok(batch) = Batch::link(self.writer, before, chosen) else {
            return Ok(AppendOutcome::SumOverflow);
        };
        let outcome = database.append(&batch)?;
        if let AppendOutcome::Appended = outcome {
            self.head = Some(batch.after);
            self.appended_rows += indices.len() as u64;
            if D::COMMITS_BATCHES {
                self.committed();
            }
        }
        Ok(outcome)
    }
}

/// The result for a row that could not be added. It may have been stored before.
fn rejection_reason(
    database: &mut impl LedgerDatabase,
    row: &UsageRow,
    outcome: &Result<AppendOutcome, QueryError>,
) -> Result<(), LedgerError> {
    let request = || row.request_id.clone();
    Err(match outcome {
        Ok(AppendOutcome::ReservationLost | AppendOutcome::ClaimLost) if is_stored(database, row)? => {
            return Ok(());
        }
        // It may have been settled before its month was invoiced.
        Err(error) if is_row_error(error) && is_stored(database, row)? => return Ok(()),
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
        Ok(AppendOutcome::Appended | AppendOutcome::DuplicateRequest | AppendOutcome::ChainHeadConflict) => {
            let why = "the ledger's chain head keeps changing";
            DbError::Unavailable(why.to_owned()).into()
        }
    })
}

/// Whether an equal row is stored; a different one is an error.
fn is_stored(database: &mut impl LedgerDatabase, row: &UsageRow) -> Result<bool, LedgerError> {
    let found = match database.find_row(&row.request_id) {
        Err(error) if is_connection_lost(&error) => {
            tracing::warn!(%error, "ledger connection lost, retrying read");
            database.find_row(&row.request_id)
        }
        outcome => outcome,
    };
    match found.map_err(|error| map_db_error(&error))? {
        Some(found) if found == *row => Ok(true),
        Some(_) => Err(LedgerError::RequestAlreadyBilled(row.request_id.clone())),
        None => Ok(false),
    }
}

/// Bytes of the reply to store, if there is one.
fn reply_bytes(settlement: &Settlement) -> usize {
    settlement.stored_reply.as_ref().map_or(0, StoredReply::content_bytes)
}

/// Parts with at most `MAX_BATCH_REPLY_BYTES` each. The last part comes first, because parts are taken from the end.
fn split_by_size(settlements: &[Settlement], indices: Vec<usize>) -> Vec<SubBatch> {
    let mut parts: Vec<SubBatch> = Vec::with_capacity(1);
    let mut part_bytes = 0_usize;
    for index in indices {
        let bytes = reply_bytes(&settlements[index]);
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
fn may_be_row_error(outcome: &Result<AppendOutcome, QueryError>) -> bool {
    match outcome {
        Ok(AppendOutcome::SumOverflow | AppendOutcome::ReservationLost | AppendOutcome::ClaimLost) => true,
        Ok(_) => false,
        Err(error) => is_row_error(error),
    }
}

/// What the writer needs from a database. A broken connection is dropped before the error is returned.
pub(crate) trait LedgerDatabase {
    /// Whether `append` commits. If not, the whole transaction is committed after the last batch.
    const COMMITS_BATCHES: bool;

    fn head(&mut self, writer: WriterId) -> Result<ChainHead, QueryError>;

    /// Adds rows, sums and the chain head together, or changes nothing.
    fn append(&mut self, batch: &Batch<'_>) -> Result<AppendOutcome, QueryError>;

    fn find_row(&mut self, request: &RequestId) -> Result<Option<UsageRow>, QueryError>;

    /// Writes a [`probe_text`] and deletes it.
    fn probe_write(&mut self, writer: WriterId) -> Result<(), QueryError>;
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

    #[derive(Clone, Default)]
    struct ScriptedDatabase(Arc<Mutex<ScriptedState>>);

    #[derive(Default)]
    struct ScriptedState {
        rows: BTreeMap<String, UsageRow>,
        head: ChainHead,
        turns: VecDeque<Script>,
        /// How many of the next reads of a stored row lose their connection.
        failing_reads: u64,
    }

    fn lost() -> QueryError {
        QueryError::ConnectionLost("connection reset".to_owned())
    }

    impl ScriptedDatabase {
        fn state(&self) -> MutexGuard<'_, ScriptedState> {
            self.0.lock().unwrap()
        }
    }

    impl ScriptedState {
        fn commit(&mut self, batch: &Batch<'_>) -> AppendOutcome {
            if self.head != batch.before {
                return AppendOutcome::ChainHeadConflict;
            }
            if batch.rows.iter().any(|link| self.rows.contains_key(link.row.request_id.as_str())) {
                return AppendOutcome::DuplicateRequest;
            }
            let rows = batch.rows.iter().map(|link| link.row);
            self.rows.extend(rows.map(|row| (row.request_id.to_string(), row.clone())));
            self.head = batch.after;
            AppendOutcome::Appended
        }
    }

    impl LedgerDatabase for ScriptedDatabase {
        const COMMITS_BATCHES: bool = true;

        fn head(&mut self, _: WriterId) -> Result<ChainHead, QueryError> {
            Ok(self.state().head)
        }

        fn append(&mut self, batch: &Batch<'_>) -> Result<AppendOutcome, QueryError> {
            let turn = self.state().turns.pop_front();
            match turn {
                Some(Script::LoseResponse) => {
                    self.state().commit(batch);
                    Err(lost())
                }
                Some(Script::LoseBeforeCommit) => Err(lost()),
                Some(Script::WaitFor(gate)) => {
                    gate.blocking_recv().unwrap();
                    Ok(self.state().commit(batch))
                }
                None => Ok(self.state().commit(batch)),
            }
        }

        fn find_row(&mut self, request: &RequestId) -> Result<Option<UsageRow>, QueryError> {
            let mut state = self.state();
            if state.failing_reads > 0 {
                state.failing_reads -= 1;
                return Err(lost());
            }
            Ok(state.rows.get(request.as_str()).cloned())
        }

        fn probe_write(&mut self, _: WriterId) -> Result<(), QueryError> {
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

    fn scripted(turns: impl IntoIterator<Item = Script>) -> ScriptedDatabase {
        let state = ScriptedState { turns: turns.into_iter().collect(), ..ScriptedState::default() };
        ScriptedDatabase(Arc::new(Mutex::new(state)))
    }

    fn batches() -> BatchWriter {
        BatchWriter::new(WriterId(7), Arc::default())
    }

    /// Settles the rows as one batch.
    fn settle(
        batches: &mut BatchWriter,
        database: &ScriptedDatabase,
        rows: impl IntoIterator<Item = UsageRow>,
    ) -> Vec<Result<(), LedgerError>> {
        let settlements: Vec<Settlement> = rows.into_iter().map(Settlement::from).collect();
        batches.settle(&mut database.clone(), &settlements)
    }

    /// A writer with a thread.
    fn writer(turns: impl IntoIterator<Item = Script>) -> (ScriptedDatabase, LedgerWriter) {
        let database = scripted(turns);
        let writer = LedgerWriter::start_thread(WriterId(7), database.clone(), SystemClock).unwrap();
        (database, writer)
    }

    fn is_unavailable(outcome: &Result<(), LedgerError>) -> bool {
        matches!(outcome, Err(LedgerError::Database(DbError::Unavailable(_))))
    }

    #[test]
    fn lost_commit_response_settles_without_double_billing() {
        let database = scripted([Script::LoseResponse]);
        let outcomes = settle(&mut batches(), &database, [row(1), row(2)]);
        assert!(outcomes.iter().all(Result::is_ok));
        let state = database.state();
        assert_eq!((state.rows.len(), state.head.rows), (2, 2));
    }

    #[test]
    fn moved_chain_head_is_reread() {
        let (database, mut batches) = (scripted([]), batches());
        settle(&mut batches, &database, [row(1)]).remove(0).unwrap();
        let moved = ChainHead::default().with_row(WriterId(7), &row(9));
        database.state().head = moved;
        settle(&mut batches, &database, [row(2)]).remove(0).unwrap();
        assert_eq!(database.state().head, moved.with_row(WriterId(7), &row(2)));
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
        let settled = timeout(10 * SETTLE_TIMEOUT, writer.settle(row(1).into())).await.unwrap();
        assert!(is_unavailable(&settled), "{settled:?}");
        // The clock would skip the wait for the writer's thread.
        tokio::time::resume();
        open_gate.send(()).unwrap();
        writer.settle(row(1).into()).await.unwrap();
        assert_eq!(database.state().rows.len(), 1);
    }

    #[test]
    fn overflowing_batch_is_split() {
        let database = scripted([]);
        let expensive = |number| UsageRow { cost: Nanos(i64::MAX), ..row(number) };
        let outcomes = settle(&mut batches(), &database, [expensive(1), expensive(2), row(3)]);
        assert!(outcomes.iter().all(Result::is_ok));
        assert_eq!(database.state().rows.len(), 3);
    }

    #[test]
    fn duplicates_in_a_batch_are_billed_once() {
        let database = scripted([]);
        let other = UsageRow { model: "other".to_owned(), ..row(1) };
        let outcomes = settle(&mut batches(), &database, [row(1), row(1), other, row(2)]);
        assert!(matches!(&outcomes[..], [Ok(()), Ok(()), Err(LedgerError::RequestAlreadyBilled(_)), Ok(())]));
        let state = database.state();
        assert_eq!((state.rows.len(), state.head.rows), (2, 2));
    }

    #[test]
    fn batch_lost_before_commit_is_retried() {
        let database = scripted([Script::LoseBeforeCommit]);
        settle(&mut batches(), &database, [row(1)]).remove(0).unwrap();
        assert_eq!(database.state().rows.len(), 1);
    }

    #[test]
    fn second_failure_fails_batch_and_writer_continues() {
        let (database, mut batches) =
            (scripted([Script::LoseBeforeCommit, Script::LoseBeforeCommit]), batches());
        let outcomes = settle(&mut batches, &database, [row(1), row(2)]);
        assert!(outcomes.iter().all(is_unavailable), "{outcomes:?}");
        assert!(database.state().rows.is_empty());
        settle(&mut batches, &database, [row(1)]).remove(0).unwrap();
        assert_eq!(batches.commits.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn duplicate_check_survives_lost_connection() {
        let (database, mut batches) = (scripted([]), batches());
        settle(&mut batches, &database, [row(1)]).remove(0).unwrap();
        database.state().failing_reads = 1;
        settle(&mut batches, &database, [row(1)]).remove(0).unwrap();
        database.state().failing_reads = 2;
        assert!(is_unavailable(&settle(&mut batches, &database, [row(1)]).remove(0)));
        assert_eq!(database.state().rows.len(), 1);
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
        while !database.state().turns.is_empty() {
            tokio::task::yield_now().await;
        }
        let mut others = tokio::task::JoinSet::new();
        for number in 1..=100 {
            let writer = Arc::clone(&writer);
            others.spawn(async move { writer.settle(row(number).into()).await });
        }
        while writer.queue.capacity() > MAX_QUEUE - 100 {
            tokio::task::yield_now().await;
        }
        assert!(!first.is_finished(), "nobody is answered before the commit");
        open_gate.send(()).unwrap();
        first.await.unwrap().unwrap();
        assert!(others.join_all().await.iter().all(Result::is_ok));
        assert_eq!(writer.commits(), 2);
        assert_eq!(database.state().rows.len(), 101);
    }

    #[tokio::test]
    async fn closing_writer_settles_what_is_queued_and_rejects_what_follows() {
        let (open_gate, gate) = oneshot::channel();
        let (database, writer) = writer([Script::WaitFor(gate)]);
        let (settled, (), ()) = tokio::join!(writer.settle(row(1).into()), writer.close(), async {
            while !database.state().turns.is_empty() {
                tokio::task::yield_now().await;
            }
            open_gate.send(()).unwrap();
        });
        settled.unwrap();
        writer.close().await;
        assert!(is_unavailable(&writer.settle(row(2).into()).await));
        assert_eq!(database.state().rows.len(), 1);
    }
}
