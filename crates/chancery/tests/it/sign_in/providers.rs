//! The same portal with third-party identity providers, whose differences it must handle. npm's `oidc-provider` returns
//! the email address only at userinfo. Debian's `glewlwyd` does not send `iss` in its authorization response. PyPI's
//! `canaille` never marks an address as verified, so the portal's own code must prove the mailbox.

use super::{Scene, code_in, free_port};
use crate::browser::Browser;
use crate::identity_providers::{Kind, Provider};
use crate::server::Firm;

/// Starts a portal that uses the provider, and sends the browser to it.
pub async fn begin(kind: Kind, settings: &[(&str, &str)]) -> (Scene, Provider) {
    let port = free_port();
    let provider = Provider::start(kind, &format!("http://localhost:{port}/auth/callback")).await;
    let firm = settings.iter().fold(Firm::new(), |firm, (name, value)| firm.with(name, value));
    let secret = firm.folder.path().join("secret");
    std::fs::write(&secret, provider.client_secret).unwrap();
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

/// The complete flow, including sign-out.
async fn sign_in_at(kind: Kind) {
    let (scene, provider) = begin(kind, &[]).await;
    let browser = &scene.browser;
    provider.sign_in(browser).await;
    if provider.verifies_email() {
        assert_eq!(scene.outbox().len(), 0);
    } else {
        browser.wait_for_url(&scene.portal("/auth/code")).await;
        assert!(!scene.has_session().await);
        browser.fill("#code", code_in(&scene.emails(1).await[0])).await;
        browser.press("form button.button-primary").await;
    }
    browser.wait_for_url(&scene.portal("/sessions")).await;
    assert_eq!(browser.text(".bar-person").await, provider.email);
    assert!(scene.has_session().await);

    let people = scene.firm.json(&["user", "list", "--json"]);
    assert_eq!(people.as_array().unwrap().len(), 1, "{people}");
    assert_eq!(people[0]["issuer"], provider.issuer);
    browser.press("form[action='/auth/sign-out'] button").await;
    browser.shows("You are signed out").await;
    assert!(!scene.has_session().await);
}

#[tokio::test]
async fn portal_signs_in_at_oidc_provider() {
    sign_in_at(Kind::OidcProvider).await;
}

#[tokio::test]
async fn portal_signs_in_at_canaille_and_verifies_the_email_itself() {
    sign_in_at(Kind::Canaille).await;
}

#[tokio::test]
async fn portal_signs_in_at_glewlwyd() {
    sign_in_at(Kind::Glewlwyd).await;
}

#[tokio::test]
async fn missing_email_claim_shows_a_page_and_starts_no_session() {
    let (scene, provider) = begin(Kind::Glewlwyd, &[]).await;
    provider.sign_in_without_address(&scene.browser).await;
    scene.browser.shows("did not send your email address").await;
    assert_eq!(scene.browser.status().await, 403);
    assert!(!scene.has_session().await);
    assert_eq!(scene.firm.json(&["user", "list", "--json"]), serde_json::json!([]));
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
    assert!(scene.server.log().contains("discovery"), "{}", scene.server.log());
}
