//! `/userinfo`.

use super::harness::{Browser, TestProvider};
use axum::http::Method;
use serde_json::json;
use std::time::Duration;

#[tokio::test]
async fn access_token_works_for_ten_minutes() {
    let served = TestProvider::start().await;
    let (account, browser) = served.consenting("ann@example.com").await;
    let code = served.code(&browser, &[]).await;
    let bearer = format!("Bearer {}", served.exchange(&code).await.json()["access_token"].as_str().unwrap());
    let everything = json!({"sub": account.subject, "email": "ann@example.com", "email_verified": true});
    for method in [Method::GET, Method::POST] {
        let reply = served.userinfo(method, Some(&bearer)).await;
        assert_eq!((reply.status, reply.header("cache-control")), (200, "no-store"));
        assert_eq!(reply.json(), everything);
    }
    let code = served.code(&browser, &[("scope", "openid")]).await;
    let little = served.exchange(&code).await.json();
    let little = format!("bearer {}", little["access_token"].as_str().unwrap());
    let reply = served.userinfo(Method::GET, Some(&little)).await;
    assert_eq!(reply.json(), json!({"sub": account.subject}));

    served.clock.advance(Duration::from_secs(599));
    assert_eq!(served.userinfo(Method::GET, Some(&bearer)).await.status, 200);
    served.clock.advance(Duration::from_secs(1));
    assert_eq!(served.userinfo(Method::GET, Some(&bearer)).await.status, 401);
}

#[tokio::test]
async fn userinfo_errors_follow_rfc_6750() {
    let served = TestProvider::start().await;
    let (_, browser) = served.consenting("ann@example.com").await;
    let code = served.code(&browser, &[]).await;
    let tokens = served.exchange(&code).await.json();
    let id_token = format!("Bearer {}", tokens["id_token"].as_str().unwrap());
    let unknown = format!("Bearer {}", "x".repeat(43));
    for (authorization, status, challenge) in [
        (None, 401, "Bearer realm=\"userinfo\""),
        (Some("Basic YTpi"), 401, "Bearer realm=\"userinfo\""),
        (Some("Bearer"), 400, "error=\"invalid_request\""),
        (Some("Bearer nonsense"), 401, "error=\"invalid_token\""),
        (Some(&*unknown), 401, "error=\"invalid_token\""),
        (Some(&*id_token), 401, "error=\"invalid_token\""),
    ] {
        let reply = served.userinfo(Method::GET, authorization).await;
        assert_eq!(reply.status, status, "{authorization:?}");
        assert!(reply.header("www-authenticate").contains(challenge), "{authorization:?} {reply:?}");
        assert_eq!(reply.header("www-authenticate").contains("error="), challenge.contains("error="));
    }
    let in_address = format!("/userinfo?access_token={}", tokens["access_token"].as_str().unwrap());
    assert_eq!(served.get(&Browser::default(), &in_address).await.status, 401, "never in an address");
    assert_eq!(served.get(&browser, "/userinfo").await.status, 401, "a session is no access token");
}
