//! Codes by email, sent through a real mail server.

use super::{EMAIL_CODE, Scene, code_in};
use crate::smtp::{Security, SmtpServer};

/// A firm that sends its codes through that server, with a user signed in at the provider.
async fn pending_sign_in(mail: &SmtpServer) -> Scene {
    let authority = mail.authority();
    let settings = [
        EMAIL_CODE,
        ("CHANCERY_MAIL__SMTP", &mail.url()),
        ("CHANCERY_MAIL__FROM", "portal@example.com"),
        ("SSL_CERT_FILE", authority.to_str().unwrap()),
    ];
    let scene = Scene::start_with(&settings).await;
    scene.sign_in_at_provider(&scene.person("maya")).await;
    scene.browser.wait_for_url(&scene.portal("/auth/code")).await;
    scene
}

async fn assert_code_is_delivered(security: Security) {
    let mail = SmtpServer::start(security, Some(("portal", "s3cret"))).await;
    let scene = pending_sign_in(&mail).await;
    let messages = mail.messages(1).await;
    assert!(messages[0].over_tls && messages[0].signed_in, "{messages:?}");
    assert_eq!(messages[0].from, "portal@example.com");
    assert_eq!(messages[0].to, ["maya@example.com"]);
    assert!(!scene.has_session().await);
    let field = "const code = document.querySelector('#code'); return [code.autocomplete, code.inputMode, \
        document.activeElement === code, document.querySelectorAll('input').length]";
    let expected = serde_json::json!(["one-time-code", "numeric", true, 1]);
    assert_eq!(scene.browser.script(field).await, expected);
    scene.browser.fill("#code", code_in(&messages[0].content)).await;
    scene.browser.press("form button.button-primary").await;
    scene.browser.wait_for_url(&scene.portal("/clients")).await;
    assert!(scene.has_session().await);
    assert!(scene.outbox().is_empty(), "no copy stays behind");
}

#[tokio::test]
async fn code_is_sent_over_starttls() {
    assert_code_is_delivered(Security::StartTls).await;
}

#[tokio::test]
async fn code_is_sent_over_implicit_tls() {
    assert_code_is_delivered(Security::Tls).await;
}

#[tokio::test]
async fn mail_server_with_an_untrusted_certificate_gets_no_code() {
    let (mail, other) = tokio::join!(
        SmtpServer::start(Security::StartTls, None),
        SmtpServer::start(Security::StartTls, None)
    );
    let (url, authority) = (mail.url(), other.authority());
    let settings =
        [EMAIL_CODE, ("CHANCERY_MAIL__SMTP", url.as_str()), ("SSL_CERT_FILE", authority.to_str().unwrap())];
    let scene = Scene::start_with(&settings).await;
    scene.sign_in_at_provider(&scene.person("maya")).await;
    scene.browser.shows("Code not sent.").await;
    assert!(mail.messages(0).await.is_empty());
}
