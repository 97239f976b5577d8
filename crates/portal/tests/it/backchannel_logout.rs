//! `POST /auth/backchannel-logout`: only the provider ends sessions, each token once.

use crate::harness::{Browser, Harness, Reply};
use crate::hostile_provider::without;
use crate::signing::SigningKey;
use axum::http::StatusCode;
use serde_json::{Value, json};

async fn send(harness: &Harness, token: &str) -> Reply {
    let form = format!("logout_token={token}");
    Browser::new().post_for(&harness.url("/auth/backchannel-logout"), &form, "*/*").await
}

fn with_sid(sid: &'static str) -> impl Fn(&mut Value) + Send + 'static {
    move |claims| claims["sid"] = json!(sid)
}

#[track_caller]
fn assert_rejected(harness: &Harness, reply: &Reply, why: &str) {
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{reply:?}\n{}", harness.log());
    assert_eq!(reply.cache_control.as_deref(), Some("no-store"));
    let body: Value = serde_json::from_str(&reply.page).unwrap();
    assert_eq!(body["error"], "invalid_request");
    assert!(body["error_description"].as_str().unwrap().contains(why), "{why}: {body}");
}

#[tokio::test]
async fn logout_token_ends_all_sessions_of_the_subject() {
    let harness = Harness::begin().await;
    let (mut one, mut two) = (harness.signed_in_browser().await, harness.signed_in_browser().await);
    let reply = send(&harness, &harness.provider.logout_token(|_, _| {})).await;
    assert_eq!((reply.status, reply.cache_control.as_deref()), (StatusCode::OK, Some("no-store")));
    assert!(!harness.is_signed_in(&mut one).await && !harness.is_signed_in(&mut two).await);
}

#[tokio::test]
async fn logout_token_with_sid_ends_that_session_only() {
    let harness = Harness::begin().await;
    harness.behavior(|behavior| behavior.edit_claims(with_sid("one")));
    let mut one = harness.signed_in_browser().await;
    harness.behavior(|behavior| behavior.edit_claims(with_sid("two")));
    let mut two = harness.signed_in_browser().await;
    let token = harness.provider.logout_token(|_, claims| {
        claims["sid"] = json!("one");
        without(claims, "sub");
    });
    assert_eq!(send(&harness, &token).await.status, StatusCode::OK);
    assert!(!harness.is_signed_in(&mut one).await && harness.is_signed_in(&mut two).await);
}

#[tokio::test]
async fn replayed_logout_token_is_rejected() {
    let harness = Harness::begin().await;
    let token = harness.provider.logout_token(|_, _| {});
    assert_eq!(send(&harness, &token).await.status, StatusCode::OK, "a logout without a session is no error");
    let mut browser = harness.signed_in_browser().await;
    assert_rejected(&harness, &send(&harness, &token).await, "used before");
    assert!(harness.is_signed_in(&mut browser).await);
    let other = harness.provider.logout_token(|_, claims| claims["jti"] = json!("logout-2"));
    assert_eq!(send(&harness, &other).await.status, StatusCode::OK);
    assert!(!harness.is_signed_in(&mut browser).await);
}

#[tokio::test]
async fn wrong_logout_tokens_end_nothing() {
    type Edit = fn(&mut Value, &mut Value);
    let cases: [(Edit, &str); 17] = [
        (|_, claims| claims["iss"] = json!("https://evil.example"), "`iss` is not"),
        (|_, claims| claims["aud"] = json!("another"), "`aud` is not"),
        (|_, claims| claims["exp"] = json!(1_799_999_900), "expired"),
        (|_, claims| claims["iat"] = json!(1_799_990_000), "expired"),
        (|_, claims| claims["iat"] = json!(1_800_000_900), "ahead of our clock"),
        (|_, claims| without(claims, "exp"), "exp"),
        (|_, claims| without(claims, "iat"), "iat"),
        (|_, claims| without(claims, "jti"), "jti"),
        (|_, claims| without(claims, "events"), "events"),
        (|_, claims| claims["events"] = json!({"other": {}}), "no logout event"),
        (
            |_, claims| {
                claims["events"] = json!({"http://schemas.openid.net/event/backchannel-logout": true});
            },
            "no logout event",
        ),
        (|_, claims| claims["nonce"] = json!("n"), "`nonce`"),
        (|_, claims| without(claims, "sub"), "neither `sub` nor `sid`"),
        (|_, claims| claims["sub"] = json!("a\nb"), "invalid `sub`"),
        (|header, _| header["typ"] = json!("at+jwt"), "unexpected `typ`"),
        (|header, _| header["alg"] = json!("none"), "is not accepted"),
        (|header, _| header["kid"] = json!("unknown"), "matches none of the provider's keys"),
    ];
    let harness = Harness::begin().await;
    let mut browser = harness.signed_in_browser().await;
    for (edit, why) in cases {
        let token = harness.provider.logout_token(edit);
        assert_rejected(&harness, &send(&harness, &token).await, why);
    }
    for token in ["", "x", "a.b.c"] {
        assert_rejected(&harness, &send(&harness, token).await, "logout token");
    }
    assert!(harness.is_signed_in(&mut browser).await);
}

#[tokio::test]
async fn logout_token_of_another_key_is_rejected() {
    let harness = Harness::begin().await;
    let mut browser = harness.signed_in_browser().await;
    let (own, mut forged) = (SigningKey::es256(1), SigningKey::es256(9));
    forged.kid.clone_from(&own.kid);
    harness.behavior(|behavior| behavior.sign_with(&forged, &[&own]));
    let token = harness.provider.logout_token(|_, _| {});
    assert_rejected(&harness, &send(&harness, &token).await, "signature does not verify");
    assert!(harness.is_signed_in(&mut browser).await);
}

#[tokio::test]
async fn id_token_is_no_logout_token() {
    let harness = Harness::begin().await;
    let token = harness.provider.logout_token(|header, claims| {
        header["typ"] = json!("JWT");
        claims["nonce"] = json!("n");
        without(claims, "events");
    });
    assert_rejected(&harness, &send(&harness, &token).await, "`nonce`");
}

#[tokio::test]
async fn form_must_have_exactly_one_logout_token() {
    let harness = Harness::begin().await;
    let token = harness.provider.logout_token(|_, _| {});
    let url = harness.url("/auth/backchannel-logout");
    for form in ["", "other=1", &format!("logout_token={token}&logout_token={token}")] {
        assert_rejected(&harness, &Browser::new().post_for(&url, form, "*/*").await, "one `logout_token`");
    }
    let huge = format!("logout_token={}", "x".repeat(17 * 1024));
    assert_eq!(Browser::new().post_for(&url, &huge, "*/*").await.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(Browser::new().get(&url).await.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn unknown_keys_refetch_rarely_and_leave_sign_ins_their_own_fetch() {
    let harness = Harness::begin().await;
    harness.signed_in_browser().await;
    let fetched = harness.provider.request_count("keys");
    for _ in 0..20 {
        let token = harness.provider.logout_token(|header, _| header["kid"] = json!("unknown"));
        assert_eq!(send(&harness, &token).await.status, StatusCode::BAD_REQUEST);
    }
    assert_eq!(harness.provider.request_count("keys"), fetched + 1);
    // The provider rotates its key right after: a sign-in still finds it.
    let new = SigningKey::es256(7);
    harness.behavior(|behavior| behavior.sign_with(&new, &[&new]));
    harness.signed_in_browser().await;
}
