//! `/jwks.json`, and keys that take over from each other while people sign in.

use super::served::{Browser, Served};
use chancery_auth::protocol_upkeep;
use chancery_domain::{Clock, OsRandomness, SecretToken, TokenHash, UnixMillis};
use chancery_store::{ConsentQuestion, SigningKey};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

async fn published(served: &Served) -> Vec<String> {
    let reply = served.get(&Browser::default(), "/jwks.json").await;
    assert_eq!(reply.status, 200);
    let set = reply.json();
    set["keys"].as_array().unwrap().iter().map(|key| key["kid"].as_str().unwrap().to_owned()).collect()
}

/// The key that an ID token is signed with just now.
async fn signs(served: &Served, email: &str) -> String {
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
async fn keys_are_public_and_may_be_kept_for_a_while() {
    let served = Served::start().await;
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
async fn however_many_ask_first_one_key_is_made() {
    let served = Arc::new(Served::start().await);
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
async fn a_key_is_known_a_day_before_it_signs_and_the_old_one_until_its_last_token_has_expired() {
    let served = Served::start().await;
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
    protocol_upkeep(&served.provider).await.unwrap();
    assert_eq!(
        served.provider.store.signing_keys.signing_keys().await.unwrap().len(),
        1,
        "and then it is gone"
    );
}

#[tokio::test]
async fn upkeep_alone_makes_the_next_key_in_time() {
    let served = Served::start().await;
    let first = published(&served).await;
    served.clock.advance(29 * DAY + HOUR);
    protocol_upkeep(&served.provider).await.unwrap();
    served.clock.advance(22 * HOUR);
    let kept = served.provider.store.signing_keys.signing_keys().await.unwrap();
    assert_eq!(kept.len(), 2);
    assert_eq!(kept[0].key_id, first[0]);
}

#[tokio::test]
async fn upkeep_removes_all_that_is_over_however_much_there_is() {
    let served = Served::start().await;
    let question = ConsentQuestion {
        subject: "ann".to_owned(),
        session: token(),
        request: "scope=openid".to_owned(),
        expires_at: served.clock.now(),
    };
    for _ in 0..1_001 {
        served.provider.store.grants.ask_for_consent(token(), question.clone()).await.unwrap();
    }
    protocol_upkeep(&served.provider).await.unwrap();
    assert_eq!(served.provider.store.grants.forget_old_grants(served.clock.now(), 10).await.unwrap(), 0);
}

fn token() -> TokenHash {
    SecretToken::generate(&OsRandomness).hash()
}

#[tokio::test]
async fn a_key_that_cannot_be_read_does_not_stop_the_others() {
    let served = Served::start().await;
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
