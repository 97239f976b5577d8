//! The provider and the portal as two processes, each with its own directory, that share a secret.

use super::{Scene, code_in, free_port};
use crate::browser::Browser;
use crate::server::{Firm, write_secret};

#[tokio::test]
async fn provider_and_portal_run_as_two_processes_with_a_shared_secret() {
    let port = free_port();
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    write_secret(&secret, "known to the two alone\n");
    let firm = || Firm::new().with("CHANCERY_IDENTITY__CLIENT_SECRET_FILE", secret.to_str().unwrap());

    let auth_firm = firm().with("CHANCERY_PORTAL__PUBLIC_URL", &format!("http://localhost:{port}"));
    let auth = auth_firm.start_with(&["--only", "auth"]);
    assert_eq!((auth.portal.as_str(), auth.api.as_str()), ("", ""));
    let portal_firm = firm()
        .with("CHANCERY_PORTAL__LISTEN", &format!("127.0.0.1:{port}"))
        .with("CHANCERY_IDENTITY__ISSUER", &auth.auth);
    let portal = portal_firm.start_with(&["--only", "portal"]);
    assert_eq!((portal.auth.as_str(), portal.api.as_str()), ("", ""));
    let at_auth = Scene { firm: auth_firm, server: auth, browser: Browser::start().await };

    let browser = &at_auth.browser;
    browser.open(&format!("{}/sessions", portal.portal)).await;
    browser.wait_for_url(&at_auth.auth("/sign-in")).await;
    browser.press("a[href^='/sign-up']").await;
    at_auth.give_password("nora@example.com", "walnut ledger candle").await;
    browser.fill("#code", code_in(&at_auth.emails(1).await[0])).await;
    browser.press("form button.button-primary").await;
    at_auth.consent().await;
    browser.wait_for_url(&format!("{}/sessions", portal.portal)).await;
    assert_eq!(browser.text(".bar-person").await, "nora@example.com");
    assert_eq!(portal_firm.json(&["user", "list", "--json"])[0]["issuer"], at_auth.server.auth);
}
