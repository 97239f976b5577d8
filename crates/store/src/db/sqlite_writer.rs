//! The thread that writes a SQLite file, many steps per commit.
//!
//! 1. It takes all steps that wait, up to a bound, and runs each in a savepoint of one transaction. A step that fails is undone by
//!    itself. Steps that arrive meanwhile join. Then what is written for many callers at once (`GroupEnd`: the ledger), the end of
//!    the audit chain, and one commit: one flush of the disk for all. Nobody is answered before it.
//! 2. A full disk, an I/O error or a statement whose time is up rolls back the whole transaction. The step that met it gets its
//!    error, and the others run once more without it.
//! 3. A commit that fails answers all with its error. What was written before is read again, the end of the chain included.
//! 4. While another process has the write lock, it polls every millisecond, and each step waits as long as it may. Before each
//!    group, another process that waits may write first (`write_turns`).
//! 5. A step that may take long has a commit of its own.

use super::error_codes::{QueryError, STATEMENT_TIMEOUT, is_busy};
use super::sqlite::{StatementTimer, open_writer};
use super::threads::WaitingJob;
use super::tx::{AuditChain, Driver, Tx};
use super::write_turns::WriteTurns;
use chancery_domain::{Clock, SystemClock, WriterId};
use rusqlite::Connection;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, mpsc, oneshot};

/// Most steps of one commit, and how long steps may join it.
const MAX_STEPS: usize = 256;
const MAX_GROUP_TIME: Duration = Duration::from_millis(10);

/// Most steps that wait. Beyond that, callers wait before they queue theirs.
const MAX_WAITING: usize = 4096;

/// Pause before trying again while another process has the write lock.
const BUSY_POLL: Duration = Duration::from_millis(1);

/// What the writer does for many callers at once, at the end of a commit.
pub(crate) trait GroupEnd: Send {
    /// Takes what waits, in addition to what was taken and not answered. Returns whether there is anything.
    fn take(&mut self) -> bool;

    /// Writes what was taken. It may be called again for the same, if its transaction was lost.
    fn run(&mut self, tx: &mut Tx<'_>);

    /// Answers the callers of what was taken: after the commit, or with the reason why there is none.
    fn answer(&mut self, failure: Option<&QueryError>);
}

pub(super) enum Item {
    Step(WaitingJob),
    /// Something waits for the end of a group.
    Wake,
    Close,
}

/// The way to the writer.
pub(super) struct WriterQueue {
    items: mpsc::Sender<Item>,
    /// Whether another process has the write lock.
    is_blocked: Arc<AtomicBool>,
    ended: Mutex<Option<oneshot::Receiver<()>>>,
}

impl WriterQueue {
    /// Starts the thread. The connection is that which opened the file.
    pub(super) fn start(
        file: &Path,
        connection: Connection,
        writer: WriterId,
        end: Option<Box<dyn GroupEnd>>,
    ) -> io::Result<Self> {
        let (items, queue) = mpsc::channel(MAX_WAITING);
        let (ending, ended) = oneshot::channel();
        let is_blocked = Arc::new(AtomicBool::new(false));
        let timer = StatementTimer::of(&connection).map_err(io::Error::other)?;
        let writer = SqliteWriter {
            file: file.to_owned(),
            open: Some((connection, timer)),
            chain: AuditChain::new(writer),
            end,
            turns: WriteTurns::of(file),
            is_blocked: Arc::clone(&is_blocked),
            queue,
            long_step: None,
        };
        thread::Builder::new().name("db-writer".to_owned()).spawn(move || {
            writer.write();
            let _ = ending.send(());
        })?;
        Ok(Self { items, is_blocked, ended: Mutex::new(Some(ended)) })
    }

    pub(super) async fn push(&self, job: WaitingJob) {
        if let Err(mpsc::error::SendError(Item::Step(job))) = self.items.send(Item::Step(job)).await {
            job.answer(Some(QueryError::Closed));
        }
    }

