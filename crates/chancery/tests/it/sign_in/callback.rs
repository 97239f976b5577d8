//! Repeated requests to `/auth/callback`: they create no session, and the page says what to do.

use super::Scene;
use crate::server::client;
use reqwest::header::LOCATION;
use reqwest::redirect::Policy;
use serde_json::Value;

/// Submits "Allow" on the consent page outside the browser; returns the redirect URL.
async fn address_after_consent(scene: &Scene) -> String {
    let question = scene.browser.script("return document.querySelector('[name=question]').value").await;
    let cookies = provider_cookies(scene).await;
    let form = [("question", question.as_str().unwrap()), ("decision", "allow")];
    let body = reqwest::Url::parse_with_params("http://form", form).unwrap().query().unwrap().to_owned();
    let request = unfollowing().post(scene.auth("/consent")).body(body).header("cookie", cookies);
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    location(request.header("origin", &scene.server.auth)).await
}

async fn provider_cookies(scene: &Scene) -> String {
    let cookies = scene.browser.cookies(&scene.auth("/consent")).await;
    let text = |cookie: &Value, key: &str| cookie[key].as_str().unwrap().to_owned();
    let pairs = cookies.iter().map(|cookie| format!("{}={}", text(cookie, "name"), text(cookie, "value")));
    pairs.collect::<Vec<_>>().join("; ")
}

/// A client that does not follow redirects.
fn unfollowing() -> reqwest::Client {
    client(); // sets up TLS for the whole process
    reqwest::Client::builder().tls_certs_only([]).no_proxy().redirect(Policy::none()).build().unwrap()
}

/// Where the reply redirects to.
async fn location(request: reqwest::RequestBuilder) -> String {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await.unwrap();
    headers.get(LOCATION).unwrap_or_else(|| panic!("{status}: {text}")).to_str().unwrap().to_owned()
}

#[tokio::test]
async fn callback_works_once_and_only_in_the_initiating_browser() {
    let scene = Scene::start().await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    scene.go_to_provider().await;
    scene.give_password(&maya.email, &maya.password).await;
    browser.shows("will receive:").await;
    let callback_url = address_after_consent(&scene).await;
    assert!(callback_url.starts_with(&scene.portal("/auth/callback?")), "{callback_url}");

    let elsewhere = unfollowing().get(&callback_url).send().await.unwrap();
    assert_eq!(elsewhere.status(), 400, "another browser");
    assert!(elsewhere.headers().get("set-cookie").is_none());

    browser.open(&callback_url).await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    browser.press("form[action='/auth/sign-out'] button").await;
    browser.shows("You are signed out").await;
    browser.open(&callback_url).await;
    browser.shows("Sign-in expired").await;
    assert_eq!(browser.status().await, 410);
    assert!(!scene.has_session().await, "a reused state");

    // The used code with a state that this browser started.
    let callback = scene.portal("/auth/callback");
    let cookie = browser.cookie(&callback, "__Host-sign_in").await;
    let begin = unfollowing().get(scene.portal("/auth/sign-in"));
    let begin = begin.header("cookie", format!("__Host-sign_in={}", cookie["value"].as_str().unwrap()));
    let state = |url: &str| {
        let url: reqwest::Url = url.parse().unwrap();
        url.query_pairs().find(|(name, _)| name == "state").unwrap().1.into_owned()
    };
    let fresh = state(&location(begin).await);
    browser.open(&callback_url.replace(&state(&callback_url), &fresh)).await;
    browser.shows("Sign in again").await;
    assert!(browser.status().await >= 400, "a reused code");
    assert_eq!(browser.url().await.path(), "/auth/callback");
    assert!(!scene.has_session().await, "a reused code");
}
