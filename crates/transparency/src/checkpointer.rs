//! The checkpointer; the protocol is in the crate's documentation. It reads rows after they were committed, so no settlement
//! waits for it. It remembers a few hashes, however many rows there are.

use crate::destinations::Destinations;
use crate::error::LogError;
use crate::folder::CheckpointFolder;
use crate::hashes::{first_missing, prove_consistency, read_tree};
use chancery_domain::{Clock, Day, LogName};
use chancery_store::{LogAppend, LogNode, LogSegment, LogStore, StoredCheckpoint};
use chancery_tlog::{
    Checkpoint, CheckpointError, CompactTree, SigningKey, TileNode, VerifierKeys, is_consistent,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How much a change to the newest rows can be unnoticed.
pub const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);

/// A little less than the interval, so that the node that had the task last does not miss its next turn by a moment.
const CLAIM: Duration = Duration::from_secs(55);

const TASK: &str = "checkpoint";

/// After so many runs without a new checkpoint, a node no longer relies on the one that has the task: its disk may be full.
const MAX_IDLE_RUNS: u32 = 5;

/// Rows per page.
const PAGE_ROWS: u64 = 2_000;

/// Rows that one transaction logs. Their 256 nodes keep SQLite's write lock for a few milliseconds.
const MAX_ROWS_PER_APPEND: u64 = 65_536;

/// Writers that one transaction logs.
const MAX_WRITERS_PER_APPEND: u32 = 500;

/// Checkpoints of other nodes per page.
const MAX_COPIED: u32 = 1_000;

pub struct Checkpointer {
    store: LogStore,
    folder: CheckpointFolder,
    key: SigningKey,
    keys: VerifierKeys,
    clock: Arc<dyn Clock>,
    destinations: Destinations,
    /// Locked while a run is under way.
    progress: Mutex<BTreeMap<LogName, Progress>>,
}

/// How far this node is with one log.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The newest checkpoint in the folder.
    last: Option<Checkpoint>,
    /// Checkpoints up to this size were copied from the database. Those of keys that are not known here are left there.
    copied_size: u64,
}

impl Progress {
    fn size(&self) -> u64 {
        self.last.map_or(0, |last| last.size)
    }
}

/// What a run has done for one log.
#[derive(Debug, Default)]
struct Extended {
    note: Option<String>,
    /// A row that is missing keeps the later rows of its writer out of the log, and no others.
    missing: Option<LogError>,
}

/// The next rows of a log.
struct Addition {
    /// With these rows.
    tree: CompactTree,
    append: LogAppend,
    missing: Option<LogError>,
    /// Whether more rows may be waiting.
    is_full: bool,
}