    /// Has the end of a group run soon. If the queue is full, the writer is awake.
    pub(super) fn wake(&self) {
        let _ = self.items.try_send(Item::Wake);
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed)
    }

    /// Rejects later steps, and returns when those that wait have run.
    pub(super) async fn close(&self) {
        let _ = self.items.send(Item::Close).await;
        if let Some(ended) = self.ended.lock().await.take() {
            let _ = ended.await;
        }
    }
}

struct SqliteWriter {
    file: PathBuf,
    /// `None` after a failure that left it in an unknown state.
    open: Option<(Connection, StatementTimer)>,
    chain: AuditChain,
    end: Option<Box<dyn GroupEnd>>,
    turns: WriteTurns,
    is_blocked: Arc<AtomicBool>,
    queue: mpsc::Receiver<Item>,
    /// Came while a group was running.
    long_step: Option<WaitingJob>,
}

/// The steps of one commit.
#[derive(Default)]
struct Group {
    waiting: VecDeque<WaitingJob>,
    /// Those that have run, and why one must not be committed although it returned `Ok`.
    has_run: Vec<(WaitingJob, Option<QueryError>)>,
    /// Whether more steps may join.
    is_open: bool,
    has_changes: bool,
}

impl Group {
    /// Answers the callers of all steps: after the commit, or with the reason why there is none.
    fn answer(self, failure: Option<&QueryError>) {
        for (job, own_failure) in self.has_run {
            job.answer(failure.cloned().or(own_failure));
        }
        for job in self.waiting {
            job.answer(failure.cloned());
        }
    }
}

/// Why a group's transaction is gone, and who caused it.
struct Lost {
    error: QueryError,
    culprit: Culprit,
}

enum Culprit {
    Step(Box<WaitingJob>),
    End,
    Unknown,
}

impl SqliteWriter {
    fn write(mut self) {
        loop {
            let first = match self.long_step.take() {
                Some(job) => Item::Step(job),
                None => match self.queue.blocking_recv() {
                    Some(item) => item,
                    None => return,
                },
            };
            let mut group = Group { is_open: true, ..Group::default() };
            match first {
                Item::Step(job) => {
                    group.is_open = !is_long(&job);
                    group.waiting.push_back(job);
                }
                Item::Wake => {}
                Item::Close => {
                    self.queue.close();
                    continue;
                }
            }
            // On a busy machine many are about to come, and a commit costs much more than a step.
            thread::yield_now();
            self.turns.let_others_write();
            self.write_group(group);
        }
    }

    /// Runs a group, and answers everybody in it. One whose transaction was lost runs once more.
    fn write_group(&mut self, mut group: Group) {
        let (connection, timer) = match self.connect() {
            Ok(opened) => opened,
            Err(error) => return self.answer_all(group, Some(&error)),
        };
        for is_last_try in [false, true] {
            if !self.begin(&connection, &mut group) {
                break;
            }
            let outcome = self.run_group(&connection, &timer, &mut group);
            timer.stop();
            match outcome {
                Ok(()) => {
                    self.answer_all(std::mem::take(&mut group), None);
                    break;
                }
                Err(Lost { error, culprit }) => {
                    if !connection.is_autocommit() {
                        let _ = connection.execute_batch("ROLLBACK");
                    }
                    self.chain.forget();
                    let may_run_again = !is_last_try && !matches!(culprit, Culprit::Unknown);
                    match culprit {
                        Culprit::Step(job) => {
                            job.answer(Some(error.clone()));
                            if !may_run_again {
                                self.answer_end(Some(&error));
                            }
                        }
                        Culprit::End | Culprit::Unknown => self.answer_end(Some(&error)),
                    }
                    if !may_run_again {
                        std::mem::take(&mut group).answer(Some(&error));
                        break;
                    }
                    let mut again: VecDeque<_> = group.has_run.drain(..).map(|(job, _)| job).collect();
                    again.append(&mut group.waiting);
                    group = Group { waiting: again, ..Group::default() };
                }
            }
        }
        self.is_blocked.store(false, Ordering::Relaxed);
        // A transaction that could not be ended ends with its connection.
        if connection.is_autocommit() {
            self.open = Some((connection, timer));
        }
    }

