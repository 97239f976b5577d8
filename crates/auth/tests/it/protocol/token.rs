//! `/token`.

use super::harness::{ISSUER, SECRET, TestProvider, claims, exchange_form};
use axum::http::Method;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chancery_domain::Clock;
use chancery_store::PasswordHash;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn id_token_has_exactly_the_consented_claims() {
    let served = TestProvider::start().await;
    let (account, browser) = served.consenting("ann@example.com").await;
    let signed_in_at_s = served.clock.now().0 / 1000;
    served.clock.advance(Duration::from_secs(120));
    let code = served.code(&browser, &[]).await;
    let basic = format!("Basic {}", STANDARD.encode(format!("portal:{SECRET}")));
    let form = exchange_form(&code, &[("client_id", ""), ("client_secret", "")]);
    let reply = served.token(Some(basic.as_str()), &form).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!((reply.header("cache-control"), reply.header("pragma")), ("no-store", "no-cache"));
    let tokens = reply.json();
    assert_eq!(
        (&tokens["token_type"], &tokens["expires_in"], &tokens["scope"], &tokens["refresh_token"]),
        (&json!("Bearer"), &json!(600), &json!("openid email"), &Value::Null)
    );
    let now_s = served.clock.now().0 / 1000;
    let claims = claims(tokens["id_token"].as_str().unwrap());
    let (at_hash, sid) = (claims["at_hash"].clone(), claims["sid"].clone());
    assert!(sid.is_string());
    assert_eq!(
        claims,
        json!({
            "iss": ISSUER, "sub": account.subject, "aud": "portal", "iat": now_s, "exp": now_s + 3600,
            "auth_time": signed_in_at_s, "nonce": "the nonce", "at_hash": at_hash,
            "sid": sid, "amr": ["pwd"], "acr": "aal1", "email": "ann@example.com", "email_verified": true,
        })
    );

    let code = served.code(&browser, &[("scope", "openid profile"), ("nonce", "")]).await;
    let tokens = served.exchange(&code).await.json();
    assert_eq!(tokens["scope"], "openid");
    let claims = super::harness::claims(tokens["id_token"].as_str().unwrap());
    for absent in ["email", "email_verified", "nonce"] {
        assert_eq!(claims[absent], Value::Null, "{absent}");
    }
}

#[tokio::test]
async fn public_client_authenticates_with_pkce_only() {
    let served = TestProvider::start().await;
    let browser = served.sign_in(&served.account("ann@example.com").await).await;
    let public = [("client_id", "public")];
    let code =
        served.allow(&browser, &super::harness::authorize_path(&public)).await.returned()["code"].clone();
    let form = exchange_form(&code, &[("client_id", "public"), ("client_secret", "")]);
    assert_eq!(served.token(None, &form).await.status, 200);
}

#[tokio::test]
async fn token_errors_use_the_standard_codes() {
    let served = TestProvider::start().await;
    let (_, browser) = served.consenting("ann@example.com").await;
    let wrong_basic = format!("Basic {}", STANDARD.encode("portal:wrong"));
    let basic = format!("Basic {}", STANDARD.encode(format!("portal:{SECRET}")));
    let other_verifier = "x".repeat(43);
    let cases = [
        (None, vec![("client_secret", "wrong")], 401, "invalid_client"),
        (None, vec![("client_secret", "")], 401, "invalid_client"),
        (None, vec![("client_id", "nobody")], 401, "invalid_client"),
        (Some(wrong_basic.as_str()), vec![("client_id", ""), ("client_secret", "")], 401, "invalid_client"),
        (Some(basic.as_str()), vec![], 400, "invalid_request"),
        (None, vec![("grant_type", "")], 400, "invalid_request"),
        (None, vec![("grant_type", "refresh_token")], 400, "unsupported_grant_type"),
        (None, vec![("grant_type", "password")], 400, "unsupported_grant_type"),
        (None, vec![("code", "")], 400, "invalid_request"),
        (None, vec![("redirect_uri", "")], 400, "invalid_request"),
        (None, vec![("code_verifier", "")], 400, "invalid_request"),
        (None, vec![("code_verifier", "short")], 400, "invalid_request"),
        (None, vec![("code", "nonsense")], 400, "invalid_grant"),
        (None, vec![("redirect_uri", "http://localhost:8081/")], 400, "invalid_grant"),
        (None, vec![("code_verifier", &other_verifier)], 400, "invalid_grant"),
        (None, vec![("client_id", "public"), ("client_secret", "")], 400, "invalid_grant"),
    ];
    for (authorization, changes, status, error) in cases {
        let code = served.code(&browser, &[]).await;
        let reply = served.token(authorization, &exchange_form(&code, &changes)).await;
        assert_eq!((reply.status, reply.json()["error"].as_str().unwrap()), (status, error), "{changes:?}");
        assert!(reply.json()["error_description"].as_str().is_some_and(|why| !why.is_empty()));
        assert_eq!(reply.header("cache-control"), "no-store");
        assert_eq!(reply.header("www-authenticate").starts_with("Basic"), status == 401, "{changes:?}");
    }
    let code = served.code(&browser, &[]).await;
    let mut twice = exchange_form(&code, &[]);
    twice.push(("code", &code));
    assert_eq!(served.token(None, &twice).await.json()["error"], "invalid_request");
    let long = "x".repeat(17_000);
    assert_eq!(served.token(None, &exchange_form(&long, &[])).await.status, 413);
}

