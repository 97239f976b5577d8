//! Checks every sign-in page (`crate::tour`). `make screenshots` takes those shown in docs/sign-in.md.

use super::authenticator_app::shown_codes;
use super::passkeys::{PASSKEY_NAME, open_security, use_passkey};
use super::step_up::signed_in_partner;
use super::{EMAIL_CODE, Scene, code_in, wrong_code};
use crate::browser::{Browser, Screen};
use crate::identity_providers::Kind;
use crate::server::Firm;
use crate::smtp::{Security, SmtpServer};
use crate::tour::Tour;

fn tour_of(browser: &Browser) -> Tour<'_> {
    Tour::of(browser, Screen::Desktop, "sign-in")
}

async fn look_and_picture(tour: &mut Tour<'_>, page: &str, text: &str) {
    tour.look(page, text).await;
    tour.picture(page).await;
}

#[tokio::test]
async fn sign_in_and_sign_out_pages_are_accessible() {
    let scene = Scene::start_with(&[("CHANCERY_PORTAL__FIRM_NAME", "Hale & Ward")]).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    let mut tour = tour_of(browser);
    browser.open(&scene.portal("/")).await;
    look_and_picture(&mut tour, "01-start", "Continue to sign in").await;
    scene.go_to_provider().await;
    look_and_picture(&mut tour, "02-provider", "Sign in").await;
    scene.give_password(&maya.email, "not her password").await;
    look_and_picture(&mut tour, "03-wrong-password", "Incorrect email or password").await;
    scene.give_password(&maya.email, &maya.password).await;
    look_and_picture(&mut tour, "04-consent", "will receive:").await;
    scene.consent().await;
    look_and_picture(&mut tour, "05-signed-in", "Harbour Lane Bakery").await;
    browser.clear_cookies().await;
    browser.open(&scene.portal("/sessions")).await;
    scene.give_password(&maya.email, &maya.password).await;
    look_and_picture(&mut tour, "06-sessions", "Your sessions").await;
    browser.press("form[action='/auth/sign-out'] button").await;
    look_and_picture(&mut tour, "07-signed-out", "You are signed out").await;
    browser.open(&scene.portal("/sessions")).await;
    scene.give_password(&maya.email, &maya.password).await;
    browser.press("form button[name=end]").await;
    tour.look("portal-session-ended", "You may still be signed in at").await;
    browser.open(&scene.auth("/")).await;
    tour.look("provider-home", "You are signed in as").await;
    browser.open(&scene.portal("/signed-out")).await;
    browser.press(&format!("a[href^='{}/logout']", scene.server.auth)).await;
    tour.look("provider-logout", "Sign out?").await;
    browser.open(&scene.auth("/")).await;
    browser.press("form[action='/sign-out'] button").await;
    tour.look("provider-signed-out", "You are signed out").await;
    browser.open(&scene.auth("/")).await;
    tour.look("provider-home-signed-out", "Firm accounts").await;
    browser.open(&scene.portal("/sessions")).await;
    scene.give_password(&maya.email, &maya.password).await;
    browser.press("button[value=others]").await;
    tour.look("sessions-ended", "All other sessions ended.").await;
    tour.end();
}

#[tokio::test]
async fn sign_up_and_forgotten_password_pages_are_accessible() {
    let scene = Scene::start_with(&[("CHANCERY_PORTAL__FIRM_NAME", "Hale & Ward")]).await;
    let browser = &scene.browser;
    let mut tour = tour_of(browser);
    browser.open(&scene.auth("/sign-up")).await;
    tour.look("sign-up", "Password").await;
    scene.give_password("nora@elsewhere.example", "walnut ledger candle").await;
    look_and_picture(&mut tour, "11-sign-up-refused", "Enter an address at example.com").await;
    scene.give_password("nora@example.com", "walnut ledger candle").await;
    tour.look("sign-up-code", "Enter the six-digit code").await;
    browser.fill("#code", "12").await;
    browser.press("form button.button-primary").await;
    tour.look("sign-up-code-unreadable", "Enter the six-digit code from your latest email").await;
    browser.open(&scene.auth("/forgotten-password")).await;
    tour.look("forgotten-password", "We will email you a code").await;
    browser.fill("#email", "maya@example.com").await;
    browser.press("form button.button-primary").await;
    tour.look("forgotten-password-code", "we sent it a code").await;
    browser.press("form button.button-primary").await;
    tour.look("forgotten-password-code-unreadable", "Fix 2 problems").await;
    tour.end();
}