    fn connect(&mut self) -> Result<(Connection, StatementTimer), QueryError> {
        if let Some(open) = self.open.take() {
            return Ok(open);
        }
        let connection = open_writer(&self.file)?;
        let timer = StatementTimer::of(&connection)?;
        Ok((connection, timer))
    }

    /// Takes the write lock. Steps that may not wait any longer for another process are answered. Returns false if none is left.
    fn begin(&mut self, connection: &Connection, group: &mut Group) -> bool {
        let mut is_blocked = false;
        let mut end_since: Option<Instant> = None;
        loop {
            let error = match begin_immediate(connection) {
                Ok(()) => {
                    if is_blocked {
                        self.turns.stop_waiting();
                        self.is_blocked.store(false, Ordering::Relaxed);
                    }
                    return true;
                }
                Err(error) if is_busy(&error) => error,
                Err(error) => {
                    if is_blocked {
                        self.turns.stop_waiting();
                    }
                    self.answer_all(std::mem::take(group), Some(&error));
                    return false;
                }
            };
            let now = SystemClock.monotonic();
            if !is_blocked {
                is_blocked = true;
                self.is_blocked.store(true, Ordering::Relaxed);
            }
            self.turns.wait();
            for job in std::mem::take(&mut group.waiting) {
                if now.saturating_duration_since(job.since) >= job.lock_limit {
                    job.answer(Some(error.clone()));
                } else if !job.job.is_abandoned() {
                    group.waiting.push_back(job);
                }
            }
            let mut has_end = self.end.as_mut().is_some_and(|end| end.take());
            if has_end && now - *end_since.get_or_insert(now) >= STATEMENT_TIMEOUT {
                self.answer_end(Some(&error));
                (has_end, end_since) = (false, None);
            }
            if group.waiting.is_empty() && !has_end {
                self.turns.stop_waiting();
                return false;
            }
            thread::sleep(BUSY_POLL);
        }
    }

    /// Runs the steps and commits.
    fn run_group(
        &mut self,
        connection: &Connection,
        timer: &StatementTimer,
        group: &mut Group,
    ) -> Result<(), Lost> {
        let joining_until = SystemClock.monotonic() + MAX_GROUP_TIME;
        while let Some(job) = self.next_step(group, joining_until) {
            self.run_step(connection, timer, group, job)?;
        }
        if self.end.as_mut().is_some_and(|end| end.take()) {
            self.run_end(connection, timer)?;
            group.has_changes = true;
        }
        let unknown = |error| Lost { error, culprit: Culprit::Unknown };
        timer.start(STATEMENT_TIMEOUT);
        let mut tx = Tx::new(Driver::Sqlite(connection), self.chain, STATEMENT_TIMEOUT);
        tx.save_chain_head().map_err(unknown)?;
        self.chain = tx.chain;
        timer.stop();
        let end = if group.has_changes { "COMMIT" } else { "ROLLBACK" };
        run(connection, end).map_err(unknown)
    }

    fn next_step(&mut self, group: &mut Group, joining_until: Instant) -> Option<WaitingJob> {
        loop {
            if let Some(job) = group.waiting.pop_front() {
                return Some(job);
            }
            let may_join = group.is_open
                && self.long_step.is_none()
                && group.has_run.len() < MAX_STEPS
                && SystemClock.monotonic() < joining_until;
            if !may_join {
                return None;
            }
            match self.queue.try_recv() {
                Ok(Item::Step(job)) if is_long(&job) => self.long_step = Some(job),
                Ok(Item::Step(job)) => return Some(job),
                Ok(Item::Wake) => {}
                Ok(Item::Close) => self.queue.close(),
                Err(_) => return None,
            }
        }
    }

