//! `identity.session_recheck_min`: the provider confirms sessions from time to time.

use crate::harness::{Browser, Harness};
use axum::http::StatusCode;
use chancery_domain::Role;
use chancery_portal::DirectoryRoles;
use serde_json::json;
use std::time::Duration;

const AFTER: Duration = Duration::from_secs(15 * 60);

async fn harness() -> Harness {
    Harness::with(|identity| identity.recheck_after = Some(AFTER)).await
}

fn fails_with(harness: &Harness, error: &'static str) {
    harness.behavior(|behavior| {
        behavior.edit_callback(move |parameters| {
            parameters.retain(|(name, _)| name != "code");
            parameters.push(("error".to_owned(), error.to_owned()));
        });
    });
}

async fn status(harness: &Harness, browser: &mut Browser, accept: &str) -> u16 {
    browser.post_for(&harness.url("/sessions/end"), "end=0", accept).await.status.as_u16()
}

#[tokio::test]
async fn page_goes_through_prompt_none_and_the_session_goes_on() {
    let harness = harness().await;
    let mut browser = harness.signed_in_browser().await;
    assert!(harness.is_signed_in(&mut browser).await);
    harness.clock.advance(AFTER);
    let token = browser.cookies["session"].clone();
    let reply = harness.through_provider(&mut browser, "/sessions?ended=one").await;
    assert_eq!(reply.location.as_deref(), Some("/sessions?ended=one"), "{reply:?}");
    assert_eq!(harness.provider.behavior().authorization["prompt"], "none");
    assert_eq!(browser.cookies["session"], token, "other tabs go on");
    assert!(harness.is_signed_in(&mut browser).await);
    harness.clock.advance(AFTER);
    assert!(!harness.is_signed_in(&mut browser).await, "it is confirmed again and again");
}

#[tokio::test]
async fn person_who_is_signed_out_at_the_provider_loses_the_session() {
    for error in ["login_required", "interaction_required", "access_denied"] {
        let harness = harness().await;
        let mut browser = harness.signed_in_browser().await;
        let mut copy = Browser::new();
        copy.cookies = browser.cookies.clone();
        harness.clock.advance(AFTER);
        fails_with(&harness, error);
        let reply = harness.through_provider(&mut browser, "/sessions").await;
        assert_eq!(reply.location.as_deref(), Some("/auth/sign-in?return_to=%2Fsessions"), "{reply:?}");
        assert!(browser.cookies.get("session").is_none());
        assert_eq!(status(&harness, &mut copy, "application/json").await, 401, "{error}");
    }
}

#[tokio::test]
async fn another_person_at_the_provider_ends_the_session() {
    let harness = harness().await;
    let mut browser = harness.signed_in_browser().await;
    let mut copy = Browser::new();
    copy.cookies = browser.cookies.clone();
    harness.clock.advance(AFTER);
    harness.behavior(|behavior| {
        behavior.edit_claims(|claims| {
            claims["sub"] = json!("another");
            claims["email"] = json!("omar@example.com");
        });
    });
    let reply = harness.through_provider(&mut browser, "/sessions").await;
    assert_eq!(reply.location.as_deref(), Some("/sessions"));
    assert!(browser.get(&harness.url("/sessions")).await.page.contains("omar@example.com"));
    assert_eq!(status(&harness, &mut copy, "application/json").await, 401);
}

#[tokio::test]
async fn person_who_no_longer_meets_the_requirements_loses_the_session() {
    let harness = Harness::with(|identity| {
        identity.recheck_after = Some(AFTER);
        identity.requirements.claims.insert("staff".to_owned(), vec![json!(true)]);
    })
    .await;
    harness.behavior(|behavior| behavior.edit_claims(|claims| claims["staff"] = json!(true)));
    let mut browser = harness.signed_in_browser().await;
    harness.clock.advance(AFTER);
    harness.behavior(|behavior| behavior.edit_claims(|claims| claims["staff"] = json!(false)));
    let reply = harness.through_provider(&mut browser, "/sessions").await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN, "{reply:?}");
    assert_eq!(status(&harness, &mut browser, "application/json").await, 401);
}

