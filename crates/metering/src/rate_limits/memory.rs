//! The rate limits of one node, in memory. A restart begins with empty windows.

use super::{Bucket, Decision, Limiter, LimiterUnavailable, Reservation};
use async_trait::async_trait;
use chancery_domain::{
    AccountId, Clock, RateLimitStatus, RateLimits, RequestId, ReservedEntry, SlidingWindow, WINDOW,
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
    fn lock(&self, account: AccountId) -> (MutexGuard<'_, Shard>, Duration) {
        let shard = &self.shards[account.0.unsigned_abs() as usize % SHARDS];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.monotonic().saturating_duration_since(self.started_at);
        shard.sweep(now);
        (shard, now)
    }

    fn close(&self, reservation: &Reservation, used_tokens: Option<u64>) -> RateLimitStatus {
        let (mut shard, now) = self.lock(reservation.bucket.account());
        let bucket = shard.buckets.entry(reservation.bucket).or_default();
        if let Some(open) = bucket.open.remove(&reservation.request_id) {
            bucket.window.settle(now, open.entry, open.tokens, used_tokens);
        }
        bucket.window.status(now, reservation.limits)
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
}

impl Shard {
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
        let Reservation { bucket, ref request_id, limits, tokens } = *reservation;
        let (mut shard, now) = self.lock(bucket.account());
        let bucket = shard.buckets.entry(bucket).or_default();
        bucket.advance(now);
        let entry = match bucket.open.get(request_id) {
            Some(open) if open.tokens >= tokens => {
                return Ok(Decision::Admitted(bucket.window.status(now, limits)));
            }
            Some(open) => bucket.window.raise(now, limits, *open, tokens),
            None => bucket.window.reserve(now, limits, tokens),
        };
        match entry {
            Ok(entry) => {
                bucket.open.insert(request_id.clone(), ReservedEntry { entry, tokens });
                Ok(Decision::Admitted(bucket.window.status(now, limits)))
            }
            Err(rejection) => Ok(Decision::Rejected(rejection)),
        }
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
        let (mut shard, now) = self.lock(bucket.account());
        match shard.buckets.get_mut(&bucket) {
            Some(bucket) => Ok(bucket.window.status(now, limits)),
            None => Ok(SlidingWindow::default().status(now, limits)),
        }
    }

    async fn ping(&self) -> Result<(), LimiterUnavailable> {
        Ok(())
    }
}
