//! Back-channel logout: which sessions are announced, and how.

use super::harness::{Browser, ISSUER, TestProvider, authorize_path, claims, encoded};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chancery_auth::BackchannelLogoutWorker;
use chancery_domain::{Clock as _, SessionTimeouts};
use chancery_http_client::OwnCertificates;
use chancery_store::PasswordHash;
use p256::ecdsa::signature::Verifier;
use p256::ecdsa::{Signature, VerifyingKey};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An application that gets logout tokens.
struct Application {
    status: AtomicU16,
    tokens: Mutex<Vec<String>>,
}

impl Application {
    async fn start() -> (Arc<Self>, String) {
        let application = Arc::new(Self { status: AtomicU16::new(200), tokens: Mutex::new(Vec::new()) });
        let routes = Router::new()
            .route("/logout", post(receive))
            .route("/elsewhere", post(|| async { StatusCode::OK }))
            .with_state(Arc::clone(&application));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}/logout", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await.unwrap() });
        (application, uri)
    }

    /// The tokens since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.tokens.lock().unwrap())
    }

    fn reply_with(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }
}

async fn receive(
    State(application): State<Arc<Application>>,
    headers: HeaderMap,
    body: String,
) -> (StatusCode, [(&'static str, &'static str); 1]) {
    assert_eq!(headers["content-type"], "application/x-www-form-urlencoded");
    let token = body.strip_prefix("logout_token=").unwrap();
    application.tokens.lock().unwrap().push(token.to_owned());
    let status = StatusCode::from_u16(application.status.load(Ordering::SeqCst)).unwrap();
    (status, [("location", "/elsewhere")])
}

struct Scene {
    served: TestProvider,
    application: Arc<Application>,
    worker: BackchannelLogoutWorker,
}

impl Scene {
    async fn start() -> Self {
        let (application, uri) = Application::start().await;
        let served = TestProvider::start_with_backchannel(&uri).await;
        let worker =
            BackchannelLogoutWorker::new(Arc::clone(&served.provider), &OwnCertificates::default()).unwrap();
        Self { served, application, worker }
    }

    /// The tokens that are sent now.
    async fn sent(&self) -> Vec<String> {
        self.worker.send_due().await.unwrap();
        self.application.take()
    }

    async fn sid(&self, browser: &Browser) -> Value {
        let code = self.served.code(browser, &[]).await;
        let tokens = self.served.exchange(&code).await.json();
        claims(tokens["id_token"].as_str().unwrap())["sid"].clone()
    }
}

