//! The rate limits of one node, in memory. A restart begins with empty windows.

use super::{Bucket, Decision, Limiter, LimiterUnavailable, Rejection, Reservation};
use async_trait::async_trait;
use chancery_domain::{
    Clock, RateLimitExceeded, RateLimitStatus, RateLimits, RequestId, ReservedEntry, SlidingWindow, WINDOW,
    WindowEntryId,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of locks: enough that requests of different accounts rarely wait for each other.
const SHARDS: usize = 16;

pub struct MemoryLimiter {
    clock: Arc<dyn Clock>,
    started_at: Instant,
    shards: [Mutex<Shard>; SHARDS],
}

/// All buckets of an account are in one shard.
#[derive(Default)]
struct Shard {
    buckets: HashMap<Bucket, BucketState>,
    /// When buckets with empty windows were last removed.
    swept_at: Duration,
}

#[derive(Default)]
struct BucketState {
    window: SlidingWindow,
    /// Reservations that are not settled, released, or expired with their entry.
    open: HashMap<RequestId, ReservedEntry>,
    /// The oldest entry when `open` was last cleared of expired reservations.
    pruned_at: WindowEntryId,
}

impl MemoryLimiter {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { started_at: clock.monotonic(), clock, shards: Default::default() }
    }

    /// The time is read under the lock, so that it never runs backwards for an account.
    fn lock(&self, bucket: Bucket) -> (MutexGuard<'_, Shard>, Duration) {
        let shard = &self.shards[bucket.shard_number() as usize % SHARDS];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.monotonic().saturating_duration_since(self.started_at);
        shard.sweep(now);
        (shard, now)
    }

    fn close(&self, reservation: &Reservation, used_tokens: Option<u64>) -> RateLimitStatus {
        let (mut shard, now) = self.lock(reservation.bucket);
        for (bucket, _) in reservation.buckets() {
            let bucket = shard.bucket(bucket);
            if let Some(open) = bucket.open.remove(&reservation.request_id) {
                bucket.window.settle(now, open.entry, open.tokens, used_tokens);
            }
        }
        shard.bucket(reservation.bucket).window.status(now, reservation.limits)
    }
}

impl BucketState {
    fn advance(&mut self, now: Duration) {
        self.window.advance(now);
        let oldest = self.window.oldest();
        if self.pruned_at != oldest {
            self.pruned_at = oldest;
            self.open.retain(|_, open| open.entry >= oldest);
        }
    }

    /// Returns whether the request fits, and when it would. Changes nothing that counts.
    fn check(
        &mut self,
        now: Duration,
        limits: RateLimits,
        request_id: &RequestId,
        tokens: u64,
    ) -> (bool, RateLimitExceeded) {
        self.advance(now);
        let open = self.open.get(request_id).copied();
        let checked = match open {
            Some(open) if open.tokens >= tokens => Ok(()),
            open => self.window.check(now, limits, tokens, open),
        };
        match checked {
            Err(exceeded) => (false, exceeded),
            Ok(()) => {
                let status = self.window.status(now, limits);
                let (requests_retry_after, tokens_retry_after) = (Duration::ZERO, Duration::ZERO);
                (true, RateLimitExceeded { status, requests_retry_after, tokens_retry_after })
            }
        }
    }

    /// After `check` has found that it fits.
    fn admit(&mut self, now: Duration, request_id: &RequestId, tokens: u64) {
        let open = self.open.get(request_id).copied();
        if open.is_none_or(|open| open.tokens < tokens) {
            let entry = self.window.admit(now, tokens, open);
            self.open.insert(request_id.clone(), ReservedEntry { entry, tokens });
        }
    }
}

impl Shard {
    fn bucket(&mut self, bucket: Bucket) -> &mut BucketState {
        self.buckets.entry(bucket).or_default()
    }

    fn sweep(&mut self, now: Duration) {
        if now.saturating_sub(self.swept_at) >= WINDOW {
            self.swept_at = now;
            self.buckets.retain(|_, bucket| !bucket.window.is_empty(now));
        }
    }
}

#[async_trait]
impl Limiter for MemoryLimiter {
    async fn reserve(&self, reservation: &Reservation) -> Result<Decision, LimiterUnavailable> {
        let Reservation { ref request_id, tokens, .. } = *reservation;
        let (mut shard, now) = self.lock(reservation.bucket);
        let mut check = |bucket, limits| shard.bucket(bucket).check(now, limits, request_id, tokens);
        let (fits_account, account) = check(reservation.bucket, reservation.limits);
        let key = reservation.key.map(|key| check(key.bucket, key.limits));
        if !fits_account || key.is_some_and(|(fits_key, _)| !fits_key) {
            return Ok(Decision::Rejected(Rejection { account, key: key.map(|(_, exceeded)| exceeded) }));
        }
        for (bucket, _) in reservation.buckets() {
            shard.bucket(bucket).admit(now, request_id, tokens);
        }
        Ok(Decision::Admitted(shard.bucket(reservation.bucket).window.status(now, reservation.limits)))
    }

    async fn settle(
        &self,
        reservation: &Reservation,
        tokens: u64,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        Ok(self.close(reservation, Some(tokens)))
    }

    async fn release(&self, reservation: &Reservation) -> Result<RateLimitStatus, LimiterUnavailable> {
        Ok(self.close(reservation, None))
    }

    async fn status(
        &self,
        bucket: Bucket,
        limits: RateLimits,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        let (mut shard, now) = self.lock(bucket);
        match shard.buckets.get_mut(&bucket) {
            Some(bucket) => Ok(bucket.window.status(now, limits)),
            None => Ok(SlidingWindow::default().status(now, limits)),
        }
    }

    async fn ping(&self) -> Result<(), LimiterUnavailable> {
        Ok(())
    }
}
