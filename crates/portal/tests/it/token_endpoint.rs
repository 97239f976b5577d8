//! The exchange of the code for an ID token.

use crate::hostile_provider::{Answer, Ways, without};
use crate::scene::{Scene, not_trusted, signs_in};
use serde_json::json;

#[tokio::test]
async fn the_portal_authenticates_as_the_provider_allows() {
    for (methods, expected) in [
        (json!(null), "client_secret_basic"),
        (json!(["client_secret_basic"]), "client_secret_basic"),
        (json!(["client_secret_post", "client_secret_basic"]), "client_secret_basic"),
        (json!(["private_key_jwt", "client_secret_post"]), "client_secret_post"),
    ] {
        let scene =
            signs_in(|ways| ways.metadata["token_endpoint_auth_methods_supported"] = methods.clone()).await;
        assert_eq!(scene.provider.ways().authentication, [expected], "{methods}");
    }
}

#[tokio::test]
async fn a_portal_without_a_secret_has_its_code_tied_by_pkce_alone() {
    let scene = Scene::with(|identity| identity.client_secret = None).await;
    scene.assert_signed_in(&scene.sign_in().await);
    assert_eq!(scene.provider.ways().authentication, ["none"]);
}

async fn answered(answer: Answer, status: u16, words: &str, logged: &str) {
    let scene = Scene::begin().await;
    scene.ways(|ways| ways.token_answer = Some(answer));
    let reply = scene.sign_in().await;
    scene.assert_refused(&reply, status, words, logged);
}

#[tokio::test]
async fn a_code_that_the_provider_does_not_know_any_more_is_a_sign_in_that_is_over() {
    answered(
        Answer::Status(400, json!({"error": "invalid_grant"})),
        410,
        "This sign-in is over",
        "`invalid_grant`",
    )
    .await;
}

#[tokio::test]
async fn a_provider_that_refuses_the_portal_is_one_for_the_administrator() {
    for error in ["invalid_client", "unauthorized_client", "invalid_request", "something_else"] {
        let answer = Answer::Status(401, json!({"error": error, "error_description": "no"}));
        answered(answer, 502, "does not accept this portal", &format!("`{error}`")).await;
    }
}

#[tokio::test]
async fn a_wrong_client_secret_is_one_for_the_administrator() {
    let scene = Scene::with(|identity| identity.client_secret = Some("wrong".to_owned())).await;
    let reply = scene.sign_in().await;
    scene.assert_refused(&reply, 502, "does not accept this portal", "`invalid_client`");
}

#[tokio::test]
async fn a_reply_that_cannot_be_read_is_refused_and_not_logged() {
    answered(Answer::Text("{\"access_token\": \"eyJ"), 502, "cannot be trusted", "cannot be read").await;
    answered(Answer::Text(""), 502, "cannot be trusted", "empty").await;
    answered(Answer::Json(json!({"error": "x"})), 502, "cannot be trusted", "cannot be read").await;
    answered(Answer::Status(400, json!("no")), 502, "cannot be trusted", "cannot be read").await;
    answered(Answer::Huge, 502, "cannot be trusted", "more than 262144 bytes").await;
}

#[tokio::test]
async fn a_redirect_does_not_carry_the_code_elsewhere() {
    answered(
        Answer::Redirect("https://evil.example/token".to_owned()),
        502,
        "cannot be trusted",
        "follows no redirect",
    )
    .await;
}

#[tokio::test]
async fn a_token_endpoint_that_fails_or_hangs_is_said_so() {
    answered(Answer::Status(500, json!({})), 503, "cannot be reached", "status 500").await;
    answered(Answer::Hang, 504, "takes too long", "took too long").await;
}

#[tokio::test]
async fn a_reply_without_an_id_token_is_refused() {
    not_trusted(
        |ways| ways.edit_token_reply = Box::new(|reply| without(reply, "id_token")),
        "has no `id_token`",
    )
    .await;
}

#[tokio::test]
async fn a_reply_without_an_access_token_or_of_another_kind_is_refused() {
    not_trusted(
        |ways| ways.edit_token_reply = Box::new(|reply| without(reply, "access_token")),
        "cannot be read",
    )
    .await;
    let mac = |ways: &mut Ways| ways.edit_token_reply = Box::new(|reply| reply["token_type"] = json!("mac"));
    not_trusted(mac, "`token_type` is not `Bearer`").await;
}
