//! Signing up at the built-in provider.

use super::{Scene, code_in};

#[tokio::test]
async fn sign_up_with_an_emailed_code_returns_signed_in() {
    let scene = Scene::start().await;
    let browser = &scene.browser;
    scene.go_to_provider().await;
    browser.press("a[href^='/sign-up']").await;
    browser.wait_for_url(&scene.auth("/sign-up")).await;
    scene.give_password("Nora@Example.com", "walnut ledger candle").await;
    browser.wait_for_url(&scene.auth("/sign-up/code")).await;
    let emails = scene.emails(1).await;
    let code = code_in(&emails[0]);
    browser.fill("#code", &super::wrong_code(code, 1)).await;
    browser.press("form button.button-primary").await;
    browser.shows("4 attempts left.").await;
    // As mail clients copy it.
    browser.fill("#code", &format!("{} {}", &code[..3], &code[3..])).await;
    browser.press("form button.button-primary").await;
    scene.consent().await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    assert_eq!(browser.text(".bar-person").await, "nora@example.com");
    assert_eq!(browser.text(".badge-role").await, "Consultant");
}

#[tokio::test]
async fn email_of_another_domain_is_rejected_and_gets_no_email() {
    let scene = Scene::start().await;
    let browser = &scene.browser;
    browser.open(&scene.auth("/sign-up")).await;
    for address in
        ["x@evil-company.com", "x@example.com.evil.com", "x@sub.example.com", "x@evil.com@example.com"]
    {
        scene.give_password(address, "walnut ledger candle").await;
        browser.shows("There is a problem").await;
        assert_eq!(browser.status().await, 422, "{address}");
        let value = browser.script("return document.querySelector('#email').value").await;
        assert_eq!(value, address);
        browser.open(&scene.auth("/sign-up")).await;
    }
    assert!(scene.outbox().is_empty());
}