/// The pages of an account without a second factor, on an IP address.
#[tokio::test]
async fn security_pages_are_accessible() {
    let settings =
        [("CHANCERY_PORTAL__FIRM_NAME", "Hale & Ward"), ("CHANCERY_AUTH__SECOND_FACTOR", "required")];
    let scene = Scene::start_with(&settings).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    let mut tour = tour_of(browser);
    scene.open_clients_with_password(&maya).await;
    look_and_picture(&mut tour, "14-second-factor-required", "Set up a second factor").await;
    browser.open(&scene.auth("/security")).await;
    tour.look("security", "Passkeys need a host name").await;
    browser.open(&scene.auth("/security/password")).await;
    look_and_picture(&mut tour, "15-change-password", "Current password").await;
    browser.press("form button.button-primary").await;
    tour.look("security-password-unreadable", "Fix 2 problems").await;
    browser.open(&scene.auth("/security/confirm?return_to=/security")).await;
    tour.look("security-confirm", "Confirm that it is you").await;
    browser.open(&scene.auth("/security/authenticator/add?return_to=/security")).await;
    tour.look("security-email-code", "Confirm your email address").await;
    let code = scene.request_first_factor_code().await;
    tour.look("security-email-code-sent", "Enter the six-digit code").await;
    browser.fill("#code", &wrong_code(&code, 1)).await;
    browser.press("form[action='/security/email-code'] button").await;
    tour.look("security-email-code-wrong", "Incorrect code.").await;
    scene.enter_first_factor_code(&code).await;
    look_and_picture(&mut tour, "16-authenticator-app", "Scan this code").await;
    browser.press("form button.button-primary").await;
    tour.look("security-authenticator-unreadable", "Enter the six-digit code").await;
    browser.open(&scene.auth("/security/passkeys/add")).await;
    tour.look("passkeys-unavailable", "Passkeys are not available here").await;
    tour.end();
}

#[tokio::test]
async fn passkey_and_second_factor_pages_are_accessible() {
    let firm = Firm::new().with("CHANCERY_PORTAL__FIRM_NAME", "Hale & Ward");
    let scene = Scene::start_with_passkeys(firm).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    let mut tour = tour_of(browser);
    open_security(&scene, &maya).await;
    let device = browser.add_authenticator().await;
    browser.follow("a[href^='/security/passkeys/add']").await;
    scene.prove_mailbox().await;
    look_and_picture(&mut tour, "17-add-passkey", "Create passkey").await;
    browser.set_user_verified(&device, false).await;
    browser.press("form button.button-primary").await;
    tour.look("passkey-not-created", "No passkey was created.").await;
    browser.set_user_verified(&device, true).await;
    browser.fill("#name", PASSKEY_NAME).await;
    browser.press("form button.button-primary").await;
    look_and_picture(&mut tour, "18-recovery-codes", "Passkey added.").await;
    browser.press("a.button-primary").await;
    browser.shows(PASSKEY_NAME).await;
    browser.follow("a[href^='/security/passkeys/rename']").await;
    tour.look("passkey-rename", "Rename passkey").await;
    browser.open(&scene.auth("/security")).await;
    browser.follow("a[href^='/security/authenticator/add']").await;
    let secret = browser.text(".totp-secret").await;
    browser.fill("#code", &shown_codes(&secret).now).await;
    browser.press("form button.button-primary").await;
    look_and_picture(&mut tour, "19-security", "Authenticator app added.").await;
    for (path, page, text) in [
        ("/security/authenticator/remove", "remove-authenticator", "Remove authenticator app?"),
        ("/security/passkeys/remove", "remove-passkey", "Remove passkey?"),
        ("/security/recovery-codes", "replace-recovery-codes", "These stop working:"),
    ] {
        browser.press(&format!("form[action='{path}'] button")).await;
        tour.look(page, text).await;
        browser.open(&scene.auth("/security")).await;
    }
    browser.open(&scene.auth("/security/confirm?return_to=/security")).await;
    look_and_picture(&mut tour, "20-confirm", "Use your passkey").await;

    browser.clear_cookies().await;
    scene.open_clients_with_password(&maya).await;
    look_and_picture(&mut tour, "21-second-factor", "Code from your authenticator app").await;
    browser.fill("#code", "12").await;
    browser.press("form[action='/sign-in/second-factor'] button").await;
    tour.look("second-factor-unreadable", "Enter the six-digit code").await;
    browser.press("summary").await;
    browser.fill("#recovery_code", "12").await;
    browser.press("form[action='/sign-in/second-factor/recovery-code'] button").await;
    tour.look("recovery-code-unreadable", "Enter one of your recovery codes").await;
    // Without a fingerprint the page stays, although it starts by itself.
    browser.set_user_verified(&device, false).await;
    browser.open(&scene.auth("/sign-in/passkey")).await;
    look_and_picture(&mut tour, "22-passkey-sign-in", "Your browser asks for your passkey").await;
    use_passkey(&scene).await;
    tour.look("passkey-not-used", "No passkey was used.").await;
    tour.end();
}

