//! The end of a server, step by step:
//!
//! 1. SIGTERM or Ctrl-C: `/readyz` says 503, and every reply asks its caller to close the connection. For `ops.drain_wait_s`
//!    everything is served as before, so that a balancer has looked elsewhere before anybody is refused; a second signal
//!    cuts this short;
//! 2. new requests of the API are refused with 503 `shutting_down`, while the listeners stay open so that nobody meets a
//!    closed door; requests that were admitted finish and are settled, within `DRAIN_TIMEOUT`; another signal cuts this short;
//! 3. what still runs then is given up: answered with 503, not billed;
//! 4. the caller closes the listeners, has the last refusals and peaks noted, within `NOTE_TIMEOUT`, and closes the store.

use anyhow::Context;
use chancery_metering::Meter;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long admitted requests may take to finish.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);
/// How long given-up requests may take to notice.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a database may take to note the last refusals and peaks. They are worth a moment, and no more.
const NOTE_TIMEOUT: Duration = Duration::from_secs(2);

/// SIGTERM and Ctrl-C. Made before the first request is taken, so that none is cut off by a signal nobody watches.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub fn watch() -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).context("SIGTERM cannot be watched")?,
            interrupt: signal(SignalKind::interrupt()).context("SIGINT cannot be watched")?,
        })
    }

    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// How far the end has come, for those that listen.
#[derive(Clone, Debug, Default)]
pub struct Ending {
    /// From step 1 on.
    pub leaving: CancellationToken,
    /// In step 4.
    pub closing: CancellationToken,
}

/// Step 1 above; to be called after the first signal.
pub async fn leave(ending: &Ending, wait: Duration, signals: &mut Signals) {
    ending.leaving.cancel();
    if wait.is_zero() {
        return;
    }
    tracing::info!(wait_s = wait.as_secs(), "leaving: not ready any more, and still serving");
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        () = signals.next() => {}
    }
}

/// Steps 2 and 3 above.
pub async fn drain(meter: &Meter, signals: &mut Signals) {
    tracing::info!(running = meter.running_requests(), "draining");
    meter.stop_admitting();
    let drained = tokio::select! {
        () = meter.wait_until_settled() => true,
        () = tokio::time::sleep(DRAIN_TIMEOUT) => false,
        () = signals.next() => false,
    };
    if !drained {
        tracing::warn!(running = meter.running_requests(), "giving up what still runs");
        meter.abandon_running();
        let _ = tokio::time::timeout(ABANDON_TIMEOUT, meter.wait_until_settled()).await;
    }
}

/// To be called once nobody can be refused any more, and while the store is open.
pub async fn note_the_last(meter: &Meter) {
    match tokio::time::timeout(NOTE_TIMEOUT, meter.note_activity()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the last refusals and peaks could not be noted"),
        Err(_) => tracing::warn!("the last refusals and peaks could not be noted in time"),
    }
}
