//! The exchange of the code for an ID token.

use crate::harness::{Harness, is_not_trusted, signs_in};
use crate::hostile_provider::{ProviderBehavior, ScriptedReply, without};
use serde_json::json;

#[tokio::test]
async fn client_authentication_follows_discovery() {
    for (methods, expected) in [
        (json!(null), "client_secret_basic"),
        (json!(["client_secret_basic"]), "client_secret_basic"),
        (json!(["client_secret_post", "client_secret_basic"]), "client_secret_basic"),
        (json!(["private_key_jwt", "client_secret_post"]), "client_secret_post"),
    ] {
        let harness =
            signs_in(|behavior| behavior.metadata["token_endpoint_auth_methods_supported"] = methods.clone())
                .await;
        assert_eq!(harness.provider.behavior().authentication, [expected], "{methods}");
    }
}

#[tokio::test]
async fn public_client_uses_pkce_only() {
    let harness = Harness::with(|identity| identity.client_secret = None).await;
    harness.assert_signed_in(&harness.sign_in().await);
    assert_eq!(harness.provider.behavior().authentication, ["none"]);
}

async fn assert_token_reply_rejected(scripted: ScriptedReply, status: u16, text: &str, logged: &str) {
    let harness = Harness::begin().await;
    harness.behavior(|behavior| behavior.token_reply = Some(scripted));
    let reply = harness.sign_in().await;
    harness.assert_rejected(&reply, status, text, logged);
}

#[tokio::test]
async fn invalid_grant_is_an_expired_sign_in() {
    assert_token_reply_rejected(
        ScriptedReply::Status(400, json!({"error": "invalid_grant"})),
        410,
        "Sign-in expired",
        "`invalid_grant`",
    )
    .await;
}

#[tokio::test]
async fn rejected_client_is_reported_to_the_administrator() {
    for error in ["invalid_client", "unauthorized_client", "invalid_request", "something_else"] {
        let scripted = ScriptedReply::Status(401, json!({"error": error, "error_description": "no"}));
        assert_token_reply_rejected(scripted, 502, "Portal not registered", &format!("`{error}`")).await;
    }
}

#[tokio::test]
async fn wrong_client_secret_is_reported_to_the_administrator() {
    let harness = Harness::with(|identity| identity.client_secret = Some("wrong".to_owned())).await;
    let reply = harness.sign_in().await;
    harness.assert_rejected(&reply, 502, "Portal not registered", "`invalid_client`");
}

#[tokio::test]
async fn invalid_token_reply_is_rejected_and_not_logged() {
    assert_token_reply_rejected(
        ScriptedReply::Text("{\"access_token\": \"eyJ"),
        502,
        "Sign-in response rejected",
        "invalid token reply at `",
    )
    .await;
    assert_token_reply_rejected(ScriptedReply::Text(""), 502, "Sign-in response rejected", "empty").await;
    assert_token_reply_rejected(
        ScriptedReply::Json(json!({"error": "x"})),
        502,
        "Sign-in response rejected",
        "invalid token reply at `",
    )
    .await;
    assert_token_reply_rejected(
        ScriptedReply::Status(400, json!("no")),
        502,
        "Sign-in response rejected",
        "invalid token reply at `",
    )
    .await;
    assert_token_reply_rejected(
        ScriptedReply::Huge,
        502,
        "Sign-in response rejected",
        "exceeds 262144 bytes",
    )
    .await;
}

#[tokio::test]
async fn token_endpoint_redirect_is_not_followed() {
    assert_token_reply_rejected(
        ScriptedReply::Redirect("https://evil.example/token".to_owned()),
        502,
        "Sign-in response rejected",
        "redirects are not followed",
    )
    .await;
}

#[tokio::test]
async fn token_endpoint_failures_are_reported() {
    assert_token_reply_rejected(
        ScriptedReply::Status(500, json!({})),
        503,
        "Sign-in service unavailable",
        "status 500",
    )
    .await;
    assert_token_reply_rejected(
        ScriptedReply::Hang,
        504,
        "Sign-in service timed out",
        "identity provider timed out",
    )
    .await;
}

#[tokio::test]
async fn reply_without_id_token_is_rejected() {
    is_not_trusted(
        |behavior| behavior.edit_token_reply = Box::new(|reply| without(reply, "id_token")),
        "has no `id_token`",
    )
    .await;
}

#[tokio::test]
async fn reply_without_bearer_access_token_is_rejected() {
    is_not_trusted(
        |behavior| behavior.edit_token_reply = Box::new(|reply| without(reply, "access_token")),
        "invalid token reply at `",
    )
    .await;
    let mac = |behavior: &mut ProviderBehavior| {
        behavior.edit_token_reply = Box::new(|reply| reply["token_type"] = json!("mac"));
    };
    is_not_trusted(mac, "`token_type` is not `Bearer`").await;
}
