//! The security page: changes need a recent authentication, and the owner hears of each.

use super::harness::{PASSWORD, TestProvider};
use super::second_factors::{add_app, recovery_codes};
use std::time::Duration;

const MAYA: &str = "maya@example.com";
const NEW: &str = "one more quiet phrase";
const FIVE_MINUTES: Duration = Duration::from_secs(5 * 60);

#[tokio::test]
async fn security_page_is_for_who_is_signed_in() {
    let served = TestProvider::start().await;
    served.account(MAYA).await;
    let mut browser = served.browser();
    for path in ["/security", "/security/password"] {
        let expected = format!("/sign-in?return_to={path}");
        assert_eq!(browser.get(path).await.redirect_to(), expected);
    }
    let reply = browser.get("/security/authenticator/add").await;
    assert!(reply.redirect_to().starts_with("/security/confirm?return_to="), "{reply:?}");
    let reply = browser.get(reply.redirect_to()).await;
    assert!(reply.redirect_to().starts_with("/sign-in?return_to="), "{reply:?}");
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    assert!(browser.get("/").await.body.contains("href=\"/security\""));
    let page = browser.get("/security").await;
    assert!(page.status == 200 && page.body.contains("Add an authenticator app"), "{page:?}");
}

#[tokio::test]
async fn changes_need_a_recent_authentication() {
    let served = TestProvider::start().await;
    served.account(MAYA).await;
    let mut browser = served.browser();
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    let (app, _) = add_app(&served, &mut browser).await;
    served.clock.advance(FIVE_MINUTES + Duration::from_secs(1));
    for path in ["/security/authenticator/remove", "/security/recovery-codes"] {
        let reply = browser.post(path, &[]).await;
        assert_eq!(reply.redirect_to(), "/security/confirm?return_to=/security", "{path}");
    }
    assert_eq!(browser.get("/security").await.status, 200, "reading needs none");
    let confirm = browser.get("/security/confirm?return_to=/security").await;
    assert!(confirm.body.contains("autocomplete=\"current-password\""), "{confirm:?}");
    let fields = |password| [("password", password), ("return_to", "/security")];
    browser.post("/security/confirm", &fields("")).await.assert_form_again("Enter your password");
    browser.post("/security/confirm", &fields("a wrong guess")).await.assert_form_again("Incorrect password");
    let reply = browser.post("/security/authenticator/remove", &[]).await;
    assert_eq!(reply.redirect_to(), "/security/confirm?return_to=/security", "still");
    let mut copy = browser.clone();
    let reply = browser.post("/security/confirm", &fields(PASSWORD)).await;
    assert_eq!(reply.redirect_to(), "/sign-in/second-factor", "the password alone is one factor");
    let reply = browser.post("/security/authenticator/remove", &[]).await;
    assert_eq!(reply.redirect_to(), "/security/confirm?return_to=/security", "not yet");
    let reply = browser.post("/sign-in/second-factor", &[("code", &app.code(&served))]).await;
    assert_eq!(reply.redirect_to(), "/security");
    assert!(!copy.is_signed_in().await, "the session has a new token");
    assert_eq!(
        browser.post("/security/authenticator/remove", &[("confirmed", "11")]).await.redirect_to(),
        "/security"
    );
    assert!(browser.get("/security").await.body.contains("Authenticator app removed."));
    assert!(!browser.get("/security").await.body.contains("Authenticator app removed."), "told once");
}

