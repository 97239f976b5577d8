//! Puts settled requests on disk, many to a commit.
//!
//! 1. `settle` puts its row into a bounded queue and waits for the answer. From then on the row no longer depends on
//!    the caller: one that goes away gets no answer, but its row is written.
//! 2. One task takes everything that waits, up to a bound, links the rows into this process's chain, sums them by day,
//!    and writes rows, sums and the chain's new end, removes what the requests had set aside, and keeps the replies of
//!    those that claimed a key, in one transaction: one flush of the disk for all. What comes in meanwhile is the next
//!    batch.
//! 3. The task knows where its chain ends from the last commit that was answered. After anything else it reads the end
//!    anew, and a transaction that follows another end than the stored one changes nothing.
//! 4. A transaction with a request that is there already changes nothing either. Each row is then compared with what
//!    is stored: equal means settled before, different is `RequestAlreadyBilled`; the others are written without it.
//! 5. A batch that breaks a rule of the ledger, or counts on something set aside or claimed that is gone, is halved
//!    until the row at fault stands alone, so that only its caller gets the error.
//! 6. When the connection breaks, nobody knows whether the batch was committed. It is sent once more on a fresh
//!    connection; by (3) and (4) that never bills twice. If that fails too, everyone in the batch gets `Unavailable`. A
//!    look at what is stored is repeated once in the same way.
//! 7. Where other processes get their turn to write only between two commits, the writer leaves gaps (`gaps`).

use crate::DbError;
use crate::db::error_codes::{
    closed, explain, is_connection_lost, is_month_invoiced, is_the_rows_fault, is_worth_repeating,
};
use crate::ledger::batch::Batch;
use crate::ledger::write_gaps::Gaps;
use crate::{LedgerError, Settlement};
use async_trait::async_trait;
use chancery_domain::{ChainHead, Clock, Month, RequestId, UsageRow, WriterId};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Mutex, Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

/// Most rows in one commit.
pub(crate) const MAX_BATCH: usize = 256;

/// Most rows that wait while a commit is under way; past it, `settle` waits before it hands over its row.
const MAX_QUEUE: usize = 4096;

/// How often rows are written again because the chain's end, or another row, was not what it had been just before.
/// Only another process that uses the same writer's number could make it more than one.
const MAX_TRIES: u32 = 4;

/// A settlement with the caller who waits for it.
struct Waiting {
    settlement: Settlement,
    answer: oneshot::Sender<Result<(), LedgerError>>,
}

