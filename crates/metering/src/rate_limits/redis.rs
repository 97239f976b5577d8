//! The rate limits of many nodes, in one Redis or Valkey. A Lua script, which Redis runs atomically, is one round trip. It has one
//! step of an account, or all that waited for the one before (`step_queue`). Time is the Redis server's, so that the nodes' clocks
//! do not matter.
//!
//! If Redis is unavailable, nothing is admitted. Nor is it for 60 seconds after Redis came back empty, because what was admitted
//! before would not count. A node that starts meanwhile learns of it from Redis, unless it is the first to connect.

mod link;
mod step_queue;

use super::{Bucket, Decision, Limiter, LimiterUnavailable, Rejection, Reservation};
use ::redis::{ConnectionInfo, RedisError, Script, ScriptInvocation};
use async_trait::async_trait;
use chancery_domain::{
    AccountId, COALESCE_SPAN, Clock, LimitUsage, MAX_EXACT_ENTRIES, RateLimitExceeded, RateLimitStatus,
    RateLimits, WINDOW,
};
use link::RedisLink;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use step_queue::{Step, StepKind, StepOutcome, StepQueue, StepRunner};

/// The TTL of an unused window or reservation in Redis: longer than any entry can stay in its window.
const KEY_TTL: Duration = Duration::from_secs(61);
const _: () = assert!(KEY_TTL.as_millis() > WINDOW.as_millis() + COALESCE_SPAN.as_millis());

pub struct RedisLimiter {
    queue: Arc<StepQueue<RedisScripts>>,
}

struct RedisScripts {
    link: RedisLink,
    steps: Script,
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
        Self { queue: StepQueue::new(RedisScripts::new(info, clock, TimeSource::RedisServer)) }
    }

    /// Uses a clock that a test controls.
    #[cfg(test)]
    pub fn with_clock(info: &ConnectionInfo, clock: Arc<dyn Clock>) -> Self {
        let time = TimeSource::Injected(Arc::clone(&clock));
        Self { queue: StepQueue::new(RedisScripts::new(info, clock, time)) }
    }

    fn scripts(&self) -> &RedisScripts {
        &self.queue.runner
    }

    /// Connects and runs a script once.
    pub(super) async fn probe(&self) -> Result<(), RedisError> {
        let mut connection = self.scripts().link.connect().await?;
        let call = self.scripts().ping_call();
        let numbers: Result<Vec<u64>, RedisError> = call.invoke_async(&mut connection).await;
        numbers.map(drop)
    }

    /// Whether this Redis may evict windows when its memory is full, as one configured as a cache does. Returns false if unknown,
    /// because not every Redis reports it.
    pub async fn may_evict(&self) -> bool {
        let Ok((mut connection, _)) = self.scripts().link.connection().await else { return false };
        let memory: Result<String, RedisError> =
            ::redis::cmd("INFO").arg("memory").query_async(&mut connection).await;
        let memory = memory.unwrap_or_default();
        let value = |name| memory.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        !matches!(value("maxmemory:"), "" | "0") && !matches!(value("maxmemory_policy:"), "" | "noeviction")
    }

    async fn close(
        &self,
        reservation: &Reservation,
        kind: StepKind,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        match self.queue.run(Step { reservation: reservation.clone(), kind }).await? {
            StepOutcome::Closed(status) => Ok(status),
            other @ StepOutcome::Decided(_) => Err(unexpected(&other)),
        }
    }
}

impl RedisScripts {
    fn new(info: &ConnectionInfo, clock: Arc<dyn Clock>, time: TimeSource) -> Self {
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
            steps: script(include_str!("lua/steps.lua")),
            status: script(include_str!("lua/status.lua")),
            time,
        }
    }

    /// No account has this id, so the window does not exist, but the script runs.
    fn ping_call(&self) -> ScriptInvocation<'_> {
        let mut call = self.status.prepare_invoke();
        call.key(window_key(Bucket::Generation(AccountId(0)))).arg(self.time());
        call
    }

    /// In microseconds; empty for the Redis server's time.
    fn time(&self) -> String {
        match &self.time {
            TimeSource::RedisServer => String::new(),
            #[cfg(test)]
            TimeSource::Injected(clock) => (clock.now().0 * 1_000).to_string(),
        }
    }

    fn steps_call(&self, steps: &[Step]) -> ScriptInvocation<'_> {
        let mut call = self.steps.prepare_invoke();
        call.arg(self.time());
        for Step { reservation, kind } in steps {
            for (bucket, _) in reservation.buckets() {
                let window = window_key(bucket);
                let reserved = format!("{window}:{}", reservation.request_id);
                call.key(window).key(reserved);
            }
            let windows = reservation.buckets().count();
            match kind {
                StepKind::Reserve => {
                    call.arg("reserve").arg(windows).arg(reservation.tokens);
                    for (_, limits) in reservation.buckets() {
                        call.arg(limits.requests_per_min).arg(limits.tokens_per_min);
                    }
                }
                StepKind::Settle { tokens } => {
                    call.arg("settle").arg(windows).arg(*tokens);
                }
                StepKind::Release => {
                    call.arg("settle").arg(windows).arg("");
                }
            }
        }
        call
    }
}

impl StepRunner for RedisScripts {
    async fn run(&self, steps: &[Step]) -> Result<Vec<StepOutcome>, LimiterUnavailable> {
        let numbers: Vec<u64> = self.link.invoke(&self.steps_call(steps)).await?;
        // Afterwards, because the script may have found a broken connection. What it reserved is released, or expires.
        if steps.iter().any(|step| matches!(step.kind, StepKind::Reserve)) {
            self.link.ensure_windows_complete().await?;
        }
        outcomes(steps, &numbers).ok_or_else(|| unexpected(&numbers))
    }
}

