//! The same portal with third-party identity providers, whose differences it must handle. npm's `oidc-provider` returns
//! the email address only at userinfo. Debian's `glewlwyd` does not send `iss` in its authorization response. PyPI's
//! `canaille` never marks an address as verified, so the portal's own code must prove the mailbox.

use super::{Scene, code_in, free_port};
use crate::browser::Browser;
use crate::identity_providers::{ADA, GRACE, Kind, Provider, User};
use crate::server::{Firm, Reply, client, eventually, write_secret};
use std::time::Duration;

/// Starts a portal that uses the provider, and sends the browser to it.
pub async fn begin(kind: Kind, settings: &[(&str, &str)]) -> (Scene, Provider) {
    let port = free_port();
    let provider = Provider::start(kind, &format!("http://localhost:{port}/auth/callback")).await;
    let firm = settings.iter().fold(Firm::new(), |firm, (name, value)| firm.with(name, value));
    let secret = firm.folder.path().join("secret");
    write_secret(&secret, provider.client_secret);
    let firm = firm
        .with("CHANCERY_PORTAL__LISTEN", &format!("127.0.0.1:{port}"))
        .with("CHANCERY_IDENTITY__ISSUER", &provider.issuer)
        .with("CHANCERY_IDENTITY__CLIENT_ID", provider.client_id)
        .with("CHANCERY_IDENTITY__CLIENT_SECRET_FILE", secret.to_str().unwrap());
    let server = firm.start_with(&["--only", "portal"]);
    let scene = Scene { firm, server, browser: Browser::start().await };
    scene.browser.open(&scene.portal("/sessions")).await;
    (scene, provider)
}

/// Signs the user in at the provider, whose page the browser shows. Proves the mailbox where the provider does not.
async fn sign_in_as(scene: &Scene, provider: &Provider, user: User) {
    let emails_before = scene.outbox().len();
    provider.sign_in_as(&scene.browser, user).await;
    if !provider.verifies_email() {
        scene.browser.wait_for_url(&scene.portal("/auth/code")).await;
        assert!(!scene.has_session().await);
        let emails = scene.emails(emails_before + 1).await;
        assert!(emails[emails_before].contains(&format!("To: {}", user.email)), "{emails:?}");
        scene.browser.fill("#code", code_in(&emails[emails_before])).await;
        scene.browser.press("form button.button-primary").await;
    }
}

/// The complete flow: one person signs in and out, and then another in the same browser.
async fn sign_in_at(kind: Kind) {
    let (scene, provider) = begin(kind, &[]).await;
    let browser = &scene.browser;
    sign_in_as(&scene, &provider, ADA).await;
    browser.wait_for_url(&scene.portal("/sessions")).await;
    assert_eq!(browser.text(".bar-person").await, ADA.email);
    assert!(scene.has_session().await);
    let people = scene.firm.json(&["user", "list", "--json"]);
    assert_eq!(people.as_array().unwrap().len(), 1, "{people}");
    assert_eq!(people[0]["issuer"], provider.issuer);

    browser.press("form[action='/auth/sign-out'] button").await;
    if provider.signs_out() {
        provider.confirm_sign_out(browser).await;
        browser.wait_for_url(&scene.portal("/signed-out")).await;
        browser.shows("You have signed out of the client portal and of").await;
    } else {
        browser.wait_for_url(&scene.portal("/signed-out")).await;
        browser.shows("You are still signed in at").await;
    }
    assert!(!scene.has_session().await);

    // The next person at this browser is asked for credentials.
    browser.open(&scene.portal("/clients")).await;
    provider.asks_for_credentials(browser).await;
    assert!(!scene.has_session().await);
    sign_in_as(&scene, &provider, GRACE).await;
    browser.wait_for_url(&scene.portal("/clients")).await;
    assert_eq!(browser.text(".bar-person").await, GRACE.email);
    let people = scene.firm.json(&["user", "list", "--json"]);
    assert_eq!(people.as_array().unwrap().len(), 2, "{people}");
    if provider.verifies_email() {
        assert_eq!(scene.outbox().len(), 0);
    }
}

#[tokio::test]
async fn oidc_provider_ends_the_portal_session_through_the_back_channel_once_per_token() {
    let (scene, provider) = begin(Kind::OidcProvider, &[]).await;
    let browser = &scene.browser;
    provider.sign_in(browser).await;
    browser.wait_for_url(&scene.portal("/sessions")).await;
    let token = browser.cookie(&scene.server.portal, "session").await["value"].as_str().unwrap().to_owned();
    browser.open(&format!("{}/session/end", provider.issuer)).await;
    provider.confirm_sign_out(browser).await;
    let session = format!("session={token}");
    eventually("the portal's session ends", Duration::from_secs(20), async || {
        let request = client().get(scene.portal("/sessions")).header("cookie", session.as_str());
        request.send().await.unwrap().status() == 401
    })
    .await;
    scene.server.wait_for_log("sessions ended by the identity provider");

    let printed = provider.log();
    let form = printed.lines().find_map(|line| line.strip_prefix("sends ")).unwrap();
    assert!(form.starts_with("logout_token="), "{form}");
    for (body, reason) in [
        (form.to_owned(), "the token was used before"),
        (form.replacen("logout_token=", "logout_token=x", 1), ""),
    ] {
        let request = client()
            .post(scene.portal("/auth/backchannel-logout"))
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body);
        let reply = Reply::read(request.send().await.unwrap()).await;
        assert_eq!((reply.status, &reply.body["error"]), (400, &"invalid_request".into()), "{}", reply.body);
        assert!(reply.body["error_description"].as_str().unwrap().contains(reason), "{}", reply.body);
    }
}

#[tokio::test]
async fn another_person_signs_in_after_a_sign_out_at_oidc_provider() {
    sign_in_at(Kind::OidcProvider).await;
}

#[tokio::test]
async fn another_person_signs_in_after_a_sign_out_at_canaille_with_emailed_codes() {
    sign_in_at(Kind::Canaille).await;
}

#[tokio::test]
async fn another_person_signs_in_after_a_sign_out_at_glewlwyd() {
    sign_in_at(Kind::Glewlwyd).await;
}

#[tokio::test]
async fn unavailable_provider_shows_a_page_and_is_logged() {
    let issuer = format!("http://127.0.0.1:{}", free_port());
    let firm = Firm::new().with("CHANCERY_IDENTITY__ISSUER", &issuer);
    let server = firm.start_with(&["--only", "portal"]);
    let scene = Scene { firm, server, browser: Browser::start().await };
    scene.browser.open(&scene.portal("/")).await;
    scene.browser.press("a.button-primary").await;
    scene.browser.wait_for_url(&scene.portal("/auth/sign-in")).await;
    scene.browser.shows("sign-in service").await;
    assert!(scene.browser.status().await >= 500);
    assert!(!scene.browser.page_text().await.contains("127.0.0.1"), "what is internal stays in the log");
    scene.server.wait_for_log("discovery");
}
