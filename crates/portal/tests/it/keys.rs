//! Which of the provider's keys a token is held against, and when the provider is asked for them again.

use crate::hostile_provider::without;
use crate::scene::{Browser, Scene, not_trusted, signs_in};
use crate::signing::SigningKey;
use serde_json::{Value, json};
use std::time::Duration;

fn no_kid(header: &mut Value) {
    without(header, "kid");
}

#[tokio::test]
async fn without_a_kid_the_only_key_is_used() {
    signs_in(|ways| ways.edit_header(no_kid)).await;
}

#[tokio::test]
async fn without_a_kid_every_key_that_fits_is_tried() {
    let keys = [
        SigningKey::rs256(0),
        SigningKey::ed_dsa(),
        SigningKey::es256(2),
        SigningKey::es256(3),
        SigningKey::rs256(1),
    ];
    let [rsa, ed, ec, other_ec, other_rsa] = &keys;
    for key in [other_ec, other_rsa, ed] {
        signs_in(|ways| {
            ways.sign_with(key, &[rsa, ed, ec, other_ec, other_rsa]);
            ways.edit_header(no_kid);
            for jwk in ways.keys["keys"].as_array_mut().unwrap() {
                without(jwk, "kid");
            }
        })
        .await;
    }
}

#[tokio::test]
async fn without_a_kid_a_key_that_is_none_of_the_providers_is_refused() {
    let (signing, published) = (SigningKey::es256(2), SigningKey::es256(3));
    let change = |ways: &mut crate::hostile_provider::Ways| {
        ways.sign_with(&signing, &[&published]);
        ways.edit_header(no_kid);
    };
    not_trusted(change, "has no `kid`, and none of the provider").await;
}

#[tokio::test]
async fn a_key_for_encryption_verifies_nothing() {
    let key = SigningKey::es256(1);
    let change = |ways: &mut crate::hostile_provider::Ways| {
        ways.sign_with(&key, &[&key]);
        ways.keys["keys"][0]["use"] = json!("enc");
    };
    not_trusted(change, "signature does not verify").await;
}

#[tokio::test]
async fn keys_that_cannot_be_read_are_passed_over() {
    let key = SigningKey::es256(1);
    signs_in(|ways| {
        ways.keys = json!({"keys": [{"kty": "PQC"}, {"kid": "nothing"}, 7, key.published()]});
    })
    .await;
}

#[tokio::test]
async fn the_keys_are_fetched_from_where_the_description_says() {
    let scene = signs_in(|_| {}).await;
    assert_eq!(scene.provider.times_asked("discovery"), 1);
    assert_eq!(scene.provider.times_asked("keys"), 1, "once for discovery and sign-in together");
}

#[tokio::test]
async fn after_the_provider_changed_its_keys_people_sign_in_as_before() {
    let scene = signs_in(|_| {}).await;
    let new = SigningKey::es256(2);
    scene.ways(|ways| ways.sign_with(&new, &[&new]));
    scene.assert_signed_in(&scene.sign_in().await);
    assert_eq!(scene.provider.times_asked("keys"), 2, "the unknown `kid` made the portal ask");
    scene.assert_signed_in(&scene.sign_in().await);
    assert_eq!(scene.provider.times_asked("keys"), 2, "and it remembers");
}

#[tokio::test]
async fn a_key_that_changes_just_before_the_token_is_signed_is_found() {
    let new = SigningKey::rs256(1);
    let scene =
        signs_in(|ways| ways.before_signing = Some(Box::new(move |ways| ways.sign_with(&new, &[&new]))))
            .await;
    assert_eq!(scene.provider.times_asked("keys"), 2);
}

#[tokio::test]
async fn a_key_that_changed_is_found_without_a_kid_too() {
    let scene = signs_in(|ways| ways.edit_header(no_kid)).await;
    let new = SigningKey::es256(2);
    scene.ways(|ways| ways.sign_with(&new, &[&new]));
    scene.assert_signed_in(&scene.sign_in().await);
}

#[tokio::test]
async fn unknown_keys_do_not_make_the_portal_ask_again_and_again() {
    let scene = Scene::begin().await;
    let unpublished = SigningKey::es256(9);
    scene.ways(|ways| ways.key = unpublished.clone());
    let reply = scene.sign_in().await;
    scene.assert_refused(&reply, 502, "answer cannot be trusted", "`kid` is of none of the provider's keys");
    assert_eq!(scene.provider.times_asked("keys"), 2);
    for _ in 0..5 {
        let reply = scene.sign_in().await;
        scene.assert_refused(&reply, 502, "answer cannot be trusted", "which were asked for just now");
    }
    assert_eq!(scene.provider.times_asked("keys"), 2, "rate-limited");

    scene.clock.advance(Duration::from_secs(10));
    scene.ways(|ways| ways.sign_with(&unpublished, &[&unpublished]));
    scene.assert_signed_in(&scene.sign_in().await);
    assert_eq!(scene.provider.times_asked("keys"), 3);
}

#[tokio::test]
async fn many_who_meet_a_new_key_at_once_ask_for_it_once() {
    let scene = signs_in(|_| {}).await;
    let new = SigningKey::es256(2);
    scene.ways(|ways| ways.sign_with(&new, &[&new]));
    let mut waiting = Vec::new();
    for _ in 0..8 {
        let mut browser = Browser::new();
        let callback = scene.callback_url(&mut browser).await;
        waiting.push(tokio::spawn(async move { browser.get(&callback).await }));
    }
    for reply in waiting {
        scene.assert_signed_in(&reply.await.unwrap());
    }
    assert_eq!(scene.provider.times_asked("keys"), 2);
}

#[tokio::test]
async fn a_key_that_the_provider_took_back_is_not_believed_for_ever() {
    let scene = signs_in(|_| {}).await;
    let new = SigningKey::es256(2);
    scene.ways(|ways| ways.keys = json!({"keys": [new.published()]}));
    scene.clock.advance(Duration::from_secs(60 * 60));
    let reply = scene.sign_in().await;
    scene.assert_refused(&reply, 502, "answer cannot be trusted", "`kid` is of none of the provider's keys");
}
