//! The OpenID Connect client: the authorization code flow with PKCE, with scopes `openid email` only.
//!
//! 1. `authorization_url`: the browser is redirected to the provider with a `state`, a `nonce` and a PKCE challenge for this
//!    sign-in only. `discovery` fetches the provider's endpoints; its issuer must equal the configured one exactly.
//! 2. The browser returns with a code. `callback` has already checked the `state` and the browser; `check_issuer` checks the
//!    issuer as in RFC 9207.
//! 3. `authenticate`: the code and the PKCE verifier are exchanged for an ID token, which `id_token` validates. If the signing key
//!    is unknown, the provider's keys are fetched once more. Claims that the token lacks are requested from `userinfo`: the
//!    address, whether it is verified, and those that the configuration names.
//! 4. Signing out: `end_session_url` ends the provider's session too. The other way round, the provider sends a token that
//!    `verify_logout_token` validates.

use super::claims::IdentityClaims;
use super::discovery::{Discovery, Endpoints, KeyPurpose};
use super::error::IdentityProviderError;
use super::http::{self, HttpError, ProviderHttp};
use super::id_token::{self, Claims, EmailClaims, Expected};
use super::logout_token::{self, LogoutToken};
use super::signed_token::TokenError;
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
use openidconnect::core::CoreJsonWebKey;
use openidconnect::url::Url;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Knows no `prompt=login`, and does not say so.
const GOOGLE: &str = "https://accounts.google.com";

/// Claims about an authentication. Only the signed ID token of that authentication can make them; UserInfo is about the
/// person.
const ONLY_IN_ID_TOKEN: [&str; 4] = ["acr", "amr", "auth_time", "sid"];

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
    /// Authentication levels to request (`acr_values`).
    acr_values: Option<String>,
    /// Claims that a sign-in needs besides the address.
    needed_claims: Vec<String>,
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

/// Whether the provider asks for credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoginPrompt {
    /// Uses the provider's own session, if there is one.
    IfNeeded,
    /// Asks despite a session, because the user may want another account.
    Always,
    /// Asks if the last authentication is older than this.
    IfOlderThan(Duration),
    /// Only confirms a session, and fails if there is none.
    Never,
}

/// Where the browser goes to end its session at the provider.
pub(crate) struct EndSession {
    pub(crate) url: String,
    /// Whether the endpoint is at the issuer's origin, to which our forms may redirect.
    pub(crate) is_at_issuer: bool,
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
        let http = ProviderHttp::new(issuer.url(), &settings.own_certificates)
            .map_err(|why| invalid("identity.issuer", &why))?;
        Ok(Self {
            issuer: identity.issuer.clone(),
            client_id: ClientId::new(identity.client_id.clone()),
            client_secret: identity.client_secret.clone().map(ClientSecret::new),
            redirect_url,
            after_sign_out: format!("{}/signed-out", settings.public_url),
            acr_values: (!identity.requirements.acr.is_empty()).then(|| identity.requirements.acr.join(" ")),
            needed_claims: identity
                .requirements
                .claims
                .keys()
                .chain(identity.roles.as_ref().map(|roles| &roles.claim))
                .cloned()
                .collect(),
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
            LoginPrompt::Always => request.add_extra_param("prompt", self.asking_prompt(&endpoints)),
            LoginPrompt::IfOlderThan(age) => request.add_extra_param("max_age", age.as_secs().to_string()),
            LoginPrompt::Never => request.add_extra_param("prompt", "none"),
        };
        let request = match &self.acr_values {
            Some(acr_values) => request.add_extra_param("acr_values", acr_values.as_str()),
            None => request,
        };
        Ok(request.url().0.into())
    }

