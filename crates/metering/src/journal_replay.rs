//! Writes the journal's settlements to the ledger: when the process starts, and while it runs once the database answers again.

use crate::admitted_request::{IfOverCap, is_permanent, unbilled_reason};
use crate::catch_panic::catch_panic;
use crate::journal::{Journal, JournalEntry};
use crate::lease::with_lease_renewal;
use crate::limits::{INITIAL_SETTLE_BACKOFF, JOURNAL_REPLAY_BATCH, MAX_SETTLE_BACKOFF};
use crate::{Meter, MeterError};
use chancery_store::KeyClaim;
use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;

/// The outcome of one replay of the whole journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Rows that are in the ledger now.
    pub written: usize,
    /// Rows that the ledger can never take, moved to the file of rejected entries.
    pub rejected: usize,
    /// Rows that are still in the journal.
    pub waiting: usize,
}

/// The outcome of one batch.
#[derive(Default)]
struct BatchOutcome {
    written: usize,
    rejected: usize,
    /// Set if the database did not answer, so that the other batches need not be tried.
    is_unavailable: bool,
}

/// The outcome of an entry that stays out of the file of rejected entries.
enum Replayed {
    Written,
    /// A running request took the idempotency key while this process counted as dead. If that request is billed, this one is
    /// not; if it fails, the key is free again.
    KeyInUse,
}

impl Meter {
    /// Runs until the process ends.
    pub async fn run_journal_replay(&self) {
        let Some(journal) = &self.journal else { return };
        loop {
            journal.wait_until_not_empty().await;
            // What the journaled requests have reserved in the store stays theirs until they are written.
            with_lease_renewal(self, Some(Duration::ZERO), self.replay_until_empty(journal)).await;
        }
    }

    async fn replay_until_empty(&self, journal: &Journal) {
        let mut backoff = INITIAL_SETTLE_BACKOFF;
        while journal.len() > 0 {
            tokio::time::sleep(backoff).await;
            let ReplaySummary { written, rejected, waiting } = self.replay_journal().await;
            backoff = match written + rejected {
                0 => (backoff * 2).min(MAX_SETTLE_BACKOFF),
                _ => INITIAL_SETTLE_BACKOFF,
            };
            if written + rejected > 0 {
                tracing::info!(written, rejected, waiting, "usage journal replayed");
            }
        }
    }

    /// Tries to write every entry once. Stops at the first batch during which the database does not answer.
    pub async fn replay_journal(&self) -> ReplaySummary {
        let mut summary = ReplaySummary::default();
        let Some(journal) = &self.journal else { return summary };
        let _only_replay = journal.replaying.lock().await;
        let entries = journal.entries();
        // The first entry alone finds out whether the database answers.
        let (first, others) = entries.split_at(entries.len().min(1));
        for batch in [first].into_iter().chain(others.chunks(JOURNAL_REPLAY_BATCH)) {
            let outcome = self.replay_batch(journal, batch).await;
            summary.written += outcome.written;
            summary.rejected += outcome.rejected;
            if outcome.is_unavailable {
                break;
            }
        }
        summary.waiting = journal.len();
        summary
    }

    async fn replay_batch(&self, journal: &Arc<Journal>, batch: &[JournalEntry]) -> BatchOutcome {
        let (mut total, mut written) = (BatchOutcome::default(), Vec::new());
        let outcomes = join_all(batch.iter().map(|entry| catch_panic(self.replay_entry(entry)))).await;
        for (entry, outcome) in batch.iter().zip(outcomes) {
            let request_id = entry.request_id();
            match outcome {
                Ok(Replayed::Written) => written.push(request_id.clone()),
                Ok(Replayed::KeyInUse) => {}
                Err(error) if is_permanent(&error) => {
                    let row = &entry.settlement.row;
                    let (account, input_tokens, output_tokens) =
                        (row.account, row.input_tokens, row.output_tokens);
                    let what = unbilled_reason(&error);
                    tracing::error!(%request_id, %account, input_tokens, output_tokens, %error, "{what}");
                    match journal.reject(entry.clone()).await {
                        Ok(()) => total.rejected += 1,
                        Err(error) => {
                            tracing::warn!(%request_id, %error, "moving a journaled row aside failed");
                        }
                    }
                }
                Err(error) => {
                    tracing::warn!(%request_id, %error, "replaying a journaled row failed, retrying");
                    total.is_unavailable |= matches!(error, MeterError::Database(_));
                }
            }
        }
        total.written = written.len();
        if !written.is_empty()
            && let Err(error) = journal.remove(written).await
        {
            tracing::warn!(%error, "removing replayed rows from the usage journal failed, they are replayed again at the next start");
        }
        total
    }

    async fn replay_entry(&self, entry: &JournalEntry) -> Result<Replayed, MeterError> {
        let claim = entry.claim();
        match (self.record(entry.settlement.clone(), claim.as_ref(), IfOverCap::Bill).await, claim) {
            (Ok(()), _) => Ok(Replayed::Written),
            (Err(MeterError::IdempotencyInFlight), Some(claim)) if !self.is_key_billed(&claim).await? => {
                Ok(Replayed::KeyInUse)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Whether a request with this key has finished.
    async fn is_key_billed(&self, claim: &KeyClaim) -> Result<bool, MeterError> {
        let (account, key, now) = (claim.account, &claim.key, self.clock.now());
        let holder = self.store.idempotency.idempotency_record(account, key, now).await?;
        Ok(holder.is_some_and(|holder| holder.reply.is_some()))
    }
}
