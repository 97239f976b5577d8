//! `/token`: a code for an ID token and an access token (RFC 6749, 4.1.3). Errors are JSON, in the standard's words.

use super::client_authentication::authenticate;
use super::discovery::fleeting_json;
use super::id_token::IdToken;
use super::limits::ACCESS_TOKEN_LIFE;
use super::parameters::{Flaw, FormFlaw, Parameters};
use super::scope::Scope;
use super::signing_keys::{KeyError, after, key_ring};
use crate::Provider;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chancery_domain::{SecretToken, UnixMillis};
use chancery_store::{CodePresented, Grant, ProviderAccount, ProviderError, Redeemed};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// As RFC 7636 bounds it.
const VERIFIER_CHARS: RangeInclusive<usize> = 43..=128;

#[derive(Debug)]
pub(super) struct TokenError {
    status: StatusCode,
    pub(super) code: &'static str,
    why: String,
}

pub(crate) async fn exchange(State(provider): State<Arc<Provider>>, request: Request) -> Response {
    match answer(&provider, request).await {
        Ok(tokens) => fleeting_json(&tokens),
        Err(error) => error.into_response(),
    }
}

async fn answer(provider: &Provider, request: Request) -> Result<Value, TokenError> {
    let headers = request.headers().clone();
    let parameters = Parameters::of_form(request).await?;
    let presented = read(provider, &headers, &parameters)?;
    let now = provider.clock.now();
    // Before the code is used up, so that keys that cannot be had cost nobody their sign-in.
    let keys = key_ring(provider.store.as_ref(), provider.randomness.as_ref(), now).await?;
    let key = keys.signing_now()?;
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
        "expires_in": ACCESS_TOKEN_LIFE.as_secs(),
        "id_token": id_token.sign(&key),
        "scope": scope.as_str(),
    }))
}

/// What is sent along with a code.
struct Presented {
    code: SecretToken,
    client_id: String,
    redirect_uri: String,
    code_challenge: String,
}

fn read(provider: &Provider, headers: &HeaderMap, parameters: &Parameters) -> Result<Presented, TokenError> {
    let client = authenticate(&provider.settings, headers, parameters)?;
    match parameters.one("grant_type")? {
        None => return Err(TokenError::invalid_request("grant_type is missing")),
        Some("authorization_code") => {}
        Some(_) => {
            let why = "grant_type must be authorization_code".to_owned();
            return Err(TokenError { status: StatusCode::BAD_REQUEST, code: "unsupported_grant_type", why });
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
            "code_verifier must be 43 to 128 letters, digits and the signs - . _ ~",
        ));
    }
    Ok(Presented {
        code: SecretToken::parse(code).ok_or_else(TokenError::invalid_grant)?,
        client_id: client.id.clone(),
        redirect_uri: redirect_uri.to_owned(),
        code_challenge: URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes())),
    })
}

async fn redeem(
    provider: &Provider,
    presented: Presented,
    access_token: &SecretToken,
    now: UnixMillis,
) -> Result<(Grant, ProviderAccount), TokenError> {
    let Presented { code, client_id, redirect_uri, code_challenge } = presented;
    let presented = CodePresented {
        code: code.hash(),
        client_id,
        redirect_uri,
        code_challenge,
        access_token: access_token.hash(),
        access_expires_at: after(now, ACCESS_TOKEN_LIFE),
        now,
    };
    let by = presented.client_id.clone();
    match provider.store.grants.redeem_code(presented).await? {
        Redeemed::Yes(grant) => match account_of(provider, &grant).await? {
            Some(account) => Ok((grant, account)),
            None => Err(TokenError::invalid_grant()),
        },
        Redeemed::Unknown => Err(TokenError::invalid_grant()),
        Redeemed::Replayed(grant) => {
            tracing::warn!(
                by,
                client_id = grant.client_id,
                "a code was presented again; its token is revoked"
            );
            Err(TokenError::invalid_grant())
        }
        Redeemed::Mismatch { grant, is_late } => {
            tracing::warn!(
                by,
                client_id = grant.client_id,
                is_late,
                "a code was presented too late or by somebody else"
            );
            Err(TokenError::invalid_grant())
        }
    }
}

/// Whose grant it is, if they still have the password that they had then.
pub(super) async fn account_of(
    provider: &Provider,
    grant: &Grant,
) -> Result<Option<ProviderAccount>, ProviderError> {
    let account = provider.store.provider_accounts.provider_account(&grant.subject).await?;
    Ok(account.filter(|account| account.password_version == grant.password_version))
}

impl TokenError {
    pub(super) fn invalid_request(why: &str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code: "invalid_request", why: why.to_owned() }
    }

    /// One answer for an unknown application, a wrong secret and none.
    pub(super) fn invalid_client() -> Self {
        let why = "the client is not known here, or its secret is not right".to_owned();
        Self { status: StatusCode::UNAUTHORIZED, code: "invalid_client", why }
    }

    /// One answer for whatever may be wrong about a code.
    fn invalid_grant() -> Self {
        let why = "the code is not valid, was used, is older than a minute, or was made for another client, \
                   redirect_uri or code_verifier";
        Self { status: StatusCode::BAD_REQUEST, code: "invalid_grant", why: why.to_owned() }
    }
}

impl IntoResponse for TokenError {
    fn into_response(self) -> Response {
        let mut response = fleeting_json(&json!({"error": self.code, "error_description": self.why}));
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

impl From<Flaw> for TokenError {
    fn from(flaw: Flaw) -> Self {
        Self::invalid_request(&flaw.to_string())
    }
}

impl From<FormFlaw> for TokenError {
    fn from(flaw: FormFlaw) -> Self {
        let status = match flaw {
            FormFlaw::NotAForm => StatusCode::BAD_REQUEST,
            FormFlaw::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
        };
        Self { status, ..Self::invalid_request(&flaw.to_string()) }
    }
}

impl From<ProviderError> for TokenError {
    fn from(error: ProviderError) -> Self {
        tracing::error!(%error, "a code cannot be exchanged");
        let why = "nothing was given out; try again in a minute".to_owned();
        Self { status: StatusCode::SERVICE_UNAVAILABLE, code: "temporarily_unavailable", why }
    }
}

impl From<KeyError> for TokenError {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Store(error) => ProviderError::Database(error).into(),
            KeyError::NotMade => {
                tracing::error!(%error, "an ID token cannot be signed");
                let why = "the ID token cannot be signed".to_owned();
                Self { status: StatusCode::INTERNAL_SERVER_ERROR, code: "server_error", why }
            }
        }
    }
}
