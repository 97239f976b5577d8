//! Signing up at the built-in provider.

use super::{Scene, code_in};

#[tokio::test]
async fn somebody_of_the_firm_signs_up_with_a_code_from_the_mailbox_and_comes_back_signed_in() {
    let scene = Scene::start().await;
    let browser = &scene.browser;
    scene.go_to_provider().await;
    browser.press("a[href^='/sign-up']").await;
    browser.arrive(&scene.auth("/sign-up")).await;
    scene.give_password("Nora@Example.com", "walnut ledger candle").await;
    browser.arrive(&scene.auth("/sign-up/code")).await;
    let letters = scene.letters(1).await;
    let code = code_in(&letters[0]);
    browser.fill("#code", &super::wrong_code(code, 1)).await;
    browser.press("form button.button-primary").await;
    browser.shows("you have 4 tries left").await;
    // As mail programs copy it.
    browser.fill("#code", &format!("{} {}", &code[..3], &code[3..])).await;
    browser.press("form button.button-primary").await;
    scene.consent().await;
    browser.arrive(&scene.portal("/clients")).await;
    assert_eq!(browser.text(".bar-person").await, "nora@example.com");
    assert_eq!(browser.text(".badge-role").await, "Consultant");
}

#[tokio::test]
async fn an_address_of_another_domain_is_refused_and_gets_no_letter() {
    let scene = Scene::start().await;
    let browser = &scene.browser;
    browser.open(&scene.auth("/sign-up")).await;
    for address in
        ["x@evil-company.com", "x@example.com.evil.com", "x@sub.example.com", "x@evil.com@example.com"]
    {
        scene.give_password(address, "walnut ledger candle").await;
        browser.shows("One thing to put right").await;
        assert_eq!(browser.status().await, 422, "{address}");
        let kept = browser.script("return document.querySelector('#email').value").await;
        assert_eq!(kept, address);
        browser.open(&scene.auth("/sign-up")).await;
    }
    assert!(scene.outbox().is_empty());
}
