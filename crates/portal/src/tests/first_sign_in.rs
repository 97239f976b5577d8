//! Who may sign in, and as whom.

use super::TestPortal;
use super::browser::claims;
use super::firm::manage;
use crate::SecondFactor;
use crate::sign_in::finish::AuthenticatedIdentity;
use axum::http::StatusCode;
use chancery_domain::{Identity, LocalPath};

#[tokio::test]
async fn first_sign_in_creates_a_session_and_redirects_to_return_to() {
    let portal = TestPortal::open().await;
    let mut browser = portal.browser();
    let proven = AuthenticatedIdentity {
        return_to: LocalPath::parse("/clients?page=2").unwrap(),
        ..claims("1", "Ann@Company.com")
    };
    let reply = browser.follow_callback(proven).await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, "/clients?page=2"));
    let [cookie, _] = reply.set_cookies()[..] else { panic!("{reply:?}") };
    let (value, attributes) = cookie.split_once(';').unwrap();
    assert_eq!(value.len(), "session=".len() + 43);
    assert_eq!(attributes, " Path=/; HttpOnly; Secure; SameSite=Lax");
    assert_eq!(portal.people().await, [("ann@company.com".to_owned(), "consultant".to_owned())]);
    assert!(portal.emails().is_empty());
}

#[tokio::test]
async fn lookalike_addresses_are_rejected() {
    let portal = TestPortal::open().await;
    for address in [
        "x@evil-company.com",
        "x@company.com.evil.com",
        "x@evil.com@company.com",
        "\"x@company.com\"@evil.com",
        "\"x\"@company.com",
        "x@mail.company.com",
        "x@company.com.",
        "x@company.com,x@evil.com",
        "x@evil.com,x@company.com",
        " x@company.com",
        "x@company.com ",
        "x y@company.com",
        "x@company.com\r\nBcc: y@evil.com",
        "x\n@company.com",
        "x\r@company.com",
        "x\0@company.com",
        "x@company.com\0",
        "x@\u{ff43}ompany.com",
        "x\u{ff20}company.com",
        "x@comp\u{430}ny.com",
        "\u{445}@company.com",
        "x@xn--cmpany-2ya.com",
        "xn--x@xn--company.com",
        "=?utf-8?q?x?=@company.com",
        "=?utf-8?b?eEBjb21wYW55LmNvbQ==?=",
        "<script>alert(1)</script>@company.com",
        "x@company.com<x@evil.com>",
        "@company.com",
        "company.com",
        "",
    ] {
        for is_email_verified in [true, false] {
            let mut browser = portal.browser();
            let reply = browser
                .follow_callback(AuthenticatedIdentity { is_email_verified, ..claims("1", address) })
                .await;
            assert_eq!(reply.status, StatusCode::FORBIDDEN, "{address:?}");
            assert!(
                reply.set_cookies().is_empty()
                    && reply.body.contains("Only @company.com addresses can sign in here."),
                "{address:?}"
            );
            assert!(reply.body.contains("as=someone-else"), "{}", reply.body);
            assert!(!reply.body.contains("<script"), "{address:?}");
        }
    }
    // The claim was an array, a number or an object, or was missing.
    let reply =
        portal.browser().follow_callback(AuthenticatedIdentity { email: None, ..claims("1", "") }).await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN);
    assert!(portal.people().await.is_empty() && portal.emails().is_empty());
}

#[tokio::test]
async fn identity_is_keyed_on_issuer_and_subject() {
    let portal = TestPortal::open().await;
    for address in ["x@company.com", "X@COMPANY.COM", "x.hale@company.com"] {
        assert!(portal.browser().follow_callback(claims("1", address)).await.has_session());
    }
    assert_eq!(portal.people().await, [("x.hale@company.com".to_owned(), "consultant".to_owned())]);
    let rejected = portal.browser().follow_callback(claims("1", "x@elsewhere.com")).await;
    assert_eq!(rejected.status, StatusCode::FORBIDDEN, "a known person outside the domain");
    assert!(rejected.body.contains("You signed in as x@elsewhere.com."));
    assert_eq!(portal.people().await[0].0, "x.hale@company.com");
}

