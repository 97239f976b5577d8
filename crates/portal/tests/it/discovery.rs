//! Provider metadata that is missing, invalid or not trustworthy.

use crate::harness::{Browser, Harness, Reply};
use crate::hostile_provider::{ProviderBehavior, ScriptedReply, without};
use serde_json::json;
use std::time::Duration;

const SIGN_IN: &str = "/auth/sign-in?return_to=/clients/7";

/// Starts a sign-in after this change to the provider.
async fn begin(change: impl FnOnce(&mut ProviderBehavior)) -> (Harness, Reply) {
    let harness = Harness::begin().await;
    harness.behavior(change);
    let reply = Browser::new().get(&harness.url(SIGN_IN)).await;
    assert_eq!(harness.provider.request_count("authorize"), 0);
    (harness, reply)
}

async fn not_believed(change: impl FnOnce(&mut ProviderBehavior), logged: &str) {
    let (harness, reply) = begin(change).await;
    harness.assert_rejected(&reply, 502, "Sign-in response rejected", logged);
    assert_eq!(reply.location, None);
}

#[tokio::test]
async fn discovery_of_another_issuer_is_rejected() {
    not_believed(|behavior| behavior.metadata["issuer"] = json!("https://evil.example"), "unexpected issuer")
        .await;
}

#[tokio::test]
async fn discovery_issuer_must_match_exactly() {
    let slash = |behavior: &mut ProviderBehavior| {
        behavior.metadata["issuer"] = json!(format!("{}/", behavior.metadata["issuer"].as_str().unwrap()));
    };
    not_believed(slash, "unexpected issuer").await;
}

#[tokio::test]
async fn discovery_redirect_is_not_followed() {
    let (harness, reply) = begin(|behavior| {
        let issuer = behavior.metadata["issuer"].as_str().unwrap().to_owned();
        behavior.discovery = ScriptedReply::Redirect(format!("{issuer}/jwks.json"));
    })
    .await;
    harness.assert_rejected(&reply, 502, "Sign-in response rejected", "redirects are not followed");
    assert_eq!(harness.provider.request_count("keys"), 0);
}

#[tokio::test]
async fn oversized_discovery_document_is_rejected() {
    not_believed(|behavior| behavior.discovery = ScriptedReply::Huge, "exceeds 262144 bytes").await;
}

#[tokio::test]
async fn non_json_discovery_is_rejected() {
    not_believed(
        |behavior| behavior.discovery = ScriptedReply::Text("<html>sign in</html>"),
        "Failed to parse",
    )
    .await;
    not_believed(|behavior| behavior.discovery = ScriptedReply::Text(""), "Failed to parse").await;
    not_believed(|behavior| behavior.discovery = ScriptedReply::Json(json!([])), "Failed to parse").await;
    not_believed(|behavior| behavior.discovery = ScriptedReply::Status(404, json!({})), "404").await;
}

#[tokio::test]
async fn incomplete_discovery_is_rejected() {
    not_believed(|behavior| without(&mut behavior.metadata, "token_endpoint"), "`token_endpoint` is missing")
        .await;
    not_believed(|behavior| without(&mut behavior.metadata, "jwks_uri"), "Failed to parse").await;
    not_believed(|behavior| without(&mut behavior.metadata, "authorization_endpoint"), "Failed to parse")
        .await;
}

#[tokio::test]
async fn insecure_endpoints_are_rejected() {
    for name in ["authorization_endpoint", "token_endpoint", "userinfo_endpoint"] {
        let change =
            |behavior: &mut ProviderBehavior| behavior.metadata[name] = json!("http://id.example.com/x");
        not_believed(change, &format!("`{name}` is not `https:`")).await;
    }
    not_believed(
        |behavior| behavior.metadata["jwks_uri"] = json!("http://id.example.com/x"),
        "neither `https:` nor loopback",
    )
    .await;
    not_believed(
        |behavior| behavior.metadata["authorization_endpoint"] = json!("javascript:alert(1)"),
        "is not `https:`",
    )
    .await;
}

#[tokio::test]
async fn hanging_provider_times_out_once_for_all_waiters() {
    let harness = Harness::begin().await;
    harness.behavior(|behavior| behavior.discovery = ScriptedReply::Hang);
    let timeout = Duration::from_secs(12);
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let url = harness.url(SIGN_IN);
            tokio::spawn(async move { Browser::new().get(&url).await })
        })
        .collect();
    let all = async {
        for reply in waiting {
            harness.assert_rejected(
                &reply.await.unwrap(),
                504,
                "Sign-in service timed out",
                "identity provider timed out",
            );
        }
    };
    tokio::time::timeout(timeout, all).await.expect("they waited one after the other");
    assert_eq!(harness.provider.request_count("discovery"), 1);
}

#[tokio::test]
async fn failed_discovery_is_retried_later() {
    let (harness, reply) = begin(|behavior| behavior.discovery = ScriptedReply::Status(503, json!({}))).await;
    harness.assert_rejected(&reply, 503, "Sign-in service unavailable", "status 503");
    assert_eq!(reply.retry_after.as_deref(), Some("30"));
    harness.behavior(|behavior| behavior.discovery = ScriptedReply::Valid);
    harness.clock.advance(Duration::from_secs(2));
    harness.assert_signed_in(&harness.sign_in().await);
}

#[tokio::test]
async fn portal_starts_while_the_provider_is_down() {
    // Nothing listens on a port that was just released.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let harness = Harness::with(|identity| identity.issuer = format!("http://{address}")).await;
    let reply = Browser::new().get(&harness.url(SIGN_IN)).await;
    harness.assert_rejected(
        &reply,
        503,
        "Sign-in service unavailable",
        "identity provider unavailable: discovery",
    );
    assert_eq!(harness.portal.end_session_url(), None);
}

#[tokio::test]
async fn discovery_is_refreshed_after_an_hour() {
    let harness = Harness::begin().await;
    harness.assert_signed_in(&harness.sign_in().await);
    harness.clock.advance(Duration::from_secs(59 * 60));
    harness.assert_signed_in(&harness.sign_in().await);
    assert_eq!(harness.provider.request_count("discovery"), 1);
    harness.clock.advance(Duration::from_secs(60));
    harness.assert_signed_in(&harness.sign_in().await);
    assert_eq!(harness.provider.request_count("discovery"), 2);
}

#[tokio::test]
async fn provider_sign_out_link_has_client_and_redirect() {
    let harness = Harness::begin().await;
    assert_eq!(
        harness.portal.end_session_url(),
        None,
        "nobody waits for a provider in order to sign out here"
    );
    harness.assert_signed_in(&harness.sign_in().await);
    let url = harness.portal.end_session_url().unwrap();
    let portal: String = form_urlencoded::byte_serialize(harness.url("/signed-out").as_bytes()).collect();
    let issuer = &harness.provider.issuer;
    assert_eq!(
        url,
        format!("{issuer}/end?kind=rp&client_id=chancery-portal&post_logout_redirect_uri={portal}")
    );
}

#[tokio::test]
async fn provider_without_end_session_endpoint_works() {
    for value in [json!(null), json!(""), json!("javascript:alert(1)"), json!("http://id.example.com/end")] {
        let harness = Harness::begin().await;
        harness.behavior(|behavior| behavior.metadata["end_session_endpoint"] = value);
        harness.assert_signed_in(&harness.sign_in().await);
        assert_eq!(harness.portal.end_session_url(), None);
    }
}