    /// The value of `prompt` that makes the provider ask despite its session.
    fn asking_prompt(&self, endpoints: &Endpoints) -> &'static str {
        let supports = |value: &str| {
            endpoints.prompts.as_ref().is_none_or(|prompts| prompts.iter().any(|prompt| prompt == value))
        };
        let knows_login = self.issuer != GOOGLE && supports("login");
        if !knows_login && supports("select_account") { "select_account" } else { "login" }
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
        let (Claims { sub, email, .. }, mut all) = self
            .verify(&endpoints, KeyPurpose::IdToken, |keys| id_token::check(id_token, keys, &expected))
            .await?;
        let is_complete = email.is_complete() && self.needed_claims.iter().all(|name| all.contains_key(name));
        let email = match &endpoints.userinfo {
            Some(url) if !is_complete => {
                let more = userinfo::claims(url, &self.http, access_token, &sub).await?;
                let other = EmailClaims::of(&more);
                for (name, value) in more {
                    if !ONLY_IN_ID_TOKEN.contains(&name.as_str()) {
                        all.entry(name).or_insert(value);
                    }
                }
                email.or(other)
            }
            _ => email,
        };
        let (email, is_email_verified) = email.into_address();
        Ok(IdentityClaims::new(sub, email, is_email_verified, all, id_token, expected.now_s))
    }

    /// Verifies a logout token that anyone may have sent.
    pub(crate) async fn verify_logout_token(
        &self,
        token: &str,
    ) -> Result<LogoutToken, IdentityProviderError> {
        let endpoints = self.discovery.endpoints(&self.http).await?;
        let expected = logout_token::Expected {
            issuer: &self.issuer,
            client_id: self.client_id.as_str(),
            now_s: self.clock.now().0.div_euclid(1000),
        };
        self.verify(&endpoints, KeyPurpose::LogoutToken, |keys| logout_token::check(token, keys, &expected))
            .await
    }

    /// The provider's sign-out URL, if the cached metadata has one. The provider sends `state` back.
    pub(crate) fn end_session_url(&self, state: Option<&str>) -> Option<String> {
        let endpoint = self.discovery.last_known()?.end_session.clone()?;
        Some(self.end_session_at(endpoint, None, state).into())
    }

    /// The provider's sign-out URL for this ID token and `state`. `None` if the provider has none, or cannot be reached.
    pub(crate) async fn end_session(&self, id_token: Option<&str>, state: &str) -> Option<EndSession> {
        let endpoints = match self.discovery.endpoints(&self.http).await {
            Ok(endpoints) => endpoints,
            Err(error) => {
                tracing::warn!(%error, "signed out of the portal only");
                return None;
            }
        };
        let endpoint = endpoints.end_session.clone()?;
        let is_at_issuer = Url::parse(&self.issuer).is_ok_and(|issuer| issuer.origin() == endpoint.origin());
        let url = self.end_session_at(endpoint, id_token, Some(state)).into();
        Some(EndSession { url, is_at_issuer })
    }

    fn end_session_at(&self, mut endpoint: Url, id_token: Option<&str>, state: Option<&str>) -> Url {
        let parameters = [
            ("id_token_hint", id_token),
            ("client_id", Some(self.client_id.as_str())),
            ("post_logout_redirect_uri", Some(self.after_sign_out.as_str())),
            ("state", state),
        ];
        let given = parameters.into_iter().filter_map(|(name, value)| Some((name, value?)));
        endpoint.query_pairs_mut().extend_pairs(given);
        endpoint
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

    /// Checks a token with the provider's keys, and with newer ones if it is signed with none of them.
    async fn verify<T>(
        &self,
        endpoints: &Endpoints,
        purpose: KeyPurpose,
        check: impl Fn(&[CoreJsonWebKey]) -> Result<T, TokenError>,
    ) -> Result<T, IdentityProviderError> {
        let keys = self.discovery.keys(&self.http, endpoints).await?;
        let unknown = match check(keys.keys()) {
            Ok(claims) => return Ok(claims),
            Err(TokenError::Rejected(why)) => return Err(IdentityProviderError::InvalidResponse(why)),
            Err(TokenError::UnknownKey(why)) => why,
        };
        let Some(newer) = self.discovery.refetch_keys(&keys, purpose, &self.http, endpoints).await? else {
            return Err(IdentityProviderError::InvalidResponse(format!(
                "{unknown}; keys were refetched just now"
            )));
        };
        check(newer.keys()).map_err(|error| match error {
            TokenError::Rejected(why) | TokenError::UnknownKey(why) => {
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
