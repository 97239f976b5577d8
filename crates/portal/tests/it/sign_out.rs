//! Signing out here and at the provider, and what the next sign-in asks for.

use crate::harness::{Browser, Harness, Reply};
use crate::hostile_provider::CLIENT_ID;
use axum::http::StatusCode;
use reqwest::Url;
use serde_json::{Value, json};
use std::collections::HashMap;

fn query(url: &str) -> HashMap<String, String> {
    Url::parse(url).unwrap().query_pairs().into_owned().collect()
}

async fn sign_out(harness: &Harness, browser: &mut Browser) -> Reply {
    browser.post(&harness.url("/auth/sign-out"), "").await
}

/// The `prompt` of the browser's next sign-in.
async fn next_prompt(harness: &Harness, browser: &mut Browser) -> Option<String> {
    let begun = browser.get(&harness.url("/auth/sign-in")).await;
    query(&begun.location.unwrap()).remove("prompt")
}

#[tokio::test]
async fn one_click_ends_both_sessions_with_the_id_token_as_hint() {
    let harness = Harness::begin().await;
    let mut browser = harness.signed_in_browser().await;
    let reply = sign_out(&harness, &mut browser).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "{reply:?}");
    let location = reply.location.unwrap();
    assert!(location.starts_with(&format!("{}/end?", harness.provider.issuer)), "{location}");
    let sent = query(&location);
    assert_eq!(sent["kind"], "rp", "the endpoint's own parameters stay");
    assert_eq!(sent["client_id"], CLIENT_ID);
    assert_eq!(sent["post_logout_redirect_uri"], harness.url("/signed-out"));
    assert_eq!(sent["id_token_hint"].split('.').count(), 3);
    assert_eq!(sent["state"].len(), 43);
    assert!(!harness.is_signed_in(&mut browser).await);
    assert_eq!(next_prompt(&harness, &mut browser).await.as_deref(), Some("login"), "it may not come back");

    let back = browser.get(&harness.url(&format!("/signed-out?state={}", sent["state"]))).await;
    assert!(
        back.page.contains("You are signed out")
            && back.page.contains("and of the sign-in service (<strong>"),
        "{}",
        back.page
    );
    assert_eq!(next_prompt(&harness, &mut browser).await, None, "the provider asks by itself");
}

#[tokio::test]
async fn only_the_state_of_this_sign_out_proves_a_sign_out_there() {
    let harness = Harness::begin().await;
    let mut browser = harness.signed_in_browser().await;
    sign_out(&harness, &mut browser).await;
    for path in ["/signed-out", "/signed-out?state=", &format!("/signed-out?state={}", "a".repeat(43))] {
        let page = browser.get(&harness.url(path)).await.page;
        assert!(page.contains("You may still be signed in at"), "{path}: {page}");
    }
    assert_eq!(next_prompt(&harness, &mut browser).await.as_deref(), Some("login"));
}

#[tokio::test]
async fn json_sign_out_names_the_providers_url_and_the_next_sign_in_asks() {
    let harness = Harness::begin().await;
    let mut browser = harness.signed_in_browser().await;
    let reply = browser.post_for(&harness.url("/auth/sign-out"), "", "application/json").await;
    assert_eq!((reply.status, reply.location.as_deref()), (StatusCode::SEE_OTHER, Some("/signed-out")));
    assert!(!harness.is_signed_in(&mut browser).await);
    let body: Value = serde_json::from_str(&reply.page).unwrap();
    let sent = query(body["provider_sign_out_url"].as_str().unwrap());
    assert_eq!(sent["id_token_hint"].split('.').count(), 3);
    assert_eq!(next_prompt(&harness, &mut browser).await.as_deref(), Some("login"));
    let back = browser.get(&harness.url(&format!("/signed-out?state={}", sent["state"]))).await;
    assert!(back.page.contains("and of the sign-in service (<strong>"), "{}", back.page);
    assert_eq!(next_prompt(&harness, &mut browser).await, None);
}

#[tokio::test]
async fn json_sign_out_without_end_session_endpoint_makes_the_next_sign_in_ask() {
    let harness = Harness::begin().await;
    harness.behavior(|behavior| behavior.metadata["end_session_endpoint"] = Value::Null);
    let mut browser = harness.signed_in_browser().await;
    let reply = browser.post_for(&harness.url("/auth/sign-out"), "", "application/json").await;
    let body: Value = serde_json::from_str(&reply.page).unwrap();
    assert_eq!(body, json!({"provider_sign_out_url": null}));
    assert_eq!(next_prompt(&harness, &mut browser).await.as_deref(), Some("login"));
}

