//! The OpenID Connect client: the authorization code flow with PKCE, with scopes `openid email` only.
//!
//! 1. `authorization_url`: the browser is redirected to the provider with a `state`, a `nonce` and a PKCE challenge for this
//!    sign-in only. `discovery` fetches the provider's endpoints; its issuer must equal the configured one exactly.
//! 2. The browser returns with a code. `callback` has already checked the `state` and the browser; `check_issuer` checks the
//!    issuer as in RFC 9207.
//! 3. `authenticate`: `token_endpoint` exchanges the code and the PKCE verifier for an ID token, which `id_token` validates. If the
//!    signing key is unknown, the provider's keys are fetched once more. Claims that the token lacks are requested from `userinfo`:
//!    the address, whether it is verified, and those that the configuration names.
//! 4. Signing out: `end_session_url` ends the provider's session too. The other way round, the provider sends a token that
//!    `verify_logout_token` validates.

use super::claims::IdentityClaims;
use super::discovery::{Discovery, Endpoints, KeyPurpose};
use super::error::IdentityProviderError;
use super::http::{self, ProviderHttp};
use super::id_token::{self, Claims, EmailClaims, Expected};
use super::jwk::JsonWebKey;
use super::logout_token::{self, LogoutToken};
use super::signed_token::TokenError;
use super::token_endpoint::CodeExchange;
use super::userinfo;
use crate::settings::PortalSettings;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use chancery_domain::Clock;
use reqwest::Url;
use ring::digest::{SHA256, digest};
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
    client_id: String,
    client_secret: Option<String>,
    redirect_url: String,
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

impl IdentityProvider {
    pub(crate) fn new(settings: &PortalSettings, clock: Arc<dyn Clock>) -> Result<Self, IdentityError> {
        let identity = &settings.identity;
        let invalid = |key: &str, why: &str| IdentityError(format!("invalid {key}: {why}"));
        let issuer =
            Url::parse(&identity.issuer).map_err(|error| invalid("identity.issuer", &error.to_string()))?;
        if !http::is_safe(&issuer) {
            return Err(invalid("identity.issuer", "use `https:` or a loopback address"));
        }
        let redirect_url = format!("{}/auth/callback", settings.public_url);
        Url::parse(&redirect_url).map_err(|error| invalid("portal.public_url", &error.to_string()))?;
        let http = ProviderHttp::new(&issuer, &settings.own_certificates)
            .map_err(|why| invalid("identity.issuer", &why))?;
        Ok(Self {
            issuer: identity.issuer.clone(),
            client_id: identity.client_id.clone(),
            client_secret: identity.client_secret.clone(),
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
            discovery: Discovery::new(identity.issuer.clone(), Arc::clone(&clock)),
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
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(digest(&SHA256, secrets.pkce_verifier.as_bytes()));
        let prompt = match prompt {
            LoginPrompt::IfNeeded => None,
            LoginPrompt::Always => Some(("prompt", self.asking_prompt(&endpoints).to_owned())),
            LoginPrompt::IfOlderThan(age) => Some(("max_age", age.as_secs().to_string())),
            LoginPrompt::Never => Some(("prompt", "none".to_owned())),
        };
        let mut url = endpoints.authorization.clone();
        url.query_pairs_mut()
            .extend_pairs([
                ("response_type", "code"),
                ("client_id", self.client_id.as_str()),
                ("state", secrets.state),
                ("code_challenge", challenge.as_str()),
                ("code_challenge_method", "S256"),
                ("redirect_uri", self.redirect_url.as_str()),
                ("scope", "openid email"),
                ("nonce", secrets.nonce),
            ])
            .extend_pairs(prompt)
            .extend_pairs(self.acr_values.as_ref().map(|acr_values| ("acr_values", acr_values)));
        Ok(url.into())
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
        code: &str,
        secrets: &SignInSecrets<'_>,
    ) -> Result<IdentityClaims, IdentityProviderError> {
        let endpoints = self.discovery.endpoints(&self.http).await?;
        let exchange = CodeExchange {
            client_id: &self.client_id,
            client_secret: self.client_secret.as_deref(),
            authentication: endpoints.client_authentication,
            redirect_url: &self.redirect_url,
            code,
            pkce_verifier: secrets.pkce_verifier,
        };
        let tokens = exchange.send(&endpoints.token, &self.http).await?;
        let Some(id_token) = &tokens.id_token else {
            return Err(IdentityProviderError::InvalidResponse(
                "the token endpoint's reply has no `id_token`".to_owned(),
            ));
        };
        let expected = Expected {
            issuer: &self.issuer,
            client_id: &self.client_id,
            nonce: secrets.nonce,
            code,
            access_token: &tokens.access_token,
            now_s: self.clock.now().0.div_euclid(1000),
        };
        let (Claims { sub, email, .. }, mut all) = self
            .verify(&endpoints, KeyPurpose::IdToken, |keys| id_token::check(id_token, keys, &expected))
            .await?;
        let is_complete = email.is_complete() && self.needed_claims.iter().all(|name| all.contains_key(name));
        let email = match &endpoints.userinfo {
            Some(url) if !is_complete => {
                let more = userinfo::claims(url, &self.http, &tokens.access_token, &sub).await?;
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
            client_id: &self.client_id,
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

    /// Checks a token with the provider's keys, and with newer ones if it is signed with none of them.
    async fn verify<T>(
        &self,
        endpoints: &Endpoints,
        purpose: KeyPurpose,
        check: impl Fn(&[JsonWebKey]) -> Result<T, TokenError>,
    ) -> Result<T, IdentityProviderError> {
        let keys = self.discovery.keys(&self.http, endpoints).await?;
        let unknown = match check(&keys.keys) {
            Ok(claims) => return Ok(claims),
            Err(TokenError::Rejected(why)) => return Err(IdentityProviderError::InvalidResponse(why)),
            Err(TokenError::UnknownKey(why)) => why,
        };
        let Some(newer) = self.discovery.refetch_keys(&keys, purpose, &self.http, endpoints).await? else {
            return Err(IdentityProviderError::InvalidResponse(format!(
                "{unknown}; keys were refetched just now"
            )));
        };
        check(&newer.keys).map_err(|error| match error {
            TokenError::Rejected(why) | TokenError::UnknownKey(why) => {
                IdentityProviderError::InvalidResponse(why)
            }
        })
    }
}