#[tokio::test]
async fn session_from_before_the_factor_cannot_change_it() {
    let served = TestProvider::start().await;
    served.account(MAYA).await;
    let (mut thief, mut browser) = (served.browser(), served.browser());
    thief.sign_in(MAYA, PASSWORD).await.redirect_to();
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    add_app(&served, &mut browser).await;
    for path in ["/security", "/security/password"] {
        assert_eq!(thief.get(path).await.redirect_to(), format!("/sign-in?return_to={path}"));
    }
    let reply = thief.post("/security/authenticator/remove", &[]).await;
    assert_eq!(reply.redirect_to(), "/security/confirm?return_to=/security");
    let fields = [("password", PASSWORD), ("return_to", "/security")];
    let reply = thief.post("/security/confirm", &fields).await;
    assert_eq!(reply.redirect_to(), "/sign-in?return_to=/security", "which asks for the factor");
    let fields = [("current_password", PASSWORD), ("password", NEW)];
    let reply = thief.post("/security/password", &fields).await;
    assert_eq!(reply.redirect_to(), "/sign-in?return_to=/security/password");
    assert!(browser.get("/security").await.body.contains("/security/authenticator/remove"));
}

#[tokio::test]
async fn every_change_is_emailed_to_the_owner() {
    let served = TestProvider::start().await;
    served.account(MAYA).await;
    let mut browser = served.browser();
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    add_app(&served, &mut browser).await;
    recovery_codes(&browser.post("/security/recovery-codes", &[("confirmed", "10")]).await);
    let fields = [("current_password", PASSWORD), ("password", NEW)];
    assert_eq!(browser.post("/security/password", &fields).await.redirect_to(), "/security");
    browser.post("/security/authenticator/remove", &[("confirmed", "11")]).await.redirect_to();
    let mut subjects: Vec<_> = served.emails_when(5).await.into_iter().map(|email| email.subject).collect();
    subjects.sort();
    assert_eq!(
        subjects,
        [
            "Authenticator app added",
            "Authenticator app removed",
            "Recovery codes replaced",
            "Your code to add a second factor",
            "Your password was changed"
        ]
    );
}

#[tokio::test]
async fn factors_are_removed_only_when_their_count_is_confirmed() {
    let served = TestProvider::start().await;
    served.account(MAYA).await;
    let mut browser = served.browser();
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    let (_, codes) = add_app(&served, &mut browser).await;
    let mut other = served.browser();
    other.sign_in(MAYA, PASSWORD).await.redirect_to();
    let use_code = [("recovery_code", codes[0].as_str())];
    other.post("/sign-in/second-factor/recovery-code", &use_code).await.redirect_to();
    for (path, count, button) in [
        ("/security/recovery-codes", "9", ">Replace recovery codes</button>"),
        ("/security/authenticator/remove", "10", ">Remove authenticator app</button>"),
    ] {
        let asked = browser.post(path, &[]).await;
        assert_eq!(asked.status, 409, "{path}: {asked:?}");
        let confirmed = format!("name=\"confirmed\" value=\"{count}\"");
        for part in ["9 recovery codes", button, "href=\"/security\"", &confirmed] {
            assert!(asked.body.contains(part), "{part}: {asked:?}");
        }
        let again = browser.post(path, &[("confirmed", "11")]).await;
        assert!(again.status == 409 && again.body.contains("This has changed since"), "{again:?}");
    }
    let page = browser.get("/security").await;
    assert!(page.body.contains("9 codes left") && page.body.contains("authenticator/remove"), "{page:?}");
    assert!(other.is_signed_in().await);
    recovery_codes(&browser.post("/security/recovery-codes", &[("confirmed", "9")]).await);
    let removed = browser.post("/security/authenticator/remove", &[("confirmed", "11")]).await;
    assert_eq!(removed.redirect_to(), "/security");
}

#[tokio::test]
async fn replaced_recovery_codes_no_longer_work() {
    let served = TestProvider::start().await;
    served.account(MAYA).await;
    let mut browser = served.browser();
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    assert_eq!(browser.post("/security/recovery-codes", &[]).await.status, 409, "there is no factor");
    let (_, old) = add_app(&served, &mut browser).await;
    let new = recovery_codes(&browser.post("/security/recovery-codes", &[("confirmed", "10")]).await);
    let mut other = served.browser();
    other.sign_in(MAYA, PASSWORD).await.redirect_to();
    let path = "/sign-in/second-factor/recovery-code";
    other.post(path, &[("recovery_code", &old[0])]).await.assert_form_again("Incorrect recovery code");
    other.post(path, &[("recovery_code", &new[0])]).await.redirect_to();
}

