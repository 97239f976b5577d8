//! Checks every sign-in page (`crate::tour`). `make screenshots` takes those shown in docs/sign-in.md.

use super::code::EMAIL_CODE;
use super::{Scene, code_in, wrong_code};
use crate::browser::{Browser, Screen};
use crate::identity_providers::Kind;
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

#[tokio::test]
async fn email_code_pages_are_accessible() {
    let scene = Scene::start_with(&[EMAIL_CODE, ("CHANCERY_PORTAL__FIRM_NAME", "Hale & Ward")]).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    let mut tour = tour_of(browser);
    scene.sign_in_at_provider(&maya).await;
    look_and_picture(&mut tour, "08-code-by-mail", "We sent a six-digit code").await;
    browser.press("form[action='/auth/code/resend'] button").await;
    tour.look("code-not-sent-again", "You can request a new one in").await;
    let emails = scene.emails(1).await;
    let code = code_in(&emails[0]);
    for which in 1..=4 {
        browser.fill("#code", &wrong_code(code, which)).await;
        browser.press("form button.button-primary").await;
        browser.shows(if which == 4 { "1 attempt left." } else { "attempts left." }).await;
        if which == 1 {
            look_and_picture(&mut tour, "09-wrong-code", "4 attempts left.").await;
        }
    }
    browser.fill("#code", &wrong_code(code, 5)).await;
    browser.press("form button.button-primary").await;
    look_and_picture(&mut tour, "10-five-wrong-codes", "Too many incorrect codes").await;
    browser.open(&scene.portal("/clients")).await;
    tour.look("locked-out", "Too many incorrect codes were entered for this account.").await;
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
