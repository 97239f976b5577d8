//! `/auth/callback` with what it must not take: no session, and a page that says what to do.

use super::Scene;
use crate::server::client;
use reqwest::header::LOCATION;
use reqwest::redirect::Policy;
use serde_json::Value;

/// Presses "Allow" on the consent page that the browser shows, outside of the browser; gives where it would go now.
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

/// A client that shows redirects, in place of following them.
fn unfollowing() -> reqwest::Client {
    client(); // sets up TLS for the whole process
    reqwest::Client::builder().no_proxy().redirect(Policy::none()).build().unwrap()
}

async fn location(request: reqwest::RequestBuilder) -> String {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let text = response.text().await.unwrap();
    headers.get(LOCATION).unwrap_or_else(|| panic!("{status}: {text}")).to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_callback_without_or_with_a_foreign_state_starts_no_session() {
    let scene = Scene::start().await;
    let browser = &scene.browser;
    for query in ["", "?code=x", "?state=x", "?state=x&code=x", "?state=x&state=x&code=x"] {
        browser.open(&scene.portal(&format!("/auth/callback{query}"))).await;
        browser.shows("This sign-in cannot be finished here").await;
        assert_eq!(browser.status().await, 400, "{query}");
        assert!(!scene.has_session().await, "{query}");
    }
    // A browser that has begun to sign in, and is sent somebody else's answer.
    scene.go_to_provider().await;
    browser.open(&scene.portal("/auth/callback?state=foreign&code=x")).await;
    browser.shows("This sign-in is over").await;
    assert_eq!(browser.status().await, 410);
    assert!(!scene.has_session().await);
    browser.press("a.button-primary").await;
    browser.arrive(&scene.auth("/sign-in")).await;
}

#[tokio::test]
async fn an_answer_works_once_and_in_the_browser_that_began_alone() {
    let scene = Scene::start().await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    scene.go_to_provider().await;
    scene.give_password(&maya.email, &maya.password).await;
    browser.shows("will learn:").await;
    let answer = address_after_consent(&scene).await;
    assert!(answer.starts_with(&scene.portal("/auth/callback?")), "{answer}");

    let elsewhere = unfollowing().get(&answer).send().await.unwrap();
    assert_eq!(elsewhere.status(), 400, "another browser");
    assert!(elsewhere.headers().get("set-cookie").is_none());

    browser.open(&answer).await;
    browser.arrive(&scene.portal("/clients")).await;
    browser.press("form[action='/auth/sign-out'] button").await;
    browser.shows("You are signed out").await;
    browser.open(&answer).await;
    browser.shows("This sign-in is over").await;
    assert_eq!(browser.status().await, 410);
    assert!(!scene.has_session().await, "a reused state");

    // The used code with a state that was begun in this browser.
    let callback = scene.portal("/auth/callback");
    let begun = browser.cookie(&callback, "sign_in").await;
    let begin = unfollowing().get(scene.portal("/auth/sign-in"));
    let begin = begin.header("cookie", format!("sign_in={}", begun["value"].as_str().unwrap()));
    let state = |url: &str| {
        let url: reqwest::Url = url.parse().unwrap();
        url.query_pairs().find(|(name, _)| name == "state").unwrap().1.into_owned()
    };
    let fresh = state(&location(begin).await);
    browser.open(&answer.replace(&state(&answer), &fresh)).await;
    browser.shows("sign").await;
    assert!(browser.status().await >= 400, "a reused code");
    assert_eq!(browser.url().await.path(), "/auth/callback");
    assert!(!scene.has_session().await, "a reused code");
}
