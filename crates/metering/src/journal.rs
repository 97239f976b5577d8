//! The usage journal: settlements of delivered text that the database did not take, on the local disk.
//!
//! 1. `append` returns once the entry is on disk. From then on the usage is durable, and the reader of a stream gets its end.
//! 2. Entries are written to the ledger when the process starts, and while it runs as soon as the database answers
//!    (`journal_replay`). An entry is removed only after its row was committed. After a crash in between, it is written again,
//!    which changes nothing: the ledger takes a request once.
//! 3. An append adds a line and flushes it. Everything else writes a new file, flushes it and renames it over the old one. So a
//!    crash can damage only the last line, whose append has not returned; it is skipped.
//! 4. An entry that the ledger can never take is moved to `usage-journal.rejected`, for a person to decide.
//! 5. When half of the journal is full, entries are added without log probabilities, and a replay of their replies has none.
//! 6. The file exists only while it has entries. It is owner-only: it has the reply's text if the request has an idempotency key.
//!
//! One process uses the directory at a time; the server's lock on it ensures that.

mod record;
#[cfg(test)]
mod tests;

use crate::limits::{MAX_JOURNAL_BYTES, MAX_JOURNAL_BYTES_WITH_LOGPROBS, MAX_JOURNAL_ENTRIES};
use chancery_domain::{Fingerprint, RequestId, UnixMillis};
use chancery_store::{KeyClaim, Settlement};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// In the data directory. Rejected entries are in the file with the suffix `.rejected`.
pub const JOURNAL_FILE: &str = "usage-journal";
const NEW_FILE: &str = "usage-journal.new";
const REJECTED_FILE: &str = "usage-journal.rejected";

/// A settlement that waits for the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JournalEntry {
    pub(crate) settlement: Settlement,
    /// The request's fingerprint, if it claimed an idempotency key.
    pub(crate) fingerprint: Option<Fingerprint>,
}

impl JournalEntry {
    pub(crate) fn request_id(&self) -> &RequestId {
        &self.settlement.row.request_id
    }

    /// Removes the log probabilities of the stored reply, and returns whether there were any.
    fn remove_logprobs(&mut self) -> bool {
        let stored_reply = self.settlement.stored_reply.as_mut();
        stored_reply.is_some_and(|reply| reply.logprobs.take().is_some())
    }

    /// The claim to the idempotency key, if there is one. Its times are set when it is claimed again.
    pub(crate) fn claim(&self) -> Option<KeyClaim> {
        let (reply, fingerprint) = self.settlement.stored_reply.as_ref().zip(self.fingerprint)?;
        Some(KeyClaim {
            account: self.settlement.row.account,
            key: reply.key.clone(),
            fingerprint,
            request_id: self.request_id().clone(),
            now: UnixMillis(0),
            expires_at: UnixMillis(0),
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot use the usage journal {}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("the usage journal is full")]
    Full,
}

/// What is in the files of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStatus {
    /// Rows that may not be in the ledger yet.
    pub waiting: usize,
    /// Rows that the ledger never took, and damaged lines.
    pub rejected: usize,
}

pub struct Journal {
    directory: PathBuf,
    state: Mutex<State>,
    /// The number of entries. Admission reads it for every request, and must not wait for a disk.
    entry_count: AtomicUsize,
    /// Notified when an entry was added.
    added: Notify,
    /// Held by the one replay that runs.
    pub(crate) replaying: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    entries: BTreeMap<RequestId, JournalEntry>,
    /// The size of the entries in the file.
    bytes: u64,
    /// `None` if the file does not exist, or may end in the middle of a line. The next append then writes a new one.
    file: Option<File>,
}

impl Journal {
    /// Reads the entries that an earlier process left. Damaged lines are moved to the file of rejected entries.
    pub fn open(directory: &Path) -> Result<Self, JournalError> {
        let journal = Self {
            directory: directory.to_owned(),
            state: Mutex::default(),
            entry_count: AtomicUsize::new(0),
            added: Notify::new(),
            replaying: tokio::sync::Mutex::new(()),
        };
        journal.load().map_err(|error| journal.io_error(error))?;
        Ok(journal)
    }

    /// Reads the files without changing them; a server may be using them.
    pub fn status(directory: &Path) -> Result<JournalStatus, JournalError> {
        let read = |name: &str| {
            let path = directory.join(name);
            read_if_exists(&path).map_err(|error| JournalError::Io { path, error })
        };
        let (waiting, rejected) = (record::parse(&read(JOURNAL_FILE)?), read(REJECTED_FILE)?);
        Ok(JournalStatus {
            waiting: waiting.entries.len(),
            rejected: waiting.damaged.len()
                + rejected.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count(),
        })
    }

    /// Returns once the entry is on disk. An entry of the same request is not added again.
    pub(crate) async fn append(self: &Arc<Self>, entry: JournalEntry) -> Result<(), JournalError> {
        self.on_disk(move |journal| journal.append_blocking(entry)).await
    }

    /// For entries whose rows are in the ledger.
    pub(crate) async fn remove(self: &Arc<Self>, requests: Vec<RequestId>) -> Result<(), JournalError> {
        self.on_disk(move |journal| journal.remove_blocking(&requests)).await
    }

    /// Moves an entry that the ledger can never take to the file of rejected entries.
    pub(crate) async fn reject(self: &Arc<Self>, entry: JournalEntry) -> Result<(), JournalError> {
        self.on_disk(move |journal| {
            let line = record::encode(&entry).map_err(io::Error::other);
            line.and_then(|line| journal.add_rejected(line.as_bytes()))
                .map_err(|error| journal.io_error(error))?;
            journal.remove_blocking(&[entry.request_id().clone()])
        })
        .await
    }

