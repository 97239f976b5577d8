//! The second factor: six digits by mail.

use super::{Scene, code_in, wrong_code};

pub const EMAIL_CODE: (&str, &str) = ("CHANCERY_PORTAL__SECOND_FACTOR", "email-code");

#[tokio::test]
async fn the_session_begins_only_with_the_code_from_the_mailbox() {
    let scene = Scene::start_with(&[EMAIL_CODE]).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    scene.sign_in_at_provider(&maya).await;
    browser.arrive(&scene.portal("/auth/code")).await;
    browser.shows("We sent six digits to maya@example.com").await;
    assert!(!scene.has_session().await);
    let field = "const code = document.querySelector('#code'); return [code.autocomplete, code.inputMode, \
        document.activeElement === code, document.querySelectorAll('input').length]";
    let expected = serde_json::json!(["one-time-code", "numeric", true, 1]);
    assert_eq!(browser.script(field).await, expected);
    browser.open(&scene.portal("/clients")).await;
    browser.arrive(&scene.portal("/auth/code")).await; // the provider knows her, and a new code is sent

    let letters = scene.letters(2).await;
    assert!(letters[1].contains("To: maya@example.com"), "{}", letters[1]);
    browser.fill("#code", code_in(&letters[1])).await;
    browser.press("form button.button-primary").await;
    browser.arrive(&scene.portal("/clients")).await;
    assert!(scene.has_session().await);
    assert!(browser.cookie(&scene.portal("/auth/code"), "sign_in_code").await.is_null());
    browser.open(&scene.portal("/auth/code")).await;
    browser.shows("This sign-in is over").await;
}

#[tokio::test]
async fn five_wrong_codes_destroy_the_sign_in_and_its_owner_is_told_by_mail() {
    let scene = Scene::start_with(&[EMAIL_CODE]).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    scene.sign_in_at_provider(&maya).await;
    browser.arrive(&scene.portal("/auth/code")).await;
    let letters = scene.letters(1).await;
    let code = code_in(&letters[0]);
    for (which, left) in [(1, "4 tries left"), (2, "3 tries left"), (3, "2 tries left"), (4, "1 try left")] {
        browser.fill("#code", &wrong_code(code, which)).await;
        browser.press("form button.button-primary").await;
        browser.shows(left).await;
        assert_eq!(browser.status().await, 422);
        assert!(browser.title().await.starts_with("Error: "));
    }
    browser.fill("#code", &wrong_code(code, 5)).await;
    browser.press("form button.button-primary").await;
    browser.shows("Too many wrong codes").await;
    assert_eq!(browser.status().await, 410);
    let letters = scene.letters(2).await;
    assert!(
        letters[1].contains("To: maya@example.com") && letters[1].contains("wrong codes"),
        "{}",
        letters[1]
    );

    browser.open(&scene.portal("/auth/code")).await;
    browser.shows("This sign-in is over").await;
    browser.open(&scene.portal("/clients")).await;
    browser.shows("no code is sent").await;
    assert_eq!(browser.status().await, 429);
    assert!(!scene.has_session().await);
    assert_eq!(scene.outbox().len(), 2, "no letter for a sign-in that is refused");
}

#[tokio::test]
async fn no_second_letter_goes_out_a_moment_after_the_first() {
    let scene = Scene::start_with(&[EMAIL_CODE]).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    scene.sign_in_at_provider(&maya).await;
    browser.arrive(&scene.portal("/auth/code")).await;
    scene.letters(1).await;
    browser.press("form[action='/auth/code/resend'] button").await;
    browser.shows("A new one can be sent in").await;
    assert_eq!(scene.outbox().len(), 1, "a letter a moment after another is refused");
}
