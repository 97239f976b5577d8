//! Conformance: both databases decide on throttles as the domain model does.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::samples::NOON;
use chancery_domain::{
    EmailAddress, Identity, OsRandomness, SecretToken, ThrottleCount, ThrottleDecision, ThrottleKey,
    TokenHash, UnixMillis,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use std::net::IpAddr;
use std::sync::Arc;

const SUBNET: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

fn after_s(seconds: i64) -> UnixMillis {
    UnixMillis(NOON.0 + seconds * 1000)
}

fn address(text: &str) -> EmailAddress {
    text.parse().unwrap()
}

fn token() -> TokenHash {
    SecretToken::generate(&OsRandomness).hash()
}

fn allowed(count: u32, expires_at: UnixMillis) -> ThrottleDecision {
    ThrottleDecision::Allowed(ThrottleCount { count, expires_at })
}

pub async fn concurrent_attempts_never_exceed_throttle_limit(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ann = address("ann@example.com");
    // 10 in 900 seconds.
    let racing: Vec<_> = (0..14)
        .map(|_| {
            let (store, ann) = (Arc::clone(&store), ann.clone());
            tokio::spawn(async move {
                let key = ThrottleKey::PasswordPerAddressAndSubnet(&ann, SUBNET);
                store.throttles.count_throttle(key, NOON).await.unwrap()
            })
        })
        .collect();
    let (mut numbers, mut denied) = (Vec::new(), 0);
    for outcome in racing {
        match outcome.await.unwrap() {
            ThrottleDecision::Allowed(counted) => {
                assert_eq!(counted.expires_at, after_s(900));
                numbers.push(counted.count);
            }
            ThrottleDecision::Denied(counted) => {
                assert_eq!(counted, ThrottleCount { count: 10, expires_at: after_s(900) });
                denied += 1;
            }
        }
    }
    numbers.sort_unstable();
    assert_eq!((numbers, denied), ((1..=10).collect::<Vec<_>>(), 4));
    let key = ThrottleKey::PasswordPerAddressAndSubnet(&ann, SUBNET);
    let stored = store.throttles.throttle_count(key, NOON).await.unwrap().unwrap();
    assert_eq!(stored.count, 10, "what is denied is not counted");
}

pub async fn attempts_expire_one_window_after_the_first(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (ann, ben) = (address("ann@example.com"), address("ben@example.com"));
    // 25 in 900 seconds.
    let (key, other) = (ThrottleKey::CodePerAddress(&ann), ThrottleKey::CodePerAddress(&ben));
    assert_eq!(store.throttles.throttle_count(key, NOON).await.unwrap(), None);
    store.throttles.count_throttle(key, NOON).await.unwrap();
    store.throttles.count_throttle(other, NOON).await.unwrap();
    let later = store.throttles.count_throttle(key, after_s(899)).await.unwrap();
    assert_eq!(later, allowed(2, after_s(900)), "trying on does not lengthen it");
    let found = store.throttles.throttle_count(key, after_s(899)).await.unwrap();
    assert_eq!(found, Some(ThrottleCount { count: 2, expires_at: after_s(900) }));
    assert_eq!(store.throttles.throttle_count(key, after_s(900)).await.unwrap(), None);
    assert_eq!(store.throttles.count_throttle(key, after_s(900)).await.unwrap(), allowed(1, after_s(1800)));
    assert_eq!(store.throttles.delete_expired_throttles(after_s(900), 10).await.unwrap(), 1, "the other's");
    assert!(store.throttles.throttle_count(key, after_s(900)).await.unwrap().is_some());
}

pub async fn counts_from_a_clock_far_ahead_are_ignored(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let (ann, a_year) = (address("ann@example.com"), 365 * 86_400);
    // 5 in 900 seconds.
    let key = ThrottleKey::CodePerAddressAndSubnet(&ann, SUBNET);
    for _ in 0..5 {
        store.throttles.count_throttle(key, after_s(a_year)).await.unwrap();
    }
    let denied = store.throttles.count_throttle(key, after_s(a_year)).await.unwrap();
    assert!(matches!(denied, ThrottleDecision::Denied(_)), "{denied:?}");
    assert_eq!(store.throttles.throttle_count(key, NOON).await.unwrap(), None, "the clock was set back");
    assert_eq!(store.throttles.count_throttle(key, NOON).await.unwrap(), allowed(1, after_s(900)));
    let a_little_behind = store.throttles.count_throttle(key, after_s(-30)).await.unwrap();
    assert_eq!(a_little_behind, allowed(2, after_s(900)), "nodes need not agree to the second");
}

pub async fn attempts_can_be_refunded_and_reset(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let ann = address("ann@example.com");
    let key = ThrottleKey::CodePerAddress(&ann);
    store.throttles.refund_throttle(key).await.unwrap();
    for _ in 0..3 {
        store.throttles.count_throttle(key, NOON).await.unwrap();
    }
    store.throttles.refund_throttle(key).await.unwrap();
    assert_eq!(store.throttles.throttle_count(key, NOON).await.unwrap().unwrap().count, 2);
    store.throttles.reset_throttle(key).await.unwrap();
    assert_eq!(store.throttles.throttle_count(key, NOON).await.unwrap(), None);
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Count,
    Read,
    Refund,
    Reset,
    DeleteExpired,
}

const KEYS: usize = 4;

/// An operation, its key, and the time since the step before: mostly short, sometimes a window. Now and then the clock
/// is a little behind, or wrong.
fn steps() -> impl Strategy<Value = Vec<(Op, usize, i64)>> {
    let op = prop_oneof![
        8 => Just(Op::Count),
        2 => Just(Op::Read),
        2 => Just(Op::Refund),
        1 => Just(Op::Reset),
        1 => Just(Op::DeleteExpired),
    ];
    let a_year_ms = 365 * 86_400_000_i64;
    let pause_ms = prop_oneof![
        12 => 0..100_000_i64,
        4 => 0..4_000_000_i64,
        2 => -90_000..0_i64,
        1 => Just(a_year_ms),
        1 => Just(-a_year_ms),
    ];
    proptest::collection::vec((op, 0..KEYS, pause_ms), 1..60)
}

pub async fn throttle_decisions_match_domain_model(database: Arc<AnyDatabase>) {
    let store = database.open().await;
    let mut runner = TestRunner::default();
    for case in 0..24 {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        let ann = address("ann@example.com");
        let identity = Identity { issuer: "https://id.example".to_owned(), subject: case.to_string() };
        let mark = case.to_string();
        let keys: [ThrottleKey<'_>; KEYS] = [
            ThrottleKey::PasswordPerAddressAndSubnet(&ann, SUBNET),
            ThrottleKey::CodePerProof(token()),
            ThrottleKey::WrongCodePerIdentity(&identity),
            ThrottleKey::SignInRedirect(&mark),
        ];
        let mut model: [Option<ThrottleCount>; KEYS] = [None; KEYS];
        let mut now = NOON;
        for (number, (op, index, pause_ms)) in steps.iter().enumerate() {
            now = UnixMillis(now.0 + pause_ms);
            let (key, stored) = (keys[*index], &mut model[*index]);
            let so_far = || format!("case {case}: {:?}", &steps[..=number]);
            match op {
                Op::Count => {
                    let expected = key.throttle().count(*stored, now);
                    assert_eq!(
                        store.throttles.count_throttle(key, now).await.unwrap(),
                        expected,
                        "{}",
                        so_far()
                    );
                    if let ThrottleDecision::Allowed(count) = expected {
                        *stored = Some(count);
                    }
                }
                Op::Read => {
                    let expected = key.throttle().current(*stored, now);
                    assert_eq!(
                        store.throttles.throttle_count(key, now).await.unwrap(),
                        expected,
                        "{}",
                        so_far()
                    );
                }
                Op::Refund => {
                    store.throttles.refund_throttle(key).await.unwrap();
                    *stored = stored.map(|count| count.refund(1));
                }
                Op::Reset => {
                    store.throttles.reset_throttle(key).await.unwrap();
                    *stored = None;
                }
                Op::DeleteExpired => {
                    let is_over =
                        |stored: &Option<ThrottleCount>| stored.is_some_and(|it| it.expires_at <= now);
                    let expected = model.iter().filter(|stored| is_over(stored)).count() as u64;
                    let deleted = store.throttles.delete_expired_throttles(now, 100).await.unwrap();
                    assert_eq!(deleted, expected, "{}", so_far());
                    model.iter_mut().filter(|stored| is_over(stored)).for_each(|stored| *stored = None);
                }
            }
        }
        for key in keys {
            store.throttles.reset_throttle(key).await.unwrap();
        }
    }
}
