//! What every store of the limits must do, run on each of them: the same answers as a plain list, whatever happens in
//! which order; no overshoot however many requests race; waits that are true. Redis is a real one, and follows a clock
//! that the test moves where time matters.

use super::{Decision, LimitStoreUrl, Limiter, MemoryLimiter, RedisLimiter, Reservation};
use ::redis::ConnectionInfo;
use chancery_domain::{
    AccountId, Amount, Clock, ENTRY_SPAN, EXACT_ENTRIES, ManualClock, OsRandomness, Randomness,
    RateLimitStatus, RateLimits, Refusal, RequestId, SeededRandomness, SystemClock, UnixMillis, WINDOW,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn redis() -> Box<ConnectionInfo> {
    let url = std::env::var("CHANCERY_TEST_REDIS_URL");
    let url = url.expect("run `make test`, which starts a Redis and sets CHANCERY_TEST_REDIS_URL");
    match url.parse() {
        Ok(LimitStoreUrl::Redis(place)) => place,
        other => panic!("CHANCERY_TEST_REDIS_URL is {other:?}"),
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Memory,
    Redis,
}

/// A store by a clock of the test's.
fn timed(kind: Kind) -> (Arc<dyn Limiter>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
    match kind {
        Kind::Memory => (Arc::new(MemoryLimiter::new(clock.clone())), clock),
        Kind::Redis => (Arc::new(RedisLimiter::with_time(&redis(), clock.clone())), clock),
    }
}

/// Stores of two nodes that share their limits, by the real time.
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

/// Tests share one Redis, so each has accounts of its own.
pub(super) fn new_account() -> AccountId {
    AccountId((OsRandomness.next_u64() >> 1) as i64)
}

/// Another one every time; `CHANCERY_TEST_SEED` repeats what a failed test has printed.
fn seed() -> u64 {
    let given = std::env::var("CHANCERY_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| OsRandomness.next_u64());
    println!("seed {seed}");
    seed
}

pub(super) fn limits(requests_per_min: u32, tokens_per_min: u32) -> RateLimits {
    RateLimits { requests_per_min, tokens_per_min }
}

pub(super) fn reservation(account: AccountId, limits: RateLimits, tokens: u64) -> Reservation {
    Reservation { account, request_id: RequestId::new(SystemClock.now(), &OsRandomness), limits, tokens }
}

pub(super) async fn admit(limiter: &dyn Limiter, reservation: &Reservation) -> RateLimitStatus {
    match limiter.reserve(reservation).await.unwrap() {
        Decision::Admitted(status) => status,
        Decision::Refused(refusal) => panic!("refused: {refusal:?}"),
    }
}

pub(super) async fn refuse(limiter: &dyn Limiter, reservation: &Reservation) -> Refusal {
    match limiter.reserve(reservation).await.unwrap() {
        Decision::Admitted(status) => panic!("admitted: {status:?}"),
        Decision::Refused(refusal) => refusal,
    }
}

/// One test per rule and store.
macro_rules! on_both {
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

on_both! {
    a_plain_list_gives_the_same_answers
    a_request_counts_with_all_it_may_use_until_it_is_settled
    settling_or_releasing_again_changes_nothing
    asking_again_for_what_is_admitted_changes_nothing
    a_reservation_that_nobody_settles_leaves_after_a_window
    a_reservation_that_has_left_never_touches_a_later_one
    accounts_do_not_share_a_window
    racing_requests_never_pass_the_limit_and_settling_lets_the_next_in
    a_refused_request_fits_after_the_wait_it_was_told_and_not_before
}

async fn a_request_counts_with_all_it_may_use_until_it_is_settled(kind: Kind) {
    let (limiter, _) = timed(kind);
    let (account, limits) = (new_account(), limits(3, 1_000));
    let first = reservation(account, limits, 900);
    let status = admit(limiter.as_ref(), &first).await;
    assert_eq!((status.used, status.limits), (Amount { requests: 1, tokens: 900 }, limits));
    assert_eq!((status.next_leaves, status.all_left), (WINDOW, WINDOW));
    let second = reservation(account, limits, 101);
    let refusal = refuse(limiter.as_ref(), &second).await;
    assert_eq!((refusal.requests_wait, refusal.tokens_wait), (Duration::ZERO, WINDOW));
    assert_eq!(refusal.status, status, "a refused request does not count");
    let status = limiter.settle(&first, 20).await.unwrap();
    assert_eq!(status.used, Amount { requests: 1, tokens: 20 });
    admit(limiter.as_ref(), &second).await;
    let status = limiter.release(&second).await.unwrap();
    assert_eq!(status.used, Amount { requests: 1, tokens: 20 });
    assert_eq!(limiter.status(account, limits).await.unwrap(), status);
}

async fn settling_or_releasing_again_changes_nothing(kind: Kind) {
    let (limiter, _) = timed(kind);
    let (account, limits) = (new_account(), limits(10, 1_000));
    let (settled, released, unknown) = (
        reservation(account, limits, 300),
        reservation(account, limits, 300),
        reservation(account, limits, 9),
    );
    admit(limiter.as_ref(), &settled).await;
    admit(limiter.as_ref(), &released).await;
    limiter.settle(&settled, 7).await.unwrap();
    let status = limiter.release(&released).await.unwrap();
    assert_eq!(status.used, Amount { requests: 1, tokens: 7 });
    for reservation in [&settled, &released, &unknown] {
        assert_eq!(limiter.settle(reservation, 100).await.unwrap(), status);
        assert_eq!(limiter.release(reservation).await.unwrap(), status);
    }
}

async fn asking_again_for_what_is_admitted_changes_nothing(kind: Kind) {
    let (limiter, _) = timed(kind);
    let reservation = reservation(new_account(), limits(1, 10), 10);
    let status = admit(limiter.as_ref(), &reservation).await;
    assert_eq!(admit(limiter.as_ref(), &reservation).await, status);
}

async fn a_reservation_that_nobody_settles_leaves_after_a_window(kind: Kind) {
    let (limiter, clock) = timed(kind);
    let (account, limits) = (new_account(), limits(1, 10));
    let abandoned = reservation(account, limits, 10);
    admit(limiter.as_ref(), &abandoned).await;
    clock.advance(WINDOW - Duration::from_millis(1));
    let next = reservation(account, limits, 10);
    assert_eq!(refuse(limiter.as_ref(), &next).await.retry_after_s(), 1);
    clock.advance(Duration::from_millis(1));
    let status = admit(limiter.as_ref(), &next).await;
    // Work that took longer than a window settles too late to matter.
    assert_eq!(limiter.settle(&abandoned, 5).await.unwrap(), status);
    assert_eq!(limiter.release(&abandoned).await.unwrap(), status);
}

/// The window is empty twice in between, so that a store that counts its entries begins again.
async fn a_reservation_that_has_left_never_touches_a_later_one(kind: Kind) {
    let (limiter, clock) = timed(kind);
    let (account, limits) = (new_account(), limits(1, 10));
    let left = reservation(account, limits, 10);
    admit(limiter.as_ref(), &left).await;
    clock.advance(WINDOW);
    let released = reservation(account, limits, 10);
    admit(limiter.as_ref(), &released).await;
    limiter.release(&released).await.unwrap();
    let status = admit(limiter.as_ref(), &reservation(account, limits, 10)).await;
    assert_eq!(limiter.settle(&left, 1).await.unwrap(), status);
    assert_eq!(limiter.release(&left).await.unwrap(), status);
}

async fn accounts_do_not_share_a_window(kind: Kind) {
    let (limiter, _) = timed(kind);
    let (one, other, limits) = (new_account(), new_account(), limits(1, 10));
    admit(limiter.as_ref(), &reservation(one, limits, 10)).await;
    admit(limiter.as_ref(), &reservation(other, limits, 10)).await;
    refuse(limiter.as_ref(), &reservation(one, limits, 1)).await;
}

async fn a_refused_request_fits_after_the_wait_it_was_told_and_not_before(kind: Kind) {
    let seed = seed();
    let randomness = SeededRandomness::new(seed);
    let draw = |bound: u64| randomness.next_u64() % bound;
    let (limiter, clock) = timed(kind);
    let mut refused = 0;
    for _ in 0..40 {
        let (account, limits) = (new_account(), limits(1 + draw(8) as u32, 100 + draw(100) as u32));
        for _ in 0..20 {
            clock.advance(Duration::from_millis(draw(6_000)));
            let asked = reservation(account, limits, draw(100));
            let Decision::Refused(refusal) = limiter.reserve(&asked).await.unwrap() else { continue };
            refused += 1;
            let wait = refusal.requests_wait.max(refusal.tokens_wait);
            clock.advance(wait - Duration::from_millis(1));
            refuse(limiter.as_ref(), &asked).await;
            clock.advance(Duration::from_millis(1));
            admit(limiter.as_ref(), &asked).await;
        }
    }
    assert!(refused > 40, "only {refused} were refused");
}

/// Tasks on two nodes race for one account, settle what they get, and go on. The sum of what is held and of what has
/// been used never passes the limit; all of it happens within one window.
async fn racing_requests_never_pass_the_limit_and_settling_lets_the_next_in(kind: Kind) {
    const TASKS: u64 = 24;
    const TRIES: u64 = 60;
    let nodes = two_nodes(kind);
    let (account, limits) = (new_account(), limits(400, 20_000));
    let started_at = SystemClock.monotonic();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let limiter = Arc::clone(&nodes[task as usize % 2]);
        tasks.spawn(async move {
            let randomness = SeededRandomness::new(task);
            let mut counted = Amount::default();
            for _ in 0..TRIES {
                let asked = reservation(account, limits, 1 + randomness.next_u64() % 2_000);
                let Decision::Admitted(status) = limiter.reserve(&asked).await.unwrap() else {
                    tokio::task::yield_now().await;
                    continue;
                };
                assert!(status.used.requests <= 400 && status.used.tokens <= 20_000, "{status:?}");
                tokio::task::yield_now().await;
                if randomness.next_u64().is_multiple_of(4) {
                    limiter.release(&asked).await.unwrap();
                } else {
                    let used = asked.tokens / 50;
                    limiter.settle(&asked, used).await.unwrap();
                    counted = Amount { requests: counted.requests + 1, tokens: counted.tokens + used };
                }
            }
            counted
        });
    }
    let counted = tasks.join_all().await.into_iter().fold(Amount::default(), |sum, one| Amount {
        requests: sum.requests + one.requests,
        tokens: sum.tokens + one.tokens,
    });
    let elapsed = SystemClock.monotonic() - started_at;
    assert!(elapsed < WINDOW, "too slow to be within one window: {elapsed:?}");
    let status = nodes[0].status(account, limits).await.unwrap();
    assert_eq!(status.used, counted, "what was settled is what counts");
    assert!(counted.requests <= 400 && counted.tokens <= 20_000, "{counted:?}");
    assert!(counted.requests > 100, "only {} were admitted", counted.requests);
}

/// The rule as a list: every request by itself, searched anew for every answer.
struct PlainList {
    requests: Vec<Listed>,
    /// When the last request of each entry came.
    last: BTreeMap<u64, Duration>,
}

#[derive(Clone)]
struct Listed {
    reservation: Reservation,
    /// Requests that share an entry leave together.
    entry: u64,
    from: Duration,
    counts: Amount,
    is_open: bool,
}

impl PlainList {
    fn leaves(&self, listed: &Listed) -> Duration {
        self.last[&listed.entry] + WINDOW
    }

    fn present(&self, now: Duration) -> impl Iterator<Item = &Listed> {
        self.requests.iter().filter(move |listed| self.leaves(listed) > now)
    }

    fn used(&self, now: Duration) -> Amount {
        self.present(now).fold(Amount::default(), |sum, listed| Amount {
            requests: sum.requests + listed.counts.requests,
            tokens: sum.tokens + listed.counts.tokens,
        })
    }

    fn status(&self, now: Duration, limits: RateLimits) -> RateLimitStatus {
        // An entry whose requests were all taken back is nobody's to wait for.
        let waited_for = || self.present(now).filter(|listed| listed.counts.requests > 0);
        let leaves = || waited_for().map(|listed| self.leaves(listed) - now);
        RateLimitStatus {
            limits,
            used: self.used(now),
            next_leaves: leaves().min().unwrap_or_default(),
            all_left: leaves().max().unwrap_or_default(),
        }
    }

    fn reserve(&mut self, now: Duration, asked: &Reservation) -> Decision {
        let limits = asked.limits;
        let is_it = |listed: &Listed| listed.is_open && listed.reservation.request_id == asked.request_id;
        if self.present(now).any(is_it) {
            return Decision::Admitted(self.status(now, limits));
        }
        // The first moment at which enough has left.
        let wait = |fits: &dyn Fn(Amount) -> bool| {
            let leaves: BTreeSet<Duration> = self.last.values().map(|last| *last + WINDOW).collect();
            let mut moments = [now].into_iter().chain(leaves.into_iter().filter(|moment| *moment > now));
            moments.find(|moment| fits(self.used(*moment))).map_or(WINDOW, |moment| moment - now)
        };
        let requests_wait = wait(&|used| used.requests < u64::from(limits.requests_per_min));
        let tokens_wait = wait(&|used| used.tokens + asked.tokens <= u64::from(limits.tokens_per_min));
        if requests_wait + tokens_wait > Duration::ZERO {
            return Decision::Refused(Refusal {
                status: self.status(now, limits),
                requests_wait,
                tokens_wait,
            });
        }
        let (entry, from) = self.entry_for(now);
        self.last.insert(entry, now);
        let counts = Amount { requests: 1, tokens: asked.tokens };
        self.requests.push(Listed { reservation: asked.clone(), entry, from, counts, is_open: true });
        Decision::Admitted(self.status(now, limits))
    }

    /// The newest entry, where there are many and it is young enough; a new one otherwise. Entries without requests
    /// count as long as they lie between others.
    fn entry_for(&self, now: Duration) -> (u64, Duration) {
        let filled = || self.present(now).filter(|listed| listed.counts.requests > 0);
        if let (Some(oldest), Some(newest)) =
            (filled().min_by_key(|listed| listed.entry), filled().max_by_key(|listed| listed.entry))
        {
            let between = self.present(now).map(|listed| listed.entry);
            let between: BTreeSet<u64> =
                between.filter(|entry| (oldest.entry..=newest.entry).contains(entry)).collect();
            if between.len() >= EXACT_ENTRIES && now - newest.from < ENTRY_SPAN {
                return (newest.entry, newest.from);
            }
        }
        (self.last.last_key_value().map_or(0, |(newest, _)| newest + 1), now)
    }

    fn settle(&mut self, now: Duration, reservation: &Reservation, used: Option<u64>) -> RateLimitStatus {
        let is_it =
            |listed: &Listed| listed.is_open && listed.reservation.request_id == reservation.request_id;
        let place = self.requests.iter().position(|listed| is_it(listed) && self.leaves(listed) > now);
        if let Some(place) = place {
            let listed = &mut self.requests[place];
            listed.is_open = false;
            listed.counts = match used {
                Some(tokens) => Amount { requests: 1, tokens },
                None => Amount::default(),
            };
        }
        // The newest entries are gone for good once nothing is left in them.
        let newest =
            self.requests.iter().filter(|listed| listed.counts.requests > 0).map(|listed| listed.entry).max();
        self.requests.retain(|listed| Some(listed.entry) <= newest);
        self.status(now, reservation.limits)
    }
}

/// Random work by a random clock, on few accounts; every answer is compared.
async fn a_plain_list_gives_the_same_answers(kind: Kind) {
    let seed = seed();
    let randomness = SeededRandomness::new(seed);
    let draw = |bound: u64| randomness.next_u64() % bound;
    let pauses_ms = [0, 0, 0, 1, 3, 20, 100, 499, 500, 501, 2_000, 59_000, 60_000];
    for round in 0..30 {
        let (limiter, clock) = timed(kind);
        let started_at = clock.now();
        let account = new_account();
        let mut plain = PlainList { requests: Vec::new(), last: BTreeMap::new() };
        // Small limits are met after few requests; large ones fill the window until requests share entries.
        let is_large = round % 2 == 1;
        let requests_per_min = if is_large { 70 + draw(200) } else { 1 + draw(12) };
        let tokens_per_min = 50 + draw(3_000);
        let largest_tokens = if is_large { 20 } else { tokens_per_min / 4 };
        let mut limits = limits(requests_per_min as u32, tokens_per_min as u32);
        let mut asked: Vec<Reservation> = Vec::new();
        for step in 0..400 {
            if draw(3) == 0 {
                let longest = if is_large { 10 } else { pauses_ms.len() };
                clock.advance(Duration::from_millis(pauses_ms[draw(longest as u64) as usize]));
            }
            let now = Duration::from_millis((clock.now().0 - started_at.0) as u64);
            let what = format!("seed {seed}, round {round}, step {step}, {kind:?}");
            let any = (!asked.is_empty()).then(|| asked[draw(asked.len() as u64) as usize].clone());
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
                    assert_eq!(decision, plain.reserve(now, &one), "{what}");
                }
                (4, _) if draw(10) == 0 => limits.requests_per_min = 1 + draw(requests_per_min) as u32,
                (5, _) => {
                    let status = limiter.status(account, limits).await.unwrap();
                    assert_eq!(status, plain.status(now, limits), "{what}");
                }
                _ => {
                    let one = reservation(account, limits, draw(largest_tokens));
                    let decision = limiter.reserve(&one).await.unwrap();
                    assert_eq!(decision, plain.reserve(now, &one), "{what}");
                    asked.push(one);
                }
            }
        }
        // What is left leaves bit by bit, which shows when each entry does.
        loop {
            clock.advance(Duration::from_millis(1 + draw(300)));
            let now = Duration::from_millis((clock.now().0 - started_at.0) as u64);
            let status = limiter.status(account, limits).await.unwrap();
            assert_eq!(status, plain.status(now, limits), "seed {seed}, round {round}, {kind:?}");
            if status.used == Amount::default() {
                break;
            }
        }
    }
}
