//! Signing in and out.

use super::served::{PASSWORD, Served};
use axum::http::Method;

#[tokio::test]
async fn the_right_password_starts_a_session_and_leads_to_where_one_was_going() {
    let served = Served::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    let onward = "/authorize?client_id=portal&state=a%20b";
    let page =
        browser.get(&format!("/sign-in?return_to={}", onward.replace('%', "%25").replace('&', "%26"))).await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains("value=\"/authorize?client_id=portal&#38;state=a%20b\""), "{}", page.body);
    assert!(
        page.body.contains("autocomplete=\"username\"")
            && page.body.contains("autocomplete=\"current-password\"")
    );
    let fields = [("email", " Maya@EXAMPLE.com "), ("password", PASSWORD), ("return_to", onward)];
    let reply = browser.post("/sign-in", &fields).await;
    assert_eq!(reply.leads_to(), onward);
    assert!(browser.get("/").await.body.contains("maya@example.com"));
}

#[tokio::test]
async fn a_wrong_password_and_an_unknown_address_get_the_same_answer() {
    let served = Served::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    let wrong = browser.sign_in("maya@example.com", "not her password").await;
    let unknown = browser.sign_in("omar@example.com", "not her password").await;
    wrong.assert_form_again("do not belong together");
    assert!(wrong.body.contains("value=\"maya@example.com\""), "what was typed is kept");
    assert!(!wrong.body.contains("not her password"), "but never a password");
    assert_eq!((wrong.status, &wrong.body), (unknown.status, &unknown.body.replace("omar@", "maya@")));
    let names = |headers: &axum::http::HeaderMap| headers.keys().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(names(&wrong.headers), names(&unknown.headers));
    assert!(browser.cookies.is_empty());
}

#[tokio::test]
async fn what_is_missing_or_no_address_is_said_at_its_field() {
    let served = Served::start().await;
    let mut browser = served.browser();
    let reply = browser.sign_in("", "").await;
    reply.assert_form_again("Two things to put right");
    for text in ["href=\"#email\">Enter your e-mail address", "href=\"#password\">Enter your password"] {
        assert!(reply.body.contains(text), "{}", reply.body);
    }
    let reply = browser.sign_in("maya<script>", "x").await;
    reply.assert_form_again("like name@example.com");
    assert!(reply.body.contains("maya&#60;script&#62;"), "{}", reply.body);
    let empty = browser.post("/sign-in", &[]).await;
    assert_eq!(empty.status, 422);
}

#[tokio::test]
async fn signing_in_leads_to_no_other_site() {
    let served = Served::start().await;
    served.account("maya@example.com").await;
    for elsewhere in ["//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)", ""]
    {
        let mut browser = served.browser();
        let fields = [("email", "maya@example.com"), ("password", PASSWORD), ("return_to", elsewhere)];
        assert_eq!(browser.post("/sign-in", &fields).await.leads_to(), "/", "{elsewhere}");
    }
}

#[tokio::test]
async fn every_sign_in_has_a_new_session_and_a_planted_one_is_worth_nothing() {
    let served = Served::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    let planted = "a".repeat(43);
    browser.cookies.insert("auth_session", planted.clone());
    browser.sign_in("maya@example.com", PASSWORD).await.leads_to();
    let first = browser.cookies["auth_session"].clone();
    assert_ne!(first, planted);
    browser.sign_in("maya@example.com", PASSWORD).await.leads_to();
    assert_ne!(browser.cookies["auth_session"], first);
    assert!(browser.is_signed_in().await);
    for old in [planted, first] {
        let mut other = served.browser();
        other.cookies.insert("auth_session", old);
        assert!(!other.is_signed_in().await, "the browser's last session is over");
    }
}