    fn run_step(
        &mut self,
        connection: &Connection,
        timer: &StatementTimer,
        group: &mut Group,
        mut waiting: WaitingJob,
    ) -> Result<(), Lost> {
        if waiting.job.is_abandoned() {
            return Ok(());
        }
        if let Err(error) = run(connection, "SAVEPOINT step") {
            return Err(Lost { error, culprit: Culprit::Step(Box::new(waiting)) });
        }
        timer.start(waiting.limit);
        let mut tx = Tx::new(Driver::Sqlite(connection), self.chain, waiting.limit);
        let is_kept = waiting.job.run(&mut tx);
        let (failure, chain) = (tx.failure().cloned(), tx.chain);
        timer.stop();
        // A step must not be committed if it overlooked a failure.
        let overlooked = failure.clone().filter(|_| is_kept);
        let is_kept = is_kept && failure.is_none();
        let ended = match (connection.is_autocommit(), is_kept) {
            (true, _) => Err(failure.unwrap_or(QueryError::Panicked)),
            (false, true) => run(connection, "RELEASE step"),
            (false, false) => {
                run(connection, "ROLLBACK TO step").and_then(|()| run(connection, "RELEASE step"))
            }
        };
        if let Err(error) = ended {
            return Err(Lost { error, culprit: Culprit::Step(Box::new(waiting)) });
        }
        if is_kept {
            self.chain = chain;
            group.has_changes = true;
        }
        group.has_run.push((waiting, overlooked));
        Ok(())
    }

    fn run_end(&mut self, connection: &Connection, timer: &StatementTimer) -> Result<(), Lost> {
        let Some(end) = &mut self.end else { return Ok(()) };
        timer.start(STATEMENT_TIMEOUT);
        let mut tx = Tx::new(Driver::Sqlite(connection), self.chain, STATEMENT_TIMEOUT);
        let has_ended = catch_unwind(AssertUnwindSafe(|| end.run(&mut tx))).is_ok();
        let failure = tx.failure().cloned();
        timer.stop();
        if !has_ended || connection.is_autocommit() {
            let error = failure.unwrap_or(QueryError::Panicked);
            return Err(Lost { error, culprit: Culprit::End });
        }
        Ok(())
    }

    /// After the commit, or with the reason why there is none.
    fn answer_all(&mut self, group: Group, failure: Option<&QueryError>) {
        group.answer(failure);
        self.answer_end(failure);
    }

    fn answer_end(&mut self, failure: Option<&QueryError>) {
        if let Some(end) = &mut self.end {
            end.answer(failure);
        }
    }
}

fn is_long(job: &WaitingJob) -> bool {
    job.limit > STATEMENT_TIMEOUT
}

fn begin_immediate(connection: &Connection) -> Result<(), QueryError> {
    run(connection, "BEGIN IMMEDIATE")
}

