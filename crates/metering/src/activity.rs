//! Statistics beside the bill: rejected requests by error code and the busiest 60 seconds as seen by the rate limiter, for each
//! account and day; and the last use of each key.
//!
//! 1. **Count.** Each rejected or admitted request updates a counter in memory, without waiting for a database. Unknown and
//!    revoked keys belong to no account and are not counted.
//! 2. **Flush.** Every few seconds, and once more at shutdown, changes go to the store: rejections are added to their day's, and
//!    peaks raise their day's, so the counts of several nodes add up.
//! 3. **Retry.** A flush is split into parts, so that other writers do not wait long. What the store did not accept stays for
//!    the next flush. If its response was lost, rejections may be added twice.
//! 4. **Rejections by caps.** The first in a month is stored with the cap that was reached; an alert follows from it. It
//!    starts a flush at once, because a crash soon after must not lose the alert.
//!
//! A process that crashes loses a few seconds of other rejections. Nothing is billed by these numbers.

use crate::limits::{MAX_COUNTED_KEY_USES, MAX_COUNTED_PEAKS, MAX_COUNTED_REJECTIONS};
use crate::{Caller, MeterError};
use chancery_domain::{AccountId, Clock, Day, KeyId, LimitScope, LimitUsage, Month, UnixMillis};
use chancery_store::{
    ActivityBatch, AlertSubject, CapRejection, DailyPeak, DailyRejections, DbError, KeyUse,
    MAX_ACTIVITY_ROWS, MeteringStore,
};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

chancery_domain::closed_enum! {
    /// The rejections that are counted, by the error code that the caller gets.
    pub(crate) enum RejectionReason {
        RateLimited = "rate_limited",
        NoBillingAccount = "no_billing_account",
        SpendingCapReached = "spending_cap_reached",
    }
}

impl RejectionReason {
    fn of(error: &MeterError) -> Option<Self> {
        match error {
            MeterError::RateLimited { .. } | MeterError::ReadsRateLimited(_) => Some(Self::RateLimited),
            MeterError::NoBillingAccount => Some(Self::NoBillingAccount),
            MeterError::SpendingCapReached(_) => Some(Self::SpendingCapReached),
            _ => None,
        }
    }
}

pub(crate) struct Activity {
    clock: Arc<dyn Clock>,
    counts: Mutex<Counts>,
    /// Serializes flushes, so that the last one at shutdown sees what an earlier one could not store.
    flush_lock: tokio::sync::Mutex<()>,
    /// Starts a flush at once.
    flush_soon: tokio::sync::Notify,
}

