//! Who may come in, and as whom.

use super::Desk;
use super::browser::claims;
use super::firm::manage;
use crate::SecondFactor;
use crate::sign_in::finish::Proven;
use axum::http::StatusCode;
use chancery_domain::{Identity, LocalPath};

#[tokio::test]
async fn a_person_of_the_firm_comes_in_with_a_new_session_and_goes_on_where_they_were_going() {
    let desk = Desk::open().await;
    let mut browser = desk.browser();
    let proven =
        Proven { return_to: LocalPath::parse("/clients?page=2").unwrap(), ..claims("1", "Ann@Company.com") };
    let reply = browser.come_back(proven).await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, "/clients?page=2"));
    let [cookie] = reply.set_cookies()[..] else { panic!("{reply:?}") };
    let (value, attributes) = cookie.split_once(';').unwrap();
    assert_eq!(value.len(), "session=".len() + 43);
    assert_eq!(attributes, " Path=/; HttpOnly; Secure; SameSite=Lax");
    assert_eq!(desk.people().await, [("ann@company.com".to_owned(), "consultant".to_owned())]);
    assert!(desk.letters().is_empty());
}

#[tokio::test]
async fn nobody_elses_address_comes_in_however_it_is_dressed_up() {
    let desk = Desk::open().await;
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
            let mut browser = desk.browser();
            let reply = browser.come_back(Proven { is_email_verified, ..claims("1", address) }).await;
            assert_eq!(reply.status, StatusCode::FORBIDDEN, "{address:?}");
            assert!(
                reply.set_cookies().is_empty() && reply.body.contains("@company.com address"),
                "{address:?}"
            );
            assert!(reply.body.contains("as=someone-else"), "{}", reply.body);
            assert!(!reply.body.contains("<script"), "{address:?}");
        }
    }
    // An array, a number, an object or nothing at all.
    let reply = desk.browser().come_back(Proven { email: None, ..claims("1", "") }).await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN);
    assert!(desk.people().await.is_empty() && desk.letters().is_empty());
}

#[tokio::test]
async fn an_identity_stays_one_person_whatever_its_address_and_however_that_is_written() {
    let desk = Desk::open().await;
    for address in ["x@company.com", "X@COMPANY.COM", "x.hale@company.com"] {
        assert!(desk.browser().come_back(claims("1", address)).await.has_session());
    }
    assert_eq!(desk.people().await, [("x.hale@company.com".to_owned(), "consultant".to_owned())]);
    let refused = desk.browser().come_back(claims("1", "x@elsewhere.com")).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "outside the firm not even somebody known");
    assert!(refused.body.contains("You signed in as x@elsewhere.com."));
    assert_eq!(desk.people().await[0].0, "x.hale@company.com");
}

#[tokio::test]
async fn two_identities_with_one_address_never_merge() {
    let desk = Desk::open().await;
    let elsewhere = Identity { issuer: "https://other.example".to_owned(), subject: "1".to_owned() };
    let twin = claims("2", "x@company.com");
    for proven in [claims("1", "x@company.com"), twin.clone(), Proven { identity: elsewhere, ..twin }] {
        assert!(desk.browser().come_back(proven).await.has_session());
    }
    assert_eq!(desk.people().await.len(), 3);
}

#[tokio::test]
async fn those_whom_the_settings_name_are_partners_from_their_next_sign_in_on() {
    let desk = Desk::open().await;
    desk.browser().come_back(claims("1", "RUTH@company.com")).await;
    desk.browser().come_back(claims("2", "ann@company.com")).await;
    assert_eq!(desk.people().await[1], ("ruth@company.com".to_owned(), "partner".to_owned()));
    let ann = desk.portal.store.people.list_people().await.unwrap()[0].clone();
    desk.portal
        .store
        .people
        .set_role(manage(&desk.portal), ann.id, chancery_domain::Role::Partner)
        .await
        .unwrap();
    desk.browser().come_back(claims("2", "ann@company.com")).await;
    assert_eq!(desk.people().await[0].1, "partner", "signing in takes nothing away");
}

#[tokio::test]
async fn somebody_who_was_removed_stays_out() {
    for second_factor in [SecondFactor::None, SecondFactor::EmailCode] {
        let desk = Desk::open_with(second_factor).await;
        let come_in = async || {
            let mut browser = desk.browser();
            let mut reply = browser.come_back(claims("1", "ann@company.com")).await;
            if second_factor == SecondFactor::EmailCode {
                reply = browser.post("/auth/code", &format!("code={}", desk.newest_code())).await;
            }
            (reply, browser)
        };
        let (reply, mut browser) = come_in().await;
        assert!(reply.has_session());
        let ann = desk.portal.store.people.list_people().await.unwrap()[0].id;
        desk.portal.store.people.remove_person(manage(&desk.portal), ann).await.unwrap();
        assert_eq!(browser.get("/clients").await.status, StatusCode::SEE_OTHER, "on the very next request");
        let (reply, _) = come_in().await;
        assert_eq!(reply.status, StatusCode::FORBIDDEN);
        assert!(!reply.has_session() && reply.body.contains("no longer in this portal"));
    }
}

#[tokio::test]
async fn a_mailbox_that_the_provider_does_not_vouch_for_is_proved_by_our_own_code() {
    let desk = Desk::open().await;
    let unproved = || Proven { is_email_verified: false, ..claims("1", "ann@company.com") };
    let mut browser = desk.browser();
    let reply = browser.come_back(unproved()).await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, "/auth/code"));
    assert!(!reply.has_session() && desk.people().await.is_empty(), "nobody is anybody before the code");
    let reply = browser.post("/auth/code", &format!("code={}", desk.newest_code())).await;
    assert!(reply.has_session() && desk.people().await.len() == 1);

    // Somebody known claims another address: it counts when it is proved, and not before.
    let mut browser = desk.browser();
    browser.come_back(Proven { email: Some("ruth@company.com".to_owned()), ..unproved() }).await;
    assert_eq!(desk.people().await, [("ann@company.com".to_owned(), "consultant".to_owned())]);
    let reply = browser.post("/auth/code", &format!("code={}", desk.wrong_code())).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(desk.people().await, [("ann@company.com".to_owned(), "consultant".to_owned())]);
}
