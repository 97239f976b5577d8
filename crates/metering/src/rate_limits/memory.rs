//! The rate limits of one node, in memory. A restart begins with empty windows.

use super::{Decision, Limiter, LimiterUnavailable, Reservation};
use async_trait::async_trait;
use chancery_domain::{
    AccountId, Clock, RateLimitStatus, RateLimits, RequestId, SlidingWindow, WINDOW, WindowEntryId,
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

#[derive(Default)]
struct Shard {
    accounts: HashMap<AccountId, Account>,
    /// When accounts with empty windows were last removed.
    swept_at: Duration,
}

#[derive(Default)]
struct Account {
    window: SlidingWindow,
    /// Reservations that are not settled, released, or expired with their entry.
    open: HashMap<RequestId, OpenReservation>,
    /// The oldest entry when `open` was last cleared of expired reservations.
    pruned_at: WindowEntryId,
}

struct OpenReservation {
    entry: WindowEntryId,
    tokens: u64,
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
        let (mut shard, now) = self.lock(reservation.account);
        let account = shard.accounts.entry(reservation.account).or_default();
        if let Some(open) = account.open.remove(&reservation.request_id) {
            account.window.settle(now, open.entry, open.tokens, used_tokens);
        }
        account.window.status(now, reservation.limits)
    }
}

impl Account {
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
            self.accounts.retain(|_, account| !account.window.is_empty(now));
        }
    }
}

#[async_trait]
impl Limiter for MemoryLimiter {
    async fn reserve(&self, reservation: &Reservation) -> Result<Decision, LimiterUnavailable> {
        let (mut shard, now) = self.lock(reservation.account);
        let account = shard.accounts.entry(reservation.account).or_default();
        account.advance(now);
        if account.open.contains_key(&reservation.request_id) {
            return Ok(Decision::Admitted(account.window.status(now, reservation.limits)));
        }
        let entry = match account.window.reserve(now, reservation.limits, reservation.tokens) {
            Ok(entry) => entry,
            Err(rejection) => return Ok(Decision::Rejected(rejection)),
        };
        account
            .open
            .insert(reservation.request_id.clone(), OpenReservation { entry, tokens: reservation.tokens });
        Ok(Decision::Admitted(account.window.status(now, reservation.limits)))
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
        account: AccountId,
        limits: RateLimits,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        let (mut shard, now) = self.lock(account);
        match shard.accounts.get_mut(&account) {
            Some(account) => Ok(account.window.status(now, limits)),
            None => Ok(SlidingWindow::default().status(now, limits)),
        }
    }

    async fn ping(&self) -> Result<(), LimiterUnavailable> {
        Ok(())
    }
}
