//! What the provider says about itself, and the keys that it signs with. Both are asked for when they are first needed, so
//! that the portal starts while its provider is down, and are remembered for a while.

use super::fault::Fault;
use super::http::{HttpFault, ProviderHttp, is_safe};
use super::limits::{DISCOVERY_MAX_AGE, DISCOVERY_RETRY_AFTER, KEYS_MAX_AGE, KEYS_REFETCH_INTERVAL};
use crate::error_chain::error_chain;
use chancery_domain::Clock;
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

/// What of the provider's description the portal uses beyond what the library reads.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct MoreMetadata {
    end_session_endpoint: Option<String>,
    authorization_response_iss_parameter_supported: Option<bool>,
}

impl AdditionalProviderMetadata for MoreMetadata {}

type Metadata = ProviderMetadata<
    MoreMetadata,
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

/// What the portal uses of the provider's description.
#[derive(Clone, Debug)]
pub(super) struct Endpoints {
    pub(super) authorization: AuthUrl,
    pub(super) token: TokenUrl,
    pub(super) userinfo: Option<UserInfoUrl>,
    keys: JsonWebKeySetUrl,
    pub(super) end_session: Option<Url>,
    pub(super) client_authentication: AuthType,
    /// RFC 9207: every reply of the authorization endpoint names the issuer.
    pub(super) names_itself: bool,
}

/// Keys as they were fetched together.
pub(super) type Keys = Arc<CoreJsonWebKeySet>;

/// Each lock is held while its request is under way: many who need the same answer ask once.
pub(super) struct Discovery {
    issuer: IssuerUrl,
    clock: Arc<dyn Clock>,
    endpoints: Mutex<KnownEndpoints>,
    keys: Mutex<KnownKeys>,
    /// For those who do not want to wait for a request that is under way.
    last_known: RwLock<Option<Arc<Endpoints>>>,
}

#[derive(Default)]
struct KnownEndpoints {
    found: Option<(Arc<Endpoints>, Instant)>,
    failed: Option<(Fault, Instant)>,
}

#[derive(Default)]
struct KnownKeys {
    fetched: Option<(Keys, Instant)>,
    /// When an unknown key last made the portal ask.
    refetched_at: Option<Instant>,
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

    /// However old it is.
    pub(super) fn last_known(&self) -> Option<Arc<Endpoints>> {
        self.last_known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn remember(&self, endpoints: &Arc<Endpoints>) {
        *self.last_known.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(endpoints));
    }

    pub(super) async fn endpoints(&self, http: &ProviderHttp) -> Result<Arc<Endpoints>, Fault> {
        let mut known = self.endpoints.lock().await;
        let asked_at = self.clock.monotonic();
        if let Some((endpoints, at)) = &known.found
            && asked_at.saturating_duration_since(*at) < DISCOVERY_MAX_AGE
        {
            return Ok(Arc::clone(endpoints));
        }
        if let Some((fault, at)) = &known.failed
            && asked_at.saturating_duration_since(*at) < DISCOVERY_RETRY_AFTER
        {
            return Err(fault.clone());
        }
        let discovered = Metadata::discover_async(self.issuer.clone(), http).await;
        let discovered = discovered.map_err(|error| explain("discovery", &error));
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
            Err(fault) => {
                known.failed = Some((fault.clone(), now));
                Err(fault)
            }
        }
    }

    pub(super) async fn keys(&self, http: &ProviderHttp, endpoints: &Endpoints) -> Result<Keys, Fault> {
        let mut known = self.keys.lock().await;
        let now = self.clock.monotonic();
        match &known.fetched {
            Some((keys, at)) if now.saturating_duration_since(*at) < KEYS_MAX_AGE => Ok(Arc::clone(keys)),
            _ => self.fetch(&mut known, http, endpoints).await,
        }
    }

    /// Keys that are newer than these, with which a token could not be checked: the provider may have changed its keys a
    /// moment ago. None where it was asked for that just now.
    pub(super) async fn newer_keys(
        &self,
        than: &Keys,
        http: &ProviderHttp,
        endpoints: &Endpoints,
    ) -> Result<Option<Keys>, Fault> {
        let mut known = self.keys.lock().await;
        if let Some((keys, _)) = &known.fetched
            && !Arc::ptr_eq(keys, than)
        {
            return Ok(Some(Arc::clone(keys)));
        }
        let now = self.clock.monotonic();
        let is_too_soon =
            known.refetched_at.is_some_and(|at| now.saturating_duration_since(at) < KEYS_REFETCH_INTERVAL);
        if is_too_soon {
            return Ok(None);
        }
        known.refetched_at = Some(now);
        self.fetch(&mut known, http, endpoints).await.map(Some)
    }

    async fn fetch(
        &self,
        known: &mut KnownKeys,
        http: &ProviderHttp,
        endpoints: &Endpoints,
    ) -> Result<Keys, Fault> {
        let fetched = CoreJsonWebKeySet::fetch_async(&endpoints.keys, http).await;
        let keys = Arc::new(fetched.map_err(|error| explain("its keys", &error))?);
        known.fetched = Some((Arc::clone(&keys), self.clock.monotonic()));
        Ok(keys)
    }
}

impl Endpoints {
    fn of(metadata: &Metadata) -> Result<Self, Fault> {
        let missing = |what: &str| Fault::Lying(format!("discovery: its description names no `{what}`"));
        let token = metadata.token_endpoint().cloned().ok_or_else(|| missing("token_endpoint"))?;
        let more = metadata.additional_metadata();
        // A description that is good but for this is used without it: signing in does not need it.
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
            client_authentication: if is_posted { AuthType::RequestBody } else { AuthType::BasicAuth },
            names_itself: more.authorization_response_iss_parameter_supported == Some(true),
        };
        endpoints.check(metadata.issuer().url())?;
        Ok(endpoints)
    }

    /// The browser goes to the first, and the others get secrets. What is reached over TLS never leads to what is not.
    fn check(&self, issuer: &Url) -> Result<(), Fault> {
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
            Some((name, _)) => Err(Fault::Lying(format!("discovery: its `{name}` is not `https:`"))),
        }
    }
}

/// Without what the reply's body says.
fn explain(what: &str, error: &DiscoveryError<HttpFault>) -> Fault {
    match error {
        DiscoveryError::Request(fault) => fault.fault(what),
        DiscoveryError::Response(_, _, why) => Fault::Lying(format!("{what}: {why}")),
        other => Fault::Lying(format!("{what}: {}", error_chain(other))),
    }
}
