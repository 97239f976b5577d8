//! Second factors at sign-in: codes of an authenticator app, recovery codes, and what comes before them.

use super::harness::{Browser, PASSWORD, Reply, StoredEmail, TestProvider};
use chancery_domain::Clock as _;
use data_encoding::BASE32_NOPAD;
use ring::hmac;
use std::time::Duration;

const MAYA: &str = "maya@example.com";
const STEP: Duration = Duration::from_secs(30);
const ADD_APP: &str = "/security/authenticator/add";

/// An authenticator app.
pub struct App(hmac::Key);

impl App {
    /// Types the key of the page into the app.
    pub fn read(page: &Reply) -> Self {
        let (_, rest) = page.body.split_once("class=\"totp-secret\">").unwrap_or_else(|| panic!("{page:?}"));
        let secret = rest.split('<').next().unwrap().replace(' ', "");
        let secret = BASE32_NOPAD.decode(secret.as_bytes()).unwrap();
        Self(hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &secret))
    }

    pub fn code(&self, served: &TestProvider) -> String {
        let mac = hmac::sign(&self.0, &(served.clock.now().0 / 30_000).to_be_bytes());
        let start = usize::from(mac.as_ref()[19] & 0xf);
        let number = u32::from_be_bytes(mac.as_ref()[start..start + 4].try_into().unwrap());
        format!("{:06}", (number & 0x7fff_ffff) % 1_000_000)
    }
}

