//! Callbacks that nobody asked for, that come twice, from another browser, or with an error.

use crate::hostile_provider::Ways;
use crate::scene::{Browser, Scene, not_trusted, signs_in};
use axum::http::StatusCode;
use openidconnect::url::form_urlencoded;
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
async fn a_callback_without_a_state_is_refused() {
    let scene = Scene::begin().await;
    let mut browser = Browser::new();
    let _ = scene.callback_url(&mut browser).await;
    for path in ["/auth/callback", "/auth/callback?code=code-1", "/auth/callback?error=access_denied"] {
        let reply = browser.get(&scene.url(path)).await;
        scene.assert_refused(&reply, 400, "cannot be finished here", "it has no `state`");
    }
    assert_eq!(scene.provider.times_asked("token"), 0);
}

#[tokio::test]
async fn a_callback_with_a_foreign_state_is_refused() {
    let scene = Scene::begin().await;
    let (mut browser, mut other) = (Browser::new(), Browser::new());
    let callback = scene.callback_url(&mut browser).await;
    let foreign = scene.callback_url(&mut other).await;
    for state in ["", "x", "' OR 1=1 --", &"x".repeat(10_000)] {
        let reply = browser.get(&with_parameter(&callback, "state", state)).await;
        scene.assert_refused(&reply, 410, "This sign-in is over", "was not begun in this browser");
    }
    // Somebody's own callback, planted in another's browser: nobody is signed in as somebody else.
    let reply = browser.get(&foreign).await;
    scene.assert_refused(&reply, 410, "This sign-in is over", "was not begun in this browser");
    assert_eq!(scene.provider.times_asked("token"), 0);
    // Neither sign-in was harmed by it.
    scene.assert_signed_in(&browser.get(&callback).await);
    scene.assert_signed_in(&other.get(&foreign).await);
}

#[tokio::test]
async fn a_callback_in_a_browser_that_began_nothing_is_refused() {
    let scene = Scene::begin().await;
    let callback = scene.callback_url(&mut Browser::new()).await;
    let reply = Browser::new().get(&callback).await;
    scene.assert_refused(&reply, 400, "not begun in this browser", "no cookie `sign_in`");
    let mut forger = Browser::new();
    for value in ["", "x", &"a".repeat(44)] {
        forger.cookies.insert("sign_in".to_owned(), value.to_owned());
        let reply = forger.get(&callback).await;
        scene.assert_refused(&reply, 400, "not begun in this browser", "was never one of ours");
    }
}

#[tokio::test]
async fn two_sign_in_cookies_are_refused() {
    let scene = Scene::begin().await;
    let mut browser = Browser::new();
    let callback = scene.callback_url(&mut browser).await;
    let planted = format!("{}; sign_in={}", browser.cookies["sign_in"], "a".repeat(43));
    browser.cookies.insert("sign_in".to_owned(), planted);
    let reply = browser.get(&callback).await;
    scene.assert_refused(&reply, 400, "cannot be finished here", "or several");
}

#[tokio::test]
async fn two_session_cookies_are_refused_before_the_sign_in_is_taken() {
    let scene = Scene::begin().await;
    let mut browser = Browser::new();
    let callback = scene.callback_url(&mut browser).await;
    let planted = "a".repeat(43);
    browser.cookies.insert("session".to_owned(), format!("{planted}; session={planted}"));
    let reply = browser.get(&callback).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{reply:?}");
    assert!(reply.page.contains("two cookies named"), "{reply:?}");
    assert_eq!(scene.provider.times_asked("token"), 0);
    browser.cookies.remove("session");
    scene.assert_signed_in(&browser.get(&callback).await);
}

#[tokio::test]
async fn a_callback_that_comes_twice_is_refused_and_the_first_session_stays() {
    let scene = Scene::begin().await;
    let mut browser = Browser::new();
    let callback = scene.callback_url(&mut browser).await;
    scene.assert_signed_in(&browser.get(&callback).await);
    let session = browser.cookies["session"].clone();
    let reply = browser.get(&callback).await;
    scene.assert_refused(&reply, 410, "This sign-in is over", "was used before");
    assert!(reply.set_cookies.is_empty(), "{reply:?}");
    assert_eq!(browser.cookies["session"], session);
    assert_eq!(scene.provider.times_asked("token"), 1, "the code was not sent again");
}

#[tokio::test]
async fn a_code_that_was_used_before_signs_nobody_in_with_a_new_state() {
    let scene = Scene::begin().await;
    let mut browser = Browser::new();
    let first = scene.callback_url(&mut browser).await;
    scene.assert_signed_in(&browser.get(&first).await);
    let second = scene.callback_url(&mut browser).await;
    let reply = browser.get(&with_parameter(&second, "code", "code-1")).await;
    scene.assert_refused(&reply, 410, "This sign-in is over", "`invalid_grant`");
}

#[tokio::test]
async fn a_code_of_another_sign_in_signs_nobody_in() {
    // The provider holds it against the verifier; if it did not, the nonce would not fit.
    let scene = Scene::begin().await;
    let (mut browser, mut attacker) = (Browser::new(), Browser::new());
    let callback = scene.callback_url(&mut browser).await;
    let _ = scene.callback_url(&mut attacker).await;
    let reply = browser.get(&with_parameter(&callback, "code", "code-2")).await;
    scene.assert_refused(&reply, 410, "This sign-in is over", "`invalid_grant`");
}

