//! Where the address comes from, and when it is believed.

use crate::hostile_provider::{Answer, EMAIL, SUBJECT, Ways, without};
use crate::scene::{Reply, Scene, signs_in};
use axum::http::StatusCode;
use serde_json::json;

fn only_at_userinfo(ways: &mut Ways) {
    ways.edit_claims(|claims| {
        without(claims, "email");
        without(claims, "email_verified");
    });
}

async fn with_userinfo(answer: Answer) -> (Scene, Reply) {
    let scene = Scene::begin().await;
    scene.ways(|ways| {
        only_at_userinfo(ways);
        ways.userinfo = answer;
    });
    let reply = scene.sign_in().await;
    assert_eq!(scene.provider.times_asked("userinfo"), 1);
    (scene, reply)
}

#[tokio::test]
async fn the_address_is_asked_for_where_the_id_token_has_none() {
    let scene = signs_in(only_at_userinfo).await;
    assert_eq!(scene.provider.times_asked("userinfo"), 1);
}

#[tokio::test]
async fn userinfo_is_not_asked_for_what_the_id_token_says() {
    let scene = signs_in(|ways| ways.userinfo = Answer::Status(500, json!({}))).await;
    assert_eq!(scene.provider.times_asked("userinfo"), 0);
}

#[tokio::test]
async fn what_userinfo_says_of_somebody_else_is_refused() {
    for sub in [json!("another"), json!(""), json!(format!("{SUBJECT} ")), json!(SUBJECT.to_uppercase())] {
        let (scene, reply) =
            with_userinfo(Answer::Json(json!({"sub": sub, "email": EMAIL, "email_verified": true}))).await;
        scene.assert_refused(
            &reply,
            502,
            "answer cannot be trusted",
            "userinfo: its `sub` is not the ID token's",
        );
    }
}

#[tokio::test]
async fn what_userinfo_says_of_nobody_is_refused() {
    for info in [json!({"email": EMAIL, "email_verified": true}), json!({"sub": 7}), json!([]), json!("eyJ")]
    {
        let (scene, reply) = with_userinfo(Answer::Json(info)).await;
        scene.assert_refused(&reply, 502, "answer cannot be trusted", "userinfo: its reply cannot be read");
    }
}

#[tokio::test]
async fn a_userinfo_endpoint_that_fails_redirects_or_floods_signs_nobody_in() {
    for (answer, status, words, logged) in [
        (Answer::Status(401, json!({})), 502, "cannot be trusted", "status 401"),
        (Answer::Status(500, json!({})), 503, "cannot be reached", "status 500"),
        (
            Answer::Redirect("https://evil.example".to_owned()),
            502,
            "cannot be trusted",
            "follows no redirect",
        ),
        (Answer::Huge, 502, "cannot be trusted", "more than 262144 bytes"),
        (Answer::Hang, 504, "takes too long", "took too long"),
    ] {
        let (scene, reply) = with_userinfo(answer).await;
        scene.assert_refused(&reply, status, words, logged);
    }
}

/// Nobody is signed in by an address that is none.
#[track_caller]
fn assert_not_admitted(reply: &Reply) {
    assert_eq!(reply.status, StatusCode::FORBIDDEN, "{reply:?}");
    assert!(reply.page.contains("This portal is not for this address"), "{reply:?}");
    assert!(!reply.starts_session(), "{reply:?}");
}

/// An address that is not proved is proved by a letter of our own.
#[track_caller]
fn assert_asks_for_our_code(reply: &Reply) {
    assert_eq!((reply.status, reply.location.as_deref()), (StatusCode::SEE_OTHER, Some("/auth/code")));
    assert!(!reply.starts_session(), "{reply:?}");
}

#[tokio::test]
async fn an_address_that_is_no_text_is_no_address() {
    for email in
        [json!([EMAIL]), json!([EMAIL, "x@evil.example"]), json!({"address": EMAIL}), json!(7), json!(true)]
    {
        let scene = Scene::begin().await;
        let in_token = email.clone();
        scene.ways(|ways| ways.edit_claims(move |claims| claims["email"] = in_token.clone()));
        assert_not_admitted(&scene.sign_in().await);
        assert_eq!(
            scene.provider.times_asked("userinfo"),
            0,
            "the token said something, and that is no address"
        );

        let info = json!({"sub": SUBJECT, "email": email, "email_verified": true});
        let (_, reply) = with_userinfo(Answer::Json(info)).await;
        assert_not_admitted(&reply);
    }
}

#[tokio::test]
async fn only_true_says_that_an_address_is_proved() {
    for verified in
        [json!("true"), json!(1), json!("yes"), json!(false), json!(null), json!([true]), json!({})]
    {
        let scene = Scene::begin().await;
        let in_token = verified.clone();
        scene.ways(|ways| ways.edit_claims(move |claims| claims["email_verified"] = in_token.clone()));
        assert_asks_for_our_code(&scene.sign_in().await);

        let info = json!({"sub": SUBJECT, "email": EMAIL, "email_verified": verified});
        assert_asks_for_our_code(&with_userinfo(Answer::Json(info)).await.1);
    }
}

#[tokio::test]
async fn a_proof_in_one_place_does_not_prove_an_address_from_another() {
    // The token says "proved" of no address; userinfo has an address without proof.
    let scene = Scene::begin().await;
    scene.ways(|ways| {
        ways.edit_claims(|claims| without(claims, "email"));
        ways.userinfo = Answer::Json(json!({"sub": SUBJECT, "email": EMAIL}));
    });
    assert_asks_for_our_code(&scene.sign_in().await);
}

#[tokio::test]
async fn without_an_address_anywhere_nobody_is_signed_in() {
    let (_, reply) = with_userinfo(Answer::Json(json!({"sub": SUBJECT}))).await;
    assert_not_admitted(&reply);
    let scene = Scene::begin().await;
    scene.ways(|ways| {
        only_at_userinfo(ways);
        without(&mut ways.metadata, "userinfo_endpoint");
    });
    assert_not_admitted(&scene.sign_in().await);
}
