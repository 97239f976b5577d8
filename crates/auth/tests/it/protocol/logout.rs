//! `/logout`.

use super::harness::{Browser, SIGNED_OUT, TestProvider, authorize_path, encoded};
use std::time::Duration;

async fn is_signed_in(served: &TestProvider, browser: &Browser) -> bool {
    let silent = authorize_path(&[("prompt", "none")]);
    served.get(browser, &silent).await.returned().contains_key("code")
}

fn logout_path(pairs: &[(&str, &str)]) -> String {
    format!("/logout?{}", encoded(pairs))
}

async fn id_token(served: &TestProvider, browser: &Browser) -> String {
    let code = served.code(browser, &[]).await;
    served.exchange(&code).await.json()["id_token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn logout_with_id_token_hint_needs_no_confirmation() {
    let served = TestProvider::start().await;
    let (account, browser) = served.consenting("ann@example.com").await;
    let hint = id_token(&served, &browser).await;
    served.clock.advance(Duration::from_secs(2 * 3600));
    // The ID token has expired by now, but is still valid as a hint.
    let browser_now = served.sign_in(&account).await;
    let pairs =
        [("id_token_hint", hint.as_str()), ("post_logout_redirect_uri", SIGNED_OUT), ("state", "x y")];
    let reply = served.get(&browser_now, &logout_path(&pairs)).await;
    let (path, parameters) = reply.redirect_to();
    assert_eq!((path.as_str(), parameters["state"].as_str()), (SIGNED_OUT, "x y"));
    assert!(reply.header("set-cookie").starts_with("__Host-auth_session=;"), "{reply:?}");
    assert!(!is_signed_in(&served, &browser_now).await);
    let again = served.get(&Browser::default(), &logout_path(&pairs)).await;
    assert_eq!(again.redirect_to().0, SIGNED_OUT, "a signed-out user continues");
}

#[tokio::test]
async fn logout_without_id_token_hint_asks_for_confirmation() {
    let served = TestProvider::start().await;
    let (_, ann) = served.consenting("ann@example.com").await;
    let anns_token = id_token(&served, &ann).await;
    let (_, ben) = served.consenting("ben@example.com").await;
    let mut forged = anns_token.clone();
    forged.replace_range(forged.len() - 4.., "AAAA");
    for pairs in [
        vec![],
        vec![("client_id", "portal")],
        vec![("client_id", "portal"), ("post_logout_redirect_uri", SIGNED_OUT), ("state", "<&\">")],
        vec![("id_token_hint", anns_token.as_str()), ("post_logout_redirect_uri", SIGNED_OUT)],
        vec![("client_id", "portal"), ("id_token_hint", forged.as_str())],
    ] {
        let page = served.get(&ben, &logout_path(&pairs)).await;
        assert_eq!(page.status, 200, "{pairs:?}");
        assert!(page.body.contains("ben@<wbr>example.com") && page.body.contains("Sign out</button>"));
        assert!(is_signed_in(&served, &ben).await, "nothing happens before the button");
    }
    let form = [("client_id", "portal"), ("post_logout_redirect_uri", SIGNED_OUT), ("state", "<&\">")];
    let cross = served.post_from("cross-site", &ben, "/logout/confirm", &encoded(&form)).await;
    assert_eq!(cross.status, 403);
    assert!(is_signed_in(&served, &ben).await, "another site cannot press it");
    let (path, parameters) = served.post(&ben, "/logout/confirm", &form).await.redirect_to();
    assert_eq!((path.as_str(), parameters["state"].as_str()), (SIGNED_OUT, "<&\">"));
    assert!(!is_signed_in(&served, &ben).await);
    assert!(is_signed_in(&served, &ann).await);
    let reply = served.post(&ann, "/logout/confirm", &[]).await;
    assert_eq!(reply.redirect_to().0, "/signed-out");
    assert!(!is_signed_in(&served, &ann).await);
}

#[tokio::test]
async fn logout_redirects_only_to_registered_uris() {
    let served = TestProvider::start().await;
    let (_, browser) = served.consenting("ann@example.com").await;
    let hint = id_token(&served, &browser).await;
    for pairs in [
        vec![("post_logout_redirect_uri", SIGNED_OUT)],
        vec![("client_id", "nobody"), ("post_logout_redirect_uri", SIGNED_OUT)],
        vec![("client_id", "portal"), ("post_logout_redirect_uri", "https://evil.example/")],
        vec![("client_id", "portal"), ("post_logout_redirect_uri", "http://localhost:8081/signed-out/")],
        vec![("id_token_hint", "forged"), ("post_logout_redirect_uri", SIGNED_OUT)],
        vec![("id_token_hint", hint.as_str()), ("client_id", "public")],
        vec![("client_id", "portal"), ("client_id", "portal")],
    ] {
        for reply in [
            served.get(&browser, &logout_path(&pairs)).await,
            served.post(&browser, "/logout/confirm", &pairs).await,
        ] {
            assert_eq!((reply.status, reply.header("location")), (400, ""), "{pairs:?}");
        }
    }
    assert!(is_signed_in(&served, &browser).await);
}

#[tokio::test]
async fn posted_logout_redirects_to_get() {
    let served = TestProvider::start().await;
    let reply = served.post_from("cross-site", &Browser::default(), "/logout", "client_id=portal").await;
    assert_eq!((reply.status, reply.header("location")), (303, "/logout?client_id=portal"));
}

#[tokio::test]
async fn id_token_hint_ends_the_session_that_it_was_issued_in() {
    let served = TestProvider::start().await;
    let (_, browser) = served.consenting("ann@example.com").await;
    let hint = id_token(&served, &browser).await;
    let pairs = [("id_token_hint", hint.as_str()), ("post_logout_redirect_uri", SIGNED_OUT)];
    let without_cookie = served.get(&Browser::default(), &logout_path(&pairs)).await;
    assert_eq!(without_cookie.redirect_to().0, SIGNED_OUT);
    assert!(!is_signed_in(&served, &browser).await, "its session is over");

    let (account, ben) = served.consenting("ben@example.com").await;
    let elsewhere = served.sign_in(&account).await;
    let hint = id_token(&served, &ben).await;
    let pairs = [("id_token_hint", hint.as_str())];
    served.get(&Browser::default(), &logout_path(&pairs)).await.redirect_to();
    assert!(is_signed_in(&served, &elsewhere).await, "another session of the same person goes on");
}
