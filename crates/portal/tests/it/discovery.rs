//! What the provider says about itself, when it says nothing, and when it says it in a way that must not be believed.

use crate::hostile_provider::{Answer, Ways, without};
use crate::scene::{Browser, Reply, Scene};
use serde_json::json;
use std::time::Duration;

const SIGN_IN: &str = "/auth/sign-in?return_to=/clients/7";

/// Presses the button with a provider that was changed like this.
async fn begin(change: impl FnOnce(&mut Ways)) -> (Scene, Reply) {
    let scene = Scene::begin().await;
    scene.ways(change);
    let reply = Browser::new().get(&scene.url(SIGN_IN)).await;
    assert_eq!(scene.provider.times_asked("authorize"), 0);
    (scene, reply)
}

async fn not_believed(change: impl FnOnce(&mut Ways), logged: &str) {
    let (scene, reply) = begin(change).await;
    scene.assert_refused(&reply, 502, "answer cannot be trusted", logged);
    assert_eq!(reply.location, None);
}

#[tokio::test]
async fn a_description_of_another_issuer_is_refused() {
    not_believed(|ways| ways.metadata["issuer"] = json!("https://evil.example"), "unexpected issuer").await;
}

#[tokio::test]
async fn a_description_whose_issuer_differs_by_a_slash_is_refused() {
    let slash = |ways: &mut Ways| {
        ways.metadata["issuer"] = json!(format!("{}/", ways.metadata["issuer"].as_str().unwrap()));
    };
    not_believed(slash, "unexpected issuer").await;
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (scene, reply) = begin(|ways| {
        let issuer = ways.metadata["issuer"].as_str().unwrap().to_owned();
        ways.discovery = Answer::Redirect(format!("{issuer}/jwks.json"));
    })
    .await;
    scene.assert_refused(&reply, 502, "answer cannot be trusted", "follows no redirect");
    assert_eq!(scene.provider.times_asked("keys"), 0);
}

#[tokio::test]
async fn a_huge_description_is_not_read() {
    not_believed(|ways| ways.discovery = Answer::Huge, "more than 262144 bytes").await;
}

#[tokio::test]
async fn a_description_that_is_no_json_is_refused() {
    not_believed(|ways| ways.discovery = Answer::Text("<html>sign in</html>"), "Failed to parse").await;
    not_believed(|ways| ways.discovery = Answer::Text(""), "Failed to parse").await;
    not_believed(|ways| ways.discovery = Answer::Json(json!([])), "Failed to parse").await;
    not_believed(|ways| ways.discovery = Answer::Status(404, json!({})), "404").await;
}

#[tokio::test]
async fn a_description_without_what_is_needed_is_refused() {
    not_believed(|ways| without(&mut ways.metadata, "token_endpoint"), "names no `token_endpoint`").await;
    not_believed(|ways| without(&mut ways.metadata, "jwks_uri"), "Failed to parse").await;
    not_believed(|ways| without(&mut ways.metadata, "authorization_endpoint"), "Failed to parse").await;
}

#[tokio::test]
async fn nothing_is_sent_where_others_could_read_it() {
    for name in ["authorization_endpoint", "token_endpoint", "userinfo_endpoint"] {
        let change = |ways: &mut Ways| ways.metadata[name] = json!("http://id.example.com/x");
        not_believed(change, &format!("`{name}` is not `https:`")).await;
    }
    not_believed(
        |ways| ways.metadata["jwks_uri"] = json!("http://id.example.com/x"),
        "neither `https:` nor on this machine",
    )
    .await;
    not_believed(
        |ways| ways.metadata["authorization_endpoint"] = json!("javascript:alert(1)"),
        "is not `https:`",
    )
    .await;
}

#[tokio::test]
async fn a_provider_that_hangs_costs_a_few_seconds_and_those_who_wait_wait_together() {
    let scene = Scene::begin().await;
    scene.ways(|ways| ways.discovery = Answer::Hang);
    let patience = Duration::from_secs(12);
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let url = scene.url(SIGN_IN);
            tokio::spawn(async move { Browser::new().get(&url).await })
        })
        .collect();
    let all = async {
        for reply in waiting {
            scene.assert_refused(&reply.await.unwrap(), 504, "takes too long", "took too long");
        }
    };
    tokio::time::timeout(patience, all).await.expect("they waited one after the other");
    assert_eq!(scene.provider.times_asked("discovery"), 1);
}

#[tokio::test]
async fn a_provider_that_is_failing_is_asked_again_later() {
    let (scene, reply) = begin(|ways| ways.discovery = Answer::Status(503, json!({}))).await;
    scene.assert_refused(&reply, 503, "cannot be reached", "status 503");
    assert_eq!(reply.retry_after.as_deref(), Some("30"));
    scene.ways(|ways| ways.discovery = Answer::Right);
    scene.clock.advance(Duration::from_secs(2));
    scene.assert_signed_in(&scene.sign_in().await);
}

#[tokio::test]
async fn the_portal_starts_while_its_provider_is_down_and_says_so() {
    // Nobody listens on a port that was just given back.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let scene = Scene::with(|identity| identity.issuer = format!("http://{address}")).await;
    let reply = Browser::new().get(&scene.url(SIGN_IN)).await;
    scene.assert_refused(
        &reply,
        503,
        "cannot be reached",
        "the identity provider cannot be reached: discovery",
    );
    assert_eq!(scene.portal.end_session_url(), None);
}

#[tokio::test]
async fn what_was_learned_is_asked_anew_after_an_hour() {
    let scene = Scene::begin().await;
    scene.assert_signed_in(&scene.sign_in().await);
    scene.clock.advance(Duration::from_secs(59 * 60));
    scene.assert_signed_in(&scene.sign_in().await);
    assert_eq!(scene.provider.times_asked("discovery"), 1);
    scene.clock.advance(Duration::from_secs(60));
    scene.assert_signed_in(&scene.sign_in().await);
    assert_eq!(scene.provider.times_asked("discovery"), 2);
}

#[tokio::test]
async fn signing_out_there_names_the_portal_and_the_way_back() {
    let scene = Scene::begin().await;
    assert_eq!(scene.portal.end_session_url(), None, "nobody waits for a provider in order to sign out here");
    scene.assert_signed_in(&scene.sign_in().await);
    let url = scene.portal.end_session_url().unwrap();
    let portal: String = form_urlencoded::byte_serialize(scene.url("/").as_bytes()).collect();
    let issuer = &scene.provider.issuer;
    assert_eq!(
        url,
        format!("{issuer}/end?kind=rp&client_id=chancery-portal&post_logout_redirect_uri={portal}")
    );
}

#[tokio::test]
async fn a_provider_without_a_place_to_sign_out_is_no_worse_for_it() {
    for value in [json!(null), json!(""), json!("javascript:alert(1)"), json!("http://id.example.com/end")] {
        let scene = Scene::begin().await;
        scene.ways(|ways| ways.metadata["end_session_endpoint"] = value);
        scene.assert_signed_in(&scene.sign_in().await);
        assert_eq!(scene.portal.end_session_url(), None);
    }
}