#[derive(Default)]
struct Counts {
    rejections: HashMap<RejectionKey, RejectionCount>,
    peaks: HashMap<(AccountId, Day), Peak>,
    /// The last use of each key since the last flush.
    key_uses: HashMap<KeyId, UnixMillis>,
    /// The first rejection by each cap since the last flush.
    cap_rejections: HashMap<CapRejection, UnixMillis>,
    /// Rejections by caps that have already started a flush in this process.
    seen_cap_rejections: HashSet<CapRejection>,
    /// Whether peaks were flushed since flushed ones were last evicted.
    has_flushed_peaks: bool,
    /// Counts that did not fit: rejections, peaks and last uses.
    dropped: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct RejectionKey {
    account: Option<AccountId>,
    key: KeyId,
    day: Day,
    reason: RejectionReason,
}

#[derive(Clone, Copy)]
struct RejectionCount {
    count: u64,
    last_at: UnixMillis,
}

/// The day's peak so far, as seen by this process.
struct Peak {
    highest: DailyPeak,
    /// Flushed peaks stay in memory for a while, so that only a higher one is flushed again.
    is_flushed: bool,
}

impl Activity {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            counts: Mutex::default(),
            flush_lock: tokio::sync::Mutex::default(),
            flush_soon: tokio::sync::Notify::new(),
        }
    }

    /// Counts the rejection if `RejectionReason` has its error.
    pub(crate) fn record_rejection(&self, account: Option<AccountId>, key: KeyId, error: &MeterError) {
        let Some(reason) = RejectionReason::of(error) else { return };
        let at = self.clock.now();
        let rejection_key = RejectionKey { account, key, day: Day::containing(at), reason };
        let mut counts = self.counts();
        counts.add(rejection_key, RejectionCount { count: 1, last_at: at });
        if let Some(rejection) = cap_rejection(account, key, error, at) {
            counts.record_cap_rejection(rejection, at);
            if counts.is_first_seen(rejection) {
                self.flush_soon.notify_one();
            }
        }
    }

    /// `used` is the account's usage including this request.
    pub(crate) fn record_admission(&self, caller: &Caller, used: LimitUsage) {
        let at = self.clock.now();
        let LimitUsage { requests, tokens } = used;
        let (account, day) = (caller.account, Day::containing(at));
        let mut counts = self.counts();
        counts.record_key_use(KeyUse { key: caller.key, at });
        counts.raise_peak(DailyPeak { account, day, requests, requests_at: at, tokens, tokens_at: at });
    }

    /// The key's last use, if it is not flushed yet.
    pub(crate) fn last_use(&self, key: KeyId) -> Option<UnixMillis> {
        self.counts().key_uses.get(&key).copied()
    }

    /// Waits until something must be flushed at once.
    pub(crate) async fn until_urgent(&self) {
        self.flush_soon.notified().await;
    }

    /// Takes what is to be flushed. The caller flushes it or gives it to `restore`.
    fn take(&self) -> Batch {
        let today = Day::containing(self.clock.now());
        let mut counts = self.counts();
        let dropped = std::mem::take(&mut counts.dropped);
        let rejections = std::mem::take(&mut counts.rejections).into_iter().collect();
        counts.peaks.retain(|(_, day), peak| !peak.is_flushed || *day >= today);
        let unflushed = counts.peaks.values_mut().filter(|peak| !peak.is_flushed).map(|peak| {
            peak.is_flushed = true;
            peak.highest
        });
        let peaks = unflushed.collect();
        counts.has_flushed_peaks = true;
        let key_uses = std::mem::take(&mut counts.key_uses);
        let key_uses = key_uses.into_iter().map(|(key, at)| KeyUse { key, at }).collect();
        let cap_rejections = std::mem::take(&mut counts.cap_rejections).into_iter().collect();
        Batch { rejections, peaks, key_uses, cap_rejections, dropped }
    }

    fn restore(&self, batch: Batch) {
        let mut counts = self.counts();
        for (rejection_key, rejections) in batch.rejections {
            counts.add(rejection_key, rejections);
        }
        for key_use in batch.key_uses {
            counts.record_key_use(key_use);
        }
        for (rejection, at) in batch.cap_rejections {
            counts.record_cap_rejection(rejection, at);
        }
        for peak in batch.peaks {
            // `take` marked it as flushed, but it was not stored.
            match counts.peaks.get_mut(&(peak.account, peak.day)) {
                Some(existing) => existing.is_flushed = false,
                None => counts.raise_peak(peak),
            }
        }
    }

    /// Writes what was counted since the last flush to the store.
    pub(crate) async fn flush(&self, store: &MeteringStore) -> Result<(), DbError> {
        let _guard = self.flush_lock.lock().await;
        let mut batch = self.take();
        if batch.dropped > 0 {
            let dropped = batch.dropped;
            tracing::warn!(
                dropped,
                "activity counters full, some rejections, peaks or last uses were not counted"
            );
            metrics::counter!("chancery_activity_left_out_total").increment(dropped);
        }
        let outcome = batch.flush_in_batches(store).await;
        if outcome.is_err() {
            self.restore(batch);
        }
        outcome
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn add(&mut self, rejection_key: RejectionKey, more: RejectionCount) {
        let is_full = self.rejections.len() >= MAX_COUNTED_REJECTIONS;
        match self.rejections.entry(rejection_key) {
            Entry::Occupied(existing) => {
                let existing = existing.into_mut();
                existing.count = existing.count.saturating_add(more.count);
                existing.last_at = existing.last_at.max(more.last_at);
            }
            Entry::Vacant(_) if is_full => self.dropped = self.dropped.saturating_add(more.count),
            Entry::Vacant(vacant) => {
                vacant.insert(more);
            }
        }
    }

    fn record_key_use(&mut self, key_use: KeyUse) {
        let is_full = self.key_uses.len() >= MAX_COUNTED_KEY_USES;
        match self.key_uses.entry(key_use.key) {
            Entry::Occupied(mut last) => {
                let last = last.get_mut();
                *last = (*last).max(key_use.at);
            }
            Entry::Vacant(_) if is_full => self.dropped = self.dropped.saturating_add(1),
            Entry::Vacant(vacant) => {
                vacant.insert(key_use.at);
            }
        }
    }

    /// Of each cap, the first rejection is enough.
    fn record_cap_rejection(&mut self, rejection: CapRejection, at: UnixMillis) {
        let is_full = self.cap_rejections.len() >= MAX_COUNTED_REJECTIONS;
        match self.cap_rejections.entry(rejection) {
            Entry::Occupied(mut first) => {
                let first = first.get_mut();
                *first = (*first).min(at);
            }
            Entry::Vacant(_) if is_full => self.dropped = self.dropped.saturating_add(1),
            Entry::Vacant(vacant) => {
                vacant.insert(at);
            }
        }
    }

    /// A full set starts again, which costs only another write.
    fn is_first_seen(&mut self, rejection: CapRejection) -> bool {
        if self.seen_cap_rejections.len() >= MAX_COUNTED_REJECTIONS {
            self.seen_cap_rejections.clear();
        }
        self.seen_cap_rejections.insert(rejection)
    }

    fn raise_peak(&mut self, more: DailyPeak) {
        if self.peaks.len() >= MAX_COUNTED_PEAKS && !self.peaks.contains_key(&(more.account, more.day)) {
            // Flushed peaks are kept only to save writes, so they can be evicted. One scan between two flushes is enough.
            if std::mem::take(&mut self.has_flushed_peaks) {
                self.peaks.retain(|_, peak| !peak.is_flushed);
            }
            if self.peaks.len() >= MAX_COUNTED_PEAKS {
                self.dropped = self.dropped.saturating_add(1);
                return;
            }
        }
        match self.peaks.entry((more.account, more.day)) {
            Entry::Vacant(vacant) => {
                vacant.insert(Peak { highest: more, is_flushed: false });
            }
            Entry::Occupied(existing) => {
                let Peak { highest, is_flushed } = existing.into_mut();
                if more.requests > highest.requests {
                    (highest.requests, highest.requests_at) = (more.requests, more.requests_at);
                    *is_flushed = false;
                }
                if more.tokens > highest.tokens {
                    (highest.tokens, highest.tokens_at) = (more.tokens, more.tokens_at);
                    *is_flushed = false;
                }
            }
        }
    }
}

