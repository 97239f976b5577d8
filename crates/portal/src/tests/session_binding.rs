//! `portal.bind_session`: a second cookie, which no sibling subdomain can plant, must match the session.

use super::TestPortal;
use super::browser::{Browser, claims};
use axum::http::StatusCode;

const BINDING: &str = "__Host-session_binding";

async fn bound_portal() -> TestPortal {
    TestPortal::open_changed(|settings| settings.bind_session = true).await
}

async fn signed_in(portal: &TestPortal, subject: &str) -> Browser {
    let mut browser = portal.browser();
    let reply = browser.follow_callback(claims(subject, &format!("{subject}@company.com"))).await;
    assert!(reply.has_session(), "{reply:?}");
    browser
}

async fn is_open(browser: &mut Browser) -> bool {
    browser.get("/clients").await.status == StatusCode::OK
}

#[tokio::test]
async fn planted_session_is_worth_nothing_without_its_binding() {
    let portal = bound_portal().await;
    let (mut victim, mut attacker) = (signed_in(&portal, "ann").await, signed_in(&portal, "eve").await);
    assert!(is_open(&mut victim).await && is_open(&mut attacker).await);
    let own = victim.cookies["session"].clone();
    victim.cookies.insert("session".to_owned(), attacker.cookies["session"].clone());
    assert!(!is_open(&mut victim).await, "the victim does not work in the attacker's account");
    victim.cookies.insert("session".to_owned(), own);
    assert!(is_open(&mut victim).await);
    victim.cookies.remove(BINDING);
    assert!(!is_open(&mut victim).await, "a copied session alone does not suffice");
}

#[tokio::test]
async fn binding_cookie_is_host_bound_and_goes_with_the_session() {
    let portal = bound_portal().await;
    let mut browser = portal.browser();
    let reply = browser.follow_callback(claims("ann", "ann@company.com")).await;
    let [_, binding, _] = reply.set_cookies()[..] else { panic!("{reply:?}") };
    let (value, attributes) = binding.split_once(';').unwrap();
    assert_eq!(value.len(), BINDING.len() + 1 + 43);
    assert_eq!(attributes, " Path=/; HttpOnly; Secure; SameSite=Lax");
    browser.post("/auth/sign-out", "").await;
    assert!(browser.cookies.get(BINDING).is_none() && browser.cookies.get("session").is_none());
}

#[tokio::test]
async fn session_alone_suffices_by_default() {
    let portal = TestPortal::open().await;
    let mut browser = signed_in(&portal, "ann").await;
    assert_eq!(browser.cookies.keys().collect::<Vec<_>>(), ["__Host-known_browser", "session"]);
    assert!(is_open(&mut browser).await);
}
