//! The OpenID Connect client: the authorization code flow with PKCE, with scopes `openid email` only.
//!
//! 1. `authorization_url`: the browser is redirected to the provider with a `state`, a `nonce` and a PKCE challenge for this
//!    sign-in only. `discovery` fetches the provider's endpoints; its issuer must equal the configured one exactly.
//! 2. The browser returns with a code. `callback` has already checked the `state` and the browser; `check_issuer` checks the
//!    issuer as in RFC 9207.
//! 3. `authenticate`: the code and the PKCE verifier are exchanged for an ID token, which `id_token` validates. If the signing key
//!    is unknown, the provider's keys are fetched once more. If the token has no address, it is requested from `userinfo`.

use super::discovery::{Discovery, Endpoints};
use super::error::IdentityProviderError;
use super::http::{self, HttpError, ProviderHttp};
use super::id_token::{self, Claims, Expected, IdTokenError};
use super::userinfo;
use crate::settings::PortalSettings;
use chancery_domain::Clock;
use oauth2::basic::{
    BasicErrorResponse, BasicErrorResponseType, BasicRevocationErrorResponse,
    BasicTokenIntrospectionResponse, BasicTokenType,
};
use oauth2::{
    AuthorizationCode, ClientId, ClientSecret, CsrfToken, EndpointNotSet, EndpointSet, ExtraTokenFields,
    PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, RequestTokenError, Scope, StandardRevocableToken,
    StandardTokenResponse, TokenResponse,
};
use openidconnect::IssuerUrl;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Why the provider cannot be used; the message names the configuration key.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct IdentityError(String);

pub(crate) struct IdentityProvider {
    issuer: String,
    client_id: ClientId,
    client_secret: Option<ClientSecret>,
    redirect_url: RedirectUrl,
    after_sign_out: String,
    http: ProviderHttp,
    discovery: Discovery,
    clock: Arc<dyn Clock>,
}

/// Random values that belong to a single sign-in.
pub(crate) struct SignInSecrets<'a> {
    pub(crate) state: &'a str,
    pub(crate) nonce: &'a str,
    pub(crate) pkce_verifier: &'a str,
}

/// Whether the provider must ask for credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginPrompt {
    /// Uses the provider's own session, if there is one.
    IfNeeded,
    /// Asks despite a session, because the user may want another account.
    Always,
}

/// What the provider asserts about the person who signed in.
#[derive(Debug)]
pub(crate) struct IdentityClaims {
    pub(crate) subject: String,
    pub(crate) email: Option<String>,
    pub(crate) is_email_verified: bool,
}

#[derive(Debug, Deserialize, Serialize)]
struct IdTokenField {
    id_token: Option<String>,
}

impl ExtraTokenFields for IdTokenField {}

type TokenReply = StandardTokenResponse<IdTokenField, BasicTokenType>;

type Client = oauth2::Client<
    BasicErrorResponse,
    TokenReply,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointSet,
>;

impl IdentityProvider {
    pub(crate) fn new(settings: &PortalSettings, clock: Arc<dyn Clock>) -> Result<Self, IdentityError> {
        let identity = &settings.identity;
        let invalid = |key: &str, why: &str| IdentityError(format!("invalid {key}: {why}"));
        let issuer = IssuerUrl::new(identity.issuer.clone())
            .map_err(|error| invalid("identity.issuer", &error.to_string()))?;
        if !http::is_safe(issuer.url()) {
            return Err(invalid("identity.issuer", "use `https:` or a loopback address"));
        }
        let redirect_url = RedirectUrl::new(format!("{}/auth/callback", settings.public_url))
            .map_err(|error| invalid("portal.public_url", &error.to_string()))?;
        let http = ProviderHttp::new(issuer.url()).map_err(|why| invalid("identity.issuer", &why))?;
        Ok(Self {
            issuer: identity.issuer.clone(),
            client_id: ClientId::new(identity.client_id.clone()),
            client_secret: identity.client_secret.clone().map(ClientSecret::new),
            redirect_url,
            after_sign_out: format!("{}/", settings.public_url),
            http,
            discovery: Discovery::new(issuer, Arc::clone(&clock)),
            clock,
        })
    }

    pub(crate) fn issuer(&self) -> &str {
        &self.issuer
    }

