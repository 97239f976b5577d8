//! The limits of many nodes, in one Redis or Valkey. Every step is one Lua script, which Redis runs alone, and one
//! round trip. Time is the Redis server's, so that the nodes' clocks do not matter.
//!
//! Redis holds the windows; where it loses them, it has forgotten at most 60 seconds of use. Where it cannot be asked,
//! nothing is admitted.

use super::{Decision, Limiter, LimiterUnavailable, Reservation};
use crate::limits::{REDIS_CONNECT_TIMEOUT, REDIS_RECONNECT_PAUSE, REDIS_RESPONSE_TIMEOUT};
use ::redis::aio::MultiplexedConnection;
use ::redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, FromRedisValue, RedisError, Script, ScriptInvocation,
};
use async_trait::async_trait;
use chancery_domain::{
    AccountId, Amount, Clock, ENTRY_SPAN, EXACT_ENTRIES, RateLimitStatus, RateLimits, Refusal, WINDOW,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long Redis keeps a window or a reservation that nobody touches: longer than any entry can stay in its window.
const KEPT: Duration = Duration::from_secs(61);
const _: () = assert!(KEPT.as_millis() > WINDOW.as_millis() + ENTRY_SPAN.as_millis());

pub struct RedisLimiter {
    link: Link,
    reserve: Script,
    settle: Script,
    status: Script,
    time: Time,
}

/// Whose clock decides when an entry leaves.
enum Time {
    Servers,
    #[cfg(test)]
    Given(Arc<dyn Clock>),
}

impl RedisLimiter {
    /// Connects when it is first asked. `clock` only tells when to try again after a failure.
    pub fn new(place: &ConnectionInfo, clock: Arc<dyn Clock>) -> Self {
        let script = |step: &str| {
            let (window_us, span_us, kept_ms) =
                (WINDOW.as_micros(), ENTRY_SPAN.as_micros(), KEPT.as_millis());
            Script::new(&format!(
                "local WINDOW_US, ENTRY_SPAN_US, EXACT_ENTRIES, KEPT_MS = {window_us}, {span_us}, {EXACT_ENTRIES}, {kept_ms}\n{}{step}",
                include_str!("lua/window.lua")
            ))
        };
        Self {
            link: Link::new(place.clone(), clock),
            reserve: script(include_str!("lua/reserve.lua")),
            settle: script(include_str!("lua/settle.lua")),
            status: script(include_str!("lua/status.lua")),
            time: Time::Servers,
        }
    }

    /// The same by a clock that a test moves.
    #[cfg(test)]
    pub fn with_time(place: &ConnectionInfo, clock: Arc<dyn Clock>) -> Self {
        Self { time: Time::Given(Arc::clone(&clock)), ..Self::new(place, clock) }
    }

    /// Whether this Redis may throw windows away when its memory is full, as one set up to be a cache does. Unknown is
    /// no: not every Redis tells.
    pub async fn may_evict(&self) -> bool {
        let Ok((mut connection, _)) = self.link.connection().await else { return false };
        let memory: Result<String, RedisError> =
            ::redis::cmd("INFO").arg("memory").query_async(&mut connection).await;
        let memory = memory.unwrap_or_default();
        let value = |name| memory.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        !matches!(value("maxmemory:"), "" | "0") && !matches!(value("maxmemory_policy:"), "" | "noeviction")
    }

    /// In microseconds; empty for the server's own.
    fn time(&self) -> String {
        match &self.time {
            Time::Servers => String::new(),
            #[cfg(test)]
            Time::Given(clock) => (clock.now().0 * 1_000).to_string(),
        }
    }

    async fn close(
        &self,
        reservation: &Reservation,
        used_tokens: Option<u64>,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        let mut call = self.settle.prepare_invoke();
        call.key(window_key(reservation.account)).key(reservation_key(reservation));
        call.arg(self.time()).arg(used_tokens.map_or_else(String::new, |tokens| tokens.to_string()));
        self.link.invoke(&call).await.map(|numbers| status(reservation.limits, numbers))
    }
}

/// Braces keep the keys of one account together where Redis is spread over several machines.
fn window_key(account: AccountId) -> String {
    format!("chancery:limits:{{{account}}}")
}

fn reservation_key(reservation: &Reservation) -> String {
    format!("{}:{}", window_key(reservation.account), reservation.request_id)
}

fn status(
    limits: RateLimits,
    (requests, tokens, next_leaves_us, all_left_us): (u64, u64, u64, u64),
) -> RateLimitStatus {
    RateLimitStatus {
        limits,
        used: Amount { requests, tokens },
        next_leaves: Duration::from_micros(next_leaves_us),
        all_left: Duration::from_micros(all_left_us),
    }
}

#[async_trait]
impl Limiter for RedisLimiter {
    async fn reserve(&self, reservation: &Reservation) -> Result<Decision, LimiterUnavailable> {
        let limits = reservation.limits;
        let mut call = self.reserve.prepare_invoke();
        call.key(window_key(reservation.account)).key(reservation_key(reservation));
        call.arg(self.time()).arg(reservation.tokens).arg(limits.requests_per_min).arg(limits.tokens_per_min);
        let (is_admitted, requests_wait_us, tokens_wait_us, requests, tokens, next_leaves_us, all_left_us) =
            self.link.invoke(&call).await?;
        let status = status(limits, (requests, tokens, next_leaves_us, all_left_us));
        Ok(match is_admitted {
            true => Decision::Admitted(status),
            false => Decision::Refused(Refusal {
                status,
                requests_wait: Duration::from_micros(requests_wait_us),
                tokens_wait: Duration::from_micros(tokens_wait_us),
            }),
        })
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
        account: AccountId,
        limits: RateLimits,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        let mut call = self.status.prepare_invoke();
        call.key(window_key(account)).arg(self.time());
        self.link.invoke(&call).await.map(|numbers| status(limits, numbers))
    }

    async fn ping(&self) -> Result<(), LimiterUnavailable> {
        let mut call = self.status.prepare_invoke();
        // No account has this number, so there is no such window; but the script has run.
        call.key(window_key(AccountId(0))).arg(self.time());
        self.link.invoke::<Vec<u64>>(&call).await.map(drop)
    }
}

/// One connection that all requests share; their commands are sent together and answered in order. A failed one is
/// given up and made anew for the next request. After a failure to connect nobody tries again for a moment: requests
/// are refused at once then, instead of waiting in line for a time-out each.
struct Link {
    place: ConnectionInfo,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    connection: Option<MultiplexedConnection>,
    /// How many connections there have been; tells a failed connection from the one made after it.
    number: u64,
    failed: Option<(Instant, LimiterUnavailable)>,
}

impl Link {
    fn new(place: ConnectionInfo, clock: Arc<dyn Clock>) -> Self {
        Self { place, clock, state: Mutex::new(State { connection: None, number: 0, failed: None }) }
    }

    async fn invoke<T: FromRedisValue>(&self, call: &ScriptInvocation<'_>) -> Result<T, LimiterUnavailable> {
        let began = self.clock.monotonic();
        let answer = self.invoke_or_again(call).await;
        let took = self.clock.monotonic().saturating_duration_since(began);
        metrics::histogram!("chancery_limit_store_seconds").record(took.as_secs_f64());
        answer
    }

    /// A connection may have been closed while nobody used it, so where one breaks, the script is tried once more on a
    /// new one. That is safe, because every script changes nothing when it is run again.
    async fn invoke_or_again<T: FromRedisValue>(
        &self,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, LimiterUnavailable> {
        match self.try_invoke(call).await? {
            Ok(answer) => Ok(answer),
            Err(error) if error.is_timeout() || !error.is_unrecoverable_error() => Err(unavailable(&error)),
            Err(_) => self.try_invoke(call).await?.map_err(|error| unavailable(&error)),
        }
    }

    async fn try_invoke<T: FromRedisValue>(
        &self,
        call: &ScriptInvocation<'_>,
    ) -> Result<Result<T, RedisError>, LimiterUnavailable> {
        let (mut connection, number) = self.connection().await?;
        let outcome = call.invoke_async(&mut connection).await;
        if outcome.is_err() {
            let mut state = self.state.lock().await;
            if state.number == number {
                state.connection = None;
            }
        }
        Ok(outcome)
    }

    async fn connection(&self) -> Result<(MultiplexedConnection, u64), LimiterUnavailable> {
        let mut state = self.state.lock().await;
        if let Some(connection) = &state.connection {
            return Ok((connection.clone(), state.number));
        }
        if let Some((at, why)) = &state.failed
            && self.clock.monotonic().saturating_duration_since(*at) < REDIS_RECONNECT_PAUSE
        {
            return Err(why.clone());
        }
        match self.connect().await {
            Ok(connection) => {
                state.connection = Some(connection.clone());
                state.number += 1;
                state.failed = None;
                Ok((connection, state.number))
            }
            Err(error) => {
                let why = unavailable(&error);
                state.failed = Some((self.clock.monotonic(), why.clone()));
                Err(why)
            }
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let options = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(REDIS_CONNECT_TIMEOUT))
            .set_response_timeout(Some(REDIS_RESPONSE_TIMEOUT));
        let client = Client::open(self.place.clone())?;
        client.get_multiplexed_async_connection_with_config(&options).await
    }
}

fn unavailable(error: &RedisError) -> LimiterUnavailable {
    LimiterUnavailable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::conformance::{admit, limits, new_account, redis, refuse, reservation};
    use super::*;
    use chancery_domain::UnixMillis;
    use std::sync::atomic::{AtomicI64, Ordering};

    /// A wall clock that can be set.
    struct SetClock(AtomicI64);

    impl Clock for SetClock {
        fn now(&self) -> UnixMillis {
            UnixMillis(self.0.load(Ordering::SeqCst))
        }

        fn monotonic(&self) -> Instant {
            chancery_domain::SystemClock.monotonic()
        }
    }

    #[tokio::test]
    async fn a_clock_that_is_set_back_neither_frees_what_is_used_nor_keeps_it_for_longer_than_a_window() {
        const NOON_MS: i64 = 1_800_000_000_000;
        let clock = Arc::new(SetClock(AtomicI64::new(NOON_MS)));
        let limiter = RedisLimiter::with_time(&redis(), clock.clone());
        let (account, limits) = (new_account(), limits(2, 10));
        admit(&limiter, &reservation(account, limits, 10)).await;
        clock.0.store(NOON_MS - 3_600_000, Ordering::SeqCst);
        assert_eq!(refuse(&limiter, &reservation(account, limits, 1)).await.tokens_wait, WINDOW);
        clock.0.fetch_add(59_999, Ordering::SeqCst);
        refuse(&limiter, &reservation(account, limits, 1)).await;
        clock.0.fetch_add(1, Ordering::SeqCst);
        admit(&limiter, &reservation(account, limits, 10)).await;
    }

    #[tokio::test]
    async fn time_is_the_redis_servers_own() {
        let limiter = RedisLimiter::new(&redis(), Arc::new(chancery_domain::SystemClock));
        let (account, limits) = (new_account(), limits(1, 10));
        admit(&limiter, &reservation(account, limits, 10)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let wait = refuse(&limiter, &reservation(account, limits, 1)).await.tokens_wait;
        assert!(
            wait > WINDOW - Duration::from_secs(20) && wait <= WINDOW - Duration::from_millis(20),
            "{wait:?}"
        );
    }
}
