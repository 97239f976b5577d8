//! Passkeys, with a software authenticator.

use super::harness::{Browser, PASSWORD, Reply, TestProvider};
use super::second_factors::{open_add_page, recovery_codes};
use super::software_authenticator::SoftwareAuthenticator;
use std::time::Duration;

const MAYA: &str = "maya@example.com";
const ADD: &str = "/security/passkeys/add";

async fn signed_in(served: &TestProvider, email: &str) -> Browser {
    served.account(email).await;
    let mut browser = served.browser();
    browser.sign_in(email, PASSWORD).await.redirect_to();
    browser
}

async fn register(
    served: &TestProvider,
    browser: &mut Browser,
    passkey: &mut SoftwareAuthenticator,
    name: &str,
) -> Reply {
    let page = open_add_page(served, browser, &format!("{ADD}?return_to=/security")).await;
    let credential = passkey.create(&page);
    browser.post(ADD, &[("name", name), ("credential", &credential), ("return_to", "/security")]).await
}

/// A person with one passkey.
async fn with_passkey(served: &TestProvider) -> (Browser, SoftwareAuthenticator) {
    let mut browser = signed_in(served, MAYA).await;
    let mut passkey = SoftwareAuthenticator::new();
    let reply = register(served, &mut browser, &mut passkey, "Work laptop").await;
    assert_eq!(reply.status, 200, "{reply:?}");
    recovery_codes(&reply);
    (browser, passkey)
}

/// Signs in with the passkey alone.
async fn sign_in_alone(browser: &mut Browser, passkey: &mut SoftwareAuthenticator) -> Reply {
    let page = browser.get("/sign-in/passkey?return_to=/authorize?x").await;
    let credential = passkey.get(&page);
    browser.post("/sign-in/passkey", &[("credential", &credential), ("return_to", "/authorize?x")]).await
}

fn assert_rejected(reply: &Reply) {
    assert_eq!(reply.status, 422, "{reply:?}");
    assert!(reply.body.contains("not accepted"), "{reply:?}");
}

#[tokio::test]
async fn registered_passkey_is_listed_renamed_and_removed() {
    let served = TestProvider::at_host_name().await;
    let (mut browser, _) = with_passkey(&served).await;
    served.clock.advance(Duration::from_secs(1));
    let mut second = SoftwareAuthenticator::new();
    assert_eq!(register(&served, &mut browser, &mut second, "Phone").await.redirect_to(), "/security");
    let page = browser.get("/security").await;
    for text in ["Passkey added.", "Work laptop", "Phone", "Not used yet.", "10 codes left"] {
        assert!(page.body.contains(text), "{text}: {page:?}");
    }
    let ids: Vec<&str> = page.body.split("name=\"id\" value=\"").skip(1).collect();
    let ids: Vec<String> = ids.iter().map(|rest| rest.split('"').next().unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 2);
    let rename = browser.get(&format!("/security/passkeys/rename?id={}", ids[0])).await;
    assert_eq!(rename.status, 200, "{rename:?}");
    let path = "/security/passkeys/rename";
    browser.post(path, &[("id", &ids[0]), ("name", " ")]).await.assert_form_again("Enter a name");
    let reply = browser.post(path, &[("id", &ids[0]), ("name", "Old <laptop>")]).await;
    assert_eq!(reply.redirect_to(), "/security");
    assert!(browser.get("/security").await.body.contains("Old &#60;laptop&#62;"));
    let mut stranger = signed_in(&served, "omar@example.com").await;
    assert_eq!(stranger.post("/security/passkeys/remove", &[("id", &ids[0])]).await.status, 404);
    let asked = browser.post("/security/passkeys/remove", &[("id", &ids[0])]).await;
    assert!(asked.status == 409 && asked.body.contains("Old &#60;laptop&#62;"), "{asked:?}");
    assert!(
        asked.body.contains("name=\"confirmed\" value=\"1\"") && !asked.body.contains("recovery"),
        "{asked:?}"
    );
    let fields = [("id", ids[0].as_str()), ("confirmed", "1")];
    browser.post("/security/passkeys/remove", &fields).await.redirect_to();
    let page = browser.get("/security").await;
    assert!(!page.body.contains("laptop") && page.body.contains("Phone"), "{page:?}");
    let emails = served.emails_when(5).await;
    let count = |subject: &str| emails.iter().filter(|email| email.subject == subject).count();
    assert_eq!((count("Passkey added"), count("Passkey renamed"), count("Passkey removed")), (2, 1, 1));
}

