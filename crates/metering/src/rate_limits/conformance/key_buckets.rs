//! Requests that count in two buckets: their account's and their key's.

use super::{
    Kind, ReferenceModel, expect_admitted, expect_rejected, limits, new_account, reservation, seed, timed,
    two_nodes,
};
use crate::rate_limits::{Bucket, Decision, KeyBucket, Limiter, Rejection, Reservation};
use chancery_domain::{
    AccountId, Clock, KeyId, LimitScope, LimitUsage, Randomness, RateLimitExceeded, RateLimits,
    SeededRandomness, SystemClock, WINDOW,
};
use std::sync::Arc;
use std::time::Duration;

const KEY: KeyId = KeyId(7);
const OTHER_KEY: KeyId = KeyId(8);

fn key_reservation(account: AccountId, key: KeyId, of: [RateLimits; 2], tokens: u64) -> Reservation {
    let bucket = Bucket::Key(account, key);
    let key = Some(KeyBucket { bucket, limits: of[1] });
    Reservation { key, ..reservation(account, of[0], tokens) }
}

/// What counts in the account's bucket and in the key's.
async fn used(limiter: &dyn Limiter, account: AccountId, key: KeyId) -> [LimitUsage; 2] {
    let any = limits(1, 1);
    let of_account = limiter.status(Bucket::Generation(account), any).await.unwrap().used;
    [of_account, limiter.status(Bucket::Key(account, key), any).await.unwrap().used]
}

fn usage(requests: u64, tokens: u64) -> LimitUsage {
    LimitUsage { requests, tokens }
}

async fn rejection(limiter: &dyn Limiter, reservation: &Reservation) -> Rejection {
    match limiter.reserve(reservation).await.unwrap() {
        Decision::Admitted(status) => panic!("admitted: {status:?}"),
        Decision::Rejected(rejection) => rejection,
    }
}

pub(super) async fn key_bucket_is_reserved_settled_and_released_with_the_accounts(kind: Kind) {
    let (limiter, _) = timed(kind);
    let limiter = limiter.as_ref();
    let (account, of) = (new_account(), [limits(10, 1_000), limits(5, 500)]);
    let first = key_reservation(account, KEY, of, 300);
    let status = expect_admitted(limiter, &first).await;
    assert_eq!((status.limits, status.used), (of[0], usage(1, 300)), "the status is the account's");
    assert_eq!(expect_admitted(limiter, &first).await, status, "a retry changes nothing");
    let other = key_reservation(account, OTHER_KEY, of, 100);
    expect_admitted(limiter, &other).await;
    assert_eq!(used(limiter, account, KEY).await, [usage(2, 400), usage(1, 300)]);
    for _ in 0..2 {
        limiter.settle(&first, 20).await.unwrap();
    }
    assert_eq!(used(limiter, account, KEY).await, [usage(2, 120), usage(1, 20)]);
    for _ in 0..2 {
        limiter.release(&other).await.unwrap();
    }
    assert_eq!(used(limiter, account, OTHER_KEY).await, [usage(1, 20), usage(0, 0)]);
    // A request of a key without limits counts in the account only.
    expect_admitted(limiter, &reservation(account, of[0], 5)).await;
    assert_eq!(used(limiter, account, KEY).await, [usage(2, 25), usage(1, 20)]);
}

pub(super) async fn request_over_one_bucket_counts_in_neither(kind: Kind) {
    let (limiter, _) = timed(kind);
    let limiter = limiter.as_ref();
    let account = new_account();
    for (number, of) in
        [[limits(9, 90), limits(1, 90)], [limits(1, 90), limits(9, 90)]].into_iter().enumerate()
    {
        let key = KeyId(number as i64);
        let before = used(limiter, account, key).await;
        let first = key_reservation(account, key, of, 10);
        match limiter.reserve(&first).await.unwrap() {
            Decision::Admitted(_) => {
                let both = used(limiter, account, key).await;
                expect_rejected(limiter, &key_reservation(account, key, of, 10)).await;
                assert_eq!(used(limiter, account, key).await, both);
            }
            Decision::Rejected(_) => assert_eq!(used(limiter, account, key).await, before),
        }
    }
    assert_eq!(used(limiter, account, KeyId(0)).await, [usage(1, 10), usage(1, 10)]);
    assert_eq!(used(limiter, account, KeyId(1)).await[1], usage(0, 0));
}

