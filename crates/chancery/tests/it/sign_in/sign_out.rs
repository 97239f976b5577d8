//! Signing out of the portal and of the provider, with one click.

use super::Scene;
use crate::server::client;

#[tokio::test]
async fn one_click_signs_out_of_both_and_the_next_person_gives_credentials() {
    let scene = Scene::start().await;
    let (browser, maya, omar) = (&scene.browser, scene.person("maya"), scene.person("omar"));
    scene.sign_in_at_provider(&maya).await;
    browser.wait_for_url(&scene.portal("/clients")).await;

    // The session at the portal alone ends; the provider asks for credentials all the same.
    browser.open(&scene.portal("/sessions")).await;
    browser.press("form button[name=end]").await;
    browser.shows("You may still be signed in at").await;
    browser.press("a.button-primary").await;
    browser.wait_for_url(&scene.auth("/sign-in")).await;
    scene.give_password(&maya.email, &maya.password).await;
    browser.open(&scene.portal("/clients")).await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    let token = browser.cookie(&scene.server.portal, "session").await["value"].as_str().unwrap().to_owned();

    scene.sign_out().await;
    assert!(!scene.has_session().await);
    assert_eq!(browser.console_errors().await, Vec::<String>::new(), "the content security policy allows it");
    let request = client().get(scene.portal("/sessions")).header("cookie", format!("session={token}"));
    assert_eq!(request.send().await.unwrap().status(), 401, "the server has ended it too");

    scene.open_clients_with_password(&omar).await;
    scene.consent().await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    assert_eq!(browser.text(".bar-person").await, omar.email);
}