fn unexpected(response: &dyn fmt::Debug) -> LimiterUnavailable {
    LimiterUnavailable(format!("unexpected response: {response:?}"))
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

/// What `steps.lua` returns for one window of a step that reserves.
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

/// Reads what `steps.lua` returns.
fn outcomes(steps: &[Step], mut numbers: &[u64]) -> Option<Vec<StepOutcome>> {
    let mut outcomes = Vec::with_capacity(steps.len());
    for Step { reservation, kind } in steps {
        let count = match kind {
            StepKind::Reserve => 1 + NUMBERS_PER_WINDOW * reservation.buckets().count(),
            StepKind::Settle { .. } | StepKind::Release => 4,
        };
        let (of_step, rest) = numbers.split_at_checked(count)?;
        numbers = rest;
        outcomes.push(match (kind, of_step) {
            (StepKind::Reserve, _) => StepOutcome::Decided(decision(reservation, of_step)?),
            (_, &[requests, tokens, next_expiry_us, full_reset_us]) => {
                let numbers = (requests, tokens, next_expiry_us, full_reset_us);
                StepOutcome::Closed(status(reservation.limits, numbers))
            }
            _ => return None,
        });
    }
    numbers.is_empty().then_some(outcomes)
}

/// Whether it is admitted, and the numbers of each window.
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
        let step = Step { reservation: reservation.clone(), kind: StepKind::Reserve };
        match self.queue.run(step).await? {
            StepOutcome::Decided(decision) => Ok(decision),
            other @ StepOutcome::Closed(_) => Err(unexpected(&other)),
        }
    }

    async fn settle(
        &self,
        reservation: &Reservation,
        tokens: u64,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        self.close(reservation, StepKind::Settle { tokens }).await
    }

    async fn release(&self, reservation: &Reservation) -> Result<RateLimitStatus, LimiterUnavailable> {
        self.close(reservation, StepKind::Release).await
    }

    async fn status(
        &self,
        bucket: Bucket,
        limits: RateLimits,
    ) -> Result<RateLimitStatus, LimiterUnavailable> {
        let scripts = self.scripts();
        let mut call = scripts.status.prepare_invoke();
        call.key(window_key(bucket)).arg(scripts.time());
        scripts.link.invoke(&call).await.map(|numbers: StatusNumbers| status(limits, numbers))
    }

    async fn ping(&self) -> Result<(), LimiterUnavailable> {
        self.scripts().link.invoke::<Vec<u64>>(&self.scripts().ping_call()).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::{
        expect_admitted, expect_rejected, limits, new_account, redis, reservation, seed,
    };
    use super::super::{KeyBucket, MemoryLimiter};
    use super::*;
    use chancery_domain::{KeyId, ManualClock, Randomness, SeededRandomness, UnixMillis};
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Instant;

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

    /// Several steps of a few requests: new and repeated reservations, raises, settlements and releases, of admitted and of
    /// rejected requests.
    fn random_steps(
        randomness: &dyn Randomness,
        max_tokens: u64,
        requests: &mut Vec<Reservation>,
    ) -> Vec<Step> {
        let below = |bound: u64| randomness.next_u64() % bound;
        let account = requests[0].bucket;
        let mut steps = Vec::new();
        for _ in 0..1 + below(12) {
            let known = requests[below(requests.len() as u64) as usize].clone();
            let (reservation, kind) = match below(8) {
                0..4 => {
                    let new = reservation(AccountId(0), requests[0].limits, below(max_tokens));
                    let key = if below(2) == 0 { None } else { requests[0].key };
                    (Reservation { bucket: account, key, ..new }, StepKind::Reserve)
                }
                4 => (Reservation { tokens: below(2 * max_tokens), ..known }, StepKind::Reserve),
                5..7 => {
                    let tokens = below(known.tokens + 1);
                    (known, StepKind::Settle { tokens })
                }
                _ => (known, StepKind::Release),
            };
            requests.push(reservation.clone());
            steps.push(Step { reservation, kind });
        }
        steps
    }

    /// Small limits are met after few requests; large ones fill the window until requests share entries.
    #[tokio::test]
    async fn steps_of_one_script_have_the_outcomes_of_single_steps() {
        let randomness = SeededRandomness::new(seed());
        for (of_account, of_key, max_tokens) in
            [(limits(40, 6_000), limits(25, 4_000), 900), (limits(300, 9_000), limits(200, 8_000), 20)]
        {
            let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
            let limiter = RedisLimiter::with_clock(&redis(), clock.clone());
            let memory = MemoryLimiter::new(clock.clone());
            let account = new_account();
            let key = KeyBucket { bucket: Bucket::Key(account, KeyId(1)), limits: of_key };
            let mut requests = vec![Reservation { key: Some(key), ..reservation(account, of_account, 10) }];
            for batch in 0..300 {
                let steps = random_steps(&randomness, max_tokens, &mut requests);
                let mut expected = Vec::new();
                for Step { reservation, kind } in &steps {
                    expected.push(match kind {
                        StepKind::Reserve => StepOutcome::Decided(memory.reserve(reservation).await.unwrap()),
                        StepKind::Settle { tokens } => {
                            StepOutcome::Closed(memory.settle(reservation, *tokens).await.unwrap())
                        }
                        StepKind::Release => StepOutcome::Closed(memory.release(reservation).await.unwrap()),
                    });
                }
                let outcomes = limiter.scripts().run(&steps).await.unwrap();
                assert_eq!(outcomes, expected, "batch {batch}: {steps:#?}");
                clock.advance(Duration::from_millis(randomness.next_u64() % 4_000));
                // The first is the model of new ones.
                let excess = requests.len().saturating_sub(200);
                requests.drain(1..=excess);
            }
        }
    }
}
