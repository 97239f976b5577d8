//! The portal with the built-in provider.

use super::Scene;
use crate::browser::{ENTER, TAB};
use serde_json::json;

#[tokio::test]
async fn sign_in_at_the_provider_origin_returns_with_a_session() {
    let scene = Scene::start().await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    browser.open(&scene.portal("/")).await;
    browser.shows("never sees your password").await;
    scene.go_to_provider().await;
    assert_ne!(scene.server.portal, scene.server.auth);
    scene.give_password(&maya.email, &maya.password).await;

    browser.shows("Allow Marlow & Finch client portal?").await;
    browser.shows("will receive:").await;
    let learned =
        browser.script("return [...document.querySelectorAll('dt, dd')].map(fact => fact.innerText)");
    let expected =
        ["Your user ID", "the same each time you sign in", "Your email address", "maya@example.com"];
    assert_eq!(learned.await, json!(expected));
    browser.shows("It never receives your password.").await;
    assert!(!scene.has_session().await, "before consent");
    browser.press("button[value=refuse]").await;
    browser.wait_for_url(&scene.portal("/auth/callback")).await;
    browser.shows("Sign-in not completed").await;
    assert!(!scene.has_session().await, "without consent");

    browser.open(&scene.portal("/clients")).await;
    scene.consent().await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    assert_eq!(browser.text(".bar-person").await, "maya@example.com");
    assert_eq!(browser.text(".badge-role").await, "Consultant");
    let cookie = browser.cookie(&scene.server.portal, "session").await;
    assert_eq!(cookie["httpOnly"], true);
    assert_eq!(cookie["secure"], true);
    assert_eq!(cookie["sameSite"], "Lax");
    assert_eq!((&cookie["path"], &cookie["domain"]), (&json!("/"), &json!("localhost")));
    assert_eq!(cookie["value"].as_str().unwrap().len(), 43);
    assert_eq!(browser.script("return document.cookie").await, "", "nothing for scripts to read");
    let at_provider = browser.cookie(&scene.server.auth, "session").await;
    assert!(at_provider.is_null(), "the provider sees no cookie of the portal's: {at_provider}");
}

#[tokio::test]
async fn concurrent_sign_ins_in_two_tabs_both_succeed() {
    let scene = Scene::start().await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    browser.open(&scene.portal("/sessions")).await;
    browser.wait_for_url(&scene.auth("/sign-in")).await;
    let first = browser.new_tab().await;
    browser.open(&scene.portal("/clients")).await;
    browser.wait_for_url(&scene.auth("/sign-in")).await;
    scene.give_password(&maya.email, &maya.password).await;
    scene.consent().await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    browser.go_to_tab(&first).await;
    scene.give_password(&maya.email, &maya.password).await;
    browser.wait_for_url(&scene.portal("/sessions")).await;
    browser.shows("This browser").await;
}

#[tokio::test]
async fn forgotten_password_is_reset_with_an_emailed_code() {
    let scene = Scene::start().await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    scene.go_to_provider().await;
    browser.fill("#email", &maya.email).await;
    browser.press("button[formaction='/forgotten-password/address']").await;
    browser.shows("We will email you a code").await;
    browser.press("form button.button-primary").await;
    browser.wait_for_url(&scene.auth("/forgotten-password/code")).await;
    let emails = scene.emails(1).await;
    assert!(emails[0].contains("To: maya@example.com"), "{}", emails[0]);
    browser.fill("#code", super::code_in(&emails[0])).await;
    browser.fill("#password", "walnut ledger candle").await;
    browser.press("form button.button-primary").await;
    browser.shows("Password changed.").await;
    scene.give_password(&maya.email, &maya.password).await;
    browser.shows("Incorrect email or password").await;
    scene.give_password(&maya.email, "walnut ledger candle").await;
    scene.consent().await;
    browser.wait_for_url(&scene.portal("/clients")).await;
}

#[tokio::test]
async fn sign_in_works_with_the_keyboard_only() {
    let scene = Scene::start().await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    browser.open(&scene.portal("/")).await;
    browser.type_keys(&format!("{TAB}{ENTER}")).await;
    browser.wait_for_url(&scene.auth("/sign-in")).await;
    browser.type_keys(&format!("{}{TAB}", maya.email)).await; // the first field has the focus
    browser.type_keys(&format!("{}{ENTER}", maya.password)).await;
    browser.shows("will receive:").await;
    browser.type_keys(&format!("{TAB}{ENTER}")).await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    // Past the skip link, the firm's name, both sections and the profile.
    browser.type_keys(&format!("{TAB}{TAB}{TAB}{TAB}{TAB}{TAB}{ENTER}")).await;
    browser.shows("You are signed out").await;
}
