//! `/logout`.

use super::served::{Browser, SIGNED_OUT, Served, authorize_path, encoded};
use std::time::Duration;

async fn is_signed_in(served: &Served, browser: &Browser) -> bool {
    let silent = authorize_path(&[("prompt", "none")]);
    served.get(browser, &silent).await.returned().contains_key("code")
}

fn logout_path(pairs: &[(&str, &str)]) -> String {
    format!("/logout?{}", encoded(pairs))
}

async fn id_token(served: &Served, browser: &Browser) -> String {
    let code = served.code(browser, &[]).await;
    served.exchange(&code).await.json()["id_token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_application_that_knows_the_person_signs_them_out_without_a_question() {
    let served = Served::start().await;
    let (account, browser) = served.consenting("ann@example.com").await;
    let hint = id_token(&served, &browser).await;
    served.clock.advance(Duration::from_secs(2 * 3600));
    // The ID token has expired meanwhile; as a hint it is still good.
    let browser_now = served.sign_in(&account).await;
    let pairs =
        [("id_token_hint", hint.as_str()), ("post_logout_redirect_uri", SIGNED_OUT), ("state", "x y")];
    let reply = served.get(&browser_now, &logout_path(&pairs)).await;
    let (place, parameters) = reply.leads_to();
    assert_eq!((place.as_str(), parameters["state"].as_str()), (SIGNED_OUT, "x y"));
    assert!(reply.header("set-cookie").starts_with("auth_session=;"), "{reply:?}");
    assert!(!is_signed_in(&served, &browser_now).await);
    let again = served.get(&Browser::default(), &logout_path(&pairs)).await;
    assert_eq!(again.leads_to().0, SIGNED_OUT, "whoever is signed out already goes on");
}

#[tokio::test]
async fn without_an_id_token_of_theirs_the_person_is_asked() {
    let served = Served::start().await;
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
    let (place, parameters) = served.post(&ben, "/logout/confirm", &form).await.leads_to();
    assert_eq!((place.as_str(), parameters["state"].as_str()), (SIGNED_OUT, "<&\">"));
    assert!(!is_signed_in(&served, &ben).await);
    assert!(is_signed_in(&served, &ann).await);
    let reply = served.post(&ann, "/logout/confirm", &[]).await;
    assert_eq!(reply.leads_to().0, "/signed-out");
    assert!(!is_signed_in(&served, &ann).await);
}

#[tokio::test]
async fn nobody_is_sent_to_an_address_that_is_not_registered() {
    let served = Served::start().await;
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
async fn a_posted_request_becomes_a_link() {
    let served = Served::start().await;
    let reply = served.post_from("cross-site", &Browser::default(), "/logout", "client_id=portal").await;
    assert_eq!((reply.status, reply.header("location")), (303, "/logout?client_id=portal"));
}