struct Batch {
    rejections: Vec<(RejectionKey, RejectionCount)>,
    peaks: Vec<DailyPeak>,
    key_uses: Vec<KeyUse>,
    cap_rejections: Vec<(CapRejection, UnixMillis)>,
    dropped: u64,
}

impl Batch {
    /// After an error, the batch contains what was not stored.
    async fn flush_in_batches(&mut self, store: &MeteringStore) -> Result<(), DbError> {
        while let Some(part) = self.rejections.rchunks(MAX_ACTIVITY_ROWS).next() {
            let part: Vec<DailyRejections> = part.iter().map(rejected_day).collect();
            store
                .activity
                .record_activity(ActivityBatch { rejections: &part, ..ActivityBatch::default() })
                .await?;
            self.rejections.truncate(self.rejections.len() - part.len());
        }
        while let Some(part) = self.peaks.rchunks(MAX_ACTIVITY_ROWS).next() {
            let left = self.peaks.len() - part.len();
            store.activity.record_activity(ActivityBatch { peaks: part, ..ActivityBatch::default() }).await?;
            self.peaks.truncate(left);
        }
        while let Some(part) = self.key_uses.rchunks(MAX_ACTIVITY_ROWS).next() {
            let left = self.key_uses.len() - part.len();
            store
                .activity
                .record_activity(ActivityBatch { key_uses: part, ..ActivityBatch::default() })
                .await?;
            self.key_uses.truncate(left);
        }
        while let Some(part) = self.cap_rejections.rchunks(MAX_ACTIVITY_ROWS).next() {
            let left = self.cap_rejections.len() - part.len();
            store
                .activity
                .record_activity(ActivityBatch { cap_rejections: part, ..ActivityBatch::default() })
                .await?;
            self.cap_rejections.truncate(left);
        }
        Ok(())
    }
}

