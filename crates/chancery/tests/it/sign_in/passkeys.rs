//! Passkeys of the built-in provider, with a passkey device that the browser simulates.

use super::{Person, Scene};
use crate::browser::Authenticator;
use crate::fake_clock::FakeClock;
use crate::server::Firm;
use serde_json::Value;

pub const PASSKEY_NAME: &str = "Work laptop";

/// Opens the security page of a person who is not signed in yet.
pub async fn open_security(scene: &Scene, person: &Person) {
    scene.browser.open(&scene.auth("/security")).await;
    scene.give_password(&person.email, &person.password).await;
    scene.browser.shows("What protects").await;
}

/// Adds the account's first factor, a passkey, on the security page, and ends there.
pub async fn add_passkey(scene: &Scene) -> Authenticator {
    let browser = &scene.browser;
    let device = browser.add_authenticator().await;
    browser.follow("a[href^='/security/passkeys/add']").await;
    scene.prove_mailbox().await;
    browser.fill("#name", PASSKEY_NAME).await;
    browser.press("form button.button-primary").await;
    browser.shows("Passkey added.").await;
    browser.press("a.button-primary").await;
    browser.shows(PASSKEY_NAME).await;
    assert_eq!(browser.passkeys(&device).await, 1);
    device
}

/// Presses the page's passkey button, once its script has run.
pub async fn use_passkey(scene: &Scene) {
    let form = "document.querySelector('form[data-passkey=get]')";
    scene.browser.until(&format!("document.readyState === 'complete' && {form}")).await;
    scene.browser.press("form[data-passkey=get] button").await;
}

async fn provider_session(scene: &Scene) -> Value {
    scene.browser.cookie(&scene.server.auth, "__Host-auth_session").await["value"].clone()
}

async fn assert_signed_in(scene: &Scene, person: &Person) {
    scene.browser.wait_for_url(&scene.portal("/clients")).await;
    assert_eq!(scene.browser.text(".bar-person").await, person.email);
    assert!(scene.has_session().await);
}

#[tokio::test]
async fn passkey_signs_in_alone_and_as_second_factor_with_user_verification() {
    // The portal asks for an emailed code unless the provider has checked two factors.
    let firm = Firm::new().with("CHANCERY_PORTAL__SECOND_FACTOR", "provider");
    let scene = Scene::start_with_passkeys(firm).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    open_security(&scene, &maya).await;
    let device = add_passkey(&scene).await;
    browser.shows("Not used yet.").await;
    browser.open(&scene.portal("/clients")).await;
    scene.consent().await;
    assert_signed_in(&scene, &maya).await;
    scene.sign_out().await;

    browser.open(&scene.portal("/clients")).await;
    browser.wait_for_url(&scene.auth("/sign-in")).await;
    browser.press("a[href^='/sign-in/passkey']").await;
    assert_signed_in(&scene, &maya).await;
    scene.sign_out().await;

    scene.open_clients_with_password(&maya).await;
    browser.wait_for_url(&scene.auth("/sign-in/second-factor")).await;
    browser.set_user_verified(&device, false).await;
    use_passkey(&scene).await;
    browser.shows("No passkey was used.").await;
    assert!(!scene.has_session().await, "without a fingerprint or PIN");
    browser.set_user_verified(&device, true).await;
    use_passkey(&scene).await;
    assert_signed_in(&scene, &maya).await;

    browser.open(&scene.auth("/security")).await;
    browser.shows("Last used").await;
    assert_eq!(browser.console_errors().await, Vec::<String>::new());
    let emails = scene.outbox();
    assert_eq!(emails.len(), 2, "one code, for the first factor, and none to sign in: {emails:?}");
    assert_eq!(scene.first_factor_emails().len(), 1);
    assert!(emails[1].contains("Subject: Passkey added"), "{}", emails[1]);
}

#[tokio::test]
async fn removing_a_passkey_needs_a_recent_authentication_with_both_factors() {
    let (firm, clock) = FakeClock::of(Firm::new());
    let scene = Scene::start_with_passkeys(firm).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    open_security(&scene, &maya).await;
    add_passkey(&scene).await;
    let remove = "form[action='/security/passkeys/remove'] button";
    clock.set(6 * 60);
    browser.press(remove).await;
    browser.shows("Confirm that it is you").await;
    browser.fill("#password", "not her password").await;
    browser.press("form[action='/security/confirm'] button.button-primary").await;
    browser.shows("Incorrect password").await;
    let session = provider_session(&scene).await;
    browser.fill("#password", &maya.password).await;
    browser.press("form[action='/security/confirm'] button.button-primary").await;
    browser.wait_for_url(&scene.auth("/sign-in/second-factor")).await;
    browser.open(&scene.auth("/security")).await;
    browser.press(remove).await;
    browser.shows("Confirm that it is you").await;
    assert_eq!(provider_session(&scene).await, session, "the password alone confirms nothing");

    use_passkey(&scene).await;
    browser.shows(PASSKEY_NAME).await;
    assert_ne!(provider_session(&scene).await, session, "the session has a new token");
    browser.press(remove).await;
    browser.shows("10 recovery codes").await;
    browser.press(remove).await;
    browser.shows("Passkey removed.").await;
    assert!(!browser.page_text().await.contains(PASSKEY_NAME));
    let emails = scene.emails(3).await;
    assert!(emails[2].contains("Subject: Passkey removed"), "{}", emails[2]);

    browser.clear_cookies().await;
    scene.sign_in_at_provider(&maya).await;
    assert_signed_in(&scene, &maya).await;
}
