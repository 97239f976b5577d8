//! Callbacks that are unsolicited, repeated, from another browser, or with an error.

use crate::harness::{Browser, Harness, is_not_trusted, signs_in};
use crate::hostile_provider::ProviderBehavior;
use axum::http::StatusCode;
use serde_json::json;
use std::time::Duration;

fn set(parameters: &mut Vec<(String, String)>, name: &str, value: &str) {
    parameters.retain(|(own, _)| own != name);
    parameters.push((name.to_owned(), value.to_owned()));
}

fn with_parameter(url: &str, name: &str, value: &str) -> String {
    let (path, query) = url.split_once('?').unwrap();
    let mut parameters: Vec<_> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    set(&mut parameters, name, value);
    form_urlencoded::Serializer::new(format!("{path}?"))
        .extend_pairs(parameters)
        .finish()
        .replacen("?&", "?", 1)
}

#[tokio::test]
async fn callback_without_state_is_rejected() {
    let harness = Harness::begin().await;
    let mut browser = Browser::new();
    let _ = harness.callback_url(&mut browser).await;
    for path in ["/auth/callback", "/auth/callback?code=code-1", "/auth/callback?error=access_denied"] {
        let reply = browser.get(&harness.url(path)).await;
        harness.assert_rejected(&reply, 400, "Sign-in not completed", "missing `state`");
    }
    assert_eq!(harness.provider.request_count("token"), 0);
}

#[tokio::test]
async fn callback_with_foreign_state_is_rejected() {
    let harness = Harness::begin().await;
    let (mut browser, mut other) = (Browser::new(), Browser::new());
    let callback = harness.callback_url(&mut browser).await;
    let foreign = harness.callback_url(&mut other).await;
    for state in ["", "x", "' OR 1=1 --", &"x".repeat(10_000)] {
        let reply = browser.get(&with_parameter(&callback, "state", state)).await;
        harness.assert_rejected(&reply, 410, "Sign-in expired", "unknown, used or expired `state`");
    }
    // A valid callback planted in another browser signs nobody in.
    let reply = browser.get(&foreign).await;
    harness.assert_rejected(&reply, 410, "Sign-in expired", "unknown, used or expired `state`");
    assert_eq!(harness.provider.request_count("token"), 0);
    // Neither sign-in is affected.
    harness.assert_signed_in(&browser.get(&callback).await);
    harness.assert_signed_in(&other.get(&foreign).await);
}

#[tokio::test]
async fn callback_without_sign_in_cookie_is_rejected() {
    let harness = Harness::begin().await;
    let callback = harness.callback_url(&mut Browser::new()).await;
    let reply = Browser::new().get(&callback).await;
    harness.assert_rejected(&reply, 400, "started in another browser", "not exactly one sign-in cookie");
    let mut forger = Browser::new();
    for value in ["", "x", &"a".repeat(44)] {
        forger.cookies.insert("__Host-sign_in".to_owned(), value.to_owned());
        let reply = forger.get(&callback).await;
        harness.assert_rejected(&reply, 400, "started in another browser", "invalid sign-in cookie");
    }
}

#[tokio::test]
async fn duplicate_sign_in_cookies_are_rejected() {
    let harness = Harness::begin().await;
    let mut browser = Browser::new();
    let callback = harness.callback_url(&mut browser).await;
    let planted = format!("{}; __Host-sign_in={}", browser.cookies["__Host-sign_in"], "a".repeat(43));
    browser.cookies.insert("__Host-sign_in".to_owned(), planted);
    let reply = browser.get(&callback).await;
    harness.assert_rejected(&reply, 400, "Sign-in not completed", "not exactly one sign-in cookie");
}

