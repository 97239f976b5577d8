//! The second factor: a six-digit code by email.

use super::{Scene, code_in, wrong_code};

pub const EMAIL_CODE: (&str, &str) = ("CHANCERY_PORTAL__SECOND_FACTOR", "email-code");

#[tokio::test]
async fn session_starts_only_after_the_emailed_code() {
    let scene = Scene::start_with(&[EMAIL_CODE]).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    scene.sign_in_at_provider(&maya).await;
    browser.wait_for_url(&scene.portal("/auth/code")).await;
    browser.shows("We sent a six-digit code to maya@example.com").await;
    assert!(!scene.has_session().await);
    let field = "const code = document.querySelector('#code'); return [code.autocomplete, code.inputMode, \
        document.activeElement === code, document.querySelectorAll('input').length]";
    let expected = serde_json::json!(["one-time-code", "numeric", true, 1]);
    assert_eq!(browser.script(field).await, expected);
    browser.open(&scene.portal("/clients")).await;
    browser.wait_for_url(&scene.portal("/auth/code")).await; // the provider still has her session, so a new code is sent

    let emails = scene.emails(2).await;
    assert!(emails[1].contains("To: maya@example.com"), "{}", emails[1]);
    browser.fill("#code", code_in(&emails[1])).await;
    browser.press("form button.button-primary").await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    assert!(scene.has_session().await);
    assert!(browser.cookie(&scene.portal("/auth/code"), "__Host-sign_in_code").await.is_null());
    browser.open(&scene.portal("/auth/code")).await;
    browser.shows("Sign-in expired").await;
}

#[tokio::test]
async fn five_wrong_codes_end_the_sign_in_and_notify_the_user_by_email() {
    let scene = Scene::start_with(&[EMAIL_CODE]).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    scene.sign_in_at_provider(&maya).await;
    browser.wait_for_url(&scene.portal("/auth/code")).await;
    let emails = scene.emails(1).await;
    let code = code_in(&emails[0]);
    for (which, left) in
        [(1, "4 attempts left."), (2, "3 attempts left."), (3, "2 attempts left."), (4, "1 attempt left.")]
    {
        browser.fill("#code", &wrong_code(code, which)).await;
        browser.press("form button.button-primary").await;
        browser.shows(left).await;
        assert_eq!(browser.status().await, 422);
        assert!(browser.title().await.starts_with("Error: "));
    }
    browser.fill("#code", &wrong_code(code, 5)).await;
    browser.press("form button.button-primary").await;
    browser.shows("Too many incorrect codes").await;
    assert_eq!(browser.status().await, 410);
    let emails = scene.emails(2).await;
    assert!(
        emails[1].contains("To: maya@example.com") && emails[1].contains("incorrect codes"),
        "{}",
        emails[1]
    );

    browser.open(&scene.portal("/auth/code")).await;
    browser.shows("Sign-in expired").await;
    browser.open(&scene.portal("/clients")).await;
    browser.shows("Too many incorrect codes were entered for this account.").await;
    assert_eq!(browser.status().await, 429);
    assert!(!scene.has_session().await);
    assert_eq!(scene.outbox().len(), 2, "a rejected sign-in sends no email");
}

#[tokio::test]
async fn resending_the_code_is_throttled() {
    let scene = Scene::start_with(&[EMAIL_CODE]).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    scene.sign_in_at_provider(&maya).await;
    browser.wait_for_url(&scene.portal("/auth/code")).await;
    scene.emails(1).await;
    browser.press("form[action='/auth/code/resend'] button").await;
    browser.shows("You can request a new one in").await;
    assert_eq!(scene.outbox().len(), 1, "no second email is sent so soon");
}