pub(super) async fn rejection_names_the_scope_with_the_longer_wait(kind: Kind) {
    let (limiter, clock) = timed(kind);
    let limiter = limiter.as_ref();
    let (account, of) = (new_account(), [limits(2, 1_000), limits(1, 1_000)]);
    expect_admitted(limiter, &reservation(account, of[0], 1)).await;
    clock.advance(Duration::from_secs(10));
    expect_admitted(limiter, &key_reservation(account, KEY, of, 1)).await;
    clock.advance(Duration::from_secs(5));
    let both = rejection(limiter, &key_reservation(account, KEY, of, 1)).await;
    assert_eq!((both.scope(), both.retry_after_s()), (LimitScope::Key, 55));
    assert_eq!(both.account.requests_retry_after, Duration::from_secs(45));
    assert_eq!((both.remaining().requests, both.is_only_about_tokens()), (0, false));
    let other = rejection(limiter, &key_reservation(account, OTHER_KEY, of, 1)).await;
    assert_eq!((other.scope(), other.retry_after_s()), (LimitScope::Account, 45));
    assert_eq!(other.key.unwrap().retry_after(), Duration::ZERO);
    // The request limits have room again, the key's tokens do not.
    let wide = [limits(9, 1_000), limits(9, 10)];
    let tokens = rejection(limiter, &key_reservation(account, KEY, wide, 10)).await;
    assert_eq!((tokens.scope(), tokens.is_only_about_tokens()), (LimitScope::Key, true));
    assert_eq!(tokens.remaining(), usage(7, 9));
}

pub(super) async fn raise_that_exceeds_one_bucket_changes_neither(kind: Kind) {
    let (limiter, clock) = timed(kind);
    let limiter = limiter.as_ref();
    let (account, of) = (new_account(), [limits(5, 100), limits(5, 50)]);
    let first = key_reservation(account, KEY, of, 0);
    expect_admitted(limiter, &first).await;
    expect_admitted(limiter, &reservation(account, of[0], 40)).await;
    clock.advance(Duration::from_secs(2));
    for (tokens, scope) in [(61, LimitScope::Account), (51, LimitScope::Key)] {
        let raised = Reservation { tokens, ..first.clone() };
        let wide = KeyBucket { limits: limits(5, 500), ..first.key.unwrap() };
        let raised = if tokens == 61 { Reservation { key: Some(wide), ..raised } } else { raised };
        match limiter.reserve(&raised).await.unwrap() {
            Decision::Rejected(rejection) if scope == LimitScope::Account => {
                assert_eq!(rejection.scope(), scope);
            }
            Decision::Rejected(rejection) => assert!(rejection.account.retry_after().is_zero()),
            Decision::Admitted(status) => panic!("admitted: {status:?}"),
        }
        assert_eq!(used(limiter, account, KEY).await, [usage(2, 40), usage(1, 0)]);
    }
    let status = expect_admitted(limiter, &Reservation { tokens: 50, ..first }).await;
    assert_eq!((status.used, status.full_reset), (usage(2, 90), WINDOW));
    assert_eq!(used(limiter, account, KEY).await[1], usage(1, 50));
}

pub(super) async fn rejected_request_of_a_key_fits_both_after_its_retry_wait(kind: Kind) {
    let seed = seed();
    let randomness = SeededRandomness::new(seed);
    let draw = |bound: u64| randomness.next_u64() % bound;
    let (limiter, clock) = timed(kind);
    let limiter = limiter.as_ref();
    let mut rejected = [0, 0];
    for _ in 0..40 {
        let account = new_account();
        let of = [limits(2 + draw(8) as u32, 150), limits(1 + draw(8) as u32, 100 + draw(50) as u32)];
        for _ in 0..20 {
            clock.advance(Duration::from_millis(draw(6_000)));
            let tokens = draw(100);
            let one = match draw(3) {
                0 => reservation(account, of[0], tokens),
                _ => key_reservation(account, KEY, of, tokens),
            };
            let Decision::Rejected(rejection) = limiter.reserve(&one).await.unwrap() else { continue };
            rejected[usize::from(rejection.scope() == LimitScope::Key)] += 1;
            clock.advance(rejection.exceeded().retry_after() - Duration::from_millis(1));
            expect_rejected(limiter, &one).await;
            clock.advance(Duration::from_millis(1));
            expect_admitted(limiter, &one).await;
        }
    }
    assert!(rejected.iter().all(|count| *count > 10), "{rejected:?}");
}

