//! `/.well-known/openid-configuration`.

use super::harness::{Browser, ISSUER, TestProvider};
use serde_json::json;

#[tokio::test]
async fn discovery_document_is_exact() {
    let served = TestProvider::start().await;
    let reply = served.get(&Browser::default(), "/.well-known/openid-configuration").await;
    assert_eq!((reply.status, reply.header("content-type")), (200, "application/json"));
    assert_eq!(reply.header("cache-control"), "public, max-age=3600");
    assert_eq!(reply.header("access-control-allow-origin"), "");
    let expected = json!({
        "issuer": ISSUER,
        "authorization_endpoint": format!("{ISSUER}/authorize"),
        "token_endpoint": format!("{ISSUER}/token"),
        "userinfo_endpoint": format!("{ISSUER}/userinfo"),
        "jwks_uri": format!("{ISSUER}/jwks.json"),
        "end_session_endpoint": format!("{ISSUER}/logout"),
        "scopes_supported": ["openid", "email"],
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post", "none"],
        "claim_types_supported": ["normal"],
        "claims_supported": [
            "iss", "sub", "aud", "exp", "iat", "auth_time", "nonce", "at_hash", "sid", "amr", "acr", "email",
            "email_verified"
        ],
        "acr_values_supported": ["aal1", "aal2"],
        "code_challenge_methods_supported": ["S256"],
        "prompt_values_supported": ["none", "login", "consent", "select_account"],
        "backchannel_logout_supported": true,
        "backchannel_logout_session_supported": true,
        "authorization_response_iss_parameter_supported": true,
        "claims_parameter_supported": false,
        "request_parameter_supported": false,
        "request_uri_parameter_supported": false,
    });
    assert_eq!(reply.json(), expected);
}
