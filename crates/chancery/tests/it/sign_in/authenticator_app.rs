//! Codes of an authenticator app. Debian's `oathtool` is the app: it shares no code with the provider.

use super::passkeys::open_security;
use super::{FIRST_FACTOR_SUBJECT, Person, Scene};
use crate::server::clean_command;

/// What an app shows now, and what it shows 30 seconds later. The provider accepts both.
pub struct ShownCodes {
    pub now: String,
    pub next: String,
}

/// Computes the codes from the secret as people type it.
pub fn shown_codes(secret: &str) -> ShownCodes {
    let secret = secret.replace(' ', "");
    let output = clean_command("oathtool").args(["--totp", "--base32", "--window=1", &secret]).output();
    let output = output.expect("run `make test`, which installs Debian's oathtool");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut codes = text.lines().map(str::to_owned);
    let (Some(now), Some(next)) = (codes.next(), codes.next()) else {
        panic!("{text:?} {}", String::from_utf8_lossy(&output.stderr));
    };
    ShownCodes { now, next }
}

/// Adds the account's first factor, an app. Returns its secret; the browser shows the recovery codes.
pub async fn add_app(scene: &Scene) -> String {
    let browser = &scene.browser;
    browser.follow("a[href^='/security/authenticator/add']").await;
    scene.prove_mailbox().await;
    let secret = browser.text(".totp-secret").await;
    browser.fill("#code", &shown_codes(&secret).now).await;
    browser.press("form button.button-primary").await;
    browser.shows("Authenticator app added.").await;
    secret
}

/// The recovery codes on the page, which are shown once.
async fn recovery_codes(scene: &Scene) -> Vec<String> {
    let codes = scene
        .browser
        .script("return [...document.querySelectorAll('#recovery-codes code')].map(code => code.innerText)")
        .await;
    serde_json::from_value(codes).unwrap()
}

/// Enters the password and this code.
async fn sign_in_with_code(scene: &Scene, person: &Person, code: &str) {
    scene.open_clients_with_password(person).await;
    scene.browser.wait_for_url(&scene.auth("/sign-in/second-factor")).await;
    scene.browser.fill("#code", code).await;
    scene.browser.press("form[action='/sign-in/second-factor'] button").await;
}

async fn use_recovery_code(scene: &Scene, code: &str) {
    scene.browser.press("summary").await;
    scene.browser.fill("#recovery_code", code).await;
    scene.browser.press("form[action='/sign-in/second-factor/recovery-code'] button").await;
}

#[tokio::test]
async fn code_of_an_independent_app_signs_in_once_and_so_does_a_recovery_code() {
    let scene = Scene::start_with(&[("CHANCERY_PORTAL__SECOND_FACTOR", "provider")]).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    open_security(&scene, &maya).await;
    let secret = add_app(&scene).await;
    let recovery = recovery_codes(&scene).await;
    assert_eq!(recovery.len(), 10, "{recovery:?}");
    browser.press("a.button-primary").await;
    browser.shows("10 codes left.").await;
    browser.open(&scene.portal("/clients")).await;
    scene.consent().await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    scene.sign_out().await;

    // The code of this moment was used to add the app.
    let code = shown_codes(&secret).next;
    sign_in_with_code(&scene, &maya, &code).await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    assert_eq!(browser.text(".bar-person").await, maya.email);
    scene.sign_out().await;

    sign_in_with_code(&scene, &maya, &code).await;
    browser.shows("This code was already used. Wait for the next one.").await;
    assert_eq!(browser.status().await, 422);
    assert!(!scene.has_session().await);

    use_recovery_code(&scene, &recovery[3].to_uppercase().replace('-', " ")).await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    scene.sign_out().await;
    scene.open_clients_with_password(&maya).await;
    browser.wait_for_url(&scene.auth("/sign-in/second-factor")).await;
    use_recovery_code(&scene, &recovery[3]).await;
    browser.shows("Incorrect recovery code.").await;
    assert!(!scene.has_session().await);
    browser.fill("#recovery_code", &recovery[4]).await;
    browser.press("form[action='/sign-in/second-factor/recovery-code'] button").await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    assert!(scene.has_session().await);

    let emails = scene.emails(4).await;
    let subjects =
        [FIRST_FACTOR_SUBJECT, "Authenticator app added", "Recovery code used", "Recovery code used"];
    for (email, subject) in emails.iter().zip(subjects) {
        assert!(email.contains(&format!("Subject: {subject}")), "{email}");
        assert!(!email.contains(&recovery[3]) && !email.contains(secret.as_str()), "{email}");
    }
    assert_eq!(emails.len(), 4, "the portal asks for no code of its own: {emails:?}");
}
