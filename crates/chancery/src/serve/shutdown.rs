//! The end of a server, step by step:
//!
//! 1. SIGTERM or Ctrl-C: new requests are refused with 503 `shutting_down`, and `/readyz` says so, while the listeners
//!    stay open so that nobody meets a closed door;
//! 2. requests that were admitted finish and are settled, within `DRAIN_TIMEOUT`; a second signal cuts this short;
//! 3. what still runs then is given up: answered with 503, not billed;
//! 4. the caller closes the listeners and the store.

use anyhow::Context;
use chancery_metering::Meter;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long admitted requests may take to finish.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);
/// How long given-up requests may take to notice.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(2);

pub async fn wait_and_drain(meter: &Meter) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be watched")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be watched")?;
    either(&mut terminate, &mut interrupt).await;
    tracing::info!(running = meter.running_requests(), "draining");
    meter.stop_admitting();
    let drained = tokio::select! {
        () = meter.wait_until_settled() => true,
        () = tokio::time::sleep(DRAIN_TIMEOUT) => false,
        () = either(&mut terminate, &mut interrupt) => false,
    };
    if !drained {
        tracing::warn!(running = meter.running_requests(), "giving up what still runs");
        meter.abandon_running();
        let _ = tokio::time::timeout(ABANDON_TIMEOUT, meter.wait_until_settled()).await;
    }
    Ok(())
}

async fn either(one: &mut Signal, other: &mut Signal) {
    tokio::select! {
        _ = one.recv() => {}
        _ = other.recv() => {}
    }
}
