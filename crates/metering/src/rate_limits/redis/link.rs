//! The connection to Redis: shared, replaced when it breaks, and not tried again too soon.

use crate::limits::{REDIS_CONNECT_TIMEOUT, REDIS_RECONNECT_DELAY, REDIS_RESPONSE_TIMEOUT};
use crate::rate_limits::LimiterUnavailable;
use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, ConnectionInfo, FromRedisValue, RedisError, ScriptInvocation};
use chancery_domain::Clock;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Mutex;

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
}

impl RedisLink {
    pub(super) fn new(info: ConnectionInfo, clock: Arc<dyn Clock>) -> Self {
        Self { info, clock, state: Mutex::new(State { connection: None, generation: 0, failed: None }) }
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

    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
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