pub(crate) struct LedgerWriter {
    queue: mpsc::Sender<Waiting>,
    closing: Arc<Notify>,
    commits: Arc<AtomicU64>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl LedgerWriter {
    pub(crate) fn start(writer: WriterId, database: impl LedgerDatabase, clock: impl Clock) -> Self {
        let (queue, waiting) = mpsc::channel(MAX_QUEUE);
        let closing = Arc::new(Notify::new());
        let commits = Arc::new(AtomicU64::new(0));
        let batches = Batches { writer, head: None, database, clock, commits: Arc::clone(&commits) };
        let task = tokio::spawn(batches.write(waiting, Arc::clone(&closing)));
        Self { queue, closing, commits, task: Mutex::new(Some(task)) }
    }

    pub(crate) async fn settle(&self, settlement: Settlement) -> Result<(), LedgerError> {
        let row = &settlement.row;
        if row.model.contains('\0') {
            return Err(DbError::NulCharacter { what: "the model's name" }.into());
        }
        if row.request_id.as_str().contains('\0') {
            return Err(DbError::NulCharacter { what: "the request id" }.into());
        }
        let (answer, answered) = oneshot::channel();
        self.queue.send(Waiting { settlement, answer }).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Writes what is queued, then ends. Whoever calls it a second time waits for the same end.
    pub(crate) async fn close(&self) {
        self.closing.notify_one();
        let mut task = self.task.lock().await;
        if let Some(task) = task.take()
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the ledger's writer ended early");
        }
    }
}

struct Batches<D, C> {
    writer: WriterId,
    /// Where the chain ends, as long as that is certain.
    head: Option<ChainHead>,
    database: D,
    clock: C,
    commits: Arc<AtomicU64>,
}

/// Some of a batch's rows, by their place in it, on their way into one transaction.
struct Part {
    places: Vec<usize>,
    tries: u32,
}

impl<D: LedgerDatabase, C: Clock> Batches<D, C> {
    async fn write(mut self, mut queue: mpsc::Receiver<Waiting>, closing: Arc<Notify>) {
        let mut batch = Vec::with_capacity(MAX_BATCH);
        let mut open = true;
        let mut gaps = Gaps::default();
        let mut free_since = self.clock.monotonic();
        loop {
            tokio::select! {
                taken = queue.recv_many(&mut batch, MAX_BATCH) => {
                    if taken == 0 {
                        return;
                    }
                }
                () = closing.notified(), if open => {
                    // No more comes in from here on; what is queued is still taken above.
                    queue.close();
                    open = false;
                    continue;
                }
            }
            let mut held_since = self.clock.monotonic();
            gaps.free_for(held_since - free_since);
            if D::LEAVES_GAPS
                && let Some(rest) = gaps.rest()
            {
                tokio::time::sleep(rest).await;
                // What came in meanwhile comes along.
                while batch.len() < MAX_BATCH
                    && let Ok(waiting) = queue.try_recv()
                {
                    batch.push(waiting);
                }
                let rested_until = self.clock.monotonic();
                gaps.free_for(rested_until - held_since);
                held_since = rested_until;
            }
            let (settlements, answers): (Vec<_>, Vec<_>) =
                batch.drain(..).map(|waiting| (waiting.settlement, Some(waiting.answer))).unzip();
            self.settle_batch(&settlements, answers).await;
            free_since = self.clock.monotonic();
            metrics::histogram!("chancery_ledger_batch_seconds")
                .record((free_since - held_since).as_secs_f64());
            metrics::gauge!("chancery_ledger_waiting_rows").set(queue.len() as f64);
            gaps.held_for(free_since - held_since);
        }
    }

    async fn settle_batch(
        &mut self,
        settlements: &[Settlement],
        mut answers: Vec<Option<oneshot::Sender<Result<(), LedgerError>>>>,
    ) {
        let mut answer = |place: usize, outcome: Result<(), LedgerError>| {
            if let Some(waiting) = answers[place].take() {
                // A caller that went away needs no answer.
                let _ = waiting.send(outcome);
            }
        };
        let mut waiting: Vec<usize> = (0..settlements.len()).collect();
        while !waiting.is_empty() {
            // The same request twice: the first is written, and the others meet it there on the next round.
            let mut requests = HashSet::new();
            let is_first = |place: &usize| requests.insert(&settlements[*place].row.request_id);
            let (places, twins) = waiting.into_iter().partition::<Vec<_>, _>(is_first);
            self.settle_distinct(settlements, places, &mut answer).await;
            waiting = twins;
        }
    }

    /// The places are of rows with different request ids.
    async fn settle_distinct(
        &mut self,
        settlements: &[Settlement],
        places: Vec<usize>,
        answer: &mut (impl FnMut(usize, Result<(), LedgerError>) + Send),
    ) {
        let mut parts = vec![Part { places, tries: 1 }];
        while let Some(Part { places, tries }) = parts.pop() {
            match self.append(settlements, &places).await {
                Ok(Appended::All) => places.into_iter().for_each(|place| answer(place, Ok(()))),
                Ok(Appended::NoneSinceOneIsThere | Appended::NoneSinceTheEndMoved) if tries < MAX_TRIES => {
                    let mut others = Vec::new();
                    for place in places {
                        match self.is_stored(&settlements[place].row).await {
                            Ok(true) => answer(place, Ok(())),
                            Ok(false) => others.push(place),
                            Err(error) => answer(place, Err(error)),
                        }
                    }
                    if !others.is_empty() {
                        parts.push(Part { places: others, tries: tries + 1 });
                    }
                }
                outcome if may_be_one_rows_fault(&outcome) && places.len() > 1 => {
                    parts.extend(halves(places));
                }
                outcome => {
                    for place in places {
                        answer(place, self.why_not(&settlements[place].row, &outcome).await);
                    }
                }
            }
        }
    }