/// The two models decide together: both admit, or neither changes.
fn decide(models: &mut [ReferenceModel; 2], now: Duration, one: &Reservation) -> Decision {
    let Some(key) = one.key else { return models[0].decide(now, one) };
    let of_key = Reservation { bucket: key.bucket, limits: key.limits, key: None, ..one.clone() };
    let mut after = models.clone();
    let outcomes = [after[0].reserve(now, one), after[1].reserve(now, &of_key)];
    if let [Ok(status), Ok(_)] = outcomes {
        *models = after;
        return Decision::Admitted(status);
    }
    let waits = |index: usize, limits| match outcomes[index] {
        Err(exceeded) => exceeded,
        Ok(_) => RateLimitExceeded {
            status: models[index].status(now, limits),
            requests_retry_after: Duration::ZERO,
            tokens_retry_after: Duration::ZERO,
        },
    };
    Decision::Rejected(Rejection { account: waits(0, one.limits), key: Some(waits(1, key.limits)) })
}

/// Runs random operations of requests with and without a key's bucket, and compares every result.
pub(super) async fn limiter_with_a_key_bucket_matches_two_reference_models(kind: Kind) {
    let seed = seed();
    let randomness = SeededRandomness::new(seed);
    let draw = |bound: u64| randomness.next_u64() % bound;
    let pauses_ms = [0, 0, 0, 1, 3, 20, 100, 499, 500, 501, 2_000, 59_000, 60_000];
    for round in 0..20 {
        let (limiter, clock) = timed(kind);
        let started_at = clock.now();
        let account = new_account();
        let mut models = [ReferenceModel::default(), ReferenceModel::default()];
        let is_large = round % 2 == 1;
        let requests_per_min = if is_large { 70 + draw(200) } else { 2 + draw(12) };
        let tokens_per_min = 100 + draw(3_000);
        let largest_tokens = if is_large { 20 } else { tokens_per_min / 4 };
        let of_account = limits(requests_per_min as u32, tokens_per_min as u32);
        let of_key =
            limits(1 + draw(requests_per_min) as u32, (tokens_per_min / 2 + draw(tokens_per_min)) as u32);
        let most = tokens_per_min.min(of_key.tokens_per_min.into());
        let mut reservations: Vec<Reservation> = Vec::new();
        for step in 0..300 {
            if draw(3) == 0 {
                let longest = if is_large { 10 } else { pauses_ms.len() };
                clock.advance(Duration::from_millis(pauses_ms[draw(longest as u64) as usize]));
            }
            let now = Duration::from_millis((clock.now().0 - started_at.0) as u64);
            let what = format!("seed {seed}, round {round}, step {step}, {kind:?}");
            let any = (!reservations.is_empty())
                .then(|| reservations[draw(reservations.len() as u64) as usize].clone());
            match (draw(8), any) {
                (turn @ 0..=2, Some(one)) => {
                    let used_tokens = (turn > 0).then(|| draw(one.tokens + 1));
                    let status = match used_tokens {
                        Some(tokens) => limiter.settle(&one, tokens).await.unwrap(),
                        None => limiter.release(&one).await.unwrap(),
                    };
                    assert_eq!(status, models[0].settle(now, &one, used_tokens), "{what}");
                    if one.key.is_some() {
                        models[1].settle(now, &one, used_tokens);
                    }
                }
                (3, Some(one)) => {
                    let tokens = (one.tokens + draw(largest_tokens)).min(most);
                    let raised = Reservation { tokens, ..one };
                    let decision = limiter.reserve(&raised).await.unwrap();
                    assert_eq!(decision, decide(&mut models, now, &raised), "{what}");
                }
                (turn, _) => {
                    let tokens = draw(largest_tokens);
                    let one = match turn {
                        4 => reservation(account, of_account, tokens),
                        _ => key_reservation(account, KEY, [of_account, of_key], tokens),
                    };
                    let decision = limiter.reserve(&one).await.unwrap();
                    assert_eq!(decision, decide(&mut models, now, &one), "{what}");
                    reservations.push(one);
                }
            }
            let of_buckets = [(Bucket::Generation(account), of_account), (Bucket::Key(account, KEY), of_key)];
            for ((bucket, limits), model) in of_buckets.into_iter().zip(&models) {
                let status = limiter.status(bucket, limits).await.unwrap();
                assert_eq!(status, model.status(now, limits), "{what}, {bucket:?}");
            }
        }
    }
}