#[tokio::test]
async fn link_to_the_providers_sign_out_has_a_state_that_counts() {
    let harness = Harness::begin().await;
    let mut browser = harness.signed_in_browser().await;
    sign_out(&harness, &mut browser).await;
    browser.cookies.remove("__Host-sign_out");
    let page = browser.get(&harness.url("/signed-out")).await.page;
    let (_, rest) = page.split_once("state=").unwrap_or_else(|| panic!("{page}"));
    let state = rest.split(['"', '&']).next().unwrap().to_owned();
    let again = browser.get(&harness.url("/signed-out")).await.page;
    assert!(again.contains(&format!("state={state}")), "{again}");
    let back = browser.get(&harness.url(&format!("/signed-out?state={state}"))).await.page;
    assert!(back.contains("and of the sign-in service (<strong>"), "{back}");
}

#[tokio::test]
async fn database_copy_does_not_contain_the_id_token() {
    let harness = Harness::begin().await;
    let mut browser = harness.signed_in_browser().await;
    let token = chancery_domain::SecretToken::parse(&browser.cookies["session"]).unwrap();
    let stored = harness.portal.store.sessions.stored_id_token(token.hash()).await.unwrap().unwrap();
    let hint = query(&sign_out(&harness, &mut browser).await.location.unwrap())["id_token_hint"].clone();
    let payload = hint.split('.').nth(1).unwrap().as_bytes();
    assert!(!stored.windows(20).any(|window| window == &payload[..20]));
}

#[tokio::test]
async fn session_ends_although_its_id_token_cannot_be_decrypted() {
    let harness = Harness::begin().await;
    let mut browser = harness.signed_in_browser().await;
    harness.change_database("UPDATE sessions SET id_token = substr(id_token, 1, 20)").await;
    let reply = sign_out(&harness, &mut browser).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "{reply:?}");
    assert!(!query(&reply.location.unwrap()).contains_key("id_token_hint"));
    assert!(!harness.is_signed_in(&mut browser).await);
}

#[tokio::test]
async fn without_end_session_endpoint_the_next_sign_in_asks() {
    for (prompts, expected) in [
        (Value::Null, "login"),
        (json!(["none", "login", "consent"]), "login"),
        (json!(["none", "consent", "select_account"]), "select_account"),
        (json!(["none"]), "login"),
        (json!("odd"), "login"),
    ] {
        let harness = Harness::begin().await;
        harness.behavior(|behavior| {
            behavior.metadata["end_session_endpoint"] = Value::Null;
            behavior.metadata["prompt_values_supported"] = prompts.clone();
        });
        let mut browser = harness.signed_in_browser().await;
        let reply = sign_out(&harness, &mut browser).await;
        assert_eq!(reply.location.as_deref(), Some("/signed-out"));
        let page = browser.get(&harness.url("/signed-out")).await.page;
        assert!(page.contains("You are still signed in at"), "{page}");
        assert_eq!(next_prompt(&harness, &mut browser).await.as_deref(), Some(expected), "{prompts}");
        let callback = harness.callback_url(&mut browser).await;
        harness.assert_signed_in(&browser.get(&callback).await);
        assert_eq!(next_prompt(&harness, &mut browser).await, None, "it was asked");
    }
}

#[tokio::test]
async fn another_person_signs_in_after_a_sign_out() {
    let harness = Harness::begin().await;
    let mut browser = harness.signed_in_browser().await;
    sign_out(&harness, &mut browser).await;
    harness.behavior(|behavior| {
        behavior.edit_claims(|claims| {
            claims["sub"] = json!("another");
            claims["email"] = json!("omar@example.com");
        });
    });
    let callback = harness.callback_url(&mut browser).await;
    harness.assert_signed_in(&browser.get(&callback).await);
    assert!(browser.get(&harness.url("/sessions")).await.page.contains("omar@example.com"));
}

#[tokio::test]
async fn portal_session_ends_while_the_provider_is_down() {
    let harness = Harness::begin().await;
    let mut browser = harness.signed_in_browser().await;
    harness.clock.advance(std::time::Duration::from_secs(25 * 60));
    assert!(harness.is_signed_in(&mut browser).await);
    harness.clock.advance(std::time::Duration::from_secs(25 * 60));
    assert!(harness.is_signed_in(&mut browser).await);
    harness.clock.advance(std::time::Duration::from_secs(15 * 60));
    harness.behavior(|behavior| {
        behavior.discovery = crate::hostile_provider::ScriptedReply::Status(500, json!({}));
    });
    let reply = sign_out(&harness, &mut browser).await;
    assert_eq!(reply.location.as_deref(), Some("/signed-out"));
    assert!(!harness.is_signed_in(&mut browser).await);
}
