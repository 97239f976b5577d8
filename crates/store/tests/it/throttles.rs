//! Conformance: both databases decide on throttles as the domain model does.

use crate::databases::{AnyDatabase, TestDatabase};
use crate::models::{Draw, Model, compare};
use crate::samples::NOON;
use chancery_domain::{
    EmailAddress, Identity, OsRandomness, SecretToken, ThrottleCount, ThrottleDecision, ThrottleKey,
    TokenHash, UnixMillis,
};
use chancery_store::Store;
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

/// An operation on the key with this index, after a pause. Most pauses are short, some are a window. Now and then the clock is a
/// little behind, or wrong.
#[derive(Debug)]
struct Step {
    op: Op,
    key: usize,
    pause_ms: i64,
}

const KEYS: usize = 4;
const YEAR_MS: i64 = 365 * 86_400_000;

/// The domain's rule, in memory.
struct Throttles {
    _database: Arc<AnyDatabase>,
    stores: [Arc<Store>; 2],
    turn: usize,
    now: UnixMillis,
    counts: [Option<ThrottleCount>; KEYS],
    proof: TokenHash,
}

impl Model for Throttles {
    type Step = Step;

    fn draw(&self, draw: &Draw) -> Step {
        let op = match draw.index(14) {
            0..8 => Op::Count,
            8..10 => Op::Read,
            10..12 => Op::Refund,
            12 => Op::Reset,
            _ => Op::DeleteExpired,
        };
        let pause_ms = match draw.index(20) {
            0..12 => draw.number(0..100_000),
            12..16 => draw.number(0..4_000_000),
            16..18 => draw.number(-90_000..0),
            18 => YEAR_MS,
            _ => -YEAR_MS,
        };
        Step { op, key: draw.index(KEYS), pause_ms }
    }

    async fn make(&mut self, step: &Step) {
        let Step { op, key: index, pause_ms } = *step;
        let throttles = &self.stores[self.turn % 2].throttles;
        self.turn += 1;
        self.now.0 += pause_ms;
        let (now, ann) = (self.now, address("ann@example.com"));
        let identity = Identity { issuer: "https://id.example".to_owned(), subject: "ann".to_owned() };
        let keys: [ThrottleKey<'_>; KEYS] = [
            ThrottleKey::PasswordPerAddressAndSubnet(&ann, SUBNET),
            ThrottleKey::CodePerProof(self.proof),
            ThrottleKey::WrongCodePerIdentity(&identity),
            ThrottleKey::SignInRedirect("mark"),
        ];
        let (key, counted) = (keys[index], &mut self.counts[index]);
        match op {
            Op::Count => {
                let expected = key.throttle().count(*counted, now);
                assert_eq!(throttles.count_throttle(key, now).await.unwrap(), expected);
                if let ThrottleDecision::Allowed(count) = expected {
                    *counted = Some(count);
                }
            }
            Op::Read => {
                let expected = key.throttle().current(*counted, now);
                assert_eq!(throttles.throttle_count(key, now).await.unwrap(), expected);
            }
            Op::Refund => {
                throttles.refund_throttle(key).await.unwrap();
                *counted = counted.map(|count| count.refund(1));
            }
            Op::Reset => {
                throttles.reset_throttle(key).await.unwrap();
                *counted = None;
            }
            Op::DeleteExpired => {
                let is_over = |counted: &&mut Option<ThrottleCount>| {
                    counted.is_some_and(|counted| counted.expires_at <= now)
                };
                let over = self.counts.iter_mut().filter(is_over).map(Option::take).count() as u64;
                assert_eq!(throttles.delete_expired_throttles(now, 100).await.unwrap(), over);
            }
        }
    }

    async fn finish(self) {}
}

pub async fn throttle_decisions_agree_with_model(database: Arc<AnyDatabase>) {
    compare(async || {
        let database = database.another();
        let stores = [database.open().await, database.open().await];
        Throttles { _database: database, stores, turn: 0, now: NOON, counts: [None; KEYS], proof: token() }
    })
    .await;
}
