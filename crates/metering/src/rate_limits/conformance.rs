//! The test suite for every limit store: the same results as a plain list, in any order of operations; no overshoot however
//! many requests race; exact waits. Redis is a real one. Where time matters, it follows a clock that the test controls.

mod key_buckets;

use super::{Bucket, Decision, LimitStoreUrl, Limiter, MemoryLimiter, RedisLimiter, Rejection, Reservation};
use ::redis::ConnectionInfo;
use chancery_domain::{
    AccountId, COALESCE_SPAN, Clock, LimitUsage, MAX_EXACT_ENTRIES, ManualClock, OsRandomness, PersonId,
    Randomness, RateLimitExceeded, RateLimitStatus, RateLimits, RequestId, SeededRandomness, SystemClock,
    UnixMillis, WINDOW,
};
use key_buckets::{
    key_bucket_is_reserved_settled_and_released_with_the_accounts,
    limiter_with_a_key_bucket_matches_two_reference_models,
    racing_requests_exceed_neither_the_keys_nor_the_accounts_limit,
    raise_that_exceeds_one_bucket_changes_neither, rejected_request_of_a_key_fits_both_after_its_retry_wait,
    rejection_names_the_scope_with_the_longer_wait, request_over_one_bucket_counts_in_neither,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn redis() -> Box<ConnectionInfo> {
    let url = std::env::var("CHANCERY_TEST_REDIS_URL");
    let url = url.expect("run `make test`, which starts a Redis and sets CHANCERY_TEST_REDIS_URL");
    match url.parse() {
        Ok(LimitStoreUrl::Redis(info)) => info,
        other => panic!("CHANCERY_TEST_REDIS_URL is {other:?}"),
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Memory,
    Redis,
}

/// A store with a clock that the test controls.
fn timed(kind: Kind) -> (Arc<dyn Limiter>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
    match kind {
        Kind::Memory => (Arc::new(MemoryLimiter::new(clock.clone())), clock),
        Kind::Redis => (Arc::new(RedisLimiter::with_clock(&redis(), clock.clone())), clock),
    }
}

/// The stores of two nodes that share limits, in real time.
fn two_nodes(kind: Kind) -> [Arc<dyn Limiter>; 2] {
    let clock = Arc::new(SystemClock);
    match kind {
        Kind::Memory => {
            let one: Arc<dyn Limiter> = Arc::new(MemoryLimiter::new(clock));
            [Arc::clone(&one), one]
        }
        Kind::Redis => {
            [(), ()].map(|()| -> Arc<dyn Limiter> { Arc::new(RedisLimiter::new(&redis(), clock.clone())) })
        }
    }
}

/// Tests share one Redis, so each uses its own accounts.
pub(super) fn new_account() -> AccountId {
    AccountId((OsRandomness.next_u64() >> 1) as i64)
}

/// Random by default; `CHANCERY_TEST_SEED` reruns with the seed that a failed test printed.
pub(super) fn seed() -> u64 {
    let given = std::env::var("CHANCERY_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| OsRandomness.next_u64());
    println!("seed {seed}");
    seed
}

pub(super) fn limits(requests_per_min: u32, tokens_per_min: u32) -> RateLimits {
    RateLimits { requests_per_min, tokens_per_min }
}

pub(super) fn reservation(account: AccountId, limits: RateLimits, tokens: u64) -> Reservation {
    let request_id = RequestId::new(SystemClock.now(), &OsRandomness);
    Reservation { bucket: Bucket::Generation(account), request_id, limits, key: None, tokens }
}

pub(super) async fn expect_admitted(limiter: &dyn Limiter, reservation: &Reservation) -> RateLimitStatus {
    match limiter.reserve(reservation).await.unwrap() {
        Decision::Admitted(status) => status,
        Decision::Rejected(rejection) => panic!("rejected: {rejection:?}"),
    }
}

/// The limits of the scope that rejects it.
pub(super) async fn expect_rejected(limiter: &dyn Limiter, reservation: &Reservation) -> RateLimitExceeded {
    match limiter.reserve(reservation).await.unwrap() {
        Decision::Admitted(status) => panic!("admitted: {status:?}"),
        Decision::Rejected(rejection) => rejection.exceeded(),
    }
}

/// One test per rule and store.
macro_rules! for_each_limiter {
    ($($rule:ident)*) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $rule() {
                super::$rule(super::Kind::Memory).await;
            })*
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $rule() {
                super::$rule(super::Kind::Redis).await;
            })*
        }
    };
}

