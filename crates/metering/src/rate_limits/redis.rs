//! The rate limits of many nodes, in one Redis or Valkey. Every step is one Lua script, which Redis runs atomically, and one
//! round trip. Time is the Redis server's, so that the nodes' clocks do not matter.
//!
//! If Redis loses the windows, at most 60 seconds of usage are lost. If Redis is unavailable, nothing is admitted.

use super::{Bucket, Decision, Limiter, LimiterUnavailable, Rejection, Reservation};
use crate::limits::{REDIS_CONNECT_TIMEOUT, REDIS_RECONNECT_DELAY, REDIS_RESPONSE_TIMEOUT};
use ::redis::aio::MultiplexedConnection;
use ::redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, FromRedisValue, RedisError, Script, ScriptInvocation,
};
use async_trait::async_trait;
use chancery_domain::{
    AccountId, COALESCE_SPAN, Clock, LimitUsage, MAX_EXACT_ENTRIES, RateLimitExceeded, RateLimitStatus,
    RateLimits, RequestId, WINDOW,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// The TTL of an unused window or reservation in Redis: longer than any entry can stay in its window.
const KEY_TTL: Duration = Duration::from_secs(61);
const _: () = assert!(KEY_TTL.as_millis() > WINDOW.as_millis() + COALESCE_SPAN.as_millis());

pub struct RedisLimiter {
    link: RedisLink,
    reserve: Script,
    settle: Script,
    status: Script,
    time: TimeSource,
}

/// The clock that decides when an entry expires.
enum TimeSource {
    RedisServer,
    #[cfg(test)]
    Injected(Arc<dyn Clock>),
}

impl RedisLimiter {
    /// Connects on first use. `clock` only decides when to reconnect after a failure.
    pub fn new(info: &ConnectionInfo, clock: Arc<dyn Clock>) -> Self {
        let script = |step: &str| {
            let (window_us, span_us, key_ttl_ms) =
                (WINDOW.as_micros(), COALESCE_SPAN.as_micros(), KEY_TTL.as_millis());
            Script::new(&format!(
                "local WINDOW_US, ENTRY_SPAN_US, EXACT_ENTRIES, KEY_TTL_MS = {window_us}, {span_us}, {MAX_EXACT_ENTRIES}, {key_ttl_ms}\n{}{step}",
                include_str!("lua/window.lua")
            ))
        };
        Self {
            link: RedisLink::new(info.clone(), clock),
            reserve: script(include_str!("lua/reserve.lua")),
            settle: script(include_str!("lua/settle.lua")),
            status: script(include_str!("lua/status.lua")),
            time: TimeSource::RedisServer,
        }
    }

    /// Uses a clock that a test controls.
    #[cfg(test)]
    pub fn with_clock(info: &ConnectionInfo, clock: Arc<dyn Clock>) -> Self {
        Self { time: TimeSource::Injected(Arc::clone(&clock)), ..Self::new(info, clock) }
    }

    /// Connects and runs a script once.
    pub(super) async fn probe(&self) -> Result<(), RedisError> {
        let mut connection = self.link.connect().await?;
        let numbers: Result<Vec<u64>, RedisError> = self.ping_call().invoke_async(&mut connection).await;
        numbers.map(drop)
    }

    /// No account has this id, so the window does not exist, but the script runs.
    fn ping_call(&self) -> ScriptInvocation<'_> {
        let mut call = self.status.prepare_invoke();
        call.key(window_key(Bucket::Generation(AccountId(0)))).arg(self.time());
        call
    }

    /// Whether this Redis may evict windows when its memory is full, as one configured as a cache does. Returns false if unknown,
    /// because not every Redis reports it.
    pub async fn may_evict(&self) -> bool {
        let Ok((mut connection, _)) = self.link.connection().await else { return false };
        let memory: Result<String, RedisError> =
            ::redis::cmd("INFO").arg("memory").query_async(&mut connection).await;
        let memory = memory.unwrap_or_default();
        let value = |name| memory.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        !matches!(value("maxmemory:"), "" | "0") && !matches!(value("maxmemory_policy:"), "" | "noeviction")
    }

    /// In microseconds; empty for the Redis server's time.
    fn time(&self) -> String {
        match &self.time {
            TimeSource::RedisServer => String::new(),
            #[cfg(test)]
            TimeSource::Injected(clock) => (clock.now().0 * 1_000).to_string(),
        }
    }

    async fn close(
        &self,
        reservation: &Reservation,
        used_tokens: Option<u64>,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        let mut call = self.settle.prepare_invoke();
        for (bucket, _) in reservation.buckets() {
            call.key(window_key(bucket)).key(reservation_key(bucket, &reservation.request_id));
        }
        call.arg(self.time()).arg(used_tokens.map_or_else(String::new, |tokens| tokens.to_string()));
        self.link.invoke(&call).await.map(|numbers: StatusNumbers| status(reservation.limits, numbers))
    }
}

