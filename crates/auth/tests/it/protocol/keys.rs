//! `/jwks.json`, and key rotation while users sign in.

use super::harness::{Browser, TestProvider};
use chancery_auth::run_protocol_maintenance;
use chancery_domain::{Clock, OsRandomness, SecretToken, TokenHash, UnixMillis};
use chancery_store::{ConsentRequest, SigningKey};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

async fn published(served: &TestProvider) -> Vec<String> {
    let reply = served.get(&Browser::default(), "/jwks.json").await;
    assert_eq!(reply.status, 200);
    let set = reply.json();
    set["keys"].as_array().unwrap().iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect()
}

/// Id of the key that currently signs ID tokens.
async fn signs(served: &TestProvider, email: &str) -> String {
    use base64::Engine as _;
    let (_, browser) = served.consenting(email).await;
    let code = served.code(&browser, &[]).await;
    let tokens = served.exchange(&code).await.json();
    let header = tokens["id_token"].as_str().unwrap().split('.').next().unwrap().to_owned();
    let header = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(header).unwrap();
    let header: Value = serde_json::from_slice(&header).unwrap();
    assert_eq!((&header["alg"], &header["typ"]), (&"ES256".into(), &"JWT".into()));
    header["kid"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn jwks_is_public_and_cacheable() {
    let served = TestProvider::start().await;
    let reply = served.get(&Browser::default(), "/jwks.json").await;
    assert_eq!(reply.header("cache-control"), "public, max-age=900");
    let keys = reply.json();
    let key = &keys["keys"][0];
    let mut names: Vec<&String> = key.as_object().unwrap().keys().collect();
    names.sort();
    assert_eq!(names, ["alg", "crv", "kid", "kty", "use", "x", "y"], "and nothing private");
    assert_eq!((&key["kty"], &key["crv"], &key["use"]), (&"EC".into(), &"P-256".into(), &"sig".into()));
}

#[tokio::test]
async fn concurrent_first_requests_create_one_key() {
    let served = Arc::new(TestProvider::start().await);
    let racers: Vec<_> = (0..8)
        .map(|_| {
            let served = Arc::clone(&served);
            tokio::spawn(async move { published(&served).await })
        })
        .collect();
    let mut seen = Vec::new();
    for racer in racers {
        seen.push(racer.await.unwrap());
    }
    seen.dedup();
    assert_eq!((seen.len(), seen[0].len()), (1, 1), "{seen:?}");
}

#[tokio::test]
async fn key_rotation_publishes_new_keys_early_and_old_keys_long_enough() {
    let served = TestProvider::start().await;
    let first = signs(&served, "a@example.com").await;
    assert_eq!(published(&served).await, std::slice::from_ref(&first));
    served.clock.advance(29 * DAY - HOUR);
    assert_eq!(published(&served).await, std::slice::from_ref(&first), "not yet");
    served.clock.advance(HOUR);
    let both = published(&served).await;
    assert_eq!((both.len(), &both[0]), (2, &first));
    assert_eq!(signs(&served, "b@example.com").await, first, "the new one is known first");
    served.clock.advance(DAY - Duration::from_secs(1));
    assert_eq!(signs(&served, "c@example.com").await, first);
    served.clock.advance(Duration::from_secs(1));
    assert_eq!(signs(&served, "d@example.com").await, both[1]);
    assert_eq!(published(&served).await, both, "tokens of the old key are still about");
    served.clock.advance(HOUR);
    assert_eq!(published(&served).await, both);
    served.clock.advance(Duration::from_secs(5 * 60));
    assert_eq!(published(&served).await, both[1..]);
    run_protocol_maintenance(&served.provider).await.unwrap();
    assert_eq!(
        served.provider.store.signing_keys.signing_keys().await.unwrap().len(),
        1,
        "and then it is gone"
    );
}

#[tokio::test]
async fn maintenance_creates_the_next_key_in_time() {
    let served = TestProvider::start().await;
    let first = published(&served).await;
    served.clock.advance(29 * DAY + HOUR);
    run_protocol_maintenance(&served.provider).await.unwrap();
    served.clock.advance(22 * HOUR);
    let stored = served.provider.store.signing_keys.signing_keys().await.unwrap();
    assert_eq!(stored.len(), 2);
    assert_eq!(stored[0].key_id, first[0]);
}

#[tokio::test]
async fn maintenance_deletes_everything_expired() {
    let served = TestProvider::start().await;
    let question = ConsentRequest {
        subject: "ann".to_owned(),
        session: token(),
        request: "scope=openid".to_owned(),
        expires_at: served.clock.now(),
    };
    for _ in 0..1_001 {
        served.provider.store.grants.create_consent_request(token(), question.clone()).await.unwrap();
    }
    run_protocol_maintenance(&served.provider).await.unwrap();
    assert_eq!(served.provider.store.grants.delete_expired_grants(served.clock.now(), 10).await.unwrap(), 0);
}

fn token() -> TokenHash {
    SecretToken::generate(&OsRandomness).hash()
}

#[tokio::test]
async fn unreadable_key_does_not_stop_the_others() {
    let served = TestProvider::start().await;
    let first = signs(&served, "a@example.com").await;
    let now = served.clock.now();
    let broken = SigningKey {
        generation: 2,
        key_id: "broken".to_owned(),
        private_key: vec![1, 2, 3],
        signs_from: now,
        signs_until: UnixMillis(now.0 + 86_400_000 * 30),
        published_until: UnixMillis(now.0 + 86_400_000 * 31),
    };
    assert!(served.provider.store.signing_keys.add_signing_key(broken).await.unwrap());
    assert_eq!(published(&served).await, std::slice::from_ref(&first));
    assert_eq!(signs(&served, "b@example.com").await, first);
    served.clock.advance(29 * DAY);
    assert_eq!(published(&served).await.len(), 2, "and the next one is made, with a number of its own");
}