/// The cap that rejected the request.
fn cap_rejection(
    account: Option<AccountId>,
    key: KeyId,
    error: &MeterError,
    at: UnixMillis,
) -> Option<CapRejection> {
    let MeterError::SpendingCapReached(reached) = error else { return None };
    let subject = match reached.scope {
        LimitScope::Account => AlertSubject::Account(account?),
        LimitScope::Key => AlertSubject::Key(key),
    };
    Some(CapRejection { subject, month: Month::containing(at), cap: reached.cap })
}

fn rejected_day((rejection_key, rejections): &(RejectionKey, RejectionCount)) -> DailyRejections {
    DailyRejections {
        account: rejection_key.account,
        day: rejection_key.day,
        key: rejection_key.key,
        code: rejection_key.reason.as_str().to_owned(),
        rejections: rejections.count,
        last_at: rejections.last_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{KeyLimits, ManualClock, Nanos, RateLimits};

    fn activity() -> Activity {
        Activity::new(Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000))))
    }

    fn caller(account: i64) -> Caller {
        let limits = RateLimits { requests_per_min: 1, tokens_per_min: 1 };
        let key_limits = KeyLimits::default();
        Caller { account: AccountId(account), key: KeyId(account), limits, key_limits, is_capped: false }
    }

    #[test]
    fn counters_past_the_limit_are_dropped_and_counted() {
        let activity = activity();
        let more = 3;
        for number in 0..(MAX_COUNTED_REJECTIONS + more) as i64 {
            activity.record_rejection(None, KeyId(number), &MeterError::NoBillingAccount);
        }
        activity.record_rejection(None, KeyId(0), &MeterError::NoBillingAccount);
        let batch = activity.take();
        assert_eq!((batch.rejections.len(), batch.dropped), (MAX_COUNTED_REJECTIONS, more as u64));
        assert_eq!(batch.rejections.iter().map(|(_, rejections)| rejections.count).max(), Some(2));
        assert_eq!(activity.take().dropped, 0);

        for number in 0..(MAX_COUNTED_PEAKS + more) as i64 {
            activity.record_admission(&caller(number), LimitUsage { requests: 1, tokens: 1 });
        }
        let batch = activity.take();
        // Of each of them, the peak and the last use of its key.
        assert_eq!((batch.peaks.len(), batch.dropped), (MAX_COUNTED_PEAKS, 2 * more as u64));
        activity.record_admission(&caller(-1), LimitUsage { requests: 1, tokens: 1 });
        let batch = activity.take();
        assert_eq!((batch.peaks.len(), batch.dropped), (1, 0), "what is noted makes room");
    }

    #[test]
    fn each_cap_rejection_is_seen_first_once() {
        let activity = activity();
        let month = Month::containing(activity.clock.now());
        let rejection = |key| CapRejection { subject: AlertSubject::Key(KeyId(key)), month, cap: Nanos(5) };
        let mut counts = activity.counts();
        assert!(counts.is_first_seen(rejection(1)) && !counts.is_first_seen(rejection(1)));
        assert!(counts.is_first_seen(rejection(2)));
        let new_cap = CapRejection { cap: Nanos(6), ..rejection(1) };
        assert!(counts.is_first_seen(new_cap), "a new cap");
    }

    #[test]
    fn peaks_are_recorded_again_only_if_higher_or_not_stored() {
        let activity = activity();
        let flush = |requests, tokens| {
            activity.record_admission(&caller(1), LimitUsage { requests, tokens });
            activity.take().peaks.iter().map(|peak| (peak.requests, peak.tokens)).collect::<Vec<_>>()
        };
        assert_eq!(flush(2, 20), [(2, 20)]);
        assert_eq!(flush(1, 20), []);
        assert_eq!(flush(3, 10), [(3, 20)]);
        assert_eq!(flush(1, 1), []);
        activity.record_admission(&caller(1), LimitUsage { requests: 4, tokens: 1 });
        let batch = activity.take();
        activity.record_admission(&caller(1), LimitUsage { requests: 1, tokens: 30 });
        activity.restore(batch);
        assert_eq!(flush(1, 1), [(4, 30)]);
        assert_eq!(flush(1, 1), []);
    }
}
