//! Each provider's own sign-in, without our portal in it: the browser comes back with a code that the client can redeem for the
//! person's identity. What the providers differ in, and a client has to bear, is held here.

use super::{Kind, Provider, discovery_url};
use crate::browser::Browser;
use crate::server::client;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use std::collections::HashMap;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

/// The example of RFC 7636, appendix B.
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

const STATE: &str = "state-of-this-test";
const NONCE: &str = "nonce-of-this-test";

/// What one sign-in gave.
struct SignedIn {
    id_token_header: Value,
    id_token: Value,
    userinfo: Value,
}

/// Where a portal would be: it answers every request with an empty page.
async fn redirect_target() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let _ = connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    format!("http://localhost:{port}/auth/callback")
}

async fn sign_in_at(kind: Kind) -> SignedIn {
    let redirect_uri = redirect_target().await;
    let provider = Provider::start(kind, &redirect_uri).await;
    let http = client();
    let discovery: Value =
        http.get(discovery_url(&provider.issuer)).send().await.unwrap().json().await.unwrap();
    assert_eq!(discovery["issuer"], json!(provider.issuer));
    let endpoint = |name: &str| discovery[name].as_str().unwrap().to_owned();

    let authorize = reqwest::Url::parse_with_params(
        &endpoint("authorization_endpoint"),
        [
            ("response_type", "code"),
            ("client_id", provider.client_id),
            ("redirect_uri", &redirect_uri),
            ("scope", "openid email"),
            ("state", STATE),
            ("nonce", NONCE),
            ("code_challenge", CHALLENGE),
            ("code_challenge_method", "S256"),
        ],
    );
    let browser = Browser::start().await;
    browser.open(authorize.unwrap().as_str()).await;
    provider.sign_in(&browser).await;
    let arrived = browser.arrive(&redirect_uri).await;
    let query: HashMap<_, _> = arrived.query_pairs().into_owned().collect();
    assert_eq!(query["state"], STATE, "{arrived}");
    // RFC 9207: who announces it sends it.
    let announces_itself = discovery["authorization_response_iss_parameter_supported"] == json!(true);
    assert_eq!(query.get("iss"), announces_itself.then_some(&provider.issuer), "{arrived}");

    let form = [
        ("grant_type", "authorization_code"),
        ("code", &query["code"]),
        ("redirect_uri", &redirect_uri),
        ("code_verifier", VERIFIER),
    ];
    let body = reqwest::Url::parse_with_params("http://form", form).unwrap().query().unwrap().to_owned();
    let request = http.post(endpoint("token_endpoint")).body(body);
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    let request = request.basic_auth(provider.client_id, Some(provider.client_secret));
    let tokens: Value = request.send().await.unwrap().json().await.unwrap();
    let access_token =
        tokens["access_token"].as_str().unwrap_or_else(|| panic!("{tokens}\n{}", provider.log()));
    let userinfo = http.get(endpoint("userinfo_endpoint")).bearer_auth(access_token);
    let userinfo: Value = userinfo.send().await.unwrap().error_for_status().unwrap().json().await.unwrap();
    let mut parts = tokens["id_token"].as_str().unwrap().split('.');
    let mut decoded = || {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(parts.next().unwrap()).unwrap();
        serde_json::from_slice::<Value>(&bytes).unwrap()
    };
    let signed_in = SignedIn { id_token_header: decoded(), id_token: decoded(), userinfo };
    assert_eq!(signed_in.id_token["iss"], json!(provider.issuer));
    assert_eq!(signed_in.id_token["nonce"], json!(NONCE));
    assert_eq!(signed_in.userinfo["sub"], signed_in.id_token["sub"]);
    assert_eq!(signed_in.userinfo["email"], json!(provider.email));
    let is_verified = signed_in.userinfo["email_verified"] == json!(true);
    assert_eq!(is_verified, provider.verifies_email(), "{}", signed_in.userinfo);
    signed_in
}

#[tokio::test]
async fn oidc_provider_gives_the_address_at_userinfo_only() {
    let signed_in = sign_in_at(Kind::OidcProvider).await;
    assert_eq!(signed_in.id_token_header["alg"], json!("ES256"));
    assert_eq!(signed_in.id_token["email"], Value::Null);
}

#[tokio::test]
async fn canaille_gives_the_address_in_the_id_token_too_and_never_says_that_it_is_verified() {
    let signed_in = sign_in_at(Kind::Canaille).await;
    assert_eq!(signed_in.id_token_header["alg"], json!("RS256"));
    assert_eq!(signed_in.id_token["email"], signed_in.userinfo["email"]);
    assert_eq!(signed_in.id_token["email_verified"], Value::Null);
}

#[tokio::test]
async fn glewlwyd_gives_the_address_in_the_id_token_too_and_does_not_name_itself_in_the_answer() {
    let signed_in = sign_in_at(Kind::Glewlwyd).await;
    assert_eq!(signed_in.id_token_header["alg"], json!("EdDSA"));
    assert_eq!(signed_in.id_token["email"], signed_in.userinfo["email"]);
    assert_eq!(signed_in.id_token["email_verified"], json!(true));
}
