//! The provider's metadata and signing keys. Both are fetched on first use, so that the portal can start while its provider is
//! down, and are cached for a while.

use super::error::IdentityProviderError;
use super::http::{HttpError, ProviderHttp, is_safe};
use super::limits::{DISCOVERY_MAX_AGE, DISCOVERY_RETRY_AFTER, KEYS_MAX_AGE, KEYS_REFETCH_INTERVAL};
use chancery_domain::Clock;
use chancery_http_client::error_chain;
use oauth2::AuthType;
use openidconnect::core::{
    CoreAuthDisplay, CoreClaimName, CoreClaimType, CoreClientAuthMethod, CoreGrantType, CoreJsonWebKey,
    CoreJsonWebKeySet, CoreJweContentEncryptionAlgorithm, CoreJweKeyManagementAlgorithm, CoreResponseMode,
    CoreResponseType, CoreSubjectIdentifierType,
};
use openidconnect::url::Url;
use openidconnect::{
    AdditionalProviderMetadata, AuthUrl, DiscoveryError, IssuerUrl, JsonWebKeySetUrl, ProviderMetadata,
    TokenUrl, UserInfoUrl,
};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;
use tokio::sync::Mutex;

/// Metadata fields that the library does not parse.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct ExtraMetadata {
    end_session_endpoint: Option<String>,
    /// Any JSON: an odd value here is no reason to reject the provider.
    prompt_values_supported: Option<serde_json::Value>,
    authorization_response_iss_parameter_supported: Option<bool>,
}

impl AdditionalProviderMetadata for ExtraMetadata {}

type Metadata = ProviderMetadata<
    ExtraMetadata,
    CoreAuthDisplay,
    CoreClientAuthMethod,
    CoreClaimName,
    CoreClaimType,
    CoreGrantType,
    CoreJweContentEncryptionAlgorithm,
    CoreJweKeyManagementAlgorithm,
    CoreJsonWebKey,
    CoreResponseMode,
    CoreResponseType,
    CoreSubjectIdentifierType,
>;

/// The metadata that the portal uses.
#[derive(Clone, Debug)]
pub(super) struct Endpoints {
    pub(super) authorization: AuthUrl,
    pub(super) token: TokenUrl,
    pub(super) userinfo: Option<UserInfoUrl>,
    keys: JsonWebKeySetUrl,
    pub(super) end_session: Option<Url>,
    /// The values of `prompt` that the provider supports, if it says.
    pub(super) prompts: Option<Vec<String>>,
    pub(super) client_authentication: AuthType,
    /// RFC 9207: every reply of the authorization endpoint names the issuer.
    pub(super) sends_iss: bool,
}

/// A key set from one fetch.
pub(super) type Keys = Arc<CoreJsonWebKeySet>;

/// Each lock is held during its request, so that concurrent callers share one fetch.
pub(super) struct Discovery {
    issuer: IssuerUrl,
    clock: Arc<dyn Clock>,
    endpoints: Mutex<KnownEndpoints>,
    keys: Mutex<KnownKeys>,
    /// For callers that must not wait for a running request.
    last_known: RwLock<Option<Arc<Endpoints>>>,
}

#[derive(Default)]
struct KnownEndpoints {
    found: Option<(Arc<Endpoints>, Instant)>,
    failed: Option<(IdentityProviderError, Instant)>,
}

#[derive(Default)]
struct KnownKeys {
    fetched: Option<(Keys, Instant)>,
    /// When an unknown key last triggered a fetch.
    refetched_for_id_token_at: Option<Instant>,
    refetched_for_logout_token_at: Option<Instant>,
}

/// What the keys verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyPurpose {
    IdToken,
    LogoutToken,
}

impl Discovery {
    pub(super) fn new(issuer: IssuerUrl, clock: Arc<dyn Clock>) -> Self {
        Self {
            issuer,
            clock,
            endpoints: Mutex::default(),
            keys: Mutex::default(),
            last_known: RwLock::default(),
        }
    }

    /// May be outdated.
    pub(super) fn last_known(&self) -> Option<Arc<Endpoints>> {
        self.last_known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn remember(&self, endpoints: &Arc<Endpoints>) {
        *self.last_known.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(endpoints));
    }

    pub(super) async fn endpoints(
        &self,
        http: &ProviderHttp,
    ) -> Result<Arc<Endpoints>, IdentityProviderError> {
        let mut known = self.endpoints.lock().await;
        let checked_at = self.clock.monotonic();
        if let Some((endpoints, at)) = &known.found
            && checked_at.saturating_duration_since(*at) < DISCOVERY_MAX_AGE
        {
            return Ok(Arc::clone(endpoints));
        }
        if let Some((error, at)) = &known.failed
            && checked_at.saturating_duration_since(*at) < DISCOVERY_RETRY_AFTER
        {
            return Err(error.clone());
        }
        let discovered = Metadata::discover_async(self.issuer.clone(), http).await;
        let discovered = discovered.map_err(|error| map_provider_error("discovery", &error));
        let now = self.clock.monotonic();
        match discovered.and_then(|metadata| Ok((Endpoints::of(&metadata)?, metadata.jwks().clone()))) {
            Ok((endpoints, keys)) => {
                let endpoints = Arc::new(endpoints);
                known.found = Some((Arc::clone(&endpoints), now));
                known.failed = None;
                self.remember(&endpoints);
                self.keys.lock().await.fetched = Some((Arc::new(keys), now));
                Ok(endpoints)
            }
            Err(error) => {
                known.failed = Some((error.clone(), now));
                Err(error)
            }
        }
    }

