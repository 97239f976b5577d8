//! Signing in and out.

use super::harness::{Browser, PASSWORD, TestProvider};
use axum::http::Method;
use chancery_domain::{Clock as _, SecretToken, SessionTimeouts};
use std::time::Duration;

#[tokio::test]
async fn sign_in_starts_a_session_and_redirects_to_return_to() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    let onward = "/authorize?client_id=portal&state=a%20b";
    let page =
        browser.get(&format!("/sign-in?return_to={}", onward.replace('%', "%25").replace('&', "%26"))).await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains("value=\"/authorize?client_id=portal&#38;state=a%20b\""), "{}", page.body);
    assert!(
        page.body.contains("autocomplete=\"username webauthn\"")
            && page.body.contains("autocomplete=\"current-password\"")
    );
    let fields = [("email", " Maya@EXAMPLE.com "), ("password", PASSWORD), ("return_to", onward)];
    let reply = browser.post("/sign-in", &fields).await;
    assert_eq!(reply.redirect_to(), onward);
    assert!(browser.get("/").await.body.contains("maya@example.com"));
}

#[tokio::test]
async fn wrong_password_and_unknown_email_get_the_same_response() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    let wrong = browser.sign_in("maya@example.com", "not her password").await;
    let unknown = browser.sign_in("omar@example.com", "not her password").await;
    wrong.assert_form_again("Incorrect email or password");
    assert!(wrong.body.contains("value=\"maya@example.com\""), "what was typed is kept");
    assert!(!wrong.body.contains("not her password"), "but never a password");
    assert_eq!((wrong.status, &wrong.body), (unknown.status, &unknown.body.replace("omar@", "maya@")));
    let names = |headers: &axum::http::HeaderMap| headers.keys().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(names(&wrong.headers), names(&unknown.headers));
    assert!(browser.cookies.is_empty());
}

#[tokio::test]
async fn sign_in_errors_are_shown_at_their_fields() {
    let served = TestProvider::start().await;
    let mut browser = served.browser();
    let reply = browser.sign_in("", "").await;
    reply.assert_form_again("Fix 2 problems");
    for text in ["href=\"#email\">Enter your email address", "href=\"#password\">Enter your password"] {
        assert!(reply.body.contains(text), "{}", reply.body);
    }
    let reply = browser.sign_in("maya<script>", "x").await;
    reply.assert_form_again("like name@example.com");
    assert!(reply.body.contains("maya&#60;script&#62;"), "{}", reply.body);
    let empty = browser.post("/sign-in", &[]).await;
    assert_eq!(empty.status, 422);
}

#[tokio::test]
async fn sign_in_never_redirects_to_another_site() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    for elsewhere in ["//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)", ""]
    {
        let mut browser = served.browser();
        let fields = [("email", "maya@example.com"), ("password", PASSWORD), ("return_to", elsewhere)];
        assert_eq!(browser.post("/sign-in", &fields).await.redirect_to(), "/", "{elsewhere}");
    }
}

#[tokio::test]
async fn sign_in_prevents_session_fixation() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    let planted = "a".repeat(43);
    browser.cookies.insert("__Host-auth_session", planted.clone());
    browser.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    let first = browser.cookies["__Host-auth_session"].clone();
    assert_ne!(first, planted);
    browser.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    assert_ne!(browser.cookies["__Host-auth_session"], first);
    assert!(browser.is_signed_in().await);
    for old in [planted, first] {
        let mut other = served.browser();
        other.cookies.insert("__Host-auth_session", old);
        assert!(!other.is_signed_in().await, "the browser's last session is over");
    }
}

#[tokio::test]
async fn sign_out_ends_the_server_session() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    browser.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    let mut thief = browser.clone();
    assert!(thief.is_signed_in().await);
    assert_eq!(browser.post("/sign-out", &[]).await.redirect_to(), "/signed-out");
    assert_eq!(browser.cookies.get("__Host-auth_session"), None);
    assert!(!thief.is_signed_in().await);
    let page = browser.get("/signed-out").await;
    assert!(page.status == 200 && page.body.contains("You are signed out"));
}

#[tokio::test]
async fn session_ends_after_idle_and_absolute_timeouts() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    browser.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    let minutes = |count: u64| served.clock.advance(Duration::from_secs(count * 60));
    minutes(29);
    assert!(browser.is_signed_in().await);
    minutes(30);
    assert!(!browser.is_signed_in().await);
}

#[tokio::test]
async fn cross_site_forms_cannot_sign_in_or_out() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    let fields = [("email", "maya@example.com"), ("password", PASSWORD)];
    let foreign = [("sec-fetch-site", "cross-site")];
    let reply = browser.send(Method::POST, "/sign-in", &fields, &foreign).await;
    assert_eq!((reply.status, browser.cookies.is_empty()), (403, true), "{reply:?}");
    browser.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    assert_eq!(browser.send(Method::POST, "/sign-out", &[], &foreign).await.status, 403);
    assert!(browser.is_signed_in().await);
}

#[tokio::test]
async fn invalid_forms_are_rejected_and_odd_passwords_are_just_wrong() {
    let served = TestProvider::start().await;
    let mut browser = served.browser();
    let reply = browser.sign_in("maya@example.com", &"x".repeat(1_000_000)).await;
    assert_eq!(reply.status, 413, "{reply:?}");
    let reply = browser.post("/sign-in", &[("email", "a@example.com"), ("email", "b@example.com")]).await;
    assert_eq!(reply.status, 400, "{reply:?}");
    assert!(reply.body.contains("reload the page and try again"));
    for password in ["a\0b", "\u{10ffff}", &"x".repeat(5_000)] {
        assert_eq!(browser.sign_in("maya@example.com", password).await.status, 422);
    }
}

