//! Codes by a real mail server.

use super::code::EMAIL_CODE;
use super::{Scene, code_in};
use crate::smtp::{Security, SmtpServer};

/// A firm that sends its codes through that server, with somebody signed in at the provider.
async fn half_signed_in(mail: &SmtpServer) -> Scene {
    let authority = mail.authority();
    let settings = [
        EMAIL_CODE,
        ("CHANCERY_MAIL__SMTP", &mail.url()),
        ("CHANCERY_MAIL__FROM", "portal@example.com"),
        ("SSL_CERT_FILE", authority.to_str().unwrap()),
    ];
    let scene = Scene::start_with(&settings).await;
    scene.sign_in_at_provider(&scene.person("maya")).await;
    scene.browser.arrive(&scene.portal("/auth/code")).await;
    scene
}

async fn a_code_arrives_and_works(security: Security) {
    let mail = SmtpServer::start(security, Some(("portal", "s3cret"))).await;
    let scene = half_signed_in(&mail).await;
    let messages = mail.messages(1).await;
    assert!(messages[0].over_tls && messages[0].signed_in, "{messages:?}");
    assert_eq!(messages[0].from, "portal@example.com");
    assert_eq!(messages[0].to, ["maya@example.com"]);
    scene.browser.fill("#code", code_in(&messages[0].content)).await;
    scene.browser.press("form button.button-primary").await;
    scene.browser.arrive(&scene.portal("/clients")).await;
    assert!(scene.has_session().await);
    assert!(scene.outbox().is_empty(), "no copy stays behind");
}

#[tokio::test]
async fn a_code_goes_out_over_starttls() {
    a_code_arrives_and_works(Security::StartTls).await;
}

#[tokio::test]
async fn a_code_goes_out_over_tls_from_the_first_byte() {
    a_code_arrives_and_works(Security::Tls).await;
}

#[tokio::test]
async fn a_mail_server_that_nobody_vouches_for_gets_no_code() {
    let (mail, other) = tokio::join!(
        SmtpServer::start(Security::StartTls, None),
        SmtpServer::start(Security::StartTls, None)
    );
    let (url, authority) = (mail.url(), other.authority());
    let settings =
        [EMAIL_CODE, ("CHANCERY_MAIL__SMTP", url.as_str()), ("SSL_CERT_FILE", authority.to_str().unwrap())];
    let scene = Scene::start_with(&settings).await;
    scene.sign_in_at_provider(&scene.person("maya")).await;
    scene.browser.shows("Not sent.").await;
    assert!(mail.messages(0).await.is_empty());
}

#[tokio::test]
async fn with_the_mail_server_down_the_page_says_so_and_offers_to_send_again() {
    let mail = SmtpServer::start(Security::Plain, None).await;
    let settings = [EMAIL_CODE, ("CHANCERY_MAIL__SMTP", &mail.url())];
    let scene = Scene::start_with(&settings).await;
    drop(mail);
    scene.sign_in_at_provider(&scene.person("maya")).await;
    let browser = &scene.browser;
    browser.arrive(&scene.portal("/auth/code")).await;
    browser.shows("Not sent.").await;
    browser.press("form[action='/auth/code/resend'] button").await;
    browser.shows("Not sent.").await;
    assert!(!scene.has_session().await);
    assert!(scene.server.log().contains("a sign-in code could not be sent"));
}