#[tokio::test]
async fn a_sign_in_that_took_more_than_ten_minutes_is_over() {
    let scene = Scene::begin().await;
    let mut browser = Browser::new();
    let callback = scene.callback_url(&mut browser).await;
    scene.clock.advance(Duration::from_secs(600));
    let reply = browser.get(&callback).await;
    scene.assert_refused(&reply, 410, "This sign-in is over", "too old");
}

#[tokio::test]
async fn several_tabs_sign_in_each_once() {
    let scene = Scene::begin().await;
    let mut browser = Browser::new();
    let first = scene.callback_url(&mut browser).await;
    let cookie = browser.cookies["sign_in"].clone();
    let second = scene.callback_url(&mut browser).await;
    assert_eq!(browser.cookies["sign_in"], cookie, "one cookie for all tabs");
    scene.assert_signed_in(&browser.get(&first).await);
    scene.assert_signed_in(&browser.get(&second).await);
    for callback in [first, second] {
        assert_eq!(browser.get(&callback).await.status, StatusCode::GONE);
    }
}

#[tokio::test]
async fn a_callback_that_names_another_issuer_is_refused() {
    let change =
        |ways: &mut Ways| ways.edit_callback(|parameters| set(parameters, "iss", "https://evil.example"));
    not_trusted(change, "the callback's `iss` names another issuer").await;
}

#[tokio::test]
async fn a_named_issuer_is_checked_even_where_the_provider_does_not_announce_it() {
    let change = |ways: &mut Ways| {
        ways.metadata["authorization_response_iss_parameter_supported"] = json!(null);
        ways.edit_callback(|parameters| set(parameters, "iss", "https://evil.example"));
    };
    not_trusted(change, "the callback's `iss` names another issuer").await;
}

#[tokio::test]
async fn a_callback_without_an_issuer_is_refused_where_the_provider_announces_one() {
    let drop_issuer = |parameters: &mut Vec<(String, String)>| parameters.retain(|(name, _)| name != "iss");
    not_trusted(|ways| ways.edit_callback(drop_issuer), "the callback has no `iss`").await;
    signs_in(|ways| {
        ways.metadata["authorization_response_iss_parameter_supported"] = json!(false);
        ways.edit_callback(drop_issuer);
    })
    .await;
}

#[tokio::test]
async fn a_parameter_that_is_there_twice_is_refused() {
    for name in ["code", "state", "iss"] {
        let scene = Scene::begin().await;
        let mut browser = Browser::new();
        let callback = scene.callback_url(&mut browser).await;
        let reply = browser.get(&format!("{callback}&{name}=x")).await;
        scene.assert_refused(&reply, 400, "cannot be finished here", "a parameter twice");
        assert_eq!(scene.provider.times_asked("token"), 0);
    }
}

#[tokio::test]
async fn a_callback_with_neither_code_nor_error_is_refused() {
    for code in ["", &"x".repeat(4_097)] {
        let scene = Scene::begin().await;
        let mut browser = Browser::new();
        let callback = scene.callback_url(&mut browser).await;
        let reply = browser.get(&with_parameter(&callback, "code", code)).await;
        scene.assert_refused(&reply, 400, "cannot be finished here", "neither a usable `code`");
    }
}

async fn provider_says(error: &'static str) -> (Scene, crate::scene::Reply) {
    let scene = Scene::begin().await;
    scene.ways(|ways| {
        ways.edit_callback(move |parameters| {
            parameters.retain(|(name, _)| name != "code");
            set(parameters, "error", error);
            set(parameters, "error_description", "line one\r\nline two <script>alert(1)</script>");
        });
    });
    let reply = scene.sign_in().await;
    assert_eq!(scene.provider.times_asked("token"), 0);
    assert!(!reply.page.contains("script"), "nothing that was sent is shown: {}", reply.page);
    (scene, reply)
}

#[tokio::test]
async fn somebody_who_declined_is_told_how_to_sign_in_after_all() {
    let (scene, reply) = provider_says("access_denied").await;
    scene.assert_refused(&reply, 403, "You were not signed in", "`access_denied`: line one  line two");
    let (scene, reply) = provider_says("login_required").await;
    scene.assert_refused(&reply, 403, "You were not signed in", "`login_required`");
}

#[tokio::test]
async fn a_provider_that_has_trouble_is_said_so() {
    let (scene, reply) = provider_says("temporarily_unavailable").await;
    scene.assert_refused(&reply, 503, "cannot be reached", "`temporarily_unavailable`");
    let (scene, reply) = provider_says("invalid_scope").await;
    scene.assert_refused(&reply, 502, "does not accept this portal", "`invalid_scope`");
}

#[tokio::test]
async fn an_error_that_somebody_makes_up_does_not_end_a_sign_in() {
    let scene = Scene::begin().await;
    let mut browser = Browser::new();
    let callback = scene.callback_url(&mut browser).await;
    let made_up = browser.get(&scene.url("/auth/callback?error=access_denied&state=x")).await;
    assert_eq!(made_up.status, StatusCode::GONE);
    scene.assert_signed_in(&browser.get(&callback).await);
}

#[tokio::test]
async fn a_refused_callback_leaves_another_session_alone() {
    let scene = Scene::begin().await;
    let mut browser = Browser::new();
    let callback = scene.callback_url(&mut browser).await;
    scene.assert_signed_in(&browser.get(&callback).await);
    let session = browser.cookies["session"].clone();
    scene.ways(|ways| ways.edit_claims(|claims| claims["iss"] = json!("https://evil.example")));
    let callback = scene.callback_url(&mut browser).await;
    let reply = browser.get(&callback).await;
    scene.assert_refused(&reply, 502, "answer cannot be trusted", "`iss` is not");
    assert_eq!(browser.cookies["session"], session);
}
