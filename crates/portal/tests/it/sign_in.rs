//! `GET /auth/sign-in`: what the browser is sent away with.

use crate::hostile_provider::CLIENT_ID;
use crate::scene::{Browser, Scene};
use axum::http::StatusCode;
use openidconnect::url::Url;
use std::collections::HashMap;

fn query(url: &str) -> HashMap<String, String> {
    Url::parse(url).unwrap().query_pairs().into_owned().collect()
}

#[tokio::test]
async fn the_browser_takes_with_it_what_the_code_flow_needs_and_nothing_more() {
    let scene = Scene::begin().await;
    let mut browser = Browser::new();
    let reply = browser.get(&scene.url("/auth/sign-in")).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER);
    let location = reply.location.unwrap();
    assert!(location.starts_with(&format!("{}/authorize?", scene.provider.issuer)), "{location}");
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
    assert_eq!(sent["redirect_uri"], scene.url("/auth/callback"));
    assert_eq!(sent["code_challenge_method"], "S256");
    for name in ["code_challenge", "nonce", "state"] {
        assert_eq!(sent[name].len(), 43, "256 bits: {name}");
    }
}

#[tokio::test]
async fn somebody_else_is_asked_for_by_name_and_password_though_the_provider_knows_the_browser() {
    let scene = Scene::begin().await;
    let mut browser = Browser::new();
    let reply = browser.get(&scene.url("/auth/sign-in?return_to=/clients/7&as=someone-else")).await;
    assert_eq!(query(&reply.location.unwrap())["prompt"], "login");
    let reply = browser.get(&scene.url("/auth/sign-in?as=anybody")).await;
    assert!(!query(&reply.location.unwrap()).contains_key("prompt"));
}

#[tokio::test]
async fn the_cookie_is_short_lived_and_only_for_signing_in() {
    let scene = Scene::begin().await;
    let reply = Browser::new().get(&scene.url("/auth/sign-in")).await;
    let [cookie] = reply.set_cookies.as_slice() else { panic!("{reply:?}") };
    let (value, attributes) = cookie.split_once(';').unwrap();
    assert_eq!(value.strip_prefix("sign_in=").unwrap().len(), 43);
    assert_eq!(attributes, " Path=/auth; Max-Age=600; HttpOnly; Secure; SameSite=Lax");
}

#[tokio::test]
async fn no_two_sign_ins_share_a_secret() {
    let scene = Scene::begin().await;
    let mut browser = Browser::new();
    let first = query(&browser.get(&scene.url("/auth/sign-in")).await.location.unwrap());
    let second = query(&browser.get(&scene.url("/auth/sign-in")).await.location.unwrap());
    for name in ["code_challenge", "nonce", "state"] {
        assert_ne!(first[name], second[name], "{name}");
        assert!(!browser.cookies.values().any(|value| *value == first[name]));
    }
}

#[tokio::test]
async fn a_cookie_that_is_none_of_ours_is_replaced() {
    let scene = Scene::begin().await;
    let mut browser = Browser::new();
    browser.cookies.insert("sign_in".to_owned(), "planted".to_owned());
    scene.assert_signed_in(&{
        let callback = scene.callback_url(&mut browser).await;
        assert_ne!(browser.cookies["sign_in"], "planted");
        browser.get(&callback).await
    });
}

#[tokio::test]
async fn nobody_is_sent_to_another_site_after_signing_in() {
    let scene = Scene::begin().await;
    for path in ["https://evil.example", "//evil.example", "/\\evil.example", "/auth/callback?error=x", "x"] {
        let mut browser = Browser::new();
        let path: String = form_urlencoded::byte_serialize(path.as_bytes()).collect();
        let begun = browser.get(&scene.url(&format!("/auth/sign-in?return_to={path}"))).await;
        let back = Browser::new().get(&begun.location.unwrap()).await;
        let reply = browser.get(&back.location.unwrap()).await;
        assert_eq!(reply.location.as_deref(), Some("/clients"), "{path}");
    }
}

#[tokio::test]
async fn a_flood_of_sign_ins_is_stopped_with_a_time_to_come_back() {
    let scene = Scene::begin().await;
    let mut browser = Browser::new();
    let mut last = browser.get(&scene.url("/auth/sign-in")).await;
    for _ in 0..3_000 {
        last = browser.get(&scene.url("/auth/sign-in")).await;
    }
    assert_eq!(last.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(last.retry_after.as_deref(), Some("601"));
    assert!(last.page.contains("Wait a moment"), "{}", last.page);
    scene.clock.advance(std::time::Duration::from_secs(601));
    assert_eq!(browser.get(&scene.url("/auth/sign-in")).await.status, StatusCode::SEE_OTHER);
    let now = chancery_domain::Clock::now(&*scene.clock);
    let forgotten = scene.portal.store.sign_ins.forget_old_sign_ins(now, 10_000, 10_000).await;
    assert_eq!(forgotten.unwrap(), 3_000, "upkeep forgets them all");
}