/// Tasks on two nodes race for two keys of one account. Reserved plus used never exceeds a key's limit or the account's; all of
/// it happens within one window.
pub(super) async fn racing_requests_exceed_neither_the_keys_nor_the_accounts_limit(kind: Kind) {
    const TASKS: u64 = 24;
    const ATTEMPTS: u64 = 40;
    let nodes = two_nodes(kind);
    let account = new_account();
    let of_account = limits(300, 15_000);
    let keys = [(KEY, limits(120, 8_000)), (OTHER_KEY, limits(250, 12_000))];
    let started_at = SystemClock.monotonic();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let limiter = Arc::clone(&nodes[task as usize % 2]);
        let (key, of_key) = keys[task as usize / 2 % 2];
        tasks.spawn(async move {
            let randomness = SeededRandomness::new(task);
            let mut counted = LimitUsage::default();
            for _ in 0..ATTEMPTS {
                let tokens = 1 + randomness.next_u64() % 2_000;
                let one = key_reservation(account, key, [of_account, of_key], tokens);
                // As for a long prompt: the request first, its tokens later.
                let is_raised = randomness.next_u64().is_multiple_of(3);
                let request_only = Reservation { tokens: 0, ..one.clone() };
                if is_raised && matches!(limiter.reserve(&request_only).await.unwrap(), Decision::Rejected(_))
                {
                    continue;
                }
                if matches!(limiter.reserve(&one).await.unwrap(), Decision::Rejected(_)) {
                    if is_raised {
                        limiter.release(&one).await.unwrap();
                    }
                    tokio::task::yield_now().await;
                    continue;
                }
                let [in_account, in_key] = used(limiter.as_ref(), account, key).await;
                assert!(in_account.requests <= 300 && in_account.tokens <= 15_000, "{in_account:?}");
                let RateLimits { requests_per_min, tokens_per_min } = of_key;
                assert!(in_key.requests <= requests_per_min.into(), "{in_key:?}");
                assert!(in_key.tokens <= tokens_per_min.into(), "{in_key:?}");
                if randomness.next_u64().is_multiple_of(4) {
                    limiter.release(&one).await.unwrap();
                } else {
                    let tokens = one.tokens / 50;
                    limiter.settle(&one, tokens).await.unwrap();
                    counted = usage(counted.requests + 1, counted.tokens + tokens);
                }
            }
            (key, counted)
        });
    }
    let counted = tasks.join_all().await;
    let elapsed = SystemClock.monotonic() - started_at;
    assert!(elapsed < WINDOW, "too slow to be within one window: {elapsed:?}");
    let sum = |of: &[KeyId]| {
        counted.iter().filter(|(key, _)| of.contains(key)).fold(LimitUsage::default(), |sum, (_, one)| {
            usage(sum.requests + one.requests, sum.tokens + one.tokens)
        })
    };
    let [in_account, in_key] = used(nodes[0].as_ref(), account, KEY).await;
    assert_eq!(
        (in_account, in_key),
        (sum(&[KEY, OTHER_KEY]), sum(&[KEY])),
        "what was settled is what counts"
    );
    assert!(in_key.requests > 20, "only {} were admitted", in_key.requests);
}