#[tokio::test]
async fn duplicate_sessions_are_reported_and_sign_out_ends_both() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let (mut one, mut two) = (served.browser(), served.browser());
    one.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    two.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    let mut both = one.clone();
    let [first, second] = [&one, &two].map(|browser| &browser.cookies["__Host-auth_session"]);
    both.cookies.insert("__Host-auth_session", format!("{first}; __Host-auth_session={second}"));
    for path in ["/", "/sign-in"] {
        let mut both = both.clone();
        let reply = both.get(path).await;
        assert_eq!(reply.status, 400, "{path}");
        assert!(
            reply.body.contains("Two session cookies") && reply.body.contains("cookies"),
            "{}",
            reply.body
        );
        assert!(
            reply.header("set-cookie").starts_with("__Host-auth_session=; Path=/; Max-Age=0"),
            "{reply:?}"
        );
    }
    assert_eq!(both.clone().sign_in("maya@example.com", PASSWORD).await.status, 400);
    assert!(one.is_signed_in().await && two.is_signed_in().await, "nothing was changed");
    assert_eq!(both.post("/sign-out", &[]).await.redirect_to(), "/signed-out");
    assert!(!one.is_signed_in().await && !two.is_signed_in().await, "signed out means signed out");
}

#[tokio::test]
async fn session_cookie_has_no_max_age() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let reply = served.browser().sign_in("maya@example.com", PASSWORD).await;
    let cookie = reply.header("set-cookie");
    assert!(cookie.starts_with("__Host-auth_session=") && !cookie.contains("Max-Age"), "{cookie}");
}

#[tokio::test]
async fn signing_in_again_keeps_the_session_and_another_person_ends_it() {
    let served = TestProvider::start().await;
    let maya = served.account("maya@example.com").await;
    served.account("omar@example.com").await;
    let mut browser = served.browser();
    let times = SessionTimeouts { idle: Duration::from_secs(1_800), max: Duration::from_secs(43_200) };
    let session = async |browser: &Browser| {
        let token = SecretToken::parse(&browser.cookies["__Host-auth_session"]).unwrap();
        served
            .store
            .provider_sessions
            .provider_session(token.hash(), times, served.clock.now())
            .await
            .unwrap()
    };
    browser.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    let first = session(&browser).await.unwrap();
    served.clock.advance(Duration::from_secs(60));
    browser.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    let second = session(&browser).await.unwrap();
    assert_eq!(second.sid, first.sid, "applications know the session by it");
    assert_eq!(second.started_at, served.clock.now(), "the credentials are fresh");
    assert_eq!(second.account.subject, maya.subject);
    let mayas = browser.clone();
    browser.sign_in("omar@example.com", PASSWORD).await.redirect_to();
    let third = session(&browser).await.unwrap();
    assert_ne!(third.sid, first.sid);
    assert!(session(&mayas).await.is_none(), "her session is over");
}

#[tokio::test]
async fn typed_address_is_carried_over_without_a_url() {
    let served = TestProvider::start().await;
    let mut browser = served.browser();
    let page = browser.get("/sign-in?return_to=/authorize%3Fx%3D1").await;
    assert!(page.body.contains("formaction=\"/forgotten-password/address\""), "{}", page.body);
    let page = browser.get("/sign-up").await;
    assert!(page.body.contains("formaction=\"/sign-in/address\""), "{}", page.body);
    let fields =
        [("email", " maya<b>@example.com"), ("password", "half a secret"), ("return_to", "/authorize?x=1")];
    for path in ["/forgotten-password/address", "/sign-in/address"] {
        let page = browser.post(path, &fields).await;
        assert_eq!(page.status, 200, "{page:?}");
        assert!(page.body.contains("value=\"maya&#60;b&#62;@example.com\""), "{}", page.body);
        assert!(page.body.contains("value=\"/authorize?x=1\""), "{}", page.body);
        assert!(!page.body.contains("half a secret") && !page.body.contains("aria-invalid"), "{}", page.body);
        let foreign = browser.send(Method::POST, path, &fields, &[("sec-fetch-site", "cross-site")]).await;
        assert_eq!(foreign.status, 403);
    }
    assert!(served.emails().is_empty() && browser.cookies.is_empty());
}

#[tokio::test]
async fn every_cookie_of_the_provider_has_the_host_prefix() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    let mut replies = vec![browser.sign_in("maya@example.com", PASSWORD).await];
    let sign_up = [("email", "omar@example.com"), ("password", PASSWORD)];
    replies.push(browser.post("/sign-up", &sign_up).await);
    replies.push(browser.post("/forgotten-password", &[("email", "maya@example.com")]).await);
    let emails = served.emails_when(2).await;
    let code = emails.iter().find(|email| email.to == "maya@example.com").unwrap().code().unwrap();
    let reset = [("code", code.as_str()), ("password", "one more quiet phrase")];
    replies.push(browser.post("/forgotten-password/code", &reset).await);
    replies.push(browser.post("/sign-out", &[]).await);
    let mut names = std::collections::BTreeSet::new();
    for reply in &replies {
        for cookie in reply.headers.get_all("set-cookie") {
            let cookie = cookie.to_str().unwrap();
            assert!(cookie.starts_with("__Host-") && cookie.contains("; Path=/;"), "{cookie}");
            names.insert(cookie.split('=').next().unwrap().to_owned());
        }
    }
    let expected = ["auth_session", "known_device", "new_password", "password_set", "sign_up"];
    assert_eq!(names.into_iter().collect::<Vec<_>>(), expected.map(|name| format!("__Host-{name}")));
}
