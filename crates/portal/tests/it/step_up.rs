//! Authenticating again for what needs it, in the same session.

use crate::harness::{Browser, Harness};
use axum::http::StatusCode;
use chancery_portal::SecondFactor;
use serde_json::json;
use std::time::Duration;

const EXPORT: &str = "/clients/export";

fn auth_time(harness: &Harness, offset_s: i64) {
    harness.behavior(|behavior| {
        behavior.edit_claims(move |claims| {
            let now_s = claims["iat"].as_i64().unwrap();
            claims["auth_time"] = json!(now_s + offset_s);
        });
    });
}

async fn session_number(harness: &Harness, browser: &mut Browser) -> String {
    let page = browser.get(&harness.url("/sessions")).await.page;
    page.split("name=\"end\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn old_authentication_is_renewed_in_the_same_session_with_a_new_token() {
    let harness = Harness::begin().await;
    let mut browser = harness.signed_in_browser().await;
    assert_eq!(browser.get(&harness.url(EXPORT)).await.status, StatusCode::OK, "it is recent");
    harness.clock.advance(Duration::from_secs(301));
    let (session, old) = (session_number(&harness, &mut browser).await, browser.cookies["session"].clone());
    let reply = harness.through_provider(&mut browser, EXPORT).await;
    assert_eq!((reply.status, reply.location.as_deref()), (StatusCode::SEE_OTHER, Some(EXPORT)), "{reply:?}");
    let sent = harness.provider.behavior().authorization.clone();
    assert_eq!((sent["max_age"].as_str(), sent.get("prompt")), ("240", None));
    assert_ne!(browser.cookies["session"], old);
    assert_eq!(session_number(&harness, &mut browser).await, session, "it is the same session");
    let mut copy = Browser::new();
    copy.cookies.insert("session".to_owned(), old);
    assert!(!harness.is_signed_in(&mut copy).await, "the old token is worth nothing");
    assert_eq!(browser.get(&harness.url(EXPORT)).await.status, StatusCode::OK);
}

#[tokio::test]
async fn provider_that_ignores_max_age_gets_an_error_and_no_loop() {
    for change in [None, Some(-301), Some(120)] {
        let harness = Harness::begin().await;
        let mut browser = harness.signed_in_browser().await;
        harness.clock.advance(Duration::from_secs(700));
        match change {
            Some(offset_s) => auth_time(&harness, offset_s),
            None => harness.behavior(|behavior| {
                behavior.edit_claims(|claims| crate::hostile_provider::without(claims, "auth_time"));
            }),
        }
        let reply = harness.through_provider(&mut browser, EXPORT).await;
        assert_eq!(reply.status, StatusCode::BAD_GATEWAY, "{change:?}: {reply:?}");
        assert!(reply.page.contains("Sign-in not confirmed"), "{reply:?}");
        assert!(harness.log().contains("reauthentication_not_confirmed"));
        assert!(harness.is_signed_in(&mut browser).await, "the session goes on");
    }
}

#[tokio::test]
async fn another_person_gets_a_session_of_their_own() {
    let harness = Harness::begin().await;
    let mut browser = harness.signed_in_browser().await;
    harness.clock.advance(Duration::from_secs(700));
    harness.behavior(|behavior| {
        behavior.edit_claims(|claims| {
            claims["sub"] = json!("another");
            claims["email"] = json!("omar@example.com");
        });
    });
    let reply = harness.through_provider(&mut browser, EXPORT).await;
    assert_eq!(reply.location.as_deref(), Some(EXPORT));
    let page = browser.get(&harness.url("/sessions")).await.page;
    assert!(page.contains("omar@example.com") && !page.contains("ada@example.com"), "{page}");
}

#[tokio::test]
async fn sign_in_without_auth_time_is_never_recent() {
    let harness = Harness::begin().await;
    harness.behavior(|behavior| {
        behavior.edit_claims(|claims| crate::hostile_provider::without(claims, "auth_time"));
    });
    let mut browser = harness.signed_in_browser().await;
    let reply = browser.get(&harness.url(EXPORT)).await;
    assert!(reply.location.unwrap().ends_with("&for=step-up"), "the provider's session may be old");
    // `max_age` obliges the provider to send it.
    auth_time(&harness, 0);
    let reply = harness.through_provider(&mut browser, EXPORT).await;
    assert_eq!(reply.location.as_deref(), Some(EXPORT), "{reply:?}");
    assert_eq!(browser.get(&harness.url(EXPORT)).await.status, StatusCode::OK);
}

#[tokio::test]
async fn step_up_asks_for_the_code_that_a_sign_in_asks_for() {
    let harness = Harness::with_settings(|settings| settings.second_factor = SecondFactor::EmailCode).await;
    let mut browser = Browser::new();
    let callback = harness.callback_url(&mut browser).await;
    assert_eq!(browser.get(&callback).await.location.as_deref(), Some("/auth/code"));
    let enter = format!("code={}", harness.latest_code());
    harness.assert_signed_in(&browser.post(&harness.url("/auth/code"), &enter).await);
    harness.clock.advance(Duration::from_secs(301));
    let old = browser.cookies["session"].clone();
    let reply = harness.through_provider(&mut browser, EXPORT).await;
    assert_eq!(reply.location.as_deref(), Some("/auth/code"), "{reply:?}");
    assert!(!reply.starts_session(), "{reply:?}");
    let page = browser.get(&harness.url(EXPORT)).await;
    assert_eq!(page.status, StatusCode::SEE_OTHER, "the provider's part alone is not enough");
    let enter = format!("code={}", harness.latest_code());
    let reply = browser.post(&harness.url("/auth/code"), &enter).await;
    assert_eq!(reply.location.as_deref(), Some(EXPORT), "{reply:?}");
    assert_eq!(browser.get(&harness.url(EXPORT)).await.status, StatusCode::OK);
    let mut copy = Browser::new();
    copy.cookies.insert("session".to_owned(), old);
    assert!(!harness.is_signed_in(&mut copy).await, "the new session replaces the old one");
}

#[tokio::test]
async fn code_of_a_step_up_does_not_make_an_old_authentication_recent() {
    let harness = Harness::with_settings(|settings| settings.second_factor = SecondFactor::Provider).await;
    harness.behavior(|behavior| behavior.edit_claims(|claims| claims["amr"] = json!(["pwd", "mfa"])));
    let mut browser = harness.signed_in_browser().await;
    harness.clock.advance(Duration::from_secs(700));
    auth_time(&harness, -301);
    let reply = harness.through_provider(&mut browser, EXPORT).await;
    assert_eq!(reply.status, StatusCode::BAD_GATEWAY, "checked before a code is sent: {reply:?}");
    auth_time(&harness, 0);
    let reply = harness.through_provider(&mut browser, EXPORT).await;
    assert_eq!(reply.location.as_deref(), Some("/auth/code"), "this time without `mfa`: {reply:?}");
}

#[tokio::test]
async fn sign_in_with_an_old_provider_session_is_not_recent() {
    let harness = Harness::begin().await;
    auth_time(&harness, -3_600);
    let mut browser = harness.signed_in_browser().await;
    let reply = browser.get(&harness.url(EXPORT)).await;
    assert!(reply.location.unwrap().ends_with("&for=step-up"));
}
