//! The life of a session.

use super::TestPortal;
use super::browser::{Browser, claims};
use crate::maintenance::run_maintenance_once;
use crate::sign_in::authentication::Authentication;
use axum::http::{StatusCode, header};
use chancery_domain::{OsRandomness, SecretToken};
use chancery_store::{NewProviderAccount, NewProviderSession, PasswordHash};
use std::time::Duration;

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
async fn signed_out_browser_is_redirected_and_api_gets_401() {
    let portal = TestPortal::open().await;
    let mut browser = portal.browser();
    let reply = browser.get("/clients?page=2&q=a%20b").await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER);
    assert_eq!(reply.location(), "/auth/sign-in?return_to=%2Fclients%3Fpage%3D2%26q%3Da%2520b");
    let reply = browser.post("/sessions/end", "end=others").await;
    assert_eq!(reply.status, StatusCode::UNAUTHORIZED);
    assert!(reply.body.contains("You are signed out"), "{}", reply.body);
    for accept in ["application/json", "*/*", ""] {
        browser.accept = accept;
        for path in ["/clients", "/sessions"] {
            let reply = browser.get(path).await;
            assert_eq!(reply.status, StatusCode::UNAUTHORIZED);
            assert_eq!(reply.headers[header::CONTENT_TYPE], "application/json");
            let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
            assert_eq!(body["error"]["code"], "not_signed_in");
            assert!(body["error"]["reason"].is_string());
        }
    }
}

#[tokio::test]
async fn sign_in_replaces_the_browsers_session() {
    let portal = TestPortal::open().await;
    let mut browser = signed_in(&portal, "ann").await;
    let mut elsewhere = signed_in(&portal, "ann").await;
    let mut old = portal.browser();
    old.cookies = browser.cookies.clone();
    browser.follow_callback(claims("ben", "ben@company.com")).await;
    assert_ne!(old.cookies, browser.cookies);
    assert!(!is_open(&mut old).await, "what somebody copied is worth nothing");
    assert!(is_open(&mut browser).await && is_open(&mut elsewhere).await);
    let planted = "a".repeat(43);
    let mut fixed = portal.browser();
    fixed.cookies.insert("session".to_owned(), planted.clone());
    fixed.follow_callback(claims("ann", "ann@company.com")).await;
    assert_ne!(fixed.cookies["session"], planted, "a token is ours or none");
}

#[tokio::test]
async fn only_the_session_hash_is_stored() {
    let portal = TestPortal::open().await;
    let browser = signed_in(&portal, "ann").await;
    let token = browser.cookies["session"].as_bytes().to_vec();
    for file in std::fs::read_dir(portal.folder.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(token.len()).any(|window| window == token));
    }
}

#[tokio::test]
async fn session_ends_after_idle_and_absolute_timeouts() {
    let portal = TestPortal::open().await;
    let (mut idle, mut used) = (signed_in(&portal, "ann").await, signed_in(&portal, "ann").await);
    portal.pass(Duration::from_secs(1_790));
    assert!(is_open(&mut used).await);
    portal.pass(Duration::from_secs(10));
    assert!(!is_open(&mut idle).await);
    for _ in 0..24 {
        portal.pass(Duration::from_secs(1_700));
        assert!(is_open(&mut used).await);
    }
    portal.pass(Duration::from_secs(1_700));
    assert!(!is_open(&mut used).await, "12 hours and more");
    assert_eq!(run_maintenance_once(&portal.portal).await.unwrap(), 2);
}

#[tokio::test]
async fn duplicate_session_cookies_are_rejected_and_expired() {
    let portal = TestPortal::open().await;
    let mut browser = signed_in(&portal, "ann").await;
    let token = browser.cookies.remove("session").unwrap();
    for (first, second) in [(token.as_str(), token.as_str()), (&token, "x"), ("x", &token)] {
        for path in ["/clients", "/sessions", "/"] {
            browser.cookies.insert("session".to_owned(), format!("{first}; session={second}"));
            let reply = browser.get(path).await;
            assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{path}");
            assert!(reply.body.contains("two cookies named") && reply.body.contains("delete this site"));
            assert_eq!(reply.set_cookies(), ["session=; Path=/; Max-Age=0; HttpOnly; Secure; SameSite=Lax"]);
        }
    }
    browser.cookies.insert("session".to_owned(), token);
    assert!(is_open(&mut browser).await, "nobody can end a session by planting another");
}

#[tokio::test]
async fn sign_out_ends_session_and_cookie() {
    let portal = TestPortal::open().await;
    let (mut browser, mut elsewhere) = (signed_in(&portal, "ann").await, signed_in(&portal, "ann").await);
    let mut copy = portal.browser();
    copy.cookies = browser.cookies.clone();
    assert_eq!(browser.get("/auth/sign-out").await.status, StatusCode::METHOD_NOT_ALLOWED);
    let reply = browser.post("/auth/sign-out", "").await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, "/signed-out"));
    assert_eq!(browser.cookies.keys().collect::<Vec<_>>(), ["__Host-ask_again", "__Host-known_browser"]);
    let page = browser.get("/signed-out").await.body;
    assert!(page.contains("You are signed out") && page.contains("You are still signed in at"), "{page}");
    assert!(!is_open(&mut copy).await && is_open(&mut elsewhere).await);
    let again = copy.post("/auth/sign-out", "").await;
    assert_eq!(again.status, StatusCode::SEE_OTHER, "whoever is out already is out");
}

