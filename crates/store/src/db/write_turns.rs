//! Turns between processes that write to one SQLite file. SQLite does not queue writers: a server that commits all the time would
//! leave a command beside it only the moments between two commits. A process that waits for the write lock says so with a shared
//! lock on a file beside the database. Whoever writes looks there before each commit and stays out for a moment. It costs
//! two system calls while nobody waits.

use super::sqlite::sidecar_file;
use chancery_domain::{Clock, SystemClock};
use std::fs::{File, TryLockError};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// A process that was stopped while it waits must not stop the others.
const MAX_PAUSE: Duration = Duration::from_millis(3);
const POLL: Duration = Duration::from_micros(200);

pub(super) struct WriteTurns {
    /// `None` if the file cannot be opened. Then nobody waits for anybody.
    file: Option<File>,
}

impl WriteTurns {
    pub(super) fn of(database: &Path) -> Self {
        let file = sidecar_file(database, "-write.lock");
        if let Err(error) = &file {
            tracing::warn!(%error, "other processes may wait long for their turn to write");
        }
        Self { file: file.ok() }
    }

    /// Says that this process waits, until `stop_waiting`. Call it at each poll: it does nothing while another process holds the file.
    pub(super) fn wait(&self) {
        if let Some(file) = &self.file {
            let _ = file.try_lock_shared();
        }
    }

    /// This process waits no longer.
    pub(super) fn stop_waiting(&self) {
        if let Some(file) = &self.file
            && let Err(error) = file.unlock()
        {
            tracing::debug!(%error, "the end of waiting for the write lock cannot be announced");
        }
    }

    /// Lets a process that waits write first.
    pub(super) fn let_others_write(&self) {
        let Some(file) = &self.file else { return };
        let mut until = None;
        loop {
            match file.try_lock() {
                Ok(()) => return self.stop_waiting(),
                Err(TryLockError::Error(_)) => return,
                Err(TryLockError::WouldBlock) => {}
            }
            let now = SystemClock.monotonic();
            if now >= *until.get_or_insert(now + MAX_PAUSE) {
                return;
            }
            thread::sleep(POLL);
        }
    }
}
