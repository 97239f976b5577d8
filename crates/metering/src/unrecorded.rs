//! Whether new usage can be recorded, judging by finished requests. If not, no request is admitted, because it would run and could
//! not be billed.
//!
//! 1. Requests whose usage row cannot be written for now are counted. Each is retried until it succeeds, and keeps its text in
//!    memory meanwhile, so there is a bound (`MAX_UNRECORDED_REQUESTS`).
//! 2. A few failed settlements within seconds (`MAX_FAILED_SETTLEMENTS`) mean that the ledger takes none: a full disk answers every
//!    read. It is then probed with a write until one succeeds.

use crate::limits::{
    FAILED_SETTLEMENTS_WINDOW, LEDGER_PROBE_INTERVAL, MAX_FAILED_SETTLEMENTS, MAX_UNRECORDED_REQUESTS,
};
use crate::{Meter, MeterError};
use chancery_store::DbError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

#[derive(Clone, Default)]
pub(crate) struct Unrecorded(Arc<State>);

#[derive(Default)]
struct State {
    requests: AtomicUsize,
    failures: Mutex<Failures>,
    /// Notified when the ledger has to be probed.
    stopped: Notify,
}

#[derive(Default)]
struct Failures {
    /// The times of recent failures; all of them stay once there are `MAX_FAILED_SETTLEMENTS`.
    at: Vec<Instant>,
    last_error: Option<DbError>,
}

impl Unrecorded {
    /// Counts until it is dropped.
    pub(crate) fn count_one(&self) -> CountGuard {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        CountGuard(self.clone())
    }

    pub(crate) fn count(&self) -> usize {
        self.0.requests.load(Ordering::Relaxed)
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.0.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct CountGuard(Unrecorded);

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Meter {
    /// Whether new usage can be recorded, judging by earlier requests.
    pub fn can_record(&self) -> Result<(), MeterError> {
        if self.unrecorded_requests() >= MAX_UNRECORDED_REQUESTS {
            return Err(DbError::Unavailable("too many requests have unrecorded usage".to_owned()).into());
        }
        match &*self.unrecorded.failures() {
            Failures { at, last_error: Some(error) } if at.len() >= MAX_FAILED_SETTLEMENTS => {
                Err(error.clone().into())
            }
            _ => Ok(()),
        }
    }

    /// Counts an attempt to settle that failed because the database could not be written.
    pub(crate) fn record_failed_settlement(&self, error: &MeterError) {
        let MeterError::Database(
            error @ (DbError::Unavailable(_) | DbError::DiskFull(_) | DbError::ReadOnly(_)),
        ) = error
        else {
            return;
        };
        let now = self.clock.monotonic();
        let mut failures = self.unrecorded.failures();
        failures.last_error = Some(error.clone());
        if failures.at.len() >= MAX_FAILED_SETTLEMENTS {
            return;
        }
        failures.at.retain(|at| now.saturating_duration_since(*at) < FAILED_SETTLEMENTS_WINDOW);
        failures.at.push(now);
        if failures.at.len() == MAX_FAILED_SETTLEMENTS {
            tracing::error!(%error, "usage cannot be recorded, admitting no requests");
            self.unrecorded.0.stopped.notify_one();
        }
    }

    /// Admits requests again once the ledger can be written. Runs until the process ends.
    pub async fn run_ledger_probe(&self) {
        loop {
            self.unrecorded.0.stopped.notified().await;
            while let Err(error) = self.store.ledger.probe_write().await {
                tracing::warn!(%error, "usage cannot be recorded yet, trying again");
                tokio::time::sleep(LEDGER_PROBE_INTERVAL).await;
            }
            self.unrecorded.failures().at.clear();
            tracing::info!("usage can be recorded again, admitting requests");
        }
    }
}