fn run(connection: &Connection, command: &str) -> Result<(), QueryError> {
    connection.prepare_cached(command)?.execute([])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::DbError;
    use crate::db::sqlite::open_writer;
    use crate::db::{Db, QueryError, SqliteDatabase, Tx, query};
    use chancery_domain::WriterId;
    use std::path::Path;
    use std::time::Duration;
    use tokio::task::JoinSet;

    const ADD: &str = "INSERT INTO numbers (number, text) VALUES ($1, $2)";
    const COUNT: &str = "SELECT COUNT(*) FROM numbers";

    fn open(file: &Path) -> Db {
        let connection = open_writer(file).unwrap();
        SqliteDatabase::start(file, connection, WriterId(7), None).unwrap().into()
    }

    async fn new_file(folder: &Path) -> Db {
        let file = folder.join("numbers.db");
        std::fs::File::create(&file).unwrap();
        let db = open(&file);
        let create = "CREATE TABLE numbers (number INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT";
        db.write(move |tx| query(create).execute(tx)).await.unwrap();
        db
    }

    fn add(tx: &mut Tx<'_>, number: i64, text: &str) -> Result<(), QueryError> {
        query(ADD).bind(number).bind(text).execute(tx).map(drop)
    }

    async fn count(db: &Db) -> i64 {
        db.fetch_one(query(COUNT)).await.unwrap()
    }

    async fn close(db: Db) {
        db.close_reads().await;
        db.close_writes().await;
    }

    #[tokio::test]
    async fn only_failing_steps_of_a_group_are_undone() {
        let folder = tempfile::tempdir().unwrap();
        let db = new_file(folder.path()).await;
        let mut steps = JoinSet::new();
        for number in 1..=60 {
            let db = db.clone();
            steps.spawn(async move {
                db.write(move |tx| {
                    add(tx, number, "x")?;
                    match number % 4 {
                        // The second row has the key of the first.
                        1 => add(tx, number, "y").map_err(DbError::from),
                        2 => Err(DbError::SumTooLarge),
                        3 => panic!("a defect in a step"),
                        _ => Ok(()),
                    }
                })
                .await
            });
        }
        let done = steps.join_all().await;
        assert_eq!(done.iter().filter(|outcome| outcome.is_ok()).count(), 15);
        assert_eq!(count(&db).await, 15);
        close(db).await;
    }

    #[tokio::test]
    async fn full_file_answers_everyone_with_the_truth() {
        let folder = tempfile::tempdir().unwrap();
        let db = new_file(folder.path()).await;
        let set_limit = |pages: &'static str| db.write(move |tx| query(pages).fetch_one::<i64>(tx));
        set_limit("PRAGMA max_page_count = 24").await.unwrap();
        let mut steps = JoinSet::new();
        for number in 1..=200 {
            let db = db.clone();
            steps.spawn(async move { db.write(move |tx| add(tx, number, &"x".repeat(2000))).await });
        }
        let done = steps.join_all().await;
        let stored = done.iter().filter(|outcome| outcome.is_ok()).count();
        let is_full = |error: &QueryError| matches!(DbError::from(error.clone()), DbError::DiskFull(_));
        assert!(done.iter().flat_map(|outcome| outcome.as_ref().err()).all(is_full), "{done:?}");
        assert!(stored < 200, "the file was not full");
        assert_eq!(count(&db).await, stored as i64);
        set_limit("PRAGMA max_page_count = 1000").await.unwrap();
        db.write(|tx| add(tx, 1000, "x")).await.unwrap();
        close(db).await;
    }

    #[tokio::test]
    async fn step_that_runs_too_long_does_not_fail_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let db = new_file(folder.path()).await;
        let endless = "INSERT INTO numbers (number, text) \
            WITH RECURSIVE n (i) AS (SELECT 1000 UNION ALL SELECT i + 1 FROM n) SELECT i, 'x' FROM n";
        let mut steps = JoinSet::new();
        for number in 1..=20 {
            let db = db.clone();
            steps.spawn(async move {
                if number == 10 {
                    let limit = Duration::from_millis(50);
                    db.write_long(limit, move |tx| query(endless).execute(tx).map(drop)).await
                } else {
                    db.write(move |tx| add(tx, number, "x")).await
                }
            });
        }
        let failed: Vec<_> = steps.join_all().await.into_iter().filter_map(Result::err).collect();
        assert!(matches!(failed[..], [QueryError::TimedOut { .. }]), "{failed:?}");
        assert_eq!(count(&db).await, 19);
        close(db).await;
    }

    #[tokio::test]
    async fn another_process_gets_its_turn_beside_a_busy_one() {
        let folder = tempfile::tempdir().unwrap();
        let db = new_file(folder.path()).await;
        let mut load = JoinSet::new();
        for caller in 0..8 {
            let db = db.clone();
            load.spawn(async move {
                for number in 1.. {
                    db.write(move |tx| add(tx, number * 8 + caller, "x")).await.unwrap();
                }
            });
        }
        // A store of its own has a connection of its own, like a process.
        let other = open(&folder.path().join("numbers.db"));
        for number in 1..=20 {
            let added = other.write(move |tx| add(tx, -number, "x"));
            tokio::time::timeout(Duration::from_secs(2), added).await.expect("it waited too long").unwrap();
        }
        load.shutdown().await;
        close(other).await;
        close(db).await;
    }
}
