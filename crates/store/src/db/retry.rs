//! Retries a statement while another process holds SQLite's write lock. SQLite's own busy handler backs off to 100 ms
//! and misses the gaps between commits (`write_gaps`), so this polls every 1 to 2 ms. PostgreSQL never returns busy.

use crate::db::error_codes::is_busy;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::Sleep;

/// How long a command waits for the write lock. A user who sees it fail earlier would only start it again.
pub(crate) const COMMAND_RETRY_LIMIT: Duration = Duration::from_secs(30);

/// The timer's tick is 1 ms, so this waits 1 to 2 ms.
const RETRY: Duration = Duration::from_millis(1);

pub(crate) struct RetryPolicy {
    limit: Duration,
    /// Starts with the first busy error.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl RetryPolicy {
    pub(crate) fn of(limit: Duration) -> Self {
        Self { limit, deadline: None }
    }

    /// Whether to retry the statement. Returns true only after a short wait.
    pub(crate) async fn should_retry(&mut self, error: &sqlx::Error) -> bool {
        if !is_busy(error) {
            return false;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.limit)));
        tokio::select! {
            biased;
            () = deadline => false,
            () = tokio::time::sleep(RETRY) => true,
        }
    }
}