#[tokio::test]
async fn passkey_alone_signs_in() {
    let served = TestProvider::at_host_name().await;
    let (_, mut passkey) = with_passkey(&served).await;
    let mut browser = served.browser();
    assert!(browser.get("/sign-in").await.body.contains("Sign in with a passkey"));
    assert_eq!(sign_in_alone(&mut browser, &mut passkey).await.redirect_to(), "/authorize?x");
    assert!(browser.get("/").await.body.contains(MAYA));
    assert!(browser.get("/security").await.body.contains("Last used"));
}

#[tokio::test]
async fn passkey_is_the_second_factor_after_the_password() {
    let served = TestProvider::at_host_name().await;
    let (_, mut passkey) = with_passkey(&served).await;
    let mut browser = served.browser();
    assert_eq!(browser.sign_in(MAYA, PASSWORD).await.redirect_to(), "/sign-in/second-factor");
    let page = browser.get("/sign-in/second-factor").await;
    let path = "/sign-in/second-factor/passkey";
    let empty = browser.post(path, &[]).await;
    assert!(empty.status == 422 && empty.body.contains("Turn on JavaScript"), "{empty:?}");
    let old = passkey.get(&page);
    assert_rejected(&browser.post(path, &[("credential", &old)]).await);
    let credential = passkey.get(&browser.get("/sign-in/second-factor").await);
    assert_eq!(browser.post(path, &[("credential", &credential)]).await.redirect_to(), "/");
    assert!(browser.is_signed_in().await);
}

#[tokio::test]
async fn passkey_of_another_account_is_no_second_factor() {
    let served = TestProvider::at_host_name().await;
    with_passkey(&served).await;
    let mut omar = signed_in(&served, "omar@example.com").await;
    let mut omars = SoftwareAuthenticator::new();
    recovery_codes(&register(&served, &mut omar, &mut omars, "Phone").await);
    let mut browser = served.browser();
    browser.sign_in(MAYA, PASSWORD).await.redirect_to();
    let credential = omars.get(&browser.get("/sign-in/second-factor").await);
    assert_rejected(&browser.post("/sign-in/second-factor/passkey", &[("credential", &credential)]).await);
    assert!(!browser.is_signed_in().await);
}

#[tokio::test]
async fn passkey_from_another_origin_is_rejected() {
    let served = TestProvider::at_host_name().await;
    let (mut browser, passkey) = with_passkey(&served).await;
    for origin in [
        "http://localhost:8083",
        "https://localhost:8082",
        "http://evil.localhost:8082",
        "http://127.0.0.1:8082",
        "https://evil.example",
    ] {
        let mut phished = passkey.clone();
        phished.origin = origin.to_owned();
        let mut stranger = served.browser();
        assert_rejected(&sign_in_alone(&mut stranger, &mut phished).await);
        assert!(!stranger.is_signed_in().await, "{origin}");
    }
    let mut phished = SoftwareAuthenticator::new();
    phished.origin = "https://evil.example".to_owned();
    assert_rejected(&register(&served, &mut browser, &mut phished, "Phone").await);
}

#[tokio::test]
async fn passkey_without_user_verification_is_rejected() {
    let served = TestProvider::at_host_name().await;
    let (mut browser, mut passkey) = with_passkey(&served).await;
    passkey.verifies_user = false;
    assert_rejected(&sign_in_alone(&mut served.browser(), &mut passkey).await);
    let mut new = SoftwareAuthenticator::new();
    new.verifies_user = false;
    assert_rejected(&register(&served, &mut browser, &mut new, "Phone").await);
}