    /// The provider's URL to redirect the browser to.
    pub(crate) async fn authorization_url(
        &self,
        secrets: &SignInSecrets<'_>,
        prompt: LoginPrompt,
    ) -> Result<String, IdentityProviderError> {
        let endpoints = self.discovery.endpoints(&self.http).await?;
        let verifier = PkceCodeVerifier::new(secrets.pkce_verifier.to_owned());
        let client = self.client(&endpoints);
        let request = client
            .authorize_url(|| CsrfToken::new(secrets.state.to_owned()))
            .add_scope(Scope::new("openid".to_owned()))
            .add_scope(Scope::new("email".to_owned()))
            .set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(&verifier))
            .add_extra_param("nonce", secrets.nonce);
        let request = match prompt {
            LoginPrompt::IfNeeded => request,
            LoginPrompt::Always => request.add_extra_param("prompt", "login"),
        };
        Ok(request.url().0.into())
    }

    /// RFC 9207: if the callback has `iss`, it must be our issuer, and a provider that announces `iss` must send it. Otherwise a
    /// code from one provider could be sent to another.
    pub(crate) async fn check_issuer(&self, iss: Option<&str>) -> Result<(), IdentityProviderError> {
        let endpoints = self.discovery.endpoints(&self.http).await?;
        match iss {
            Some(issuer) if issuer == self.issuer => Ok(()),
            Some(_) => Err(IdentityProviderError::InvalidResponse("wrong `iss` in the callback".to_owned())),
            None if endpoints.sends_iss => {
                Err(IdentityProviderError::InvalidResponse("missing `iss` in the callback".to_owned()))
            }
            None => Ok(()),
        }
    }

    /// Exchanges the code and returns the identity of the person who signed in.
    pub(crate) async fn authenticate(
        &self,
        code: String,
        secrets: &SignInSecrets<'_>,
    ) -> Result<IdentityClaims, IdentityProviderError> {
        let endpoints = self.discovery.endpoints(&self.http).await?;
        let code = AuthorizationCode::new(code);
        let reply = self.exchange(&endpoints, &code, secrets).await?;
        let access_token = reply.access_token();
        let Some(id_token) = &reply.extra_fields().id_token else {
            return Err(IdentityProviderError::InvalidResponse(
                "the token endpoint's reply has no `id_token`".to_owned(),
            ));
        };
        let expected = Expected {
            issuer: &self.issuer,
            client_id: self.client_id.as_str(),
            nonce: secrets.nonce,
            code: &code,
            access_token,
            now_s: self.clock.now().0.div_euclid(1000),
        };
        let claims = self.check(&endpoints, id_token, &expected).await?;
        let Claims { sub, email, .. } = claims;
        let email = match &endpoints.userinfo {
            Some(url) if !email.is_present() => {
                userinfo::email_claims(url, &self.http, access_token, &sub).await?
            }
            _ => email,
        };
        let (email, is_email_verified) = email.into_address();
        Ok(IdentityClaims { subject: sub, email, is_email_verified })
    }

    /// The provider's sign-out URL, if the cached metadata has one.
    pub(crate) fn end_session_url(&self) -> Option<String> {
        let mut url = self.discovery.last_known()?.end_session.clone()?;
        url.query_pairs_mut()
            .append_pair("client_id", self.client_id.as_str())
            .append_pair("post_logout_redirect_uri", &self.after_sign_out);
        Some(url.into())
    }

    fn client(&self, endpoints: &Endpoints) -> Client {
        let client = oauth2::Client::new(self.client_id.clone())
            .set_auth_type(endpoints.client_authentication.clone())
            .set_auth_uri(endpoints.authorization.clone())
            .set_token_uri(endpoints.token.clone())
            .set_redirect_uri(self.redirect_url.clone());
        match &self.client_secret {
            Some(secret) => client.set_client_secret(secret.clone()),
            None => client,
        }
    }

    async fn exchange(
        &self,
        endpoints: &Endpoints,
        code: &AuthorizationCode,
        secrets: &SignInSecrets<'_>,
    ) -> Result<TokenReply, IdentityProviderError> {
        let client = self.client(endpoints);
        let result = client
            .exchange_code(code.clone())
            .set_pkce_verifier(PkceCodeVerifier::new(secrets.pkce_verifier.to_owned()))
            .request_async(&self.http)
            .await;
        let reply = result.map_err(|error| map_provider_error(&error))?;
        match reply.token_type() {
            BasicTokenType::Bearer => Ok(reply),
            _ => Err(IdentityProviderError::InvalidResponse(
                "the token endpoint's `token_type` is not `Bearer`".to_owned(),
            )),
        }
    }

    async fn check(
        &self,
        endpoints: &Endpoints,
        id_token: &str,
        expected: &Expected<'_>,
    ) -> Result<Claims, IdentityProviderError> {
        let keys = self.discovery.keys(&self.http, endpoints).await?;
        let unknown = match id_token::check(id_token, keys.keys(), expected) {
            Ok(claims) => return Ok(claims),
            Err(IdTokenError::Rejected(why)) => return Err(IdentityProviderError::InvalidResponse(why)),
            Err(IdTokenError::UnknownKey(why)) => why,
        };
        let Some(newer) = self.discovery.refetch_keys(&keys, &self.http, endpoints).await? else {
            return Err(IdentityProviderError::InvalidResponse(format!(
                "{unknown}; keys were refetched just now"
            )));
        };
        id_token::check(id_token, newer.keys(), expected).map_err(|error| match error {
            IdTokenError::Rejected(why) | IdTokenError::UnknownKey(why) => {
                IdentityProviderError::InvalidResponse(why)
            }
        })
    }
}

/// Omits the response body, which may contain tokens.
fn map_provider_error(error: &RequestTokenError<HttpError, BasicErrorResponse>) -> IdentityProviderError {
    match error {
        RequestTokenError::Request(error) => error.error("the token endpoint"),
        RequestTokenError::ServerResponse(response) => {
            let error = response.error();
            let code: String = error.as_ref().chars().filter(char::is_ascii_graphic).take(40).collect();
            let text = format!("the token endpoint answered `{code}`");
            match error {
                BasicErrorResponseType::InvalidGrant => IdentityProviderError::CodeExpired(text),
                _ => IdentityProviderError::ClientRejected(text),
            }
        }
        RequestTokenError::Parse(error, _) => {
            IdentityProviderError::InvalidResponse(format!("invalid token reply at `{}`", error.path()))
        }
        RequestTokenError::Other(why) => {
            IdentityProviderError::InvalidResponse(format!("the token endpoint: {why}"))
        }
    }
}