    pub(super) async fn keys(
        &self,
        http: &ProviderHttp,
        endpoints: &Endpoints,
    ) -> Result<Keys, IdentityProviderError> {
        let mut known = self.keys.lock().await;
        let now = self.clock.monotonic();
        match &known.fetched {
            Some((keys, at)) if now.saturating_duration_since(*at) < KEYS_MAX_AGE => Ok(Arc::clone(keys)),
            _ => self.fetch(&mut known, http, endpoints).await,
        }
    }

    /// Returns keys newer than `old_keys`, which could not verify a token: the provider may have just rotated its keys. `None` if
    /// they were refetched too recently.
    pub(super) async fn refetch_keys(
        &self,
        old_keys: &Keys,
        purpose: KeyPurpose,
        http: &ProviderHttp,
        endpoints: &Endpoints,
    ) -> Result<Option<Keys>, IdentityProviderError> {
        let mut known = self.keys.lock().await;
        if let Some((keys, _)) = &known.fetched
            && !Arc::ptr_eq(keys, old_keys)
        {
            return Ok(Some(Arc::clone(keys)));
        }
        let now = self.clock.monotonic();
        let refetched_at = match purpose {
            KeyPurpose::IdToken => &mut known.refetched_for_id_token_at,
            KeyPurpose::LogoutToken => &mut known.refetched_for_logout_token_at,
        };
        if refetched_at.is_some_and(|at| now.saturating_duration_since(at) < KEYS_REFETCH_INTERVAL) {
            return Ok(None);
        }
        *refetched_at = Some(now);
        self.fetch(&mut known, http, endpoints).await.map(Some)
    }

    async fn fetch(
        &self,
        known: &mut KnownKeys,
        http: &ProviderHttp,
        endpoints: &Endpoints,
    ) -> Result<Keys, IdentityProviderError> {
        let fetched = CoreJsonWebKeySet::fetch_async(&endpoints.keys, http).await;
        let keys = Arc::new(fetched.map_err(|error| map_provider_error("jwks", &error))?);
        known.fetched = Some((Arc::clone(&keys), self.clock.monotonic()));
        Ok(keys)
    }
}

impl Endpoints {
    fn of(metadata: &Metadata) -> Result<Self, IdentityProviderError> {
        let missing =
            |what: &str| IdentityProviderError::InvalidResponse(format!("discovery: `{what}` is missing"));
        let token = metadata.token_endpoint().cloned().ok_or_else(|| missing("token_endpoint"))?;
        let more = metadata.additional_metadata();
        // An invalid end-session endpoint is ignored: signing in does not need it.
        let end_session = more.end_session_endpoint.as_deref().and_then(|text| Url::parse(text).ok());
        let methods = metadata.token_endpoint_auth_methods_supported();
        let takes = |method| methods.is_none_or(|methods| methods.contains(&method));
        let is_posted =
            !takes(CoreClientAuthMethod::ClientSecretBasic) && takes(CoreClientAuthMethod::ClientSecretPost);
        let endpoints = Self {
            authorization: metadata.authorization_endpoint().clone(),
            token,
            userinfo: metadata.userinfo_endpoint().cloned(),
            keys: metadata.jwks_uri().clone(),
            end_session: end_session.filter(is_safe),
            prompts: more
                .prompt_values_supported
                .clone()
                .and_then(|value| serde_json::from_value(value).ok()),
            client_authentication: if is_posted { AuthType::RequestBody } else { AuthType::BasicAuth },
            sends_iss: more.authorization_response_iss_parameter_supported == Some(true),
        };
        endpoints.check(metadata.issuer().url())?;
        Ok(endpoints)
    }

    /// The browser is sent to the first endpoint, and the others get secrets. If the issuer uses TLS, all of them must.
    fn check(&self, issuer: &Url) -> Result<(), IdentityProviderError> {
        let all = [
            ("authorization_endpoint", Some(self.authorization.url())),
            ("token_endpoint", Some(self.token.url())),
            ("userinfo_endpoint", self.userinfo.as_ref().map(|url| url.url())),
            ("jwks_uri", Some(self.keys.url())),
        ];
        let needs_tls = issuer.scheme() == "https";
        let unsafe_one = all
            .into_iter()
            .find(|(_, url)| url.is_some_and(|url| !is_safe(url) || (needs_tls && url.scheme() != "https")));
        match unsafe_one {
            None => Ok(()),
            Some((name, _)) => {
                Err(IdentityProviderError::InvalidResponse(format!("discovery: `{name}` is not `https:`")))
            }
        }
    }
}

/// Omits the response body.
fn map_provider_error(what: &str, error: &DiscoveryError<HttpError>) -> IdentityProviderError {
    match error {
        DiscoveryError::Request(error) => error.error(what),
        DiscoveryError::Response(_, _, why) => {
            IdentityProviderError::InvalidResponse(format!("{what}: {why}"))
        }
        other => IdentityProviderError::InvalidResponse(format!("{what}: {}", error_chain(other))),
    }
}