#[tokio::test]
async fn duplicate_session_cookies_do_not_consume_the_sign_in() {
    let harness = Harness::begin().await;
    let mut browser = Browser::new();
    let callback = harness.callback_url(&mut browser).await;
    let planted = "a".repeat(43);
    browser.cookies.insert("session".to_owned(), format!("{planted}; session={planted}"));
    let reply = browser.get(&callback).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{reply:?}");
    assert!(reply.page.contains("two cookies named"), "{reply:?}");
    assert_eq!(harness.provider.request_count("token"), 0);
    browser.cookies.remove("session");
    harness.assert_signed_in(&browser.get(&callback).await);
}

#[tokio::test]
async fn replayed_callback_is_rejected_and_keeps_the_session() {
    let harness = Harness::begin().await;
    let mut browser = Browser::new();
    let callback = harness.callback_url(&mut browser).await;
    harness.assert_signed_in(&browser.get(&callback).await);
    let session = browser.cookies["session"].clone();
    let reply = browser.get(&callback).await;
    harness.assert_rejected(&reply, 410, "Sign-in expired", "unknown, used or expired `state`");
    assert!(reply.set_cookies.is_empty(), "{reply:?}");
    assert_eq!(browser.cookies["session"], session);
    assert_eq!(harness.provider.request_count("token"), 1, "the code was not sent again");
}

#[tokio::test]
async fn used_code_is_rejected_with_a_new_state() {
    let harness = Harness::begin().await;
    let mut browser = Browser::new();
    let first = harness.callback_url(&mut browser).await;
    harness.assert_signed_in(&browser.get(&first).await);
    let second = harness.callback_url(&mut browser).await;
    let reply = browser.get(&with_parameter(&second, "code", "code-1")).await;
    harness.assert_rejected(&reply, 410, "Sign-in expired", "`invalid_grant`");
}

#[tokio::test]
async fn code_of_another_sign_in_is_rejected() {
    // The provider checks it against the PKCE verifier. If it did not, the nonce would not match.
    let harness = Harness::begin().await;
    let (mut browser, mut attacker) = (Browser::new(), Browser::new());
    let callback = harness.callback_url(&mut browser).await;
    let _ = harness.callback_url(&mut attacker).await;
    let reply = browser.get(&with_parameter(&callback, "code", "code-2")).await;
    harness.assert_rejected(&reply, 410, "Sign-in expired", "`invalid_grant`");
}

#[tokio::test]
async fn sign_in_expires_after_ten_minutes() {
    let harness = Harness::begin().await;
    let mut browser = Browser::new();
    let callback = harness.callback_url(&mut browser).await;
    harness.clock.advance(Duration::from_secs(600));
    let reply = browser.get(&callback).await;
    harness.assert_rejected(&reply, 410, "Sign-in expired", "unknown, used or expired `state`");
}

#[tokio::test]
async fn several_tabs_can_sign_in() {
    let harness = Harness::begin().await;
    let mut browser = Browser::new();
    let first = harness.callback_url(&mut browser).await;
    let cookie = browser.cookies["__Host-sign_in"].clone();
    let second = harness.callback_url(&mut browser).await;
    assert_eq!(browser.cookies["__Host-sign_in"], cookie, "one cookie for all tabs");
    harness.assert_signed_in(&browser.get(&first).await);
    harness.assert_signed_in(&browser.get(&second).await);
    for callback in [first, second] {
        assert_eq!(browser.get(&callback).await.status, StatusCode::GONE);
    }
}

#[tokio::test]
async fn callback_with_another_issuer_is_rejected() {
    let change = |behavior: &mut ProviderBehavior| {
        behavior.edit_callback(|parameters| set(parameters, "iss", "https://evil.example"));
    };
    is_not_trusted(change, "wrong `iss` in the callback").await;
}

#[tokio::test]
async fn iss_is_checked_even_if_not_advertised() {
    let change = |behavior: &mut ProviderBehavior| {
        behavior.metadata["authorization_response_iss_parameter_supported"] = json!(null);
        behavior.edit_callback(|parameters| set(parameters, "iss", "https://evil.example"));
    };
    is_not_trusted(change, "wrong `iss` in the callback").await;
}