for_each_limiter! {
    limiter_matches_a_reference_implementation
    request_counts_its_full_reservation_until_settled
    settling_or_releasing_twice_changes_nothing
    reserving_the_same_request_twice_changes_nothing
    unsettled_reservation_expires_after_a_window
    expired_reservation_never_affects_a_later_one
    accounts_do_not_share_a_window
    buckets_of_an_account_do_not_share_a_window
    bucket_of_a_person_limits_requests_apart_from_accounts
    raised_reservation_counts_once_and_from_the_raise
    rejected_raise_keeps_the_request_and_its_tokens
    racing_requests_never_exceed_the_limit_and_settling_frees_capacity
    rejected_request_is_admitted_exactly_after_its_retry_wait
    limiter_with_a_key_bucket_matches_two_reference_models
    key_bucket_is_reserved_settled_and_released_with_the_accounts
    request_over_one_bucket_counts_in_neither
    rejection_names_the_scope_with_the_longer_wait
    raise_that_exceeds_one_bucket_changes_neither
    rejected_request_of_a_key_fits_both_after_its_retry_wait
    racing_requests_exceed_neither_the_keys_nor_the_accounts_limit
}

async fn request_counts_its_full_reservation_until_settled(kind: Kind) {
    let (limiter, _) = timed(kind);
    let (account, limits) = (new_account(), limits(3, 1_000));
    let first = reservation(account, limits, 900);
    let status = expect_admitted(limiter.as_ref(), &first).await;
    assert_eq!((status.used, status.limits), (LimitUsage { requests: 1, tokens: 900 }, limits));
    assert_eq!((status.next_expiry, status.full_reset), (WINDOW, WINDOW));
    let second = reservation(account, limits, 101);
    let rejection = expect_rejected(limiter.as_ref(), &second).await;
    assert_eq!((rejection.requests_retry_after, rejection.tokens_retry_after), (Duration::ZERO, WINDOW));
    assert_eq!(rejection.status, status, "a rejected request does not count");
    let status = limiter.settle(&first, 20).await.unwrap();
    assert_eq!(status.used, LimitUsage { requests: 1, tokens: 20 });
    expect_admitted(limiter.as_ref(), &second).await;
    let status = limiter.release(&second).await.unwrap();
    assert_eq!(status.used, LimitUsage { requests: 1, tokens: 20 });
    assert_eq!(limiter.status(Bucket::Generation(account), limits).await.unwrap(), status);
}

async fn bucket_of_a_person_limits_requests_apart_from_accounts(kind: Kind) {
    let (limiter, clock) = timed(kind);
    let (account, limits) = (new_account(), limits(2, 1));
    let bucket = Bucket::Person(PersonId(account.0));
    let of_person = || Reservation { bucket, ..reservation(account, limits, 0) };
    for _ in 0..2 {
        expect_admitted(limiter.as_ref(), &of_person()).await;
    }
    let exceeded = expect_rejected(limiter.as_ref(), &of_person()).await;
    assert_eq!((exceeded.requests_retry_after, exceeded.tokens_retry_after), (WINDOW, Duration::ZERO));
    let of_account = limiter.status(Bucket::Generation(account), limits).await.unwrap();
    assert_eq!(of_account.used, LimitUsage::default(), "the account with the same number");
    clock.advance(WINDOW);
    expect_admitted(limiter.as_ref(), &of_person()).await;
}