#[tokio::test]
async fn step_up_pages_are_accessible() {
    let firm = Firm::new().with("CHANCERY_PORTAL__FIRM_NAME", "Hale & Ward");
    let (scene, clock, _) = signed_in_partner(firm).await;
    let browser = &scene.browser;
    let mut tour = tour_of(browser);
    browser.open(&scene.portal("/accounts?open=key")).await;
    browser.fill("#new-key #label", "Billing server").await;
    clock.set(11 * 60);
    browser.press("#new-key button.button-primary").await;
    look_and_picture(&mut tour, "23-step-up", "Sign in again to continue").await;
    browser.press("main a.button-primary").await;
    browser.wait_for_url(&scene.auth("/sign-in")).await;
    tour.look("step-up-at-the-provider", "Forgot your password?").await;
    tour.end();
}

#[tokio::test]
async fn email_code_pages_are_accessible() {
    let scene = Scene::start_with(&[EMAIL_CODE, ("CHANCERY_PORTAL__FIRM_NAME", "Hale & Ward")]).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    let mut tour = tour_of(browser);
    scene.sign_in_at_provider(&maya).await;
    look_and_picture(&mut tour, "08-code-by-mail", "We sent a six-digit code").await;
    browser.follow("form[action='/auth/code/resend'] button").await;
    tour.look("code-not-sent-again", "You can request a new one in").await;
    let emails = scene.emails(1).await;
    let code = code_in(&emails[0]);
    for which in 1..=4 {
        browser.fill("#code", &wrong_code(code, which)).await;
        browser.follow("form button.button-primary").await;
        browser.shows(if which == 4 { "1 attempt left." } else { "attempts left." }).await;
        if which == 1 {
            look_and_picture(&mut tour, "09-wrong-code", "4 attempts left.").await;
        }
    }
    browser.fill("#code", &wrong_code(code, 5)).await;
    browser.follow("form button.button-primary").await;
    look_and_picture(&mut tour, "10-five-wrong-codes", "Too many incorrect codes").await;
    browser.open(&scene.portal("/clients")).await;
    tour.look("locked-out", "Too many incorrect codes were entered for this account.").await;
    assert_eq!(browser.status().await, 429);
    assert!(!scene.has_session().await);
    let emails = scene.emails(2).await;
    assert!(emails[1].contains("incorrect codes"), "{}", emails[1]);
    assert_eq!(emails.len(), 2, "neither a code sent again so soon nor a rejected sign-in sends an email");
    tour.end();
}

#[tokio::test]
async fn sign_in_error_pages_are_accessible() {
    let mail = SmtpServer::start(Security::Plain, None).await;
    let url = mail.url();
    let settings = [EMAIL_CODE, ("CHANCERY_MAIL__SMTP", &url), ("CHANCERY_PORTAL__FIRM_NAME", "Hale & Ward")];
    let scene = Scene::start_with(&settings).await;
    drop(mail);
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    let mut tour = tour_of(browser);
    browser.open(&scene.portal("/nowhere")).await;
    tour.look("not-found", "404").await;
    browser.open(&scene.auth("/authorize?client_id=unknown")).await;
    tour.look("authorize-refused", "400").await;
    scene.go_to_provider().await;
    browser.open(&scene.portal("/auth/callback?state=foreign&code=x")).await;
    look_and_picture(&mut tour, "12-foreign-state", "Sign-in expired").await;
    scene.sign_in_at_provider(&maya).await;
    tour.look("code-not-sent", "Code not sent.").await;
    tour.end();
}

#[tokio::test]
async fn wrong_domain_page_is_accessible() {
    let settings = [
        ("CHANCERY_PORTAL__COMPANY_DOMAIN", "hale-ward.example"),
        ("CHANCERY_PORTAL__FIRM_NAME", "Hale & Ward"),
    ];
    let (scene, provider) = super::providers::begin(Kind::OidcProvider, &settings).await;
    provider.sign_in(&scene.browser).await;
    let mut tour = tour_of(&scene.browser);
    look_and_picture(&mut tour, "13-another-domain", "Only @hale-ward.example addresses can sign in here.")
        .await;
    assert_eq!(scene.browser.status().await, 403);
    assert!(!scene.has_session().await);
    tour.end();
}
