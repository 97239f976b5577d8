//! Signing out of the portal and of the provider, with one click.

use super::Scene;
use super::callback::{location, unfollowing};
use crate::server::{Reply, client};

#[tokio::test]
async fn one_click_signs_out_of_the_portal_and_the_provider() {
    let scene = Scene::start().await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    scene.sign_in_at_provider(&maya).await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    let token = browser.cookie(&scene.server.portal, "session").await["value"].as_str().unwrap().to_owned();

    browser.press("form[action='/auth/sign-out'] button").await;
    browser.wait_for_url(&scene.portal("/signed-out")).await;
    browser.shows("You have signed out of the client portal and of").await;
    assert!(!scene.has_session().await);
    assert_eq!(browser.console_errors().await, Vec::<String>::new(), "the content security policy allows it");
    let request = client().get(scene.portal("/sessions")).header("cookie", format!("session={token}"));
    assert_eq!(request.send().await.unwrap().status(), 401, "the server has ended it too");

    browser.open(&scene.portal("/clients")).await;
    browser.wait_for_url(&scene.auth("/sign-in")).await;
    browser.text("#password").await;
}

#[tokio::test]
async fn program_gets_the_url_that_ends_the_session_at_the_provider_too() {
    let scene = Scene::start().await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    scene.sign_in_at_provider(&maya).await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    let token = browser.cookie(&scene.server.portal, "session").await["value"].as_str().unwrap().to_owned();
    let request = unfollowing()
        .post(scene.portal("/auth/sign-out"))
        .header("cookie", format!("session={token}"))
        .header("accept", "application/json");
    let reply = Reply::read(request.send().await.unwrap()).await;
    assert_eq!((reply.status, reply.header("location")), (303, "/signed-out"), "{}", reply.body);
    let url = reply.body["provider_sign_out_url"].as_str().unwrap();
    assert!(url.starts_with(&scene.auth("/logout?id_token_hint=")), "{url}");
    let request = client().get(scene.portal("/sessions")).header("cookie", format!("session={token}"));
    assert_eq!(request.send().await.unwrap().status(), 401);

    browser.open(&scene.auth("/")).await;
    browser.shows("You are signed in as").await;
    let back = location(unfollowing().get(url)).await;
    assert!(back.starts_with(&scene.portal("/signed-out?state=")), "{back}");
    browser.open(&scene.auth("/")).await;
    browser.shows("Firm accounts").await;
}

#[tokio::test]
async fn another_person_signs_in_after_a_sign_out_in_the_same_browser() {
    let scene = Scene::start().await;
    let (browser, maya, omar) = (&scene.browser, scene.person("maya"), scene.person("omar"));
    scene.sign_in_at_provider(&maya).await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    browser.press("form[action='/auth/sign-out'] button").await;
    browser.wait_for_url(&scene.portal("/signed-out")).await;
    scene.sign_in_at_provider(&omar).await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    assert_eq!(browser.text(".bar-person").await, omar.email);
}

#[tokio::test]
async fn provider_is_asked_for_credentials_after_the_portal_session_alone_ended() {
    let scene = Scene::start().await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    scene.sign_in_at_provider(&maya).await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    browser.open(&scene.portal("/sessions")).await;
    browser.press("form button[name=end]").await;
    browser.shows("You may still be signed in at").await;
    browser.press("a.button-primary").await;
    browser.wait_for_url(&scene.auth("/sign-in")).await;
    browser.text("#password").await;
}