    /// What to answer where the row could not be added: it may have been there before.
    async fn why_not(
        &self,
        row: &UsageRow,
        outcome: &Result<Appended, sqlx::Error>,
    ) -> Result<(), LedgerError> {
        let request = || row.request_id.clone();
        Err(match outcome {
            Ok(Appended::NoneSinceItsReservationIsGone | Appended::NoneSinceItsClaimIsGone)
                if self.is_stored(row).await? =>
            {
                return Ok(());
            }
            // Its month may have been invoiced since.
            Err(error) if is_the_rows_fault(error) && self.is_stored(row).await? => return Ok(()),
            Ok(Appended::NoneSinceItsReservationIsGone) => LedgerError::ReservationGone(request()),
            Ok(Appended::NoneSinceItsClaimIsGone) => LedgerError::ClaimGone(request()),
            Ok(Appended::NoneSinceTheSumIsTooLarge) => DbError::SumTooLarge.into(),
            Err(error) if is_month_invoiced(error) => {
                LedgerError::MonthInvoiced { request: request(), month: Month::of(row.at) }
            }
            Err(error) if is_the_rows_fault(error) => {
                LedgerError::LedgerRefused { request: request(), why: error.to_string() }
            }
            Err(error) => explain(error).into(),
            Ok(Appended::All | Appended::NoneSinceOneIsThere | Appended::NoneSinceTheEndMoved) => {
                let why = "the end of the ledger's chain does not stay where it is";
                DbError::Unavailable(why.to_owned()).into()
            }
        })
    }

    /// Adds the rows in one commit, or changes nothing.
    async fn append(
        &mut self,
        settlements: &[Settlement],
        places: &[usize],
    ) -> Result<Appended, sqlx::Error> {
        match self.append_once(settlements, places).await {
            Err(error) if is_worth_repeating(&error) => {
                tracing::warn!(%error, rows = places.len(), "the ledger's rows were not written; writing them again");
                self.append_once(settlements, places).await
            }
            outcome => outcome,
        }
    }

    async fn append_once(
        &mut self,
        settlements: &[Settlement],
        places: &[usize],
    ) -> Result<Appended, sqlx::Error> {
        let before = match self.head.take() {
            Some(head) => head,
            None => self.database.head(self.writer).await?,
        };
        let chosen = places.iter().map(|place| &settlements[*place]);
        let Ok(batch) = Batch::linked(self.writer, before, chosen) else {
            return Ok(Appended::NoneSinceTheSumIsTooLarge);
        };
        let outcome = self.database.append(&batch).await?;
        if let Appended::All = outcome {
            self.head = Some(batch.after);
            self.commits.fetch_add(1, Ordering::Relaxed);
            metrics::counter!("chancery_ledger_rows_total").increment(places.len() as u64);
        }
        Ok(outcome)
    }

