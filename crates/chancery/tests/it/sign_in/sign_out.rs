//! Signing out of the portal, and of the provider too.

use super::Scene;
use crate::server::client;

#[tokio::test]
async fn sign_out_ends_the_portal_session_and_offers_provider_sign_out() {
    let scene = Scene::start().await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    scene.sign_in_at_provider(&maya).await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    let token = browser.cookie(&scene.server.portal, "session").await["value"].as_str().unwrap().to_owned();

    browser.press("form[action='/auth/sign-out'] button").await;
    browser.wait_for_url(&scene.portal("/signed-out")).await;
    browser.shows("You are signed out").await;
    assert!(!scene.has_session().await);
    let request = client().get(scene.portal("/sessions")).header("cookie", format!("session={token}"));
    assert_eq!(request.send().await.unwrap().status(), 401, "the server has ended it too");

    browser.press(&format!("a[href^='{}/logout']", scene.server.auth)).await;
    browser.shows("Sign out?").await;
    browser.press("form button.button-primary").await;
    browser.wait_for_url(&scene.portal("/")).await;
    browser.press("a.button-primary").await;
    browser.wait_for_url(&scene.auth("/sign-in")).await;
    browser.text("#password").await;
}

#[tokio::test]
async fn provider_session_survives_a_portal_sign_out() {
    let scene = Scene::start().await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    scene.sign_in_at_provider(&maya).await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    let first = browser.cookie(&scene.server.portal, "session").await;
    browser.press("form[action='/auth/sign-out'] button").await;
    browser.shows("You may still be signed in at").await;
    browser.press("a.button-primary").await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    let second = browser.cookie(&scene.server.portal, "session").await;
    assert_ne!(first["value"], second["value"], "every sign-in has a session of its own");
}
