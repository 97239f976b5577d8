//! Creating a key needs an authentication of the last 10 minutes. It is asked for when the form opens, and what was
//! typed into a form that is sent too late is shown again.

use super::{Person, Scene};
use crate::fake_clock::FakeClock;
use crate::server::{Firm, Reply, client};

const FORM: &str = "/accounts?open=key";
const MINUTE_S: i64 = 60;

/// A partner who has just signed in, and the server's clock.
pub async fn signed_in_partner(firm: Firm) -> (Scene, FakeClock, Person) {
    let (firm, clock) = FakeClock::of(firm);
    let scene = Scene::start_firm(firm).await;
    let ruth = scene.person("ruth");
    scene.sign_in_at_provider(&ruth).await;
    scene.browser.wait_for_url(&scene.portal("/clients")).await;
    (scene, clock, ruth)
}

async fn session_token(scene: &Scene) -> String {
    scene.browser.cookie(&scene.server.portal, "session").await["value"].as_str().unwrap().to_owned()
}

/// A program with the browser's session cannot create a key.
async fn assert_program_must_reauthenticate(scene: &Scene) {
    let request = client()
        .post(scene.portal("/accounts/keys"))
        .header("cookie", format!("session={}", session_token(scene).await))
        .header("accept", "application/json")
        .header("content-type", "application/x-www-form-urlencoded")
        .body("label=program");
    let reply = Reply::read(request.send().await.unwrap()).await;
    assert_eq!((reply.status, reply.code()), (403, "reauthentication_required"), "{}", reply.body);
}

#[tokio::test]
async fn creating_a_key_after_ten_minutes_asks_again_and_loses_no_text() {
    const LABEL: &str = "Billing server of the Boston office";
    let (scene, clock, ruth) = signed_in_partner(Firm::new()).await;
    let browser = &scene.browser;
    browser.open(&scene.portal(FORM)).await;
    browser.fill("#new-key #label", LABEL).await;
    clock.set(11 * MINUTE_S);
    browser.press("#new-key button.button-primary").await;
    browser.shows("Sign in again to continue").await;
    assert_eq!(browser.status().await, 403);
    let typed =
        browser.script("return [...document.querySelectorAll('textarea')].map(text => text.value)").await;
    assert!(typed.as_array().unwrap().contains(&LABEL.into()), "{typed}");

    browser.press("main a.button-primary").await;
    browser.wait_for_url(&scene.auth("/sign-in")).await;
    scene.give_password(&ruth.email, &ruth.password).await;
    browser.wait_for_url(&scene.portal(FORM)).await;
    browser.fill("#new-key #label", LABEL).await;
    browser.press("#new-key button.button-primary").await;
    browser.shows("Copy it now.").await;
    browser.shows(LABEL).await;

    // The session goes on for everything else.
    clock.set(22 * MINUTE_S);
    browser.open(&scene.portal("/accounts")).await;
    browser.shows("Create an unassigned key").await;
    assert_program_must_reauthenticate(&scene).await;

    // The form asks before anything is typed.
    browser.open(&scene.portal(FORM)).await;
    browser.wait_for_url(&scene.auth("/sign-in")).await;
    scene.give_password(&ruth.email, "not her password").await;
    browser.shows("Incorrect email or password").await;
    scene.give_password(&ruth.email, &ruth.password).await;
    browser.wait_for_url(&scene.portal(FORM)).await;
    browser.text("#new-key #label").await;
}