#[tokio::test]
async fn forms_and_programs_go_on_for_as_long_again() {
    let harness = harness().await;
    let mut browser = harness.signed_in_browser().await;
    harness.clock.advance(AFTER);
    for accept in ["text/html", "application/json"] {
        assert_eq!(status(&harness, &mut browser, accept).await, 303, "{accept}");
    }
    harness.clock.advance(AFTER);
    for accept in ["text/html", "application/json"] {
        assert_eq!(status(&harness, &mut browser, accept).await, 401, "{accept}");
    }
}

#[tokio::test]
async fn sessions_are_not_rechecked_by_default() {
    let harness = Harness::begin().await;
    let mut browser = harness.signed_in_browser().await;
    harness.clock.advance(Duration::from_secs(29 * 60));
    assert!(harness.is_signed_in(&mut browser).await);
}

/// The `prompt` of a sign-in that this link starts.
async fn prompt_of(harness: &Harness, browser: &mut Browser, link: &str) -> Option<String> {
    let begun = browser.get(&harness.url(link)).await;
    let url = reqwest::Url::parse(&begun.location.unwrap()).unwrap();
    url.query_pairs().find(|(name, _)| name == "prompt").map(|(_, value)| value.into_owned())
}

const LINKS: [&str; 2] = ["/auth/sign-in?for=recheck", "/auth/sign-in?for=step-up"];

#[tokio::test]
async fn recheck_link_does_not_undo_a_sign_out() {
    let harness = harness().await;
    let mut browser = harness.signed_in_browser().await;
    browser.post(&harness.url("/auth/sign-out"), "").await;
    for link in LINKS {
        assert_eq!(prompt_of(&harness, &mut browser, link).await.as_deref(), Some("login"), "{link}");
    }
    for link in LINKS {
        let prompt = prompt_of(&harness, &mut Browser::new(), link).await;
        assert_eq!(prompt, None, "{link}: a plain sign-in without a session");
    }
}

#[tokio::test]
async fn recheck_link_is_a_plain_sign_in_without_rechecks() {
    let harness = Harness::begin().await;
    let mut browser = harness.signed_in_browser().await;
    assert_eq!(prompt_of(&harness, &mut browser, LINKS[0]).await, None);
}

#[tokio::test]
async fn recheck_that_returns_after_a_sign_out_starts_no_session() {
    for link in LINKS {
        let harness = harness().await;
        let mut browser = harness.signed_in_browser().await;
        let begun = browser.get(&harness.url(link)).await;
        let callback = Browser::new().get(&begun.location.unwrap()).await.location.unwrap();
        browser.post(&harness.url("/auth/sign-out"), "").await;
        let reply = browser.get(&callback).await;
        assert_eq!(
            reply.location.as_deref(),
            Some("/auth/sign-in?return_to=%2Fclients"),
            "{link}: {reply:?}"
        );
        assert!(!harness.is_signed_in(&mut browser).await, "{link}");
    }
}

#[tokio::test]
async fn directory_demotes_at_a_recheck_with_an_unverified_address() {
    let harness = Harness::with(|identity| {
        identity.recheck_after = Some(AFTER);
        let by_value = [("leads".to_owned(), Role::Partner), ("staff".to_owned(), Role::Consultant)];
        identity.roles =
            Some(DirectoryRoles { claim: "groups".to_owned(), by_value: by_value.into_iter().collect() });
    })
    .await;
    let groups = |subject: &'static str, group: &'static str, email: &'static str, is_verified: bool| {
        harness.behavior(|behavior| {
            behavior.edit_claims(move |claims| {
                claims["sub"] = json!(subject);
                claims["groups"] = json!([group]);
                claims["email"] = json!(email);
                claims["email_verified"] = json!(is_verified);
            });
        });
    };
    // The last partner would stay one.
    groups("another", "leads", "omar@example.com", true);
    harness.signed_in_browser().await;
    groups("ada", "leads", "ada@example.com", true);
    let mut browser = harness.signed_in_browser().await;
    harness.clock.advance(AFTER);
    groups("ada", "staff", "other@example.com", false);
    let reply = harness.through_provider(&mut browser, "/sessions").await;
    assert_eq!(reply.location.as_deref(), Some("/sessions"), "{reply:?}");
    let people = harness.portal.store.people.list_people().await.unwrap();
    let ada = people.iter().find(|person| person.identity.subject == "ada").unwrap();
    assert_eq!((ada.role, ada.email.as_str()), (Role::Consultant, "ada@example.com"), "the address stays");
}