#[tokio::test]
async fn removing_the_last_factor_ends_the_second_step() {
    let served = TestProvider::start().await;
    served.account(MAYA).await;
    let mut browser = served.browser();
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    add_app(&served, &mut browser).await;
    browser.post("/security/authenticator/remove", &[("confirmed", "11")]).await.redirect_to();
    let page = browser.get("/security").await;
    assert!(!page.body.contains("Recovery codes"), "they went with it: {page:?}");
    assert_eq!(served.browser().sign_in(MAYA, PASSWORD).await.redirect_to(), "/");
}

#[tokio::test]
async fn changed_password_ends_the_other_sessions_only() {
    let served = TestProvider::start().await;
    served.account(MAYA).await;
    let (mut browser, mut other) = (served.browser(), served.browser());
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    other.sign_in(MAYA, PASSWORD).await.redirect_to();
    let page = browser.get("/security/password").await;
    for text in
        ["autocomplete=\"current-password\"", "autocomplete=\"new-password\"", "<script src=\"/assets/"]
    {
        assert!(page.body.contains(text), "{text}: {page:?}");
    }
    let change = |current, new| [("current_password", current), ("password", new)];
    browser.post("/security/password", &change("", "short")).await.assert_form_again("Fix 2 problems");
    let reply = browser.post("/security/password", &change("a wrong guess", NEW)).await;
    reply.assert_form_again("Incorrect password");
    assert!(other.is_signed_in().await, "nothing was changed");
    let mut copy = browser.clone();
    assert_eq!(browser.post("/security/password", &change(PASSWORD, NEW)).await.redirect_to(), "/security");
    assert!(browser.get("/security").await.body.contains("Password changed."));
    assert!(browser.is_signed_in().await && !other.is_signed_in().await);
    assert!(!copy.is_signed_in().await, "the session has a new token");
    other.sign_in(MAYA, PASSWORD).await.assert_form_again("Incorrect email or password");
    other.sign_in(MAYA, NEW).await.redirect_to();
}

#[tokio::test]
async fn current_password_is_throttled() {
    let served = TestProvider::start().await;
    served.account(MAYA).await;
    let mut browser = served.browser();
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    let fields = |current| [("current_password", current), ("password", NEW)];
    for _ in 0..10 {
        browser.post("/security/password", &fields("a wrong guess")).await.assert_form_again("Incorrect");
    }
    browser.post("/security/password", &fields(PASSWORD)).await.assert_too_many();
}

#[tokio::test]
async fn passkeys_are_hidden_at_an_ip_address() {
    let served = TestProvider::start().await;
    served.account(MAYA).await;
    let mut browser = served.browser();
    assert!(!browser.get("/sign-in").await.body.contains("/sign-in/passkey"));
    assert_eq!(browser.get("/sign-in/passkey").await.redirect_to(), "/sign-in?return_to=/");
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    let page = browser.get("/security").await;
    assert!(
        page.body.contains("Passkeys need a host name; this server’s address is an IP address."),
        "{page:?}"
    );
    assert!(!page.body.contains("/security/passkeys/add"), "{page:?}");
    let reply = browser.get("/security/passkeys/add").await;
    assert_eq!(reply.status, 409, "{reply:?}");
    assert!(reply.body.contains("Passkeys need a host name"));
}

#[tokio::test]
async fn script_is_served_with_its_type_and_cached() {
    let served = TestProvider::at_host_name().await;
    let mut browser = served.browser();
    let page = browser.get("/sign-in").await;
    let (_, rest) = page.body.split_once("<script src=\"").unwrap();
    let path = rest.split('"').next().unwrap().to_owned();
    let script = browser.get(&path).await;
    assert_eq!(script.header("content-type"), "text/javascript; charset=utf-8");
    assert!(script.header("cache-control").contains("immutable"), "{script:?}");
    assert!(script.body.contains("navigator.credentials"));
}