async fn settling_or_releasing_twice_changes_nothing(kind: Kind) {
    let (limiter, _) = timed(kind);
    let (account, limits) = (new_account(), limits(10, 1_000));
    let (settled, released, unknown) = (
        reservation(account, limits, 300),
        reservation(account, limits, 300),
        reservation(account, limits, 9),
    );
    expect_admitted(limiter.as_ref(), &settled).await;
    expect_admitted(limiter.as_ref(), &released).await;
    limiter.settle(&settled, 7).await.unwrap();
    let status = limiter.release(&released).await.unwrap();
    assert_eq!(status.used, LimitUsage { requests: 1, tokens: 7 });
    for reservation in [&settled, &released, &unknown] {
        assert_eq!(limiter.settle(reservation, 100).await.unwrap(), status);
        assert_eq!(limiter.release(reservation).await.unwrap(), status);
    }
}

async fn reserving_the_same_request_twice_changes_nothing(kind: Kind) {
    let (limiter, _) = timed(kind);
    let reservation = reservation(new_account(), limits(1, 10), 10);
    let status = expect_admitted(limiter.as_ref(), &reservation).await;
    assert_eq!(expect_admitted(limiter.as_ref(), &reservation).await, status);
}

async fn unsettled_reservation_expires_after_a_window(kind: Kind) {
    let (limiter, clock) = timed(kind);
    let (account, limits) = (new_account(), limits(1, 10));
    let abandoned = reservation(account, limits, 10);
    expect_admitted(limiter.as_ref(), &abandoned).await;
    clock.advance(WINDOW - Duration::from_millis(1));
    let next = reservation(account, limits, 10);
    assert_eq!(expect_rejected(limiter.as_ref(), &next).await.retry_after_s(), 1);
    clock.advance(Duration::from_millis(1));
    let status = expect_admitted(limiter.as_ref(), &next).await;
    // Work that took longer than a window settles too late to matter.
    assert_eq!(limiter.settle(&abandoned, 5).await.unwrap(), status);
    assert_eq!(limiter.release(&abandoned).await.unwrap(), status);
}

/// The window is empty twice in between, so that a store that numbers its entries restarts at the first number.
async fn expired_reservation_never_affects_a_later_one(kind: Kind) {
    let (limiter, clock) = timed(kind);
    let (account, limits) = (new_account(), limits(1, 10));
    let left = reservation(account, limits, 10);
    expect_admitted(limiter.as_ref(), &left).await;
    clock.advance(WINDOW);
    let released = reservation(account, limits, 10);
    expect_admitted(limiter.as_ref(), &released).await;
    limiter.release(&released).await.unwrap();
    let status = expect_admitted(limiter.as_ref(), &reservation(account, limits, 10)).await;
    assert_eq!(limiter.settle(&left, 1).await.unwrap(), status);
    assert_eq!(limiter.release(&left).await.unwrap(), status);
}

async fn accounts_do_not_share_a_window(kind: Kind) {
    let (limiter, _) = timed(kind);
    let (one, other, limits) = (new_account(), new_account(), limits(1, 10));
    expect_admitted(limiter.as_ref(), &reservation(one, limits, 10)).await;
    expect_admitted(limiter.as_ref(), &reservation(other, limits, 10)).await;
    expect_rejected(limiter.as_ref(), &reservation(one, limits, 1)).await;
}

async fn buckets_of_an_account_do_not_share_a_window(kind: Kind) {
    let (limiter, clock) = timed(kind);
    let (account, limits) = (new_account(), limits(2, 10));
    let read = || Reservation { bucket: Bucket::Reads(account), ..reservation(account, limits, 0) };
    let generated = reservation(account, limits, 10);
    expect_admitted(limiter.as_ref(), &generated).await;
    // The same request may count in both.
    let replayed = Reservation { bucket: Bucket::Reads(account), tokens: 0, ..generated };
    expect_admitted(limiter.as_ref(), &replayed).await;
    clock.advance(Duration::from_secs(20));
    let status = expect_admitted(limiter.as_ref(), &read()).await;
    assert_eq!(status.used, LimitUsage { requests: 2, tokens: 0 });
    let rejection = expect_rejected(limiter.as_ref(), &read()).await;
    assert_eq!(rejection.requests_retry_after, WINDOW - Duration::from_secs(20));
    let generation = limiter.status(Bucket::Generation(account), limits).await.unwrap();
    assert_eq!(generation.used, LimitUsage { requests: 1, tokens: 10 });
    clock.advance(rejection.requests_retry_after);
    expect_admitted(limiter.as_ref(), &read()).await;
}