    pub(crate) fn entries(&self) -> Vec<JournalEntry> {
        self.state().entries.values().cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.entry_count.load(Ordering::Relaxed)
    }

    pub(crate) async fn wait_until_not_empty(&self) {
        loop {
            let added = self.added.notified();
            if self.len() > 0 {
                return;
            }
            added.await;
        }
    }

    /// Flushing a file blocks. The work goes on when the future is dropped.
    async fn on_disk(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<(), JournalError> + Send + 'static,
    ) -> Result<(), JournalError> {
        let journal = Arc::clone(self);
        let outcome = tokio::task::spawn_blocking(move || work(&journal)).await;
        outcome.unwrap_or_else(|error| Err(self.io_error(io::Error::other(error))))
    }

    fn append_blocking(&self, mut entry: JournalEntry) -> Result<(), JournalError> {
        let encode =
            |entry: &JournalEntry| record::encode(entry).map_err(|error| self.io_error(error.into()));
        let mut line = encode(&entry)?;
        let request_id = entry.request_id().clone();
        let mut state = self.state();
        if state.entries.contains_key(&request_id) {
            return Ok(());
        }
        if state.bytes + line.len() as u64 > MAX_JOURNAL_BYTES_WITH_LOGPROBS && entry.remove_logprobs() {
            line = encode(&entry)?;
        }
        let length = line.len() as u64;
        if state.entries.len() >= MAX_JOURNAL_ENTRIES || state.bytes + length > MAX_JOURNAL_BYTES {
            return Err(JournalError::Full);
        }
        let written = match state.file.take() {
            // The file is put back only after the flush: after a failure it may end in the middle of this line.
            Some(mut file) => file.write_all(line.as_bytes()).and_then(|()| file.sync_data()).map(|()| file),
            None => self.write_new_file(state.entries.values().chain([&entry])),
        };
        state.file = Some(written.map_err(|error| self.io_error(error))?);
        state.bytes += length;
        state.entries.insert(request_id, entry);
        self.entry_count.store(state.entries.len(), Ordering::Relaxed);
        drop(state);
        self.added.notify_waiters();
        Ok(())
    }

    /// If the file cannot be written, the entries stay in it, and the next start writes their rows again, which changes nothing.
    fn remove_blocking(&self, requests: &[RequestId]) -> Result<(), JournalError> {
        let mut state = self.state();
        requests.iter().for_each(|request| drop(state.entries.remove(request)));
        self.entry_count.store(state.entries.len(), Ordering::Relaxed);
        self.rewrite(&mut state).map_err(|error| self.io_error(error))
    }

    fn load(&self) -> io::Result<()> {
        let content = read_if_exists(&self.path(JOURNAL_FILE))?;
        let parsed = record::parse(&content);
        let is_clean = parsed.damaged.is_empty() && !parsed.is_torn;
        if parsed.is_torn {
            tracing::warn!("the usage journal ends with an incomplete entry, skipping it");
        }
        for line in &parsed.damaged {
            tracing::error!(file = REJECTED_FILE, "damaged entry in the usage journal, moving it aside");
            self.add_rejected(&[line.as_slice(), b"\n"].concat())?;
        }
        let mut state = self.state();
        for entry in parsed.entries {
            state.entries.insert(entry.request_id().clone(), entry);
        }
        self.entry_count.store(state.entries.len(), Ordering::Relaxed);
        state.bytes = content.len() as u64;
        remove_if_exists(&self.path(NEW_FILE))?;
        if is_clean { Ok(()) } else { self.rewrite(&mut state) }
    }

    /// Replaces the file by one with the current entries.
    fn rewrite(&self, state: &mut State) -> io::Result<()> {
        state.file = None;
        if state.entries.is_empty() {
            state.bytes = 0;
            return self.delete_file();
        }
        let file = self.write_new_file(state.entries.values())?;
        state.bytes = file.metadata()?.len();
        state.file = Some(file);
        Ok(())
    }

    fn write_new_file<'a>(&self, entries: impl Iterator<Item = &'a JournalEntry>) -> io::Result<File> {
        let mut content = String::new();
        for entry in entries {
            content += &record::encode(entry)?;
        }
        let new = self.path(NEW_FILE);
        // A file of an earlier attempt may have other permissions.
        remove_if_exists(&new)?;
        let mut file = owner_only().create_new(true).append(true).open(&new)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, self.path(JOURNAL_FILE))?;
        self.sync_directory()?;
        Ok(file)
    }

    fn delete_file(&self) -> io::Result<()> {
        match remove_if_exists(&self.path(JOURNAL_FILE))? {
            true => self.sync_directory(),
            false => Ok(()),
        }
    }

    fn add_rejected(&self, lines: &[u8]) -> io::Result<()> {
        let mut file = owner_only().create(true).append(true).open(self.path(REJECTED_FILE))?;
        file.write_all(lines)?;
        file.sync_all()?;
        self.sync_directory()
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn io_error(&self, error: io::Error) -> JournalError {
        JournalError::Io { path: self.path(JOURNAL_FILE), error }
    }

    /// A panic while it was locked leaves nothing half-changed that the next append would not repair.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn owner_only() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn read_if_exists(path: &Path) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        read => read,
    }
}

/// Returns whether it existed.
fn remove_if_exists(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true),
    }
}