#[tokio::test]
async fn identities_with_one_address_never_merge() {
    let portal = TestPortal::open().await;
    let elsewhere = Identity { issuer: "https://other.example".to_owned(), subject: "1".to_owned() };
    let twin = claims("2", "x@company.com");
    for proven in
        [claims("1", "x@company.com"), twin.clone(), AuthenticatedIdentity { identity: elsewhere, ..twin }]
    {
        assert!(portal.browser().follow_callback(proven).await.has_session());
    }
    assert_eq!(portal.people().await.len(), 3);
}

#[tokio::test]
async fn configured_partners_become_partners_at_sign_in() {
    let portal = TestPortal::open().await;
    portal.browser().follow_callback(claims("1", "RUTH@company.com")).await;
    portal.browser().follow_callback(claims("2", "ann@company.com")).await;
    assert_eq!(portal.people().await[1], ("ruth@company.com".to_owned(), "partner".to_owned()));
    let ann = portal.portal.store.people.list_people().await.unwrap()[0].clone();
    portal
        .portal
        .store
        .people
        .set_role(manage(&portal.portal), ann.id, chancery_domain::Role::Partner)
        .await
        .unwrap();
    portal.browser().follow_callback(claims("2", "ann@company.com")).await;
    assert_eq!(portal.people().await[0].1, "partner", "signing in takes nothing away");
}

#[tokio::test]
async fn removed_person_cannot_sign_in() {
    for second_factor in [SecondFactor::None, SecondFactor::EmailCode] {
        let portal = TestPortal::open_with(second_factor).await;
        let come_in = async || {
            let mut browser = portal.browser();
            let mut reply = browser.follow_callback(claims("1", "ann@company.com")).await;
            if second_factor == SecondFactor::EmailCode {
                reply = browser.post("/auth/code", &format!("code={}", portal.latest_code())).await;
            }
            (reply, browser)
        };
        let (reply, mut browser) = come_in().await;
        assert!(reply.has_session());
        let ann = portal.portal.store.people.list_people().await.unwrap()[0].id;
        portal
            .portal
            .store
            .people
            .remove_person(manage(&portal.portal), ann, Box::new(|_| true))
            .await
            .unwrap();
        assert_eq!(browser.get("/clients").await.status, StatusCode::SEE_OTHER, "on the very next request");
        let (reply, _) = come_in().await;
        assert_eq!(reply.status, StatusCode::FORBIDDEN);
        assert!(!reply.has_session() && reply.body.contains("Access removed"));
    }
}

#[tokio::test]
async fn unverified_email_requires_our_code() {
    let portal = TestPortal::open().await;
    let unproved = || AuthenticatedIdentity { is_email_verified: false, ..claims("1", "ann@company.com") };
    let mut browser = portal.browser();
    let reply = browser.follow_callback(unproved()).await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, "/auth/code"));
    assert!(!reply.has_session() && portal.people().await.is_empty(), "no person is created before the code");
    let reply = browser.post("/auth/code", &format!("code={}", portal.latest_code())).await;
    assert!(reply.has_session() && portal.people().await.len() == 1);

    // A known person claims another address: it counts only once verified.
    let mut browser = portal.browser();
    browser
        .follow_callback(AuthenticatedIdentity { email: Some("ruth@company.com".to_owned()), ..unproved() })
        .await;
    assert_eq!(portal.people().await, [("ann@company.com".to_owned(), "consultant".to_owned())]);
    let reply = browser.post("/auth/code", &format!("code={}", portal.wrong_code())).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(portal.people().await, [("ann@company.com".to_owned(), "consultant".to_owned())]);
}