async fn raised_reservation_counts_once_and_from_the_raise(kind: Kind) {
    let (limiter, clock) = timed(kind);
    let (account, limits) = (new_account(), limits(1, 100));
    let first = reservation(account, limits, 0);
    expect_admitted(limiter.as_ref(), &first).await;
    clock.advance(Duration::from_secs(2));
    let raised = Reservation { tokens: 60, ..first.clone() };
    let status = expect_admitted(limiter.as_ref(), &raised).await;
    assert_eq!((status.used, status.full_reset), (LimitUsage { requests: 1, tokens: 60 }, WINDOW));
    // A retry of either step changes nothing.
    assert_eq!(expect_admitted(limiter.as_ref(), &raised).await, status);
    assert_eq!(expect_admitted(limiter.as_ref(), &first).await, status);
    let status = limiter.settle(&raised, 7).await.unwrap();
    assert_eq!(status.used, LimitUsage { requests: 1, tokens: 7 });
    clock.advance(WINDOW);
    let status = limiter.status(Bucket::Generation(account), limits).await.unwrap();
    assert_eq!(status.used, LimitUsage::default());
}

async fn rejected_raise_keeps_the_request_and_its_tokens(kind: Kind) {
    let (limiter, clock) = timed(kind);
    let (account, limits) = (new_account(), limits(2, 100));
    expect_admitted(limiter.as_ref(), &reservation(account, limits, 60)).await;
    clock.advance(Duration::from_secs(1));
    let first = reservation(account, limits, 10);
    expect_admitted(limiter.as_ref(), &first).await;
    let raised = Reservation { tokens: 41, ..first.clone() };
    let rejection = expect_rejected(limiter.as_ref(), &raised).await;
    let waits = (rejection.requests_retry_after, rejection.tokens_retry_after);
    assert_eq!(waits, (Duration::ZERO, WINDOW - Duration::from_secs(1)));
    assert_eq!(rejection.status.used, LimitUsage { requests: 2, tokens: 70 });
    expect_rejected(limiter.as_ref(), &reservation(account, limits, 0)).await;
    expect_admitted(limiter.as_ref(), &Reservation { tokens: 40, ..first }).await;
}

async fn rejected_request_is_admitted_exactly_after_its_retry_wait(kind: Kind) {
    let seed = seed();
    let randomness = SeededRandomness::new(seed);
    let draw = |bound: u64| randomness.next_u64() % bound;
    let (limiter, clock) = timed(kind);
    let mut rejected = 0;
    for _ in 0..40 {
        let (account, limits) = (new_account(), limits(1 + draw(8) as u32, 100 + draw(100) as u32));
        for _ in 0..20 {
            clock.advance(Duration::from_millis(draw(6_000)));
            let reservation = reservation(account, limits, draw(100));
            let Decision::Rejected(rejection) = limiter.reserve(&reservation).await.unwrap() else {
                continue;
            };
            rejected += 1;
            let wait = rejection.exceeded().retry_after();
            clock.advance(wait - Duration::from_millis(1));
            expect_rejected(limiter.as_ref(), &reservation).await;
            clock.advance(Duration::from_millis(1));
            expect_admitted(limiter.as_ref(), &reservation).await;
        }
    }
    assert!(rejected > 40, "only {rejected} were rejected");
}