/// The braces are a Redis Cluster hash tag: all keys of one account are in the same slot.
fn window_key(bucket: Bucket) -> String {
    match bucket {
        Bucket::Generation(account) => format!("chancery:limits:{{{account}}}"),
        Bucket::Reads(account) => format!("chancery:limits:{{{account}}}:reads"),
        Bucket::Key(account, key) => format!("chancery:limits:{{{account}}}:key:{key}"),
        Bucket::KeyReads(account, key) => format!("chancery:limits:{{{account}}}:key:{key}:reads"),
        Bucket::Person(person) => format!("chancery:limits:{{person-{person}}}"),
    }
}

fn reservation_key(bucket: Bucket, request_id: &RequestId) -> String {
    format!("{}:{request_id}", window_key(bucket))
}

/// Requests, tokens, and the times until the oldest and the newest entry expire.
type StatusNumbers = (u64, u64, u64, u64);

fn status(
    limits: RateLimits,
    (requests, tokens, next_expiry_us, full_reset_us): StatusNumbers,
) -> RateLimitStatus {
    RateLimitStatus {
        limits,
        used: LimitUsage { requests, tokens },
        next_expiry: Duration::from_micros(next_expiry_us),
        full_reset: Duration::from_micros(full_reset_us),
    }
}

/// What `reserve.lua` returns for one window.
const NUMBERS_PER_WINDOW: usize = 6;

fn exceeded(
    limits: RateLimits,
    [requests_wait_us, tokens_wait_us, requests, tokens, next_expiry_us, full_reset_us]: [u64;
        NUMBERS_PER_WINDOW],
) -> RateLimitExceeded {
    RateLimitExceeded {
        status: status(limits, (requests, tokens, next_expiry_us, full_reset_us)),
        requests_retry_after: Duration::from_micros(requests_wait_us),
        tokens_retry_after: Duration::from_micros(tokens_wait_us),
    }
}

/// Reads what `reserve.lua` returns: whether it is admitted, and the numbers of each window.
fn decision(reservation: &Reservation, numbers: &[u64]) -> Option<Decision> {
    let (is_admitted, windows) = numbers.split_first()?;
    let (windows, []) = windows.as_chunks::<NUMBERS_PER_WINDOW>() else { return None };
    let account = exceeded(reservation.limits, *windows.first()?);
    let key = match reservation.key {
        Some(key) => Some(exceeded(key.limits, *windows.get(1)?)),
        None => None,
    };
    Some(match is_admitted {
        0 => Decision::Rejected(Rejection { account, key }),
        _ => Decision::Admitted(account.status),
    })
}

#[async_trait]
impl Limiter for RedisLimiter {
    async fn reserve(&self, reservation: &Reservation) -> Result<Decision, LimiterUnavailable> {
        let mut call = self.reserve.prepare_invoke();
        call.arg(self.time()).arg(reservation.tokens);
        for (bucket, limits) in reservation.buckets() {
            call.key(window_key(bucket)).key(reservation_key(bucket, &reservation.request_id));
            call.arg(limits.requests_per_min).arg(limits.tokens_per_min);
        }
        let numbers: Vec<u64> = self.link.invoke(&call).await?;
        decision(reservation, &numbers)
            .ok_or_else(|| LimiterUnavailable(format!("unexpected response: {numbers:?}")))
    }

    async fn settle(
        &self,
        reservation: &Reservation,
        tokens: u64,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        self.close(reservation, Some(tokens)).await
    }

    async fn release(&self, reservation: &Reservation) -> Result<RateLimitStatus, LimiterUnavailable> {
        self.close(reservation, None).await
    }

    async fn status(
        &self,
        bucket: Bucket,
        limits: RateLimits,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        let mut call = self.status.prepare_invoke();
        call.key(window_key(bucket)).arg(self.time());
        self.link.invoke(&call).await.map(|numbers: StatusNumbers| status(limits, numbers))
    }

    async fn ping(&self) -> Result<(), LimiterUnavailable> {
        self.link.invoke::<Vec<u64>>(&self.ping_call()).await.map(drop)
    }
}

/// One connection that all requests share. Their commands are pipelined and answered in order. A failed connection is dropped,
/// and the next request opens a new one. After a failure to connect, requests are rejected at once for a moment, instead of
/// each waiting in a queue for its own timeout.
struct RedisLink {
    info: ConnectionInfo,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    connection: Option<MultiplexedConnection>,
    /// Number of connections so far. Distinguishes a failed connection from its replacement.
    generation: u64,
    failed: Option<(Instant, LimiterUnavailable)>,
}

impl RedisLink {
    fn new(info: ConnectionInfo, clock: Arc<dyn Clock>) -> Self {
        Self { info, clock, state: Mutex::new(State { connection: None, generation: 0, failed: None }) }
    }