fn numbers(page: &str) -> Vec<String> {
    let buttons = page.split("name=\"end\" value=\"").skip(1);
    buttons.map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn person_can_list_and_end_own_sessions() {
    let portal = TestPortal::open().await;
    let (mut here, mut there) = (signed_in(&portal, "ann").await, signed_in(&portal, "ann").await);
    let mut bens = signed_in(&portal, "ben").await;
    there.address = "[2001:db8::7]:1".parse().unwrap();
    portal.pass(Duration::from_secs(600));
    assert!(is_open(&mut there).await);
    portal.pass(Duration::from_secs(60));
    let listed = here.get("/sessions").await;
    for part in [
        "2001:db8::7",
        "192.0.2.7",
        "Firefox on Linux",
        "This browser",
        "today, 09:14 UTC",
        "today, 09:24 UTC",
        "Sessions end after 30 minutes without use, and 12 hours after sign-in.",
    ] {
        assert!(listed.body.contains(part), "{part}: {}", listed.body);
    }
    let own = numbers(&listed.body);
    assert_eq!(own.len(), 4, "two sessions, all others, everywhere: {own:?}");
    assert_eq!(&own[2..], ["others", "everywhere"]);

    let bens_own = numbers(&bens.get("/sessions").await.body);
    here.post("/sessions/end", &format!("end={}", bens_own[0])).await;
    assert!(is_open(&mut bens).await, "nobody ends another's");

    let reply = here.post("/sessions/end", "end=others").await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, "/sessions?ended=others"));
    assert!(!is_open(&mut there).await && is_open(&mut here).await);
    assert!(here.get("/sessions?ended=others").await.body.contains("All other sessions ended."));

    let mut there = signed_in(&portal, "ann").await;
    let mine = numbers(&there.get("/sessions").await.body);
    let from_here = numbers(&here.get("/sessions").await.body);
    assert_eq!(mine, from_here);
    // The most recently used is listed first, which is the new one.
    let reply = there.post("/sessions/end", &format!("end={}", mine[1])).await;
    assert_eq!(reply.location(), "/sessions?ended=one");
    assert!(!is_open(&mut here).await && is_open(&mut there).await);

    let mut third = signed_in(&portal, "ann").await;
    let reply = there.post("/sessions/end", "end=everywhere").await;
    assert_eq!(reply.location(), "/signed-out");
    assert!(there.cookies.get("session").is_none() && !is_open(&mut third).await);
    assert!(is_open(&mut bens).await);
    assert_eq!(bens.post("/sessions/end", "end=no").await.status, StatusCode::BAD_REQUEST);
    assert_eq!(bens.post("/sessions/end", "").await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn ending_all_sessions_also_ends_provider_sessions() {
    for choice in ["others", "everywhere"] {
        let portal = TestPortal::open().await;
        let mut browser = signed_in(&portal, "ann").await;
        let store = &portal.store;
        let mut tokens = Vec::new();
        for subject in ["ann", "ben"] {
            let new = NewProviderAccount {
                subject: subject.to_owned(),
                email: format!("{subject}@company.com").parse().unwrap(),
                password_hash: PasswordHash("x".to_owned()),
                at: super::MORNING,
            };
            let account = store.provider_accounts.create_provider_account(new).await.unwrap();
            let token = SecretToken::generate(&OsRandomness).hash();
            let password_version = account.password_version;
            let new = NewProviderSession {
                token,
                subject: account.subject,
                password_version,
                sid: format!("session of {subject}"),
                amr: "pwd".to_owned(),
                at: super::MORNING,
            };
            store.provider_sessions.start_provider_session(new).await.unwrap();
            tokens.push(token);
        }
        browser.post("/sessions/end", &format!("end={choice}")).await;
        let times = portal.portal.settings.session_times;
        let anns = store.provider_sessions.provider_session(tokens[0], times, super::MORNING).await.unwrap();
        let bens = store.provider_sessions.provider_session(tokens[1], times, super::MORNING).await.unwrap();
        assert_eq!((anns.is_some(), bens.is_some()), (false, true), "{choice}");
    }
}

#[tokio::test]
async fn ending_the_other_sessions_spares_the_provider_session_of_this_browser() {
    let portal = TestPortal::open().await;
    let mut browser = portal.browser();
    let mut own = claims("ann", "ann@company.com");
    own.authentication = Authentication { sid: Some("own".to_owned()), ..Authentication::default() };
    assert!(browser.follow_callback(own).await.has_session());
    let new = NewProviderAccount {
        subject: "ann".to_owned(),
        email: "ann@company.com".parse().unwrap(),
        password_hash: PasswordHash("x".to_owned()),
        at: super::MORNING,
    };
    let account = portal.store.provider_accounts.create_provider_account(new).await.unwrap();
    let mut tokens = Vec::new();
    for sid in ["own", "another"] {
        let token = SecretToken::generate(&OsRandomness).hash();
        let new = NewProviderSession {
            token,
            subject: account.subject.clone(),
            password_version: account.password_version,
            sid: sid.to_owned(),
            amr: "pwd".to_owned(),
            at: super::MORNING,
        };
        portal.store.provider_sessions.start_provider_session(new).await.unwrap();
        tokens.push(token);
    }
    browser.post("/sessions/end", "end=others").await;
    let times = portal.portal.settings.session_times;
    let mut are_open = Vec::new();
    for token in tokens {
        let found = portal.store.provider_sessions.provider_session(token, times, super::MORNING).await;
        are_open.push(found.unwrap().is_some());
    }
    assert_eq!(are_open, [true, false]);
    assert!(is_open(&mut browser).await);
}

#[tokio::test]
async fn cross_site_sign_out_is_blocked() {
    let portal = TestPortal::open().await;
    let mut browser = signed_in(&portal, "ann").await;
    browser.site = "cross-site";
    for path in ["/auth/sign-out", "/sessions/end", "/auth/code", "/auth/code/resend"] {
        assert_eq!(browser.post(path, "end=everywhere").await.status, StatusCode::FORBIDDEN, "{path}");
    }
    assert!(is_open(&mut browser).await);
}