/// Tasks on two nodes race for one account, settle what they get, and continue. Reserved plus used never exceeds the limit; all
/// of it happens within one window.
async fn racing_requests_never_exceed_the_limit_and_settling_frees_capacity(kind: Kind) {
    const TASKS: u64 = 24;
    const ATTEMPTS: u64 = 60;
    let nodes = two_nodes(kind);
    let (account, limits) = (new_account(), limits(400, 20_000));
    let started_at = SystemClock.monotonic();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let limiter = Arc::clone(&nodes[task as usize % 2]);
        tasks.spawn(async move {
            let randomness = SeededRandomness::new(task);
            let mut counted = LimitUsage::default();
            for _ in 0..ATTEMPTS {
                let reservation = reservation(account, limits, 1 + randomness.next_u64() % 2_000);
                // As for a long prompt: the request first, its tokens later.
                let is_raised = randomness.next_u64().is_multiple_of(3);
                let request_only = Reservation { tokens: 0, ..reservation.clone() };
                if is_raised && matches!(limiter.reserve(&request_only).await.unwrap(), Decision::Rejected(_))
                {
                    continue;
                }
                let Decision::Admitted(status) = limiter.reserve(&reservation).await.unwrap() else {
                    if is_raised {
                        limiter.release(&reservation).await.unwrap();
                    }
                    tokio::task::yield_now().await;
                    continue;
                };
                assert!(status.used.requests <= 400 && status.used.tokens <= 20_000, "{status:?}");
                tokio::task::yield_now().await;
                if randomness.next_u64().is_multiple_of(4) {
                    limiter.release(&reservation).await.unwrap();
                } else {
                    let used = reservation.tokens / 50;
                    limiter.settle(&reservation, used).await.unwrap();
                    counted = LimitUsage { requests: counted.requests + 1, tokens: counted.tokens + used };
                }
            }
            counted
        });
    }
    let counted = tasks.join_all().await.into_iter().fold(LimitUsage::default(), |sum, one| LimitUsage {
        requests: sum.requests + one.requests,
        tokens: sum.tokens + one.tokens,
    });
    let elapsed = SystemClock.monotonic() - started_at;
    assert!(elapsed < WINDOW, "too slow to be within one window: {elapsed:?}");
    let status = nodes[0].status(Bucket::Generation(account), limits).await.unwrap();
    assert_eq!(status.used, counted, "what was settled is what counts");
    assert!(counted.requests <= 400 && counted.tokens <= 20_000, "{counted:?}");
    assert!(counted.requests > 100, "only {} were admitted", counted.requests);
}

/// The rule as a plain list of all requests, searched again for every result.
#[derive(Clone, Default)]
struct ReferenceModel {
    requests: Vec<ModelEntry>,
    /// When the last request of each entry arrived.
    last: BTreeMap<u64, Duration>,
}

#[derive(Clone)]
struct ModelEntry {
    reservation: Reservation,
    /// Requests that share an entry expire together.
    entry: u64,
    from: Duration,
    counts: LimitUsage,
    is_open: bool,
}

impl ReferenceModel {
    fn leaves(&self, listed: &ModelEntry) -> Duration {
        self.last[&listed.entry] + WINDOW
    }

    fn present(&self, now: Duration) -> impl Iterator<Item = &ModelEntry> {
        self.requests.iter().filter(move |listed| self.leaves(listed) > now)
    }

    fn used(&self, now: Duration) -> LimitUsage {
        self.present(now).fold(LimitUsage::default(), |sum, listed| LimitUsage {
            requests: sum.requests + listed.counts.requests,
            tokens: sum.tokens + listed.counts.tokens,
        })
    }

    fn status(&self, now: Duration, limits: RateLimits) -> RateLimitStatus {
        // Waits ignore entries whose requests were all released.
        let waited_for = || self.present(now).filter(|listed| listed.counts.requests > 0);
        let leaves = || waited_for().map(|listed| self.leaves(listed) - now);
        RateLimitStatus {
            limits,
            used: self.used(now),
            next_expiry: leaves().min().unwrap_or_default(),
            full_reset: leaves().max().unwrap_or_default(),
        }
    }

