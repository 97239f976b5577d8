//! The connection to Redis: shared, replaced when it breaks, and not tried again too soon.

use crate::limits::{REDIS_CONNECT_TIMEOUT, REDIS_RECONNECT_DELAY, REDIS_RESPONSE_TIMEOUT};
use crate::rate_limits::LimiterUnavailable;
use ::redis::aio::MultiplexedConnection;
use ::redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, FromRedisValue, RedisError, Script, ScriptInvocation,
};
use chancery_domain::{Clock, WINDOW};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// Since when this Redis has counted every admission, in milliseconds of its clock; 0 if since the first of them.
const WINDOWS_SINCE_KEY: &str = "chancery:limits:since";

/// Returns how many milliseconds are left until the windows have everything that counts. ARGV: whether this process has used the
/// windows before, and the length of a window.
const WINDOWS_SINCE: &str = "local time, since = redis.call('TIME'), redis.call('GET', KEYS[1]) \
    local now = time[1] * 1000 + math.floor(time[2] / 1000) \
    if not since then \
        since = ARGV[1] == '1' and now or 0 \
        redis.call('SET', KEYS[1], since) \
    end \
    return math.max(0, math.min(since + ARGV[2] - now, ARGV[2]))";

/// One connection that all requests share. Their commands are pipelined and answered in order. A failed connection is dropped,
/// and the next request opens a new one. After a failure to connect, requests are rejected at once for a moment, instead of
/// each waiting in a queue for its own timeout.
pub(super) struct RedisLink {
    info: ConnectionInfo,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    connection: Option<MultiplexedConnection>,
    /// Number of connections so far. Distinguishes a failed connection from its replacement.
    generation: u64,
    failed: Option<(Instant, LimiterUnavailable)>,
    /// Until then, Redis may lack admissions that still count, because it came back empty.
    windows_lack_until: Option<Instant>,
}

impl RedisLink {
    pub(super) fn new(info: ConnectionInfo, clock: Arc<dyn Clock>) -> Self {
        let state = State { connection: None, generation: 0, failed: None, windows_lack_until: None };
        Self { info, clock, state: Mutex::new(state) }
    }

    pub(super) async fn invoke<T: FromRedisValue>(
        &self,
        call: &ScriptInvocation<'_>,
    ) -> Result<T, LimiterUnavailable> {
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

    pub(super) async fn connection(&self) -> Result<(MultiplexedConnection, u64), LimiterUnavailable> {
        let mut state = self.state.lock().await;
        if let Some(connection) = &state.connection {
            return Ok((connection.clone(), state.generation));
        }
        if let Some((at, reason)) = &state.failed
            && self.clock.monotonic().saturating_duration_since(*at) < REDIS_RECONNECT_DELAY
        {
            return Err(reason.clone());
        }
        let connected = async {
            let mut connection = self.connect().await?;
            let wait = windows_wait(&mut connection, state.generation > 0).await?;
            Ok((connection, wait))
        };
        match connected.await {
            Ok((connection, wait)) => {
                if !wait.is_zero() {
                    tracing::warn!(
                        wait_s = wait.as_secs(),
                        "Redis lost the rate limits' windows, nothing is admitted until they count again"
                    );
                }
                state.windows_lack_until = Some(self.clock.monotonic() + wait);
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

    /// Fails for a minute after Redis came back empty: what was admitted before would not count.
    pub(super) async fn ensure_windows_complete(&self) -> Result<(), LimiterUnavailable> {
        let until = self.state.lock().await.windows_lack_until;
        if until.is_some_and(|until| self.clock.monotonic() < until) {
            return Err(LimiterUnavailable("Redis lost its windows less than a minute ago".to_owned()));
        }
        Ok(())
    }

    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let options = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(REDIS_CONNECT_TIMEOUT))
            .set_response_timeout(Some(REDIS_RESPONSE_TIMEOUT));
        let client = Client::open(self.info.clone())?;
        client.get_multiplexed_async_connection_with_config(&options).await
    }
}

async fn windows_wait(
    connection: &mut MultiplexedConnection,
    has_used_them: bool,
) -> Result<Duration, RedisError> {
    let script = Script::new(WINDOWS_SINCE);
    let mut call = script.key(WINDOWS_SINCE_KEY);
    call.arg(u8::from(has_used_them)).arg(WINDOW.as_millis() as u64);
    Ok(Duration::from_millis(call.invoke_async(connection).await?))
}

fn unavailable(error: &RedisError) -> LimiterUnavailable {
    LimiterUnavailable(error.to_string())
}