#[tokio::test]
async fn each_challenge_is_answered_once_by_its_own_browser() {
    let served = TestProvider::at_host_name().await;
    let (_, mut passkey) = with_passkey(&served).await;
    let mut browser = served.browser();
    let page = browser.get("/sign-in/passkey").await;
    let credential = passkey.get(&page);
    let mut stranger = served.browser();
    assert_rejected(&stranger.post("/sign-in/passkey", &[("credential", &credential)]).await);
    stranger.get("/sign-in/passkey").await;
    assert_rejected(&stranger.post("/sign-in/passkey", &[("credential", &credential)]).await);
    let cookies = browser.cookies.clone();
    browser.post("/sign-in/passkey", &[("credential", &credential)]).await.redirect_to();
    browser.cookies = cookies;
    assert_rejected(&browser.post("/sign-in/passkey", &[("credential", &credential)]).await);

    let mut late = served.browser();
    let credential = passkey.get(&late.get("/sign-in/passkey").await);
    served.clock.advance(Duration::from_secs(10 * 60));
    assert_rejected(&late.post("/sign-in/passkey", &[("credential", &credential)]).await);
}

#[tokio::test]
async fn sign_counter_that_does_not_rise_is_rejected() {
    let served = TestProvider::at_host_name().await;
    let (_, mut passkey) = with_passkey(&served).await;
    passkey.counter = 5;
    let mut copy = passkey.clone();
    sign_in_alone(&mut served.browser(), &mut passkey).await.redirect_to();
    assert_rejected(&sign_in_alone(&mut served.browser(), &mut copy).await);
    sign_in_alone(&mut served.browser(), &mut passkey).await.redirect_to();
}

#[tokio::test]
async fn removed_and_unknown_passkeys_do_not_sign_in() {
    let served = TestProvider::at_host_name().await;
    let (mut browser, mut passkey) = with_passkey(&served).await;
    let page = browser.get("/security").await;
    let (_, rest) = page.body.split_once("name=\"id\" value=\"").unwrap();
    let id = rest.split('"').next().unwrap().to_owned();
    browser.post("/security/passkeys/remove", &[("id", &id), ("confirmed", "11")]).await.redirect_to();
    assert_rejected(&sign_in_alone(&mut served.browser(), &mut passkey).await);
    assert_rejected(&sign_in_alone(&mut served.browser(), &mut SoftwareAuthenticator::new()).await);
    let mut stranger = served.browser();
    stranger.get("/sign-in/passkey").await;
    assert_rejected(&stranger.post("/sign-in/passkey", &[("credential", "{not json")]).await);
}

#[tokio::test]
async fn one_passkey_cannot_be_registered_twice() {
    let served = TestProvider::at_host_name().await;
    let (_, passkey) = with_passkey(&served).await;
    let mut omar = signed_in(&served, "omar@example.com").await;
    let reply = register(&served, &mut omar, &mut passkey.clone(), "Phone").await;
    assert!(reply.status == 422 && reply.body.contains("registered already"), "{reply:?}");
}

#[tokio::test]
async fn passkey_confirms_a_change() {
    let served = TestProvider::at_host_name().await;
    let (mut browser, mut passkey) = with_passkey(&served).await;
    served.clock.advance(Duration::from_secs(6 * 60));
    let confirm = browser.get("/security/passkeys/add?return_to=/security").await.redirect_to().to_owned();
    assert!(confirm.starts_with("/security/confirm?return_to="), "{confirm}");
    let page = browser.get(&confirm).await;
    let mut copy = browser.clone();
    let credential = passkey.get(&page);
    let fields = [("credential", credential.as_str()), ("return_to", "/security/passkeys/add")];
    let reply = browser.post("/security/confirm/passkey", &fields).await;
    assert_eq!(reply.redirect_to(), "/security/passkeys/add");
    assert!(!copy.is_signed_in().await, "the session has a new token");
    assert_eq!(browser.get("/security/passkeys/add").await.status, 200);
}