    fn decide(&mut self, now: Duration, reservation: &Reservation) -> Decision {
        match self.reserve(now, reservation) {
            Ok(status) => Decision::Admitted(status),
            Err(account) => Decision::Rejected(Rejection { account, key: None }),
        }
    }

    fn reserve(
        &mut self,
        now: Duration,
        reservation: &Reservation,
    ) -> Result<RateLimitStatus, RateLimitExceeded> {
        let limits = reservation.limits;
        let is_it =
            |listed: &ModelEntry| listed.is_open && listed.reservation.request_id == reservation.request_id;
        let reserved_tokens = self.present(now).find(|listed| is_it(listed)).map(|open| open.counts.tokens);
        if let Some(reserved_tokens) = reserved_tokens {
            if reserved_tokens >= reservation.tokens {
                return Ok(self.status(now, limits));
            }
            // A raise is a release and a reservation in one step, or nothing.
            let mut raised = self.clone();
            raised.settle(now, reservation, None);
            return match raised.reserve(now, reservation) {
                Ok(status) => {
                    *self = raised;
                    Ok(status)
                }
                Err(exceeded) => Err(RateLimitExceeded { status: self.status(now, limits), ..exceeded }),
            };
        }
        // The first moment at which enough has expired.
        let wait = |fits: &dyn Fn(LimitUsage) -> bool| {
            let leaves: BTreeSet<Duration> = self.last.values().map(|last| *last + WINDOW).collect();
            let mut moments = [now].into_iter().chain(leaves.into_iter().filter(|moment| *moment > now));
            moments.find(|moment| fits(self.used(*moment))).map_or(WINDOW, |moment| moment - now)
        };
        let requests_retry_after = wait(&|used| used.requests < u64::from(limits.requests_per_min));
        let tokens_retry_after =
            wait(&|used| used.tokens + reservation.tokens <= u64::from(limits.tokens_per_min));
        if requests_retry_after + tokens_retry_after > Duration::ZERO {
            return Err(RateLimitExceeded {
                status: self.status(now, limits),
                requests_retry_after,
                tokens_retry_after,
            });
        }
        let (entry, from) = self.entry_for(now);
        self.last.insert(entry, now);
        let counts = LimitUsage { requests: 1, tokens: reservation.tokens };
        self.requests.push(ModelEntry {
            reservation: reservation.clone(),
            entry,
            from,
            counts,
            is_open: true,
        });
        Ok(self.status(now, limits))
    }

    /// The newest entry if there are many and it is young enough, otherwise a new one. Empty entries count as long as they are
    /// between others.
    fn entry_for(&self, now: Duration) -> (u64, Duration) {
        let filled = || self.present(now).filter(|listed| listed.counts.requests > 0);
        if let (Some(oldest), Some(newest)) =
            (filled().min_by_key(|listed| listed.entry), filled().max_by_key(|listed| listed.entry))
        {
            let between = self.present(now).map(|listed| listed.entry);
            let between: BTreeSet<u64> =
                between.filter(|entry| (oldest.entry..=newest.entry).contains(entry)).collect();
            if between.len() >= MAX_EXACT_ENTRIES && now - newest.from < COALESCE_SPAN {
                return (newest.entry, newest.from);
            }
        }
        (self.last.last_key_value().map_or(0, |(newest, _)| newest + 1), now)
    }

    fn settle(&mut self, now: Duration, reservation: &Reservation, used: Option<u64>) -> RateLimitStatus {
        let is_it =
            |listed: &ModelEntry| listed.is_open && listed.reservation.request_id == reservation.request_id;
        let index = self.requests.iter().position(|listed| is_it(listed) && self.leaves(listed) > now);
        if let Some(index) = index {
            let listed = &mut self.requests[index];
            listed.is_open = false;
            listed.counts = match used {
                Some(tokens) => LimitUsage { requests: 1, tokens },
                None => LimitUsage::default(),
            };
        }
        // The newest entries are removed once they are empty.
        let newest =
            self.requests.iter().filter(|listed| listed.counts.requests > 0).map(|listed| listed.entry).max();
        self.requests.retain(|listed| Some(listed.entry) <= newest);
        self.status(now, reservation.limits)
    }
}

