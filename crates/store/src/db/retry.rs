//! Waiting for SQLite's write lock while another process has it. SQLite could wait by itself, but it looks again after
//! ever longer pauses, up to a tenth of a second, and so misses the gaps that a busy server leaves between its commits
//! (`gaps`). Here a refused statement is sent again every millisecond or two. PostgreSQL never refuses like this.

use crate::db::error_codes::is_busy;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::Sleep;

/// How long a command waits for its turn. Its user sees it wait, and would only start it again.
pub(crate) const COMMAND_PATIENCE: Duration = Duration::from_secs(30);

/// The timer's tick is a millisecond, so this is one to two of them.
const RETRY: Duration = Duration::from_millis(1);

pub(crate) struct Patience {
    limit: Duration,
    /// Counts from the first refusal.
    end: Option<Pin<Box<Sleep>>>,
}

impl Patience {
    pub(crate) fn of(limit: Duration) -> Self {
        Self { limit, end: None }
    }

    /// Whether to send the statement again, which is said after a moment's wait.
    pub(crate) async fn allows_another_try(&mut self, error: &sqlx::Error) -> bool {
        if !is_busy(error) {
            return false;
        }
        let end = self.end.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.limit)));
        tokio::select! {
            biased;
            () = end => false,
            () = tokio::time::sleep(RETRY) => true,
        }
    }
}