#[tokio::test]
async fn signing_out_ends_the_session_on_the_server_too() {
    let served = Served::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    browser.sign_in("maya@example.com", PASSWORD).await.leads_to();
    let mut thief = browser.clone();
    assert!(thief.is_signed_in().await);
    assert_eq!(browser.post("/sign-out", &[]).await.leads_to(), "/signed-out");
    assert!(browser.cookies.is_empty());
    assert!(!thief.is_signed_in().await);
    let page = browser.get("/signed-out").await;
    assert!(page.status == 200 && page.body.contains("You are signed out"));
}

#[tokio::test]
async fn a_session_ends_idle_and_old() {
    let served = Served::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    browser.sign_in("maya@example.com", PASSWORD).await.leads_to();
    let minutes = |count: u64| served.clock.advance(std::time::Duration::from_secs(count * 60));
    minutes(29);
    assert!(browser.is_signed_in().await);
    minutes(30);
    assert!(!browser.is_signed_in().await);
}

#[tokio::test]
async fn another_sites_form_signs_nobody_in_or_out() {
    let served = Served::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    let fields = [("email", "maya@example.com"), ("password", PASSWORD)];
    let foreign = [("sec-fetch-site", "cross-site")];
    let reply = browser.send(Method::POST, "/sign-in", &fields, &foreign).await;
    assert_eq!((reply.status, browser.cookies.is_empty()), (403, true), "{reply:?}");
    browser.sign_in("maya@example.com", PASSWORD).await.leads_to();
    assert_eq!(browser.send(Method::POST, "/sign-out", &[], &foreign).await.status, 403);
    assert!(browser.is_signed_in().await);
}

#[tokio::test]
async fn a_form_that_is_too_large_or_no_form_is_refused_as_a_page_and_odd_passwords_are_only_wrong() {
    let served = Served::start().await;
    let mut browser = served.browser();
    let reply = browser.sign_in("maya@example.com", &"x".repeat(1_000_000)).await;
    assert_eq!(reply.status, 413, "{reply:?}");
    let reply = browser.post("/sign-in", &[("email", "a@example.com"), ("email", "b@example.com")]).await;
    assert_eq!(reply.status, 400, "{reply:?}");
    assert!(reply.body.contains("send the form again"));
    for password in ["a\0b", "\u{10ffff}", &"x".repeat(5_000)] {
        assert_eq!(browser.sign_in("maya@example.com", password).await.status, 422);
    }
}

#[tokio::test]
async fn a_browser_with_two_sessions_is_told_so_and_signing_out_ends_both() {
    let served = Served::start().await;
    served.account("maya@example.com").await;
    let (mut one, mut two) = (served.browser(), served.browser());
    one.sign_in("maya@example.com", PASSWORD).await.leads_to();
    two.sign_in("maya@example.com", PASSWORD).await.leads_to();
    let mut both = one.clone();
    let [first, second] = [&one, &two].map(|browser| &browser.cookies["auth_session"]);
    both.cookies.insert("auth_session", format!("{first}; auth_session={second}"));
    for path in ["/", "/sign-in"] {
        let mut both = both.clone();
        let reply = both.get(path).await;
        assert_eq!(reply.status, 400, "{path}");
        assert!(reply.body.contains("two sessions") && reply.body.contains("cookies"), "{}", reply.body);
        assert!(reply.header("set-cookie").starts_with("auth_session=; Path=/; Max-Age=0"), "{reply:?}");
    }
    assert_eq!(both.clone().sign_in("maya@example.com", PASSWORD).await.status, 400);
    assert!(one.is_signed_in().await && two.is_signed_in().await, "nothing was changed");
    assert_eq!(both.post("/sign-out", &[]).await.leads_to(), "/signed-out");
    assert!(!one.is_signed_in().await && !two.is_signed_in().await, "signed out means signed out");
}

#[tokio::test]
async fn the_session_goes_with_the_browser() {
    let served = Served::start().await;
    served.account("maya@example.com").await;
    let reply = served.browser().sign_in("maya@example.com", PASSWORD).await;
    let cookie = reply.header("set-cookie");
    assert!(cookie.starts_with("auth_session=") && !cookie.contains("Max-Age"), "{cookie}");
}
