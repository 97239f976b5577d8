//! Resetting a forgotten password.

use super::harness::{Browser, PASSWORD, Reply, TestProvider};
use chancery_domain::{Clock as _, EventOrigin, Identity, OsRandomness, Role, SecretToken, SessionTimeouts};
use chancery_store::{NewSession, SessionAuthentication, VerifiedIdentity};
use std::time::Duration;

const NEW: &str = "one more quiet phrase";

async fn ask(browser: &mut Browser, email: &str) -> Reply {
    browser.post("/forgotten-password", &[("email", email), ("return_to", "/authorize?x=1")]).await
}

async fn set(browser: &mut Browser, code: &str, password: &str) -> Reply {
    browser.post("/forgotten-password/code", &[("code", code), ("password", password)]).await
}

#[tokio::test]
async fn password_reset_ends_all_sessions_and_emails_the_owner() {
    let served = TestProvider::start().await;
    let account = served.account("maya@example.com").await;
    let mut elsewhere = served.browser();
    elsewhere.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    let mut browser = served.browser();
    assert_eq!(ask(&mut browser, "maya@example.com").await.redirect_to(), "/forgotten-password/code");
    let code = served.code_in_email(1).await;
    let page = browser.get("/forgotten-password/code").await;
    assert!(
        page.body.contains("has an account, we sent it a code")
            && page.body.contains("autocomplete=\"new-password\"")
    );
    let reply = set(&mut browser, &code, NEW).await;
    assert_eq!(reply.redirect_to(), "/sign-in?return_to=/authorize%3Fx%3D1");
    assert!(browser.get(reply.redirect_to()).await.body.contains("Password changed."));
    assert!(!browser.get(reply.redirect_to()).await.body.contains("Password changed."), "told once");
    let anybodys = served.browser().get("/sign-in?return_to=/&new_password=set").await;
    assert!(!anybodys.body.contains("Password changed."), "no link can say so");
    assert!(!elsewhere.is_signed_in().await, "signed out everywhere");
    assert!(!browser.is_signed_in().await, "setting a password signs nobody in");

    browser.sign_in("maya@example.com", PASSWORD).await.assert_form_again("Incorrect email or password");
    browser.sign_in("maya@example.com", NEW).await.redirect_to();
    assert!(browser.is_signed_in().await);
    let emails = served.emails_when(2).await;
    let notice = emails.iter().find(|email| email.subject == "Your password was changed").unwrap();
    assert_eq!((notice.to.as_str(), notice.code()), ("maya@example.com", None));
    let found = served
        .provider
        .store
        .provider_accounts
        .provider_account_by_email(&account.email)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.subject, account.subject, "the person stays who they are");
    assert_eq!(set(&mut browser, &code, NEW).await.status, 410, "used");
}

#[tokio::test]
async fn password_reset_does_not_reveal_whether_an_account_exists() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let (mut known, mut unknown) = (served.browser(), served.browser());
    let (a, b) = (ask(&mut known, "maya@example.com").await, ask(&mut unknown, "omar@example.com").await);
    assert_eq!((a.status, a.redirect_to(), &a.body), (b.status, b.redirect_to(), &b.body));
    let (a, b) = (known.get("/forgotten-password/code").await, unknown.get("/forgotten-password/code").await);
    assert_eq!(a.body, b.body.replace("omar@", "maya@"));
    let code = served.code_in_email(1).await;
    let bad = format!("{:06}", (code.parse::<u32>().unwrap() + 1) % 1_000_000);
    for _ in 0..4 {
        let (a, b) = (set(&mut known, &bad, NEW).await, set(&mut unknown, &bad, NEW).await);
        a.assert_form_again("left");
        assert_eq!(a.body, b.body.replace("omar@", "maya@"));
    }
    let (a, b) = (set(&mut known, &bad, NEW).await, set(&mut unknown, &bad, NEW).await);
    a.assert_too_many();
    assert_eq!((a.status, &a.body), (b.status, &b.body));
    assert_eq!(set(&mut known, &code, NEW).await.status, 410, "destroyed");
    let emails = served.emails_when(2).await;
    let notice = emails.iter().find(|email| email.subject == "Too many sign-in attempts").unwrap();
    assert_eq!(notice.to, "maya@example.com", "and nobody writes to who has no account");
    known.sign_in("maya@example.com", PASSWORD).await.redirect_to();
}

#[tokio::test]
async fn rejected_password_does_not_consume_the_code() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    ask(&mut browser, "maya@example.com").await.redirect_to();
    let code = served.code_in_email(1).await;
    for _ in 0..7 {
        let reply = set(&mut browser, &code, "short").await;
        reply.assert_form_again("at least 10 characters");
        assert!(reply.body.contains(&format!("value=\"{code}\"")), "the code is kept");
    }
    set(&mut browser, "12", "short").await.assert_form_again("Fix 2 problems");
    set(&mut browser, &code, NEW).await.redirect_to();
}

