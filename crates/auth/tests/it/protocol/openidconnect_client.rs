//! A complete sign-in by the `openidconnect` crate, over TCP. The crate itself checks signature, issuer, audience,
//! nonce, times and `at_hash`.

use super::harness::{SECRET, TestProvider};
use chancery_domain::{Clock, ManualClock, SystemClock};
use openidconnect::core::{CoreAuthenticationFlow, CoreClient, CoreGenderClaim, CoreUserInfoClaims};
use openidconnect::{
    AccessTokenHash, AuthorizationCode, ClientId, ClientSecret, CsrfToken, EmptyAdditionalClaims,
    HttpRequest, HttpResponse, IssuerUrl, Nonce, OAuth2TokenResponse, PkceCodeChallenge,
    ProviderMetadataWithLogout, RedirectUrl, Scope, TokenResponse, UserInfoClaims,
};
use std::collections::HashMap;
use std::sync::Arc;

const CALLBACK: &str = "http://localhost:8081/auth/callback";

async fn send(request: HttpRequest) -> Result<HttpResponse, reqwest::Error> {
    // The client needs a TLS provider even though this test uses plain HTTP.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build()?;
    let (parts, body) = request.into_parts();
    let response =
        client.request(parts.method, parts.uri.to_string()).headers(parts.headers).body(body).send().await?;
    let (status, headers) = (response.status(), response.headers().clone());
    let mut reply = HttpResponse::new(response.bytes().await?.to_vec());
    *reply.status_mut() = status;
    *reply.headers_mut() = headers;
    Ok(reply)
}

#[tokio::test]
async fn openidconnect_crate_can_sign_in() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer = format!("http://{}", listener.local_addr().unwrap());
    let clock = Arc::new(ManualClock::at(SystemClock.now()));
    let served = TestProvider::start_with(&issuer, CALLBACK, clock).await;
    let server = tokio::spawn(axum::serve(listener, served.router.clone()).into_future());

    let issuer_url = IssuerUrl::new(issuer.clone()).unwrap();
    let metadata = ProviderMetadataWithLogout::discover_async(issuer_url, &send).await.unwrap();
    let logout = metadata.additional_metadata().end_session_endpoint.clone().unwrap();
    assert_eq!(logout.url().as_str(), format!("{issuer}/logout"));
    let client = CoreClient::from_provider_metadata(
        metadata,
        ClientId::new("portal".to_owned()),
        Some(ClientSecret::new(SECRET.to_owned())),
    )
    .set_redirect_uri(RedirectUrl::new(CALLBACK.to_owned()).unwrap());
    let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
    let request = client.authorize_url(
        CoreAuthenticationFlow::AuthorizationCode,
        CsrfToken::new_random,
        Nonce::new_random,
    );
    let (address, state, nonce) =
        request.add_scope(Scope::new("email".to_owned())).set_pkce_challenge(challenge).url();

    let account = served.account("ann@example.com").await;
    let browser = served.sign_in(&account).await;
    let path = address.as_str().strip_prefix(&issuer).unwrap();
    let (redirect, returned): (String, HashMap<String, String>) =
        served.allow(&browser, path).await.redirect_to();
    assert_eq!(
        (redirect.as_str(), &returned["state"], &returned["iss"]),
        (CALLBACK, state.secret(), &issuer)
    );

    let code = AuthorizationCode::new(returned["code"].clone());
    let exchange = client.exchange_code(code).unwrap().set_pkce_verifier(verifier);
    let tokens = exchange.request_async(&send).await.unwrap();
    let id_token = tokens.id_token().unwrap();
    let id_verifier = client.id_token_verifier();
    let claims = id_token.claims(&id_verifier, &nonce).unwrap();
    assert_eq!(claims.subject().as_str(), account.subject);
    assert_eq!(claims.email().unwrap().as_str(), "ann@example.com");
    assert_eq!(claims.email_verified(), Some(true));
    let (algorithm, key) = (id_token.signing_alg().unwrap(), id_token.signing_key(&id_verifier).unwrap());
    let hash = AccessTokenHash::from_token(tokens.access_token(), algorithm, key).unwrap();
    assert_eq!(claims.access_token_hash(), Some(&hash));
    assert!(id_token.claims(&id_verifier, &Nonce::new("another".to_owned())).is_err(), "it does check");

    let userinfo = client.user_info(tokens.access_token().clone(), Some(claims.subject().clone())).unwrap();
    let userinfo: UserInfoClaims<EmptyAdditionalClaims, CoreGenderClaim> =
        userinfo.request_async(&send).await.unwrap();
    let userinfo: CoreUserInfoClaims = userinfo;
    assert_eq!(userinfo.email().unwrap().as_str(), "ann@example.com");
    server.abort();
}