    /// Whether the row is stored as it is; one that is stored otherwise is an error.
    async fn is_stored(&self, row: &UsageRow) -> Result<bool, LedgerError> {
        let stored = match self.database.stored(&row.request_id).await {
            Err(error) if is_connection_lost(&error) => {
                tracing::warn!(%error, "the ledger's connection broke; looking again on a new one");
                self.database.stored(&row.request_id).await
            }
            outcome => outcome,
        };
        match stored.map_err(|error| explain(&error))? {
            Some(stored) if stored == *row => Ok(true),
            Some(_) => Err(LedgerError::RequestAlreadyBilled(row.request_id.clone())),
            None => Ok(false),
        }
    }
}

/// The second half first, for parts are taken from the end.
fn halves(mut places: Vec<usize>) -> [Part; 2] {
    let second = places.split_off(places.len() / 2);
    [Part { places: second, tries: 1 }, Part { places, tries: 1 }]
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Appended {
    All,
    NoneSinceOneIsThere,
    NoneSinceTheEndMoved,
    NoneSinceTheSumIsTooLarge,
    NoneSinceItsReservationIsGone,
    NoneSinceItsClaimIsGone,
}

/// Whether some of the batch may pass without the others.
fn may_be_one_rows_fault(outcome: &Result<Appended, sqlx::Error>) -> bool {
    match outcome {
        Ok(
            Appended::NoneSinceTheSumIsTooLarge
            | Appended::NoneSinceItsReservationIsGone
            | Appended::NoneSinceItsClaimIsGone,
        ) => true,
        Ok(_) => false,
        Err(error) => is_the_rows_fault(error),
    }
}

/// What the writer needs of a database. A connection that broke is let go before the error is returned.
#[async_trait]
pub(crate) trait LedgerDatabase: Send + Sync + 'static {
    /// Whether other processes can write only while this one is between two commits.
    const LEAVES_GAPS: bool;

    /// Where the writer's chain ends.
    async fn head(&self, writer: WriterId) -> Result<ChainHead, sqlx::Error>;

    /// Adds rows, sums and the chain's end in one transaction, or changes nothing.
    async fn append(&self, batch: &Batch<'_>) -> Result<Appended, sqlx::Error>;

    async fn stored(&self, request: &RequestId) -> Result<Option<UsageRow>, sqlx::Error>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{AccountId, HowEnded, KeyId, Nanos, Prices, SystemClock, TokenPrice, UnixMillis};
    use std::collections::{BTreeMap, VecDeque};
    use std::io;

    /// What a scripted insert does; without a script it succeeds.
    enum Turn {
        LosesTheAnswer,
        LosesTheRows,
        WaitsFor(oneshot::Receiver<()>),
    }

    #[derive(Default)]
    struct Scripted {
        rows: Mutex<BTreeMap<String, UsageRow>>,
        head: Mutex<ChainHead>,
        turns: Mutex<VecDeque<Turn>>,
        /// How many of the next looks at a stored row lose their connection.
        lost_looks: AtomicU64,
    }

    fn lost() -> sqlx::Error {
        sqlx::Error::Io(io::Error::from(io::ErrorKind::ConnectionReset))
    }

    impl Scripted {
        async fn commit(&self, batch: &Batch<'_>) -> Appended {
            let (mut stored, mut head) = (self.rows.lock().await, self.head.lock().await);
            if *head != batch.before {
                return Appended::NoneSinceTheEndMoved;
            }
            if batch.rows.iter().any(|linked| stored.contains_key(linked.row.request_id.as_str())) {
                return Appended::NoneSinceOneIsThere;
            }
            let rows = batch.rows.iter().map(|linked| linked.row);
            stored.extend(rows.map(|row| (row.request_id.to_string(), row.clone())));
            *head = batch.after;
            Appended::All
        }
    }

    #[async_trait]
    impl LedgerDatabase for Arc<Scripted> {
        const LEAVES_GAPS: bool = true;

        async fn head(&self, _: WriterId) -> Result<ChainHead, sqlx::Error> {
            Ok(*self.head.lock().await)
        }

        async fn append(&self, batch: &Batch<'_>) -> Result<Appended, sqlx::Error> {
            let turn = self.turns.lock().await.pop_front();
            match turn {
                Some(Turn::LosesTheAnswer) => {
                    self.commit(batch).await;
                    Err(lost())
                }
                Some(Turn::LosesTheRows) => Err(lost()),
                Some(Turn::WaitsFor(gate)) => {
                    gate.await.unwrap();
                    Ok(self.commit(batch).await)
                }
                None => Ok(self.commit(batch).await),
            }
        }

        async fn stored(&self, request: &RequestId) -> Result<Option<UsageRow>, sqlx::Error> {
            let still_lost = |looks: u64| looks.checked_sub(1);
            if self.lost_looks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, still_lost).is_ok() {
                return Err(lost());
            }
            Ok(self.rows.lock().await.get(request.as_str()).cloned())
        }
    }

    fn row(number: u32) -> UsageRow {
        UsageRow {
            request_id: RequestId::from_stored(format!("req_{number}")),
            account: AccountId(1),
            key: KeyId(1),
            model: "m".to_owned(),
            input_tokens: number,
            output_tokens: 0,
            prices: Prices {
                input: TokenPrice::from_nanos_per_token(1),
                output: TokenPrice::from_nanos_per_token(2),
            },
            cost: Nanos(number.into()),
            at: UnixMillis(0),
            ended: HowEnded::Complete,
        }
    }

    fn writer(turns: impl IntoIterator<Item = Turn>) -> (Arc<Scripted>, LedgerWriter) {
        let turns = Mutex::new(turns.into_iter().collect());
        let database = Arc::new(Scripted { turns, ..Scripted::default() });
        (Arc::clone(&database), LedgerWriter::start(WriterId(7), database, SystemClock))
    }

    #[tokio::test]
    async fn a_commit_whose_answer_is_lost_is_settled_and_not_billed_twice() {
        let (database, writer) = writer([Turn::LosesTheAnswer]);
        let (one, two) = tokio::join!(writer.settle(row(1).into()), writer.settle(row(2).into()));
        assert!(one.is_ok() && two.is_ok());
        assert_eq!(database.rows.lock().await.len(), 2);
        assert_eq!(database.head.lock().await.rows, 2);
    }

    #[tokio::test]
    async fn a_chain_that_ends_elsewhere_than_remembered_is_followed_from_there() {
        let (database, writer) = writer([]);
        writer.settle(row(1).into()).await.unwrap();
        let moved = ChainHead::default().followed_by(WriterId(7), &row(9));
        *database.head.lock().await = moved;
        writer.settle(row(2).into()).await.unwrap();
        assert_eq!(*database.head.lock().await, moved.followed_by(WriterId(7), &row(2)));
    }

    #[tokio::test]
    async fn costs_that_are_too_large_together_go_into_commits_of_their_own() {
        let (database, writer) = writer([]);
        let dear = |number| UsageRow { cost: Nanos(i64::MAX), ..row(number) };
        let (one, two, three) = tokio::join!(
            writer.settle(dear(1).into()),
            writer.settle(dear(2).into()),
            writer.settle(row(3).into())
        );
        assert!(one.is_ok() && two.is_ok() && three.is_ok());
        assert_eq!(database.rows.lock().await.len(), 3);
    }

    #[tokio::test]
    async fn a_batch_that_is_lost_before_its_commit_is_sent_again() {
        let (database, writer) = writer([Turn::LosesTheRows]);
        writer.settle(row(1).into()).await.unwrap();
        assert_eq!(database.rows.lock().await.len(), 1);
    }

    #[tokio::test]
    async fn a_second_failure_reaches_everyone_and_the_writer_goes_on() {
        let (database, writer) = writer([Turn::LosesTheRows, Turn::LosesTheRows]);
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
    async fn a_connection_lost_while_comparing_does_not_fail_a_settled_row() {
        let (database, writer) = writer([]);
        writer.settle(row(1).into()).await.unwrap();
        database.lost_looks.store(1, Ordering::Relaxed);
        writer.settle(row(1).into()).await.unwrap();
        database.lost_looks.store(2, Ordering::Relaxed);
        assert!(matches!(
            writer.settle(row(1).into()).await,
            Err(LedgerError::Database(DbError::Unavailable(_)))
        ));
        assert_eq!(database.rows.lock().await.len(), 1);
    }

    #[tokio::test]
    async fn what_comes_in_during_a_commit_shares_the_next() {
        let (open_gate, gate) = oneshot::channel();
        let (database, writer) = writer([Turn::WaitsFor(gate)]);
        let writer = Arc::new(writer);
        let first = tokio::spawn({
            let writer = Arc::clone(&writer);
            async move { writer.settle(row(0).into()).await }
        });
        // The first commit is under way once its turn is taken.
        while !database.turns.lock().await.is_empty() {
            tokio::task::yield_now().await;
        }
        let mut rest = tokio::task::JoinSet::new();
        for number in 1..=100 {
            let writer = Arc::clone(&writer);
            rest.spawn(async move { writer.settle(row(number).into()).await });
        }
        while writer.queue.capacity() > MAX_QUEUE - 100 {
            tokio::task::yield_now().await;
        }
        assert!(!first.is_finished(), "nobody is answered before the commit");
        open_gate.send(()).unwrap();
        first.await.unwrap().unwrap();
        assert!(rest.join_all().await.iter().all(Result::is_ok));
        assert_eq!(writer.commits(), 2);
        assert_eq!(database.rows.lock().await.len(), 101);
    }
}
