//! `/token`: exchanges a code for an ID token and an access token (RFC 6749, 4.1.3). Errors are JSON with the
//! standard's error codes.

use super::client_authentication::authenticate;
use super::discovery::no_store_json;
use super::id_token::IdToken;
use super::limits::ACCESS_TOKEN_TTL;
use super::parameters::{FormError, ParameterError, Parameters};
use super::scope::Scope;
use super::signing_keys::{KeyError, after, key_ring};
use crate::Provider;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chancery_domain::{SecretToken, UnixMillis};
use chancery_store::{CodeRedemption, Grant, ProviderAccount, ProviderError, RedeemOutcome};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Bounds from RFC 7636.
const VERIFIER_CHARS: RangeInclusive<usize> = 43..=128;

#[derive(Debug)]
pub(super) struct TokenError {
    status: StatusCode,
    pub(super) code: &'static str,
    description: String,
}

pub(crate) async fn exchange(State(provider): State<Arc<Provider>>, request: Request) -> Response {
    match exchange_code(&provider, request).await {
        Ok(tokens) => no_store_json(&tokens),
        Err(error) => error.into_response(),
    }
}

async fn exchange_code(provider: &Provider, request: Request) -> Result<Value, TokenError> {
    let headers = request.headers().clone();
    let parameters = Parameters::from_form(request).await?;
    let presented = read(provider, &headers, &parameters)?;
    let now = provider.clock.now();
    // Load the keys before redeeming the code: if they are unavailable, the code stays valid.
    let keys = key_ring(provider.store.as_ref(), provider.randomness.as_ref(), now).await?;
    let key = keys.active_key()?;
    let access_token = SecretToken::generate(provider.randomness.as_ref());
    let (grant, account) = redeem(provider, presented, &access_token, now).await?;
    let scope = Scope::parse(&grant.scope).unwrap_or(Scope { has_email: false });
    let id_token = IdToken {
        issuer: &provider.settings.issuer,
        grant: &grant,
        scope,
        email: account.email.as_str(),
        access_token: access_token.reveal(),
        now,
    };
    Ok(json!({
        "access_token": access_token.reveal(),
        "token_type": "Bearer",
        "expires_in": ACCESS_TOKEN_TTL.as_secs(),
        "id_token": id_token.sign(&key),
        "scope": scope.as_str(),
    }))
}

/// The code and the parameters it is checked against.
struct CodeExchange {
    code: SecretToken,
    client_id: String,
    redirect_uri: String,
    code_challenge: String,
}

fn read(
    provider: &Provider,
    headers: &HeaderMap,
    parameters: &Parameters,
) -> Result<CodeExchange, TokenError> {
    let client = authenticate(&provider.settings, headers, parameters)?;
    match parameters.one("grant_type")? {
        None => return Err(TokenError::invalid_request("grant_type is missing")),
        Some("authorization_code") => {}
        Some(_) => {
            let description = "grant_type must be authorization_code".to_owned();
            return Err(TokenError {
                status: StatusCode::BAD_REQUEST,
                code: "unsupported_grant_type",
                description,
            });
        }
    }
    let needed = |name| {
        let value = parameters.one(name)?;
        value.ok_or_else(|| TokenError::invalid_request(&format!("{name} is missing")))
    };
    let (code, redirect_uri) = (needed("code")?, needed("redirect_uri")?);
    let verifier = needed("code_verifier")?;
    let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    if !VERIFIER_CHARS.contains(&verifier.len()) || !verifier.bytes().all(is_unreserved) {
        return Err(TokenError::invalid_request(
            "code_verifier must be 43 to 128 characters of A-Z a-z 0-9 - . _ ~",
        ));
    }
    Ok(CodeExchange {
        code: SecretToken::parse(code).ok_or_else(TokenError::invalid_grant)?,
        client_id: client.id.clone(),
        redirect_uri: redirect_uri.to_owned(),
        code_challenge: URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes())),
    })
}

async fn redeem(
    provider: &Provider,
    presented: CodeExchange,
    access_token: &SecretToken,
    now: UnixMillis,
) -> Result<(Grant, ProviderAccount), TokenError> {
    let CodeExchange { code, client_id, redirect_uri, code_challenge } = presented;
    let presented = CodeRedemption {
        code: code.hash(),
        client_id,
        redirect_uri,
        code_challenge,
        access_token: access_token.hash(),
        access_expires_at: after(now, ACCESS_TOKEN_TTL),
        now,
    };
    let by = presented.client_id.clone();
    match provider.store.grants.redeem_code(presented).await? {
        RedeemOutcome::Granted(grant) => match account_of(provider, &grant).await? {
            Some(account) => Ok((grant, account)),
            None => Err(TokenError::invalid_grant()),
        },
        RedeemOutcome::Unknown => Err(TokenError::invalid_grant()),
        RedeemOutcome::Replayed(grant) => {
            tracing::warn!(by, client_id = grant.client_id, "authorization code replayed, tokens revoked");
            Err(TokenError::invalid_grant())
        }
        RedeemOutcome::Rejected { grant, is_expired } => {
            tracing::warn!(
                by,
                client_id = grant.client_id,
                is_expired,
                "authorization code expired, presented by another client, or of an ended session"
            );
            Err(TokenError::invalid_grant())
        }
    }
}

/// The account of the grant, if its password has not changed since.
pub(super) async fn account_of(
    provider: &Provider,
    grant: &Grant,
) -> Result<Option<ProviderAccount>, ProviderError> {
    let account = provider.store.provider_accounts.provider_account(&grant.subject).await?;
    Ok(account.filter(|account| account.password_version == grant.password_version))
}

impl TokenError {
    pub(super) fn invalid_request(description: &str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code: "invalid_request", description: description.to_owned() }
    }

    /// One error for an unknown client, a wrong secret and a missing secret.
    pub(super) fn invalid_client() -> Self {
        let description = "unknown client or incorrect secret".to_owned();
        Self { status: StatusCode::UNAUTHORIZED, code: "invalid_client", description }
    }

    /// One error for every problem with a code.
    fn invalid_grant() -> Self {
        let description = "the code is invalid, used or expired, or was issued for another client, redirect_uri or code_verifier";
        Self { status: StatusCode::BAD_REQUEST, code: "invalid_grant", description: description.to_owned() }
    }
}

impl IntoResponse for TokenError {
    fn into_response(self) -> Response {
        let mut response = no_store_json(&json!({"error": self.code, "error_description": self.description}));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"token\""));
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("30"));
        }
        response
    }
}

impl From<ParameterError> for TokenError {
    fn from(error: ParameterError) -> Self {
        Self::invalid_request(&error.to_string())
    }
}

impl From<FormError> for TokenError {
    fn from(error: FormError) -> Self {
        let status = match error {
            FormError::NotAForm => StatusCode::BAD_REQUEST,
            FormError::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
        };
        Self { status, ..Self::invalid_request(&error.to_string()) }
    }
}

impl From<ProviderError> for TokenError {
    fn from(error: ProviderError) -> Self {
        tracing::error!(%error, "code exchange failed");
        let description = "no token was issued; try again in a minute".to_owned();
        Self { status: StatusCode::SERVICE_UNAVAILABLE, code: "temporarily_unavailable", description }
    }
}

impl From<KeyError> for TokenError {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Store(error) => ProviderError::Database(error).into(),
            KeyError::NotCreated => {
                tracing::error!(%error, "id token signing failed");
                let description = "the ID token cannot be signed".to_owned();
                Self { status: StatusCode::INTERNAL_SERVER_ERROR, code: "server_error", description }
            }
        }
    }
}