#[tokio::test]
async fn token_endpoint_accepts_only_forms() {
    let served = TestProvider::start().await;
    let request = axum::http::Request::builder().method(Method::POST).uri("/token");
    let request = request.header("content-type", "application/json").body("{}".into()).unwrap();
    let reply = served.send(request).await;
    assert_eq!((reply.status, reply.json()["error"].as_str().unwrap()), (400, "invalid_request"));
}

#[tokio::test]
async fn authorization_code_expires_after_a_minute() {
    let served = TestProvider::start().await;
    let (_, browser) = served.consenting("ann@example.com").await;
    let code = served.code(&browser, &[]).await;
    served.clock.advance(Duration::from_millis(59_999));
    assert_eq!(served.exchange(&code).await.status, 200);
    let code = served.code(&browser, &[]).await;
    served.clock.advance(Duration::from_secs(60));
    assert_eq!(served.exchange(&code).await.json()["error"], "invalid_grant");
}

#[tokio::test]
async fn replayed_code_revokes_its_tokens() {
    let served = TestProvider::start().await;
    let (_, browser) = served.consenting("ann@example.com").await;
    let code = served.code(&browser, &[]).await;
    let access_token = served.exchange(&code).await.json()["access_token"].as_str().unwrap().to_owned();
    let bearer = format!("Bearer {access_token}");
    assert_eq!(served.userinfo(Method::GET, Some(&bearer)).await.status, 200);
    assert_eq!(served.exchange(&code).await.json()["error"], "invalid_grant");
    assert_eq!(served.userinfo(Method::GET, Some(&bearer)).await.status, 401);
}

#[tokio::test]
async fn concurrent_code_exchanges_succeed_once() {
    let served = Arc::new(TestProvider::start().await);
    let (_, browser) = served.consenting("ann@example.com").await;
    let code = served.code(&browser, &[]).await;
    let racers: Vec<_> = (0..8)
        .map(|_| {
            let (served, code) = (Arc::clone(&served), code.clone());
            tokio::spawn(async move { served.exchange(&code).await.status })
        })
        .collect();
    let mut statuses = Vec::new();
    for racer in racers {
        statuses.push(racer.await.unwrap());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 400, 400, 400, 400, 400, 400, 400]);
}

#[tokio::test]
async fn password_change_revokes_grants() {
    let served = TestProvider::start().await;
    let (account, browser) = served.consenting("ann@example.com").await;
    let (first, second) = (served.code(&browser, &[]).await, served.code(&browser, &[]).await);
    let tokens = served.exchange(&first).await.json();
    let bearer = format!("Bearer {}", tokens["access_token"].as_str().unwrap());
    let hash = PasswordHash("another".to_owned());
    served.provider.store.provider_accounts.set_password(&account.email, &hash).await.unwrap();
    assert_eq!(served.userinfo(Method::GET, Some(&bearer)).await.status, 401);
    assert_eq!(served.exchange(&second).await.json()["error"], "invalid_grant");
}
