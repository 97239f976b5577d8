//! Which of the provider's keys verifies a token, and when keys are fetched again.

use crate::harness::{Browser, Harness, is_not_trusted, signs_in};
use crate::hostile_provider::without;
use crate::signing::SigningKey;
use serde_json::{Value, json};
use std::time::Duration;

fn no_kid(header: &mut Value) {
    without(header, "kid");
}

#[tokio::test]
async fn without_kid_the_only_key_is_used() {
    signs_in(|behavior| behavior.edit_header(no_kid)).await;
}

#[tokio::test]
async fn without_kid_every_matching_key_is_tried() {
    let keys = [
        SigningKey::rs256(0),
        SigningKey::ed_dsa(),
        SigningKey::es256(2),
        SigningKey::es256(3),
        SigningKey::rs256(1),
    ];
    let [rsa, ed, ec, other_ec, other_rsa] = &keys;
    for key in [other_ec, other_rsa, ed] {
        signs_in(|behavior| {
            behavior.sign_with(key, &[rsa, ed, ec, other_ec, other_rsa]);
            behavior.edit_header(no_kid);
            for jwk in behavior.keys["keys"].as_array_mut().unwrap() {
                without(jwk, "kid");
            }
        })
        .await;
    }
}

#[tokio::test]
async fn without_kid_a_foreign_key_is_rejected() {
    let (signing, published) = (SigningKey::es256(2), SigningKey::es256(3));
    let change = |behavior: &mut crate::hostile_provider::ProviderBehavior| {
        behavior.sign_with(&signing, &[&published]);
        behavior.edit_header(no_kid);
    };
    is_not_trusted(change, "has no `kid`, and none of the provider").await;
}

#[tokio::test]
async fn encryption_key_verifies_nothing() {
    let key = SigningKey::es256(1);
    let change = |behavior: &mut crate::hostile_provider::ProviderBehavior| {
        behavior.sign_with(&key, &[&key]);
        behavior.keys["keys"][0]["use"] = json!("enc");
    };
    is_not_trusted(change, "signature does not verify").await;
}

#[tokio::test]
async fn unreadable_keys_are_skipped() {
    let key = SigningKey::es256(1);
    signs_in(|behavior| {
        behavior.keys = json!({"keys": [{"kty": "PQC"}, {"kid": "nothing"}, 7, key.published()]});
    })
    .await;
}

#[tokio::test]
async fn keys_are_fetched_from_jwks_uri() {
    let harness = signs_in(|_| {}).await;
    assert_eq!(harness.provider.request_count("discovery"), 1);
    assert_eq!(harness.provider.request_count("keys"), 1, "once for discovery and sign-in together");
}

#[tokio::test]
async fn key_rotation_does_not_interrupt_sign_in() {
    let harness = signs_in(|_| {}).await;
    let new = SigningKey::es256(2);
    harness.behavior(|behavior| behavior.sign_with(&new, &[&new]));
    harness.assert_signed_in(&harness.sign_in().await);
    assert_eq!(harness.provider.request_count("keys"), 2, "the unknown `kid` made the portal ask");
    harness.assert_signed_in(&harness.sign_in().await);
    assert_eq!(harness.provider.request_count("keys"), 2, "and it remembers");
}

#[tokio::test]
async fn unknown_kid_refetches_the_keys() {
    let new = SigningKey::rs256(1);
    let harness = signs_in(|behavior| {
        behavior.before_signing = Some(Box::new(move |behavior| behavior.sign_with(&new, &[&new])));
    })
    .await;
    assert_eq!(harness.provider.request_count("keys"), 2);
}

#[tokio::test]
async fn rotated_key_is_found_without_kid() {
    let harness = signs_in(|behavior| behavior.edit_header(no_kid)).await;
    let new = SigningKey::es256(2);
    harness.behavior(|behavior| behavior.sign_with(&new, &[&new]));
    harness.assert_signed_in(&harness.sign_in().await);
}

#[tokio::test]
async fn unknown_kid_refetch_is_rate_limited() {
    let harness = Harness::begin().await;
    let unpublished = SigningKey::es256(9);
    harness.behavior(|behavior| behavior.key = unpublished.clone());
    let reply = harness.sign_in().await;
    harness.assert_rejected(
        &reply,
        502,
        "Sign-in response rejected",
        "`kid` matches none of the provider's keys",
    );
    assert_eq!(harness.provider.request_count("keys"), 2);
    for _ in 0..5 {
        let reply = harness.sign_in().await;
        harness.assert_rejected(&reply, 502, "Sign-in response rejected", "keys were refetched just now");
    }
    assert_eq!(harness.provider.request_count("keys"), 2, "rate-limited");

    harness.clock.advance(Duration::from_secs(10));
    harness.behavior(|behavior| behavior.sign_with(&unpublished, &[&unpublished]));
    harness.assert_signed_in(&harness.sign_in().await);
    assert_eq!(harness.provider.request_count("keys"), 3);
}

#[tokio::test]
async fn concurrent_unknown_kids_refetch_once() {
    let harness = signs_in(|_| {}).await;
    let new = SigningKey::es256(2);
    harness.behavior(|behavior| behavior.sign_with(&new, &[&new]));
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let mut browser = Browser::new();
        let callback = harness.callback_url(&mut browser).await;
        waiting.push(tokio::spawn(async move { browser.get(&callback).await }));
    }
    for reply in waiting {
        harness.assert_signed_in(&reply.await.unwrap());
    }
    assert_eq!(harness.provider.request_count("keys"), 2);
}

#[tokio::test]
async fn revoked_key_expires_from_the_cache() {
    let harness = signs_in(|_| {}).await;
    let new = SigningKey::es256(2);
    harness.behavior(|behavior| behavior.keys = json!({"keys": [new.published()]}));
    harness.clock.advance(Duration::from_secs(60 * 60));
    let reply = harness.sign_in().await;
    harness.assert_rejected(
        &reply,
        502,
        "Sign-in response rejected",
        "`kid` matches none of the provider's keys",
    );
}
