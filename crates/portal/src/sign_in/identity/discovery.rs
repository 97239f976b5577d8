//! The provider's metadata and signing keys. Both are fetched on first use, so that the portal can start while its provider is
//! down, and are cached for a while.

use super::error::IdentityProviderError;
use super::http::{JSON, ProviderHttp, Reply, is_safe};
use super::jwk::JsonWebKeySet;
use super::limits::{DISCOVERY_MAX_AGE, DISCOVERY_RETRY_AFTER, KEYS_MAX_AGE, KEYS_REFETCH_INTERVAL};
use super::token_endpoint::ClientAuthentication;
use chancery_domain::Clock;
use reqwest::{StatusCode, Url};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;
use tokio::sync::Mutex;

const JWK_SET: &str = "application/jwk-set+json";

/// The provider's metadata (OpenID Connect Discovery 1.0, section 3), as far as the portal uses it.
#[derive(Deserialize)]
struct Metadata {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: Option<String>,
    userinfo_endpoint: Option<String>,
    jwks_uri: String,
    end_session_endpoint: Option<String>,
    /// Any JSON: an odd value here is no reason to reject the provider.
    prompt_values_supported: Option<Value>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    authorization_response_iss_parameter_supported: Option<bool>,
}

/// The metadata, parsed.
#[derive(Clone, Debug)]
pub(super) struct Endpoints {
    pub(super) authorization: Url,
    pub(super) token: Url,
    pub(super) userinfo: Option<Url>,
    keys: Url,
    pub(super) end_session: Option<Url>,
    /// The values of `prompt` that the provider supports, if it says.
    pub(super) prompts: Option<Vec<String>>,
    pub(super) client_authentication: ClientAuthentication,
    /// RFC 9207: every reply of the authorization endpoint names the issuer.
    pub(super) sends_iss: bool,
}

/// A key set from one fetch.
pub(super) type Keys = Arc<JsonWebKeySet>;

/// Each lock is held during its request, so that concurrent callers share one fetch.
pub(super) struct Discovery {
    issuer: String,
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
    pub(super) fn new(issuer: String, clock: Arc<dyn Clock>) -> Self {
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
        let discovered = self.discover(http).await;
        let now = self.clock.monotonic();
        match discovered {
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

    async fn discover(
        &self,
        http: &ProviderHttp,
    ) -> Result<(Endpoints, JsonWebKeySet), IdentityProviderError> {
        let issuer = self.issuer.strip_suffix('/').unwrap_or(&self.issuer);
        let url = Url::parse(&format!("{issuer}/.well-known/openid-configuration"));
        let url = url.map_err(|error| invalid("discovery", &error.to_string()))?;
        let reply = http.get(&url).await.map_err(|error| error.error("discovery"))?;
        if reply.status != StatusCode::OK {
            return Err(invalid("discovery", &format!("HTTP status code {} at {url}", reply.status)));
        }
        let metadata: Metadata = parse("discovery", &reply, &[JSON])?;
        if metadata.issuer != self.issuer {
            let (found, expected) = (&metadata.issuer, &self.issuer);
            let why = format!("Validation error: unexpected issuer URI `{found}` (expected `{expected}`)");
            return Err(invalid("discovery", &why));
        }
        let endpoints = Endpoints::of(metadata)?;
        let keys = fetch_keys("discovery", http, &endpoints).await?;
        endpoints.check(url.scheme())?;
        Ok((endpoints, keys))
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
        let keys = Arc::new(fetch_keys("jwks", http, endpoints).await?);
        known.fetched = Some((Arc::clone(&keys), self.clock.monotonic()));
        Ok(keys)
    }
}

impl Endpoints {
    fn of(metadata: Metadata) -> Result<Self, IdentityProviderError> {
        let url = |name: &str, text: &str| {
            Url::parse(text).map_err(|error| {
                invalid("discovery", &format!("Failed to parse server response: {name}: {error}"))
            })
        };
        let missing_token = || invalid("discovery", "`token_endpoint` is missing");
        let token = metadata.token_endpoint.ok_or_else(missing_token)?;
        // An invalid end-session endpoint is ignored: signing in does not need it.
        let end_session = metadata.end_session_endpoint.and_then(|text| Url::parse(&text).ok());
        let methods = metadata.token_endpoint_auth_methods_supported;
        let takes = |name| methods.as_ref().is_none_or(|methods| methods.iter().any(|method| method == name));
        let is_posted = !takes("client_secret_basic") && takes("client_secret_post");
        Ok(Self {
            authorization: url("authorization_endpoint", &metadata.authorization_endpoint)?,
            token: url("token_endpoint", &token)?,
            userinfo: metadata.userinfo_endpoint.map(|text| url("userinfo_endpoint", &text)).transpose()?,
            keys: url("jwks_uri", &metadata.jwks_uri)?,
            end_session: end_session.filter(is_safe),
            prompts: metadata.prompt_values_supported.and_then(|value| serde_json::from_value(value).ok()),
            client_authentication: if is_posted {
                ClientAuthentication::Form
            } else {
                ClientAuthentication::Header
            },
            sends_iss: metadata.authorization_response_iss_parameter_supported == Some(true),
        })
    }

    /// The browser is sent to the first endpoint, and the others get secrets. If the issuer uses TLS, all of them must.
    fn check(&self, issuer_scheme: &str) -> Result<(), IdentityProviderError> {
        let all = [
            ("authorization_endpoint", Some(&self.authorization)),
            ("token_endpoint", Some(&self.token)),
            ("userinfo_endpoint", self.userinfo.as_ref()),
            ("jwks_uri", Some(&self.keys)),
        ];
        let needs_tls = issuer_scheme == "https";
        let unsafe_one = all
            .into_iter()
            .find(|(_, url)| url.is_some_and(|url| !is_safe(url) || (needs_tls && url.scheme() != "https")));
        match unsafe_one {
            None => Ok(()),
            Some((name, _)) => Err(invalid("discovery", &format!("`{name}` is not `https:`"))),
        }
    }
}

async fn fetch_keys(
    what: &str,
    http: &ProviderHttp,
    endpoints: &Endpoints,
) -> Result<JsonWebKeySet, IdentityProviderError> {
    let reply = http.get(&endpoints.keys).await.map_err(|error| error.error(what))?;
    if reply.status != StatusCode::OK {
        return Err(invalid(what, &format!("HTTP status code {}", reply.status)));
    }
    parse(what, &reply, &[JSON, JWK_SET])
}

fn parse<T: DeserializeOwned>(
    what: &str,
    reply: &Reply,
    media_types: &[&str],
) -> Result<T, IdentityProviderError> {
    reply.check_type(media_types).map_err(|why| invalid(what, &why))?;
    reply.json().map_err(|error| invalid(what, &format!("Failed to parse server response: {error}")))
}

fn invalid(what: &str, why: &str) -> IdentityProviderError {
    IdentityProviderError::InvalidResponse(format!("{what}: {why}"))
}
