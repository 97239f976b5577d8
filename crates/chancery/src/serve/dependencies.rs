//! Waits at start until the database and Redis can be reached. Servers are often started together with them, in no order. One
//! that cannot be reached, which includes a refused connection, may come up: it is tried again, with a log line each time,
//! until it answers or the process is told to stop. One that answers and rejects us (password, database name, certificate)
//! ends the start at once, because only an operator can change that.

use super::Services;
use super::ops::Readiness;
use crate::config::Config;
use anyhow::Context;
use chancery_domain::SystemClock;
use chancery_metering::{LimitStoreProbeError, probe_limit_store};
use chancery_store::{ProbeError, probe};
use std::sync::Arc;
use std::time::Duration;

/// The wait after the first attempt; it doubles up to `MAX_DELAY`. Containers that start together are up within a few seconds.
const FIRST_DELAY: Duration = Duration::from_millis(250);
/// The longest wait between two attempts, so that a server that comes up late is used soon.
const MAX_DELAY: Duration = Duration::from_secs(10);

enum Failure {
    Unreachable(String),
    Rejected(anyhow::Error),
}

impl From<ProbeError> for Failure {
    fn from(error: ProbeError) -> Self {
        match error {
            ProbeError::Unreachable { .. } => Self::Unreachable(error.to_string()),
            ProbeError::Rejected { .. } => Self::Rejected(error.into()),
        }
    }
}

impl From<LimitStoreProbeError> for Failure {
    fn from(error: LimitStoreProbeError) -> Self {
        match error {
            LimitStoreProbeError::Unreachable { .. } => Self::Unreachable(error.to_string()),
            LimitStoreProbeError::Rejected { .. } => Self::Rejected(error.into()),
        }
    }
}

/// Only the API needs Redis.
pub async fn wait_until_reachable(
    config: &Config,
    services: Services,
    readiness: &Readiness,
) -> anyhow::Result<()> {
    let database = async || probe(&config.database_url).await.map_err(Failure::from);
    wait_for("the database", readiness, database).await.context("database.url")?;
    if services.api {
        let limit_store = async || {
            let outcome = probe_limit_store(&config.limit_store, Arc::new(SystemClock)).await;
            outcome.map_err(Failure::from)
        };
        wait_for("Redis", readiness, limit_store).await.context("limits.store")?;
    }
    Ok(())
}

async fn wait_for(
    name: &str,
    readiness: &Readiness,
    attempt_to_reach: impl AsyncFn() -> Result<(), Failure>,
) -> anyhow::Result<()> {
    let (mut attempts, mut delay) = (0_u32, FIRST_DELAY);
    loop {
        attempts = attempts.saturating_add(1);
        match attempt_to_reach().await {
            Ok(()) => {
                if attempts > 1 {
                    tracing::info!(attempts, "{name} can be reached");
                }
                readiness.set_waiting_for(None);
                return Ok(());
            }
            Err(Failure::Rejected(error)) => return Err(error),
            Err(Failure::Unreachable(reason)) => {
                let retry_in_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
                tracing::warn!(attempts, retry_in_ms, reason, "waiting for {name}");
                readiness.set_waiting_for(Some(format!("{name}: {reason}")));
                tokio::time::sleep(delay).await;
                delay = (delay * 2).min(MAX_DELAY);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test]
    async fn unreachable_is_tried_again_and_a_rejection_is_not() {
        let attempts = AtomicU32::new(0);
        let up_at_last = async || match attempts.fetch_add(1, Ordering::SeqCst) {
            0..2 => Err(Failure::Unreachable("connection refused".to_owned())),
            _ => Ok(()),
        };
        assert!(wait_for("the database", &Readiness::default(), up_at_last).await.is_ok());
        assert_eq!(attempts.load(Ordering::SeqCst), 3);

        let rejected = async || {
            attempts.fetch_add(1, Ordering::SeqCst);
            Err(Failure::Rejected(anyhow::anyhow!("wrong password")))
        };
        let error = wait_for("the database", &Readiness::default(), rejected).await.unwrap_err();
        assert_eq!((error.to_string().as_str(), attempts.load(Ordering::SeqCst)), ("wrong password", 4));
    }
}