#[tokio::test]
async fn sign_up_code_cannot_reset_a_password() {
    let served = TestProvider::start().await;
    let mut browser = served.browser();
    let fields = [("email", "maya@example.com"), ("password", PASSWORD)];
    browser.post("/sign-up", &fields).await.redirect_to();
    let code = served.code_in_email(1).await;
    let token = browser.cookies["__Host-sign_up"].clone();
    browser.cookies.insert("__Host-new_password", token);
    assert_eq!(set(&mut browser, &code, NEW).await.status, 410);
    assert_eq!(browser.get("/forgotten-password/code").await.redirect_to(), "/forgotten-password");
}

#[tokio::test]
async fn password_reset_clears_the_lockout() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    while browser.sign_in("maya@example.com", "a wrong guess").await.status != 429 {}
    served.emails_when(1).await;
    browser.sign_in("maya@example.com", PASSWORD).await.assert_too_many();
    ask(&mut browser, "maya@example.com").await.redirect_to();
    let code = served.code_in_email(2).await;
    set(&mut browser, &code, NEW).await.redirect_to();
    browser.sign_in("maya@example.com", NEW).await.redirect_to();
}

#[tokio::test]
async fn wrong_codes_from_other_networks_do_not_block_the_owner() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut stranger = served.browser_at("198.51.100.7");
    ask(&mut stranger, "maya@example.com").await.redirect_to();
    let strangers = served.code_in_email(1).await;
    let bad = format!("{:06}", (strangers.parse::<u32>().unwrap() + 1) % 1_000_000);
    let burst: Vec<_> = (0..40)
        .map(|_| {
            let (mut browser, bad) = (stranger.clone(), bad.clone());
            tokio::spawn(async move { set(&mut browser, &bad, NEW).await.status })
        })
        .collect();
    for status in burst {
        assert!([410, 422, 429].contains(&status.await.unwrap()));
    }
    let wait = ask(&mut stranger, "maya@example.com").await.assert_too_many();
    assert!(wait <= Duration::from_secs(15 * 60), "{wait:?}");
    served.emails_when(2).await;
    let mut owner = served.browser();
    ask(&mut owner, "maya@example.com").await.redirect_to();
    let code = served.code_in_email(3).await;
    set(&mut owner, &code, NEW).await.redirect_to();
}

#[tokio::test]
async fn password_reset_invalidates_other_codes() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let (mut stranger, mut owner) = (served.browser_at("198.51.100.7"), served.browser());
    ask(&mut stranger, "maya@example.com").await.redirect_to();
    let strangers = served.code_in_email(1).await;
    served.clock.advance(Duration::from_secs(1));
    ask(&mut owner, "maya@example.com").await.redirect_to();
    let code = served.code_in_email(2).await;
    set(&mut owner, &code, NEW).await.redirect_to();
    assert_eq!(set(&mut stranger, &strangers, "what a stranger wants").await.status, 410);
    owner.sign_in("maya@example.com", NEW).await.redirect_to();
}

#[tokio::test]
async fn resending_is_limited_and_replaces_the_code() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    ask(&mut browser, "maya@example.com").await.redirect_to();
    served.code_in_email(1).await;
    served.clock.advance(Duration::from_secs(30));
    browser.post("/forgotten-password/code/resend", &[]).await.redirect_to();
    let code = served.code_in_email(2).await;
    browser.post("/forgotten-password/code/resend", &[]).await.assert_too_many();
    set(&mut browser, &code, NEW).await.redirect_to();
}

#[tokio::test]
async fn password_reset_ends_only_the_owners_portal_sessions() {
    let served = TestProvider::start().await;
    let (store, now) = (&served.store, served.clock.now());
    let times = SessionTimeouts { idle: Duration::from_secs(1_800), max: Duration::from_secs(43_200) };
    let (maya, omar) = (served.account("maya@example.com").await, served.account("omar@example.com").await);
    let mut sessions = Vec::new();
    for account in [&maya, &omar] {
        let issuer = served.provider.settings.issuer.clone();
        let verified = VerifiedIdentity {
            identity: Identity { issuer, subject: account.subject.clone() },
            email: account.email.clone(),
            role: Role::Consultant,
            origin: EventOrigin::local(now, &OsRandomness),
        };
        let person = store.people.sign_in(verified).await.unwrap().id;
        let token = SecretToken::generate(&OsRandomness).hash();
        let (ip_address, user_agent) = ("192.0.2.1".to_owned(), "Firefox".to_owned());
        let origin = EventOrigin::local(now, &OsRandomness);
        let authentication = SessionAuthentication::at(now);
        let (binding, replaces) = (None, None);
        let new =
            NewSession { token, binding, person, authentication, origin, ip_address, user_agent, replaces };
        store.sessions.start_session(new).await.unwrap();
        sessions.push(token);
    }
    let mut browser = served.browser();
    ask(&mut browser, "maya@example.com").await.redirect_to();
    let code = served.code_in_email(1).await;
    set(&mut browser, &code, NEW).await.redirect_to();
    let [mayas, omars] = sessions.try_into().unwrap();
    assert!(store.sessions.active_session(mayas, "192.0.2.1", times, now).await.unwrap().is_none());
    assert!(store.sessions.active_session(omars, "192.0.2.1", times, now).await.unwrap().is_some());
}
