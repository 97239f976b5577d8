//! The shutdown protocol:
//!
//! 1. On SIGTERM or Ctrl-C, `/readyz` returns 503 and every reply asks its caller to close the connection (on HTTP/2, a
//!    frame does). For `ops.drain_wait_s` all requests are still served, so that a load balancer can switch over before any
//!    is rejected. A second signal skips the rest of this wait.
//! 2. New API requests are rejected with 503 `shutting_down`. The listeners stay open, so that no caller sees a refused
//!    connection. Admitted requests finish and are settled, and requests for pages finish, within `DRAIN_TIMEOUT`. Pages are
//!    still served meanwhile: a sign-in that runs in the portal needs the identity provider's. Another signal skips the rest
//!    of this wait.
//! 3. Requests that still run are abandoned. A stream ends and is billed for the text it has sent; any other API request is
//!    answered with 503 and not billed. A page's connection is closed.
//! 4. The caller closes the listeners, records the last rejections and peaks within `ACTIVITY_TIMEOUT`, replays the usage
//!    journal within `JOURNAL_TIMEOUT`, waits for messages that are being sent within `OUTBOX_TIMEOUT`, signs a
//!    last checkpoint within `CHECKPOINT_TIMEOUT`, and closes the store. Rows that are still in the journal are written at
//!    the next start.

use anyhow::Context;
use chancery_listener::ShutdownTokens;
use chancery_metering::Meter;
use chancery_metering::limits::{ABANDONED_JOURNAL_DELAY, CANCEL_TIMEOUT};
use chancery_transparency::Checkpointer;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

/// How long admitted requests may take to finish.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);
/// How long abandoned requests may take to end and to be recorded.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(4);
// The engine's count may be late, the database too, and one second is for the disk.
const _: () = assert!(
    ABANDON_TIMEOUT.as_millis() >= CANCEL_TIMEOUT.as_millis() + ABANDONED_JOURNAL_DELAY.as_millis() + 1_000
);
/// How long the database may take to record the last rejections and peaks. They are not worth a longer wait.
const ACTIVITY_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the database may take to take the rows of the usage journal, which are safe where they are.
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long messages that are being sent may take after that. The rest is sent again by whoever runs then.
const OUTBOX_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the last checkpoint may take. Rows that it misses are in the first one after the next start.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(3);

/// SIGTERM and Ctrl-C. Created before the first request is accepted, so that no signal kills the process in mid-request.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub fn watch() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("cannot watch SIGTERM")?,
            interrupt: signal(SignalKind::interrupt()).context("cannot watch SIGINT")?,
        })
    }

    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Step 1 above; call it after the first signal. Step 4 cancels `closing`.
pub async fn leave(shutdown_tokens: &ShutdownTokens, wait: Duration, signals: &mut Signals) {
    shutdown_tokens.leaving.cancel();
    if wait.is_zero() {
        return;
    }
    tracing::info!(wait_s = wait.as_secs(), "shutting down: not ready, still serving");
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = signals.next() => {}
    }
}

/// Steps 2 and 3 above. `meter` is `None` if this process does not serve the API. `pages` has a token for each request to a
/// listener for pages.
pub async fn drain(meter: Option<&Meter>, pages: &TaskTracker, signals: &mut Signals) {
    let running = || meter.map_or(0, Meter::running_requests);
    tracing::info!(running = running(), running_pages = pages.len(), "draining");
    if let Some(meter) = meter {
        meter.stop_admitting();
    }
    pages.close();
    let finished = async {
        if let Some(meter) = meter {
            meter.wait_until_settled().await;
        }
        pages.wait().await;
    };
    let drained = tokio::select! {
        () = finished => true,
        () = tokio::time::sleep(DRAIN_TIMEOUT) => false,
        () = signals.next() => false,
    };
    if !drained {
        tracing::warn!(running = running(), running_pages = pages.len(), "abandoning running requests");
        if let Some(meter) = meter {
            meter.abandon_running();
            let _ = tokio::time::timeout(ABANDON_TIMEOUT, meter.wait_until_settled()).await;
        }
    }
}

/// Call it when no more requests can be rejected, while the store is still open.
pub async fn flush_activity(meter: &Meter) {
    match tokio::time::timeout(ACTIVITY_TIMEOUT, meter.record_activity()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "final activity flush failed"),
        Err(_) => tracing::warn!("final activity flush timed out"),
    }
}

/// Call it last, while the store is still open. The tasks were told to end when the server closed.
pub async fn stop_outbox(tasks: [JoinHandle<()>; 2]) {
    let aborts = tasks.each_ref().map(JoinHandle::abort_handle);
    let ended = async {
        for task in tasks {
            // None of them has a result worth checking.
            let _ = task.await;
        }
    };
    if tokio::time::timeout(OUTBOX_TIMEOUT, ended).await.is_err() {
        tracing::warn!("messages are still being sent, they are sent again later");
        for task in &aborts {
            task.abort();
        }
    }
}

/// Call it when no more requests can end, while the store is still open.
pub async fn replay_journal(meter: &Meter) {
    if meter.journaled_requests() == 0 {
        return;
    }
    let _ = tokio::time::timeout(JOURNAL_TIMEOUT, meter.replay_journal()).await;
    let waiting = meter.journaled_requests();
    if waiting > 0 {
        tracing::warn!(waiting, "usage rows are in the usage journal, start the server again to write them");
    }
}

/// Call it when nothing is written any more, while the store is still open.
pub async fn sign_last_checkpoint(checkpointer: &Checkpointer) {
    if tokio::time::timeout(CHECKPOINT_TIMEOUT, checkpointer.checkpoint()).await.is_err() {
        tracing::warn!("last checkpoint timed out, the next start signs one");
    }
}