/// Verifies the token with the published keys. Returns its header.
async fn verified_header(served: &TestProvider, token: &str) -> Value {
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let header = URL_SAFE_NO_PAD.decode(signed.split('.').next().unwrap()).unwrap();
    let header: Value = serde_json::from_slice(&header).unwrap();
    let keys = served.get(&Browser::default(), "/jwks.json").await.json();
    let key = keys["keys"].as_array().unwrap().iter().find(|key| key["kid"] == header["kid"]).unwrap();
    let coordinate = |name: &str| URL_SAFE_NO_PAD.decode(key[name].as_str().unwrap()).unwrap();
    let point = [vec![4], coordinate("x"), coordinate("y")].concat();
    let key = VerifyingKey::from_sec1_bytes(&point).unwrap();
    let signature = Signature::from_slice(&URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
    key.verify(signed.as_bytes(), &signature).unwrap();
    header
}

#[tokio::test]
async fn signing_out_sends_one_signed_logout_token_to_each_application() {
    let scene = Scene::start().await;
    let served = &scene.served;
    let (account, browser) = served.consenting("ann@example.com").await;
    let sid = scene.sid(&browser).await;
    assert!(scene.sent().await.is_empty(), "the session goes on");
    served.post(&browser, "/sign-out", &[]).await.redirect_to();
    let sent = scene.sent().await;
    assert_eq!(sent.len(), 1, "one application, however many grants");
    let header = verified_header(served, &sent[0]).await;
    assert_eq!((&header["typ"], &header["alg"]), (&json!("logout+jwt"), &json!("ES256")));
    let token = claims(&sent[0]);
    let now_s = served.clock.now().0 / 1000;
    assert_eq!((&token["iss"], &token["aud"]), (&json!(ISSUER), &json!("portal")));
    assert_eq!((&token["sub"], &token["sid"]), (&json!(account.subject), &sid));
    assert_eq!((&token["iat"], &token["exp"]), (&json!(now_s), &json!(now_s + 120)));
    assert_eq!(token["events"], json!({"http://schemas.openid.net/event/backchannel-logout": {}}));
    assert!(token["jti"].as_str().unwrap().len() > 20 && token.get("nonce").is_none(), "{token}");
    assert!(scene.sent().await.is_empty(), "once");
    // It is not an ID token, so it cannot sign a person out.
    let ben = served.sign_in(&account).await;
    let path =
        format!("/logout?{}", encoded(&[("client_id", "portal"), ("id_token_hint", sent[0].as_str())]));
    assert_eq!(served.get(&ben, &path).await.status, 200, "the confirmation page");
}

#[tokio::test]
async fn every_way_to_end_a_session_is_announced() {
    let scene = Scene::start().await;
    let served = &scene.served;
    let (account, browser) = served.consenting("ann@example.com").await;
    let hint = {
        let code = served.code(&browser, &[]).await;
        served.exchange(&code).await.json()["id_token"].as_str().unwrap().to_owned()
    };
    let path = format!("/logout?{}", encoded(&[("id_token_hint", hint.as_str())]));
    served.get(&browser, &path).await.redirect_to();
    assert_eq!(scene.sent().await.len(), 1, "logout by the application");

    let browser = served.sign_in(&account).await;
    served.code(&browser, &[]).await;
    served.provider.store.session_revoker.end_provider_sessions(&account.subject).await.unwrap();
    assert_eq!(scene.sent().await.len(), 1, "by an administrator");

    let (one, two) = (served.sign_in(&account).await, served.sign_in(&account).await);
    for browser in [&one, &two] {
        served.code(browser, &[]).await;
    }
    let hash = PasswordHash("another".to_owned());
    served.provider.store.provider_accounts.set_password(&account.email, &hash).await.unwrap();
    assert_eq!(scene.sent().await.len(), 2, "a new password ends both");
}

#[tokio::test]
async fn sessions_without_grants_and_expired_sessions_are_not_announced() {
    let scene = Scene::start().await;
    let served = &scene.served;
    let (account, expiring) = served.consenting("ann@example.com").await;
    let unused = served.sign_in(&account).await;
    served.post(&unused, "/sign-out", &[]).await.redirect_to();
    assert!(scene.sent().await.is_empty(), "no application knows this session");
    served.clock.advance(Duration::from_secs(13 * 3_600));
    let silent = served.get(&expiring, &authorize_path(&[("prompt", "none")])).await;
    assert_eq!(silent.returned()["error"], "login_required");
    let times = SessionTimeouts { idle: Duration::from_secs(1_800), max: Duration::from_secs(43_200) };
    let sessions = &served.provider.store.provider_sessions;
    assert!(sessions.delete_expired_provider_sessions(times, served.clock.now(), 10).await.unwrap() > 0);
    assert!(scene.sent().await.is_empty(), "it merely expired");
}

#[tokio::test]
async fn application_without_logout_address_gets_nothing() {
    let scene = Scene::start().await;
    let served = &scene.served;
    let browser = served.sign_in(&served.account("ann@example.com").await).await;
    served.allow(&browser, &authorize_path(&[("client_id", "public")])).await;
    served.post(&browser, "/sign-out", &[]).await.redirect_to();
    assert!(scene.sent().await.is_empty());
    let next = served.provider.store.backchannel_logouts.next_backchannel_logout_at().await.unwrap();
    assert_eq!(next, None, "and nothing waits for it");
}

#[tokio::test]
async fn rejected_logout_token_is_sent_again_for_an_hour() {
    let scene = Scene::start().await;
    let served = &scene.served;
    let (_, browser) = served.consenting("ann@example.com").await;
    scene.application.reply_with(503);
    served.post(&browser, "/sign-out", &[]).await.redirect_to();
    let first = scene.sent().await;
    assert_eq!(first.len(), 1);
    assert!(scene.sent().await.is_empty(), "not before its time");
    served.clock.advance(Duration::from_secs(2));
    let second = scene.sent().await;
    let ids = [&first[0], &second[0]].map(|token| claims(token)["jti"].clone());
    assert_ne!(ids[0], ids[1], "a new token, so that it is no replay");
    // A redirect is not followed.
    scene.application.reply_with(307);
    served.clock.advance(Duration::from_secs(6));
    assert_eq!(scene.sent().await.len(), 1);
    scene.application.reply_with(200);
    served.clock.advance(Duration::from_secs(18));
    assert_eq!(scene.sent().await.len(), 1);
    served.clock.advance(Duration::from_secs(2 * 3_600));
    assert!(scene.sent().await.is_empty(), "accepted");

    let (_, browser) = served.consenting("ben@example.com").await;
    scene.application.reply_with(400);
    served.post(&browser, "/sign-out", &[]).await.redirect_to();
    assert_eq!(scene.sent().await.len(), 1);
    served.clock.advance(Duration::from_secs(3_600));
    assert_eq!(scene.sent().await.len(), 1, "the last attempt");
    served.clock.advance(Duration::from_secs(24 * 3_600));
    assert!(scene.sent().await.is_empty(), "given up");
}