#[tokio::test]
async fn missing_iss_is_rejected_if_advertised() {
    let drop_issuer = |parameters: &mut Vec<(String, String)>| parameters.retain(|(name, _)| name != "iss");
    is_not_trusted(|behavior| behavior.edit_callback(drop_issuer), "missing `iss` in the callback").await;
    signs_in(|behavior| {
        behavior.metadata["authorization_response_iss_parameter_supported"] = json!(false);
        behavior.edit_callback(drop_issuer);
    })
    .await;
}

#[tokio::test]
async fn repeated_callback_parameter_is_rejected() {
    for name in ["code", "state", "iss"] {
        let harness = Harness::begin().await;
        let mut browser = Browser::new();
        let callback = harness.callback_url(&mut browser).await;
        let reply = browser.get(&format!("{callback}&{name}=x")).await;
        harness.assert_rejected(&reply, 400, "Sign-in not completed", "repeated parameter");
        assert_eq!(harness.provider.request_count("token"), 0);
    }
}

#[tokio::test]
async fn callback_without_code_or_error_is_rejected() {
    for code in ["", &"x".repeat(4_097)] {
        let harness = Harness::begin().await;
        let mut browser = Browser::new();
        let callback = harness.callback_url(&mut browser).await;
        let reply = browser.get(&with_parameter(&callback, "code", code)).await;
        harness.assert_rejected(&reply, 400, "Sign-in not completed", "missing or invalid `code`");
    }
}

async fn provider_says(error: &'static str) -> (Harness, crate::harness::Reply) {
    let harness = Harness::begin().await;
    harness.behavior(|behavior| {
        behavior.edit_callback(move |parameters| {
            parameters.retain(|(name, _)| name != "code");
            set(parameters, "error", error);
            set(parameters, "error_description", "line one\r\nline two <script>alert(1)</script>");
        });
    });
    let reply = harness.sign_in().await;
    assert_eq!(harness.provider.request_count("token"), 0);
    assert!(!reply.page.contains("script"), "nothing that was sent is shown: {}", reply.page);
    (harness, reply)
}

#[tokio::test]
async fn access_denied_explains_how_to_sign_in() {
    let (harness, reply) = provider_says("access_denied").await;
    harness.assert_rejected(&reply, 403, "Sign-in not completed", "`access_denied`: line one  line two");
    let (harness, reply) = provider_says("login_required").await;
    harness.assert_rejected(&reply, 403, "Sign-in not completed", "`login_required`");
}

#[tokio::test]
async fn provider_errors_are_reported() {
    let (harness, reply) = provider_says("temporarily_unavailable").await;
    harness.assert_rejected(&reply, 503, "Sign-in service unavailable", "`temporarily_unavailable`");
    let (harness, reply) = provider_says("invalid_scope").await;
    harness.assert_rejected(&reply, 502, "Portal not registered", "`invalid_scope`");
}

#[tokio::test]
async fn forged_error_does_not_end_a_sign_in() {
    let harness = Harness::begin().await;
    let mut browser = Browser::new();
    let callback = harness.callback_url(&mut browser).await;
    let made_up = browser.get(&harness.url("/auth/callback?error=access_denied&state=x")).await;
    assert_eq!(made_up.status, StatusCode::GONE);
    harness.assert_signed_in(&browser.get(&callback).await);
}

#[tokio::test]
async fn rejected_callback_keeps_the_current_session() {
    let harness = Harness::begin().await;
    let mut browser = Browser::new();
    let callback = harness.callback_url(&mut browser).await;
    harness.assert_signed_in(&browser.get(&callback).await);
    let session = browser.cookies["session"].clone();
    harness.behavior(|behavior| behavior.edit_claims(|claims| claims["iss"] = json!("https://evil.example")));
    let callback = harness.callback_url(&mut browser).await;
    let reply = browser.get(&callback).await;
    harness.assert_rejected(&reply, 502, "Sign-in response rejected", "`iss` is not");
    assert_eq!(browser.cookies["session"], session);
}
