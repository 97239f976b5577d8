//! `GET /auth/sign-in`: the redirect to the provider.

use crate::harness::{Browser, Harness};
use crate::hostile_provider::CLIENT_ID;
use axum::http::StatusCode;
use reqwest::Url;
use std::collections::HashMap;

fn query(url: &str) -> HashMap<String, String> {
    Url::parse(url).unwrap().query_pairs().into_owned().collect()
}

#[tokio::test]
async fn authorization_request_has_exactly_the_code_flow_parameters() {
    let harness = Harness::begin().await;
    let mut browser = Browser::new();
    let reply = browser.get(&harness.url("/auth/sign-in")).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER);
    let location = reply.location.unwrap();
    assert!(location.starts_with(&format!("{}/authorize?", harness.provider.issuer)), "{location}");
    let sent = query(&location);
    let expected = [
        "client_id",
        "code_challenge",
        "code_challenge_method",
        "nonce",
        "redirect_uri",
        "response_type",
        "scope",
        "state",
    ];
    let mut names: Vec<_> = sent.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, expected);
    assert_eq!(sent["client_id"], CLIENT_ID);
    assert_eq!(sent["response_type"], "code");
    assert_eq!(sent["scope"], "openid email");
    assert_eq!(sent["redirect_uri"], harness.url("/auth/callback"));
    assert_eq!(sent["code_challenge_method"], "S256");
    for name in ["code_challenge", "nonce", "state"] {
        assert_eq!(sent[name].len(), 43, "256 bits: {name}");
    }
}

#[tokio::test]
async fn sign_in_as_someone_else_sends_prompt_login() {
    let harness = Harness::begin().await;
    let mut browser = Browser::new();
    let reply = browser.get(&harness.url("/auth/sign-in?return_to=/clients/7&as=someone-else")).await;
    assert_eq!(query(&reply.location.unwrap())["prompt"], "login");
    let reply = browser.get(&harness.url("/auth/sign-in?as=anybody")).await;
    assert!(!query(&reply.location.unwrap()).contains_key("prompt"));
}

#[tokio::test]
async fn sign_in_cookie_is_short_lived_and_bound_to_this_host() {
    let harness = Harness::begin().await;
    let reply = Browser::new().get(&harness.url("/auth/sign-in")).await;
    let [cookie] = reply.set_cookies.as_slice() else { panic!("{reply:?}") };
    let (value, attributes) = cookie.split_once(';').unwrap();
    assert_eq!(value.strip_prefix("__Host-sign_in=").unwrap().len(), 43);
    assert_eq!(attributes, " Path=/; Max-Age=600; HttpOnly; Secure; SameSite=Lax");
}

#[tokio::test]
async fn sign_ins_share_no_secrets() {
    let harness = Harness::begin().await;
    let mut browser = Browser::new();
    let first = query(&browser.get(&harness.url("/auth/sign-in")).await.location.unwrap());
    let second = query(&browser.get(&harness.url("/auth/sign-in")).await.location.unwrap());
    for name in ["code_challenge", "nonce", "state"] {
        assert_ne!(first[name], second[name], "{name}");
        assert!(!browser.cookies.values().any(|value| *value == first[name]));
    }
}

#[tokio::test]
async fn foreign_sign_in_cookie_is_replaced() {
    let harness = Harness::begin().await;
    let mut browser = Browser::new();
    browser.cookies.insert("__Host-sign_in".to_owned(), "planted".to_owned());
    harness.assert_signed_in(&{
        let callback = harness.callback_url(&mut browser).await;
        assert_ne!(browser.cookies["__Host-sign_in"], "planted");
        browser.get(&callback).await
    });
}

#[tokio::test]
async fn return_to_never_leaves_the_site() {
    let harness = Harness::begin().await;
    for path in ["https://evil.example", "//evil.example", "/\\evil.example", "/auth/callback?error=x", "x"] {
        let mut browser = Browser::new();
        let path: String = form_urlencoded::byte_serialize(path.as_bytes()).collect();
        let begun = browser.get(&harness.url(&format!("/auth/sign-in?return_to={path}"))).await;
        let back = Browser::new().get(&begun.location.unwrap()).await;
        let reply = browser.get(&back.location.unwrap()).await;
        assert_eq!(reply.location.as_deref(), Some("/clients"), "{path}");
    }
}

#[tokio::test]
async fn images_of_another_site_use_up_nobodys_sign_ins() {
    let harness = Harness::begin().await;
    let url = harness.url("/auth/sign-in");
    let mut browser = Browser::new();
    for _ in 0..3_000 {
        let reply = browser.get_as_image(&url).await;
        assert_eq!((reply.status, reply.set_cookies.len()), (StatusCode::FORBIDDEN, 0));
    }
    harness.assert_signed_in(&harness.sign_in().await);
}

#[tokio::test]
async fn known_browser_has_sign_ins_of_its_own_then_its_networks() {
    let harness = Harness::begin().await;
    let url = harness.url("/auth/sign-in");
    let mut known = harness.signed_in_browser().await;
    // One of the network's was the known browser's first.
    for number in 0..60 + 2_999 {
        assert_eq!(known.get(&url).await.status, StatusCode::SEE_OTHER, "{number}");
    }
    assert_eq!(known.get(&url).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(Browser::new().get(&url).await.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn known_browser_has_sign_ins_of_its_own_and_a_forged_one_has_not() {
    let harness = Harness::begin().await;
    let url = harness.url("/auth/sign-in");
    let mut known = harness.signed_in_browser().await;
    let mut stranger = Browser::new();
    while stranger.get(&url).await.status == StatusCode::SEE_OTHER {}
    let mut forged = Browser::new();
    let (text, signature) = known.cookies["__Host-known_browser"].rsplit_once('.').unwrap();
    let value = format!("x{text}.{signature}");
    forged.cookies.insert("__Host-known_browser".to_owned(), value);
    assert_eq!(forged.get(&url).await.status, StatusCode::TOO_MANY_REQUESTS);

    let callback = harness.callback_url(&mut known).await;
    harness.assert_signed_in(&known.get(&callback).await);
    for number in 0..60 {
        assert_eq!(known.get(&url).await.status, StatusCode::SEE_OTHER, "{number}");
    }
    let reply = known.get(&url).await;
    assert_eq!((reply.status, reply.retry_after.as_deref()), (StatusCode::TOO_MANY_REQUESTS, Some("601")));
}

#[tokio::test]
async fn sign_in_throttle_returns_retry_after() {
    let harness = Harness::begin().await;
    let mut browser = Browser::new();
    let mut last = browser.get(&harness.url("/auth/sign-in")).await;
    for _ in 0..3_000 {
        last = browser.get(&harness.url("/auth/sign-in")).await;
    }
    assert_eq!(last.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(last.retry_after.as_deref(), Some("601"));
    assert!(last.page.contains("Too many requests"), "{}", last.page);
    harness.clock.advance(std::time::Duration::from_secs(601));
    assert_eq!(browser.get(&harness.url("/auth/sign-in")).await.status, StatusCode::SEE_OTHER);
    let now = chancery_domain::Clock::now(&*harness.clock);
    let deleted = harness.portal.store.sign_ins.delete_expired_sign_ins(now, 10_000, 10_000).await;
    assert_eq!(deleted.unwrap(), 3_000, "upkeep forgets them all");
}