/// Runs random operations at random times and compares every result.
async fn limiter_matches_a_reference_implementation(kind: Kind) {
    let seed = seed();
    let randomness = SeededRandomness::new(seed);
    let draw = |bound: u64| randomness.next_u64() % bound;
    let pauses_ms = [0, 0, 0, 1, 3, 20, 100, 499, 500, 501, 2_000, 59_000, 60_000];
    for round in 0..30 {
        let (limiter, clock) = timed(kind);
        let started_at = clock.now();
        let account = new_account();
        let mut plain = ReferenceModel { requests: Vec::new(), last: BTreeMap::new() };
        // Small limits are met after few requests; large ones fill the window until requests share entries.
        let is_large = round % 2 == 1;
        let requests_per_min = if is_large { 70 + draw(200) } else { 1 + draw(12) };
        let tokens_per_min = 50 + draw(3_000);
        let largest_tokens = if is_large { 20 } else { tokens_per_min / 4 };
        let mut limits = limits(requests_per_min as u32, tokens_per_min as u32);
        let mut reservations: Vec<Reservation> = Vec::new();
        for step in 0..400 {
            if draw(3) == 0 {
                let longest = if is_large { 10 } else { pauses_ms.len() };
                clock.advance(Duration::from_millis(pauses_ms[draw(longest as u64) as usize]));
            }
            let now = Duration::from_millis((clock.now().0 - started_at.0) as u64);
            let what = format!("seed {seed}, round {round}, step {step}, {kind:?}");
            let any = (!reservations.is_empty())
                .then(|| reservations[draw(reservations.len() as u64) as usize].clone());
            match (draw(10), any) {
                (0, Some(one)) => {
                    let status = limiter.release(&one).await.unwrap();
                    assert_eq!(status, plain.settle(now, &one, None), "{what}");
                }
                (1 | 2, Some(one)) => {
                    let used = draw(one.tokens + 1);
                    let status = limiter.settle(&one, used).await.unwrap();
                    assert_eq!(status, plain.settle(now, &one, Some(used)), "{what}");
                }
                (3, Some(one)) => {
                    let decision = limiter.reserve(&one).await.unwrap();
                    assert_eq!(decision, plain.decide(now, &one), "{what}");
                }
                (6, Some(one)) => {
                    let tokens = (one.tokens + draw(largest_tokens)).min(tokens_per_min);
                    let raised = Reservation { tokens, ..one };
                    let decision = limiter.reserve(&raised).await.unwrap();
                    assert_eq!(decision, plain.decide(now, &raised), "{what}");
                }
                (4, _) if draw(10) == 0 => limits.requests_per_min = 1 + draw(requests_per_min) as u32,
                (5, _) => {
                    let status = limiter.status(Bucket::Generation(account), limits).await.unwrap();
                    assert_eq!(status, plain.status(now, limits), "{what}");
                }
                _ => {
                    let one = reservation(account, limits, draw(largest_tokens));
                    let decision = limiter.reserve(&one).await.unwrap();
                    assert_eq!(decision, plain.decide(now, &one), "{what}");
                    reservations.push(one);
                }
            }
        }
        // Entries expire one by one, which shows when each does.
        loop {
            clock.advance(Duration::from_millis(1 + draw(300)));
            let now = Duration::from_millis((clock.now().0 - started_at.0) as u64);
            let status = limiter.status(Bucket::Generation(account), limits).await.unwrap();
            assert_eq!(status, plain.status(now, limits), "seed {seed}, round {round}, {kind:?}");
            if status.used == LimitUsage::default() {
                break;
            }
        }
    }
}