impl Checkpointer {
    /// `keys` are those whose checkpoints in the folder are trusted, the signing key's own among them.
    pub fn new(
        store: LogStore,
        folder: CheckpointFolder,
        key: SigningKey,
        keys: VerifierKeys,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, LogError> {
        let of_log =
            |(log, last): (LogName, Checkpoint)| (log, Progress { last: Some(last), copied_size: last.size });
        let last = folder.last(&keys, Day::containing(clock.now()))?;
        let progress = Mutex::new(last.into_iter().map(of_log).collect());
        let destinations = Destinations::default();
        Ok(Self { store, folder, key, keys, clock, destinations, progress })
    }

    /// Also sends new checkpoints there.
    pub fn with_destinations(self, destinations: Destinations) -> Self {
        Self { destinations, ..self }
    }

    /// Runs until it is stopped. The last checkpoint is the caller's, once nothing is written any more.
    pub async fn run(&self, stop: CancellationToken) {
        // A destination that does not answer does not delay the next run.
        let mut interval = tokio::time::interval(CHECKPOINT_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut idle_runs = 0;
        loop {
            tokio::select! {
                _ = interval.tick() => {}
                () = stop.cancelled() => return,
            }
            tokio::select! {
                () = self.run_if_due(&mut idle_runs) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    async fn run_if_due(&self, idle_runs: &mut u32) {
        let claim = self.store.alerts.claim_periodic_task(TASK, self.clock.now(), CLAIM).await;
        let is_due = match claim {
            Ok(true) => true,
            Ok(false) => {
                let before = self.covered_rows().await;
                self.copy_all().await;
                *idle_runs = if self.covered_rows().await > before { 0 } else { *idle_runs + 1 };
                *idle_runs >= MAX_IDLE_RUNS
            }
            Err(error) => {
                tracing::warn!(%error, "checkpoint failed, retrying");
                false
            }
        };
        if is_due {
            *idle_runs = 0;
            self.checkpoint().await;
        }
    }

    /// Rows of the newest checkpoints in the folder.
    async fn covered_rows(&self) -> u64 {
        self.progress.lock().await.values().map(Progress::size).sum()
    }

    /// Logs all new rows and signs a checkpoint of each log that has grown. Returns the new checkpoints. Errors are logged: one log
    /// does not wait for the other.
    pub async fn checkpoint(&self) -> Vec<String> {
        let notes = self.sign_all().await;
        let now = self.clock.now();
        for (log, note) in &notes {
            self.destinations.send(*log, note, now).await;
        }
        notes.into_iter().map(|(_, note)| note).collect()
    }

    async fn sign_all(&self) -> Vec<(LogName, String)> {
        let mut progress = self.progress.lock().await;
        let mut notes = Vec::new();
        for log in LogName::ALL {
            let progress = progress.entry(log).or_default();
            let extended = match self.copy(log, progress).await {
                Ok(()) => self.extend(log, progress).await,
                Err(error) => Err(error),
            };
            match extended {
                Ok(Extended { note, missing }) => {
                    notes.extend(note.map(|note| (log, note)));
                    if let Some(error) = missing {
                        report(log, &error);
                    }
                }
                Err(error) => report(log, &error),
            }
        }
        notes
    }

    async fn copy_all(&self) {
        let mut progress = self.progress.lock().await;
        for log in LogName::ALL {
            if let Err(error) = self.copy(log, progress.entry(log).or_default()).await {
                report(log, &error);
            }
        }
    }

    /// Copies checkpoints that other nodes have signed into this node's folder.
    async fn copy(&self, log: LogName, progress: &mut Progress) -> Result<(), LogError> {
        loop {
            let page = self.store.reader.checkpoints_after(log, progress.copied_size, MAX_COPIED).await?;
            let Some(end) = page.last().map(|newest| newest.size) else { return Ok(()) };
            let mut newest = None;
            let mut by_day: BTreeMap<Day, Vec<String>> = BTreeMap::new();
            for StoredCheckpoint { size, note, at } in page {
                match self.open(log, size, &note) {
                    Ok(checkpoint) if size > progress.size() => {
                        newest = Some(checkpoint);
                        by_day.entry(Day::containing(at)).or_default().push(note);
                    }
                    Ok(_) => {}
                    Err(LogError::Checkpoint { error: CheckpointError::UnknownKey, .. }) => {
                        tracing::warn!(%log, size, "checkpoint of an unknown key: give all nodes the same checkpoint.key");
                    }
                    Err(error) => return Err(error),
                }
            }
            if let Some(newest) = newest {
                if let Some(last) = progress.last {
                    self.check_consistency(log, newest, last).await?;
                }
                for (day, notes) in by_day {
                    self.append_to_folder(notes, day).await?;
                }
                progress.last = Some(newest);
            }
            progress.copied_size = end;
        }
    }

    fn open(&self, log: LogName, size: u64, note: &str) -> Result<Checkpoint, LogError> {
        let opened = match self.keys.open(note) {
            Ok(checkpoint) if (checkpoint.log, checkpoint.size) == (log, size) => Ok(checkpoint),
            Ok(_) => Err(CheckpointError::OtherOrigin),
            Err(error) => Err(error),
        };
        opened.map_err(|error| LogError::Checkpoint { log, size, error })
    }

    async fn check_consistency(
        &self,
        log: LogName,
        new: Checkpoint,
        old: Checkpoint,
    ) -> Result<(), LogError> {
        let proof = prove_consistency(&self.store.reader, log, new.size, old.size).await?;
        match is_consistent(&proof, (new.size, new.root), (old.size, old.root)) {
            true => Ok(()),
            false => Err(LogError::Inconsistent { log, size: old.size }),
        }
    }

    async fn extend(&self, log: LogName, progress: &mut Progress) -> Result<Extended, LogError> {
        let size = self.store.reader.log_size(log).await?;
        if progress.size() > size {
            let folder = self.folder.path().to_owned();
            return Err(LogError::Shrunk { log, found: size, expected: progress.size(), folder });
        }
        let mut tree = read_tree(&self.store.reader, log, size).await?;
        if let Some(last) = progress.last {
            let new = Checkpoint { log, size, root: tree.root() };
            self.check_consistency(log, new, last).await?;
        }
        let missing = loop {
            let Addition { tree: grown, append, missing, is_full } = self.next_addition(log, &tree).await?;
            if append.segments.is_empty() {
                break missing;
            }
            if !self.store.writer.append_to_log(&append).await? {
                // Another node was faster. Its rows are in the next run.
                return Ok(Extended::default());
            }
            tree = grown;
            // Under load there are always a few more rows. They are in the next checkpoint.
            if !is_full {
                break missing;
            }
        };
        if tree.size() <= progress.size() {
            return Ok(Extended { note: None, missing });
        }
        let checkpoint = Checkpoint { log, size: tree.size(), root: tree.root() };
        let note = self.key.sign(log, checkpoint.size, checkpoint.root).map_err(LogError::Signature)?;
        let now = self.clock.now();
        // The database first: a checkpoint that is only there is copied to the folder by the next run.
        self.store.writer.record_checkpoint(log, checkpoint.size, &note, now).await?;
        self.append_to_folder(vec![note.clone()], Day::containing(now)).await?;
        *progress = Progress { last: Some(checkpoint), copied_size: checkpoint.size };
        metrics::counter!("chancery_checkpoints_total", "log" => log.as_str()).increment(1);
        Ok(Extended { note: Some(note), missing })
    }

    /// The next rows of the log, and the tree with them.
    async fn next_addition(&self, log: LogName, tree: &CompactTree) -> Result<Addition, LogError> {
        let (size, mut tree) = (tree.size(), tree.clone());
        let (mut segments, mut nodes, mut missing) = (Vec::new(), Vec::new(), None);
        let writers = self.store.writer.unlogged_rows(log, MAX_WRITERS_PER_APPEND).await?;
        let has_more_writers = writers.len() >= MAX_WRITERS_PER_APPEND as usize;
        for unlogged in writers {
            let (writer, first_index) = (unlogged.writer, tree.size());
            let left = MAX_ROWS_PER_APPEND - (first_index - size);
            let end = unlogged.rows.min(unlogged.logged + left);
            let mut position = unlogged.logged;
            while position < end {
                let positions = position..end.min(position + PAGE_ROWS);
                let leaves = self.store.reader.log_leaves(log, writer, positions.clone()).await?;
                let gap = first_missing(&leaves, positions.clone());
                for (leaf, expected) in leaves.iter().zip(positions) {
                    if leaf.position != expected || gap == Some(expected) {
                        break;
                    }
                    tree.push(leaf.hash, &mut nodes);
                    position += 1;
                }
                if let Some(position) = gap {
                    missing = missing.or(Some(LogError::MissingRow { log, writer, position }));
                    break;
                }
            }
            if position > unlogged.logged {
                let (first_position, rows) = (unlogged.logged, position - unlogged.logged);
                segments.push(LogSegment { first_index, writer, first_position, rows });
            }
        }
        let node = |TileNode { level, index, hash }: TileNode| LogNode { level, index, hash };
        let nodes = nodes.into_iter().map(node).collect();
        let is_full = has_more_writers || tree.size() - size >= MAX_ROWS_PER_APPEND;
        Ok(Addition { tree, append: LogAppend { log, size, segments, nodes }, missing, is_full })
    }

    /// On a thread that may block, because it waits for the disk.
    async fn append_to_folder(&self, notes: Vec<String>, day: Day) -> Result<(), LogError> {
        let folder = self.folder.clone();
        let written = tokio::task::spawn_blocking(move || folder.append(&notes, day)).await;
        written.unwrap_or_else(|error| {
            let error = std::io::Error::other(error);
            Err(LogError::Folder { path: self.folder.path().to_owned(), error })
        })
    }
}

/// An unreachable database is no evidence of anything.
fn report(log: LogName, error: &LogError) {
    match error {
        LogError::Database(error) => tracing::warn!(%log, %error, "checkpoint failed, retrying"),
        error => {
            metrics::counter!("chancery_checkpoint_failures_total", "log" => log.as_str()).increment(1);
            tracing::error!(%log, %error, "no checkpoint: run `chancery verify`");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{ManualClock, OsRandomness, RateLimits, UnixMillis};
    use chancery_store::{DatabaseUrl, NewAccount, Store};

    #[tokio::test]
    async fn node_signs_if_the_one_with_the_task_does_not() {
        let data = tempfile::tempdir().unwrap();
        let store = Store::open(&DatabaseUrl::sqlite_file(&data.path().join("chancery.db"))).await.unwrap();
        let limits = RateLimits { requests_per_min: 1, tokens_per_min: 1 };
        let new = NewAccount { name: "A".parse().unwrap(), limits, created_at: UnixMillis(0) };
        store.create_account(new).await.unwrap();
        let key = SigningKey::generate("api.example.com", &OsRandomness).ok().unwrap();
        let keys = VerifierKeys::parse(&key.verifier_key_lines().join("\n")).ok().unwrap();
        let folder = CheckpointFolder::open(data.path()).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(UnixMillis(1_794_744_000_000)));
        let now = clock.now();
        let checkpointer = Checkpointer::new(store.logs(), folder, key, keys, clock).ok().unwrap();
        assert!(store.alerts.claim_periodic_task(TASK, now, CLAIM).await.unwrap(), "by another node");
        let mut idle_runs = 0;
        for run in 1..=MAX_IDLE_RUNS {
            assert_eq!(checkpointer.covered_rows().await, 0, "before run {run}");
            checkpointer.run_if_due(&mut idle_runs).await;
        }
        assert!(checkpointer.covered_rows().await > 0, "the audit log has a checkpoint");
        assert_eq!(idle_runs, 0);
        store.close().await;
    }
}