/// Proves the mailbox of the person who is signed in, and returns to `path`.
pub async fn prove_mailbox(served: &TestProvider, browser: &mut Browser, path: &str) {
    let before = served.first_factor_codes().len();
    browser.post("/security/email-code/send", &[("return_to", path)]).await.redirect_to();
    let mut codes = Vec::new();
    for _ in 0..1_000 {
        codes = served.first_factor_codes();
        if codes.len() > before {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(codes.len(), before + 1);
    let fields = [("code", codes[before].as_str()), ("return_to", path)];
    assert_eq!(browser.post("/security/email-code", &fields).await.redirect_to(), path);
}

/// Opens a page that adds a factor, with the emailed code that the first factor needs.
pub async fn open_add_page(served: &TestProvider, browser: &mut Browser, path: &str) -> Reply {
    let reply = browser.get(path).await;
    if reply.status != 303 {
        return reply;
    }
    assert!(reply.redirect_to().starts_with("/security/email-code?return_to="), "{reply:?}");
    prove_mailbox(served, browser, path).await;
    browser.get(path).await
}

/// Adds an app as a person does who is signed in. Returns it with the recovery codes.
pub async fn add_app(served: &TestProvider, browser: &mut Browser) -> (App, Vec<String>) {
    let page = open_add_page(served, browser, &format!("{ADD_APP}?return_to=/security")).await;
    assert_eq!(page.status, 200, "{page:?}");
    let app = App::read(&page);
    let code = app.code(served);
    let reply = browser.post(ADD_APP, &[("code", &code), ("return_to", "/security")]).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    (app, recovery_codes(&reply))
}

pub fn recovery_codes(page: &Reply) -> Vec<String> {
    let lines = page.body.lines().filter_map(|line| line.trim().split_once("<li><code>"));
    let codes: Vec<String> = lines.map(|(_, rest)| rest.split('<').next().unwrap().to_owned()).collect();
    assert_eq!(codes.len(), 10, "{page:?}");
    codes
}

/// A person with an app who is signed in in this browser.
async fn with_app(served: &TestProvider) -> (Browser, App, Vec<String>) {
    served.account(MAYA).await;
    let mut browser = served.browser();
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    let (app, codes) = add_app(served, &mut browser).await;
    served.clock.advance(STEP);
    (browser, app, codes)
}

/// The password alone, in a new browser.
async fn after_password(served: &TestProvider) -> Browser {
    after_password_at(served, "192.0.2.1").await
}

async fn after_password_at(served: &TestProvider, address: &str) -> Browser {
    let mut browser = served.browser_at(address);
    let fields = [("email", MAYA), ("password", PASSWORD), ("return_to", "/authorize?x=1")];
    assert_eq!(browser.post("/sign-in", &fields).await.redirect_to(), "/sign-in/second-factor");
    browser
}

async fn enter_code(browser: &mut Browser, code: &str) -> Reply {
    browser.post("/sign-in/second-factor", &[("code", code)]).await
}

async fn enter_recovery_code(browser: &mut Browser, code: &str) -> Reply {
    browser.post("/sign-in/second-factor/recovery-code", &[("recovery_code", code)]).await
}

#[tokio::test]
async fn session_starts_only_after_the_second_factor() {
    let served = TestProvider::start().await;
    let (_, app, _) = with_app(&served).await;
    let mut browser = after_password(&served).await;
    assert!(!browser.is_signed_in().await, "the password alone is not enough");
    let page = browser.get("/sign-in/second-factor").await;
    assert!(page.body.contains("autocomplete=\"one-time-code\"") && page.body.contains("recovery code"));
    assert!(!page.body.contains("data-passkey"), "the account has none");
    let reply = enter_code(&mut browser, &app.code(&served)).await;
    assert_eq!(reply.redirect_to(), "/authorize?x=1");
    assert!(browser.is_signed_in().await);
    assert_eq!(browser.get("/sign-in/second-factor").await.redirect_to(), "/sign-in", "it is over");
}

#[tokio::test]
async fn each_code_works_once_and_an_older_one_never() {
    let served = TestProvider::start().await;
    let (_, app, _) = with_app(&served).await;
    let older = app.code(&served);
    served.clock.advance(STEP);
    let code = app.code(&served);
    let (mut first, mut second) = (after_password(&served).await, after_password(&served).await);
    enter_code(&mut first, &code).await.redirect_to();
    enter_code(&mut second, &code).await.assert_form_again("already used");
    enter_code(&mut second, &older).await.assert_form_again("already used");
    served.clock.advance(STEP);
    enter_code(&mut second, &app.code(&served)).await.redirect_to();
}

#[tokio::test]
async fn code_that_confirmed_the_app_does_not_sign_in() {
    let served = TestProvider::start().await;
    served.account(MAYA).await;
    let mut browser = served.browser();
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    let (app, _) = add_app(&served, &mut browser).await;
    let mut other = after_password(&served).await;
    enter_code(&mut other, &app.code(&served)).await.assert_form_again("already used");
}

#[tokio::test]
async fn concurrent_uses_of_one_code_sign_in_once() {
    let served = TestProvider::start().await;
    let (_, app, _) = with_app(&served).await;
    let code = app.code(&served);
    let mut browsers = Vec::new();
    for number in 0..8 {
        browsers.push(after_password_at(&served, &format!("198.51.100.{number}")).await);
    }
    let racing: Vec<_> = browsers
        .into_iter()
        .map(|mut browser| {
            let code = code.clone();
            tokio::spawn(async move { enter_code(&mut browser, &code).await.status })
        })
        .collect();
    let mut signed_in = 0;
    for status in racing {
        signed_in += usize::from(status.await.unwrap() == 303);
    }
    assert_eq!(signed_in, 1);
}

#[tokio::test]
async fn app_is_added_only_with_a_correct_code_and_keeps_its_key_meanwhile() {
    let served = TestProvider::start().await;
    served.account(MAYA).await;
    let mut browser = served.browser();
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    let page = open_add_page(&served, &mut browser, ADD_APP).await;
    assert!(page.body.contains("<svg class=\"qr\"") && page.body.contains("autocomplete=\"one-time-code\""));
    let app = App::read(&page);
    let code = app.code(&served);
    let wrong = format!("{:06}", (code.parse::<u32>().unwrap() + 1) % 1_000_000);
    browser.post(ADD_APP, &[("code", "12")]).await.assert_form_again("six-digit code");
    browser.post(ADD_APP, &[("code", &wrong)]).await.assert_form_again("Incorrect code");
    assert_eq!(App::read(&browser.get(ADD_APP).await).code(&served), code, "the same key");
    assert!(!browser.get("/security").await.body.contains("/security/authenticator/remove"));
    let reply = browser.post(ADD_APP, &[("code", &format!(" {} {} ", &code[..3], &code[3..]))]).await;
    assert_eq!(recovery_codes(&reply).len(), 10);
    assert!(browser.get("/security").await.body.contains("/security/authenticator/remove"));
    assert_eq!(browser.get(ADD_APP).await.redirect_to(), "/security", "an account has one app");
}

#[tokio::test]
async fn wrong_codes_are_throttled_per_account_and_subnet() {
    let served = TestProvider::start().await;
    let (_, app, codes) = with_app(&served).await;
    let mut browser = after_password(&served).await;
    let code = app.code(&served);
    let wrong = format!("{:06}", (code.parse::<u32>().unwrap() + 1) % 1_000_000);
    for left in (1..5).rev() {
        let reply = enter_code(&mut browser, &wrong).await;
        reply.assert_form_again(&format!("{left} attempt"));
    }
    enter_code(&mut browser, &wrong).await.assert_too_many();
    enter_code(&mut browser, &code).await.assert_too_many();
    enter_code(&mut after_password(&served).await, &code).await.assert_too_many();
    enter_recovery_code(&mut browser, &codes[0]).await.assert_too_many();
    let emails = served.emails_when(3).await;
    assert!(emails.iter().any(|email| email.subject == "Too many sign-in attempts"), "{emails:?}");

    let mut elsewhere = after_password_at(&served, "198.51.100.7").await;
    enter_code(&mut elsewhere, &code).await.redirect_to();
    served.clock.advance(Duration::from_secs(15 * 60));
    enter_code(&mut after_password(&served).await, &app.code(&served)).await.redirect_to();
}

#[tokio::test]
async fn guesses_from_everywhere_leave_the_recovery_codes() {
    let served = TestProvider::start().await;
    let (_, app, codes) = with_app(&served).await;
    let code = app.code(&served);
    let wrong = format!("{:06}", (code.parse::<u32>().unwrap() + 1) % 1_000_000);
    for network in 0..5 {
        let mut attacker = after_password_at(&served, &format!("198.51.100.{network}")).await;
        for _ in 0..5 {
            enter_code(&mut attacker, &wrong).await;
        }
    }
    let mut owner = after_password(&served).await;
    enter_code(&mut owner, &code).await.assert_too_many();
    enter_recovery_code(&mut owner, &codes[3]).await.redirect_to();
    assert!(owner.is_signed_in().await);
}

#[tokio::test]
async fn guesses_from_everywhere_leave_a_known_device_its_codes() {
    let served = TestProvider::start().await;
    let (mut known, app, _) = with_app(&served).await;
    known.post("/sign-out", &[]).await.redirect_to();
    let code = app.code(&served);
    let wrong = format!("{:06}", (code.parse::<u32>().unwrap() + 1) % 1_000_000);
    for network in 0..5 {
        let mut attacker = after_password_at(&served, &format!("198.51.100.{network}")).await;
        for _ in 0..5 {
            enter_code(&mut attacker, &wrong).await;
        }
    }
    enter_code(&mut after_password(&served).await, &code).await.assert_too_many();
    assert_eq!(known.sign_in(MAYA, PASSWORD).await.redirect_to(), "/sign-in/second-factor");
    for left in (1..5).rev() {
        enter_code(&mut known, &wrong).await.assert_form_again(&format!("{left} attempt"));
    }
    enter_code(&mut known, &code).await.redirect_to();
    assert!(known.is_signed_in().await);
}

#[tokio::test]
async fn recovery_code_signs_in_once_and_is_emailed() {
    let served = TestProvider::start().await;
    let (_, _, codes) = with_app(&served).await;
    let mut browser = after_password(&served).await;
    enter_recovery_code(&mut browser, "").await.assert_form_again("Enter one of your recovery codes");
    enter_recovery_code(&mut browser, "0000-0000-0000-0000")
        .await
        .assert_form_again("Incorrect recovery code");
    let untidy = codes[0].to_uppercase().replace('-', " ");
    assert_eq!(enter_recovery_code(&mut browser, &untidy).await.redirect_to(), "/authorize?x=1");
    assert!(browser.is_signed_in().await);
    assert!(browser.get("/security").await.body.contains("9 codes left"));
    let mut again = after_password(&served).await;
    enter_recovery_code(&mut again, &codes[0]).await.assert_form_again("Each code works once");
    enter_recovery_code(&mut again, &codes[1]).await.redirect_to();
    let emails = served.emails_when(4).await;
    let used: Vec<_> = emails.iter().filter(|email| email.subject == "Recovery code used").collect();
    assert_eq!(used.len(), 2);
    assert!(used.iter().any(|email| email.text.contains("Codes left: 9.")), "{used:?}");
}

#[tokio::test]
async fn password_reset_keeps_the_factors() {
    let served = TestProvider::start().await;
    let (_, app, _) = with_app(&served).await;
    let mut waiting = after_password(&served).await;
    let mut browser = served.browser();
    browser.post("/forgotten-password", &[("email", MAYA)]).await.redirect_to();
    let emails = served.emails_when(3).await;
    let reset = emails.iter().find(|email| email.subject == "Your password reset code");
    let code = reset.and_then(StoredEmail::code).unwrap();
    let new = "one more quiet phrase";
    browser.post("/forgotten-password/code", &[("code", &code), ("password", new)]).await.redirect_to();
    assert_eq!(enter_code(&mut waiting, &app.code(&served)).await.status, 410, "its password is old");
    assert_eq!(browser.sign_in(MAYA, new).await.redirect_to(), "/sign-in/second-factor");
    assert!(!browser.is_signed_in().await);
    enter_code(&mut browser, &app.code(&served)).await.redirect_to();
    assert!(browser.is_signed_in().await);
}

#[tokio::test]
async fn waiting_sign_in_expires_and_belongs_to_its_browser() {
    let served = TestProvider::start().await;
    let (_, app, _) = with_app(&served).await;
    let mut browser = after_password(&served).await;
    let mut stranger = served.browser();
    assert_eq!(enter_code(&mut stranger, &app.code(&served)).await.status, 410);
    served.clock.advance(Duration::from_secs(10 * 60));
    let reply = enter_code(&mut browser, &app.code(&served)).await;
    assert_eq!(reply.status, 410, "{reply:?}");
    assert!(reply.body.contains("Sign-in expired") && browser.cookies.is_empty());
}

#[tokio::test]
async fn required_factor_is_set_up_right_after_the_password() {
    let served = TestProvider::with_required_factor().await;
    served.account(MAYA).await;
    let mut browser = served.browser();
    let fields = [("email", MAYA), ("password", PASSWORD), ("return_to", "/authorize?x=1")];
    let set_up = browser.post("/sign-in", &fields).await.redirect_to().to_owned();
    assert_eq!(set_up, "/security/set-up?return_to=/authorize%3Fx%3D1");
    let page = browser.get(&set_up).await;
    assert!(
        page.body.contains("requires a second factor") && page.body.contains("Add a passkey"),
        "{page:?}"
    );
    let app = App::read(&open_add_page(&served, &mut browser, ADD_APP).await);
    let code = app.code(&served);
    let codes = browser.post(ADD_APP, &[("code", &code), ("return_to", "/authorize?x=1")]).await;
    assert!(codes.body.contains("href=\"/authorize?x=1\""), "{codes:?}");
    assert_eq!(browser.get(&set_up).await.redirect_to(), "/authorize?x=1", "nothing is left to set up");
    let reply = browser.post("/security/authenticator/remove", &[]).await;
    assert_eq!(reply.status, 409, "{reply:?}");
    assert!(reply.body.contains("last one cannot be removed"));
}

#[tokio::test]
async fn sign_up_leads_to_the_required_factor() {
    let served = TestProvider::with_required_factor().await;
    let mut browser = served.browser();
    browser.post("/sign-up", &[("email", MAYA), ("password", PASSWORD)]).await.redirect_to();
    let code = served.code_in_email(1).await;
    let reply = browser.post("/sign-up/code", &[("code", &code)]).await;
    assert_eq!(reply.redirect_to(), "/security/set-up?return_to=/");
}

#[tokio::test]
async fn password_without_the_second_factor_makes_no_known_device() {
    let served = TestProvider::start().await;
    let (_, app, _) = with_app(&served).await;
    let mut browser = after_password(&served).await;
    assert_eq!(browser.cookies.keys().collect::<Vec<_>>(), ["__Host-second_factor"]);
    enter_code(&mut browser, &app.code(&served)).await.redirect_to();
    let names: Vec<&str> = browser.cookies.keys().collect();
    assert_eq!(names, ["__Host-auth_session", "__Host-known_device"]);
}

#[tokio::test]
async fn cookies_of_second_factors_have_the_host_prefix() {
    let served = TestProvider::at_host_name().await;
    let (mut browser, ..) = with_app(&served).await;
    let replies = [
        served.browser().sign_in(MAYA, PASSWORD).await,
        browser.get("/sign-in/passkey").await,
        browser.post("/security/authenticator/remove", &[("confirmed", "11")]).await,
    ];
    for (reply, name) in replies.iter().zip(["second_factor", "passkey_sign_in", "security_notice"]) {
        let cookie = reply.header("set-cookie");
        assert!(cookie.starts_with(&format!("__Host-{name}=")) && cookie.contains("; Path=/;"), "{cookie}");
    }
}

#[tokio::test]
async fn password_alone_does_not_add_the_first_factor() {
    for served in [TestProvider::at_host_name().await, TestProvider::with_required_factor().await] {
        served.account(MAYA).await;
        let mut thief = served.browser();
        thief.sign_in(MAYA, PASSWORD).await.redirect_to();
        for path in [ADD_APP, "/security/passkeys/add"] {
            let ask = format!("/security/email-code?return_to={path}%3Freturn_to%3D/");
            assert_eq!(thief.get(path).await.redirect_to(), ask);
            let fields = [("code", "123456"), ("credential", "{}"), ("name", "x")];
            assert_eq!(thief.post(path, &fields).await.redirect_to(), ask);
        }
        let page = thief.get("/security/email-code?return_to=/security").await;
        assert!(page.status == 200 && page.body.contains("Send code"), "{page:?}");
        assert_eq!(served.emails().len(), 0, "opening a page sends nothing");
        thief.post("/security/email-code/send", &[("return_to", ADD_APP)]).await.redirect_to();
        let code = served.code_in_email(1).await;
        let wrong = format!("{:06}", (code.parse::<u32>().unwrap() + 1) % 1_000_000);
        for typed in ["12", &wrong] {
            let fields = [("code", typed), ("return_to", ADD_APP)];
            assert_eq!(thief.post("/security/email-code", &fields).await.status, 422, "{typed}");
        }
        assert!(thief.get(ADD_APP).await.redirect_to().starts_with("/security/email-code"));
        let mut elsewhere = served.browser();
        elsewhere.sign_in(MAYA, PASSWORD).await.redirect_to();
        let reply = elsewhere.post("/security/email-code", &[("code", &code)]).await;
        assert_eq!(reply.status, 410, "the code belongs to its browser: {reply:?}");
    }
}

#[tokio::test]
async fn proof_of_the_mailbox_is_for_one_session_and_one_first_factor() {
    let served = TestProvider::start().await;
    served.account(MAYA).await;
    let (mut browser, mut other) = (served.browser(), served.browser());
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    other.sign_in(MAYA, PASSWORD).await.redirect_to();
    prove_mailbox(&served, &mut browser, ADD_APP).await;
    assert_eq!(browser.get(ADD_APP).await.status, 200);
    assert!(other.get(ADD_APP).await.redirect_to().starts_with("/security/email-code"));
    // Confirming the password changes the session's token, not what was proved in it.
    served.clock.advance(Duration::from_secs(6 * 60));
    assert!(browser.get(ADD_APP).await.redirect_to().starts_with("/security/confirm"));
    browser.post("/security/confirm", &[("password", PASSWORD)]).await.redirect_to();
    add_app(&served, &mut browser).await;
    assert_eq!(served.first_factor_codes().len(), 1);
    browser.post("/security/authenticator/remove", &[("confirmed", "11")]).await.redirect_to();
    assert!(browser.get(ADD_APP).await.redirect_to().starts_with("/security/email-code"), "it is used up");
}

#[tokio::test]
async fn proof_of_the_mailbox_expires() {
    let served = TestProvider::start().await;
    served.account(MAYA).await;
    let mut browser = served.browser();
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    prove_mailbox(&served, &mut browser, ADD_APP).await;
    served.clock.advance(Duration::from_secs(10 * 60));
    browser.post("/security/confirm", &[("password", PASSWORD)]).await.redirect_to();
    assert!(browser.get(ADD_APP).await.redirect_to().starts_with("/security/email-code"));
}

#[tokio::test]
async fn first_factor_and_each_removal_end_the_other_sessions() {
    let served = TestProvider::start().await;
    served.account(MAYA).await;
    let (mut browser, mut other) = (served.browser(), served.browser());
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    other.sign_in(MAYA, PASSWORD).await.redirect_to();
    let (app, _) = add_app(&served, &mut browser).await;
    assert!(browser.is_signed_in().await && !other.is_signed_in().await);
    served.clock.advance(STEP);
    other.sign_in(MAYA, PASSWORD).await.redirect_to();
    enter_code(&mut other, &app.code(&served)).await.redirect_to();
    assert!(other.is_signed_in().await);
    browser.post("/security/authenticator/remove", &[("confirmed", "11")]).await.redirect_to();
    assert!(browser.is_signed_in().await && !other.is_signed_in().await);
}