    async fn invoke<T: FromRedisValue>(&self, call: &ScriptInvocation<'_>) -> Result<T, LimiterUnavailable> {
        let started_at = self.clock.monotonic();
        let response = self.invoke_with_retry(call).await;
        let elapsed = self.clock.monotonic().saturating_duration_since(started_at);
        metrics::histogram!("chancery_limit_store_seconds").record(elapsed.as_secs_f64());
        response
    }

    /// A connection may have been closed while idle, so if one breaks, the script is retried once on a new one. That is safe,
    /// because every script is idempotent.
    async fn invoke_with_retry<T: FromRedisValue>(
        &self,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, LimiterUnavailable> {
        match self.try_invoke(call).await? {
            Ok(response) => Ok(response),
            Err(error) if error.is_timeout() || !error.is_unrecoverable_error() => Err(unavailable(&error)),
            Err(_) => self.try_invoke(call).await?.map_err(|error| unavailable(&error)),
        }
    }

    async fn try_invoke<T: FromRedisValue>(
        &self,
        call: &ScriptInvocation<'_>,
    ) -> Result<Result<T, RedisError>, LimiterUnavailable> {
        let (mut connection, generation) = self.connection().await?;
        let outcome = call.invoke_async(&mut connection).await;
        if outcome.is_err() {
            let mut state = self.state.lock().await;
            if state.generation == generation {
                state.connection = None;
            }
        }
        Ok(outcome)
    }

    async fn connection(&self) -> Result<(MultiplexedConnection, u64), LimiterUnavailable> {
        let mut state = self.state.lock().await;
        if let Some(connection) = &state.connection {
            return Ok((connection.clone(), state.generation));
        }
        if let Some((at, reason)) = &state.failed
            && self.clock.monotonic().saturating_duration_since(*at) < REDIS_RECONNECT_DELAY
        {
            return Err(reason.clone());
        }
        match self.connect().await {
            Ok(connection) => {
                state.connection = Some(connection.clone());
                state.generation += 1;
                state.failed = None;
                Ok((connection, state.generation))
            }
            Err(error) => {
                let reason = unavailable(&error);
                state.failed = Some((self.clock.monotonic(), reason.clone()));
                Err(reason)
            }
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let options = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(REDIS_CONNECT_TIMEOUT))
            .set_response_timeout(Some(REDIS_RESPONSE_TIMEOUT));
        let client = Client::open(self.info.clone())?;
        client.get_multiplexed_async_connection_with_config(&options).await
    }
}

fn unavailable(error: &RedisError) -> LimiterUnavailable {
    LimiterUnavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::conformance::{
        expect_admitted, expect_rejected, limits, new_account, redis, reservation,
    };
    use super::*;
    use chancery_domain::UnixMillis;
    use std::sync::atomic::{AtomicI64, Ordering};

    /// A wall clock that can be set.
    struct AdjustableClock(AtomicI64);

    impl Clock for AdjustableClock {
        fn now(&self) -> UnixMillis {
            UnixMillis(self.0.load(Ordering::SeqCst))
        }

        fn monotonic(&self) -> Instant {
            chancery_domain::SystemClock.monotonic()
        }
    }

    #[tokio::test]
    async fn clock_set_back_neither_frees_usage_nor_extends_the_window() {
        const NOON_MS: i64 = 1_800_000_000_000;
        let clock = Arc::new(AdjustableClock(AtomicI64::new(NOON_MS)));
        let limiter = RedisLimiter::with_clock(&redis(), clock.clone());
        let (account, limits) = (new_account(), limits(2, 10));
        expect_admitted(&limiter, &reservation(account, limits, 10)).await;
        clock.0.store(NOON_MS - 3_600_000, Ordering::SeqCst);
        assert_eq!(
            expect_rejected(&limiter, &reservation(account, limits, 1)).await.tokens_retry_after,
            WINDOW
        );
        clock.0.fetch_add(59_999, Ordering::SeqCst);
        expect_rejected(&limiter, &reservation(account, limits, 1)).await;
        clock.0.fetch_add(1, Ordering::SeqCst);
        expect_admitted(&limiter, &reservation(account, limits, 10)).await;
    }

    #[tokio::test]
    async fn window_uses_the_redis_server_clock() {
        let limiter = RedisLimiter::new(&redis(), Arc::new(chancery_domain::SystemClock));
        let (account, limits) = (new_account(), limits(1, 10));
        expect_admitted(&limiter, &reservation(account, limits, 10)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let wait = expect_rejected(&limiter, &reservation(account, limits, 1)).await.tokens_retry_after;
        assert!(
            wait > WINDOW - Duration::from_secs(20) && wait <= WINDOW - Duration::from_millis(20),
            "{wait:?}"
        );
    }
}
