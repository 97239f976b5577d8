//! What a server offers beyond Chat Completions: a `/tokenize`, a prefix cache that keeps salted prompts apart, reports of its
//! progress, and the kind of server, which decides how sampling fields are sent (`sampling_params`). Asked at start and
//! whenever the server may have been replaced. What is unknown counts as not offered.

use super::context;
use super::endpoint::Endpoint;
use super::health::HealthCheck;
use super::limits::{
    CAPABILITY_TIMEOUT, HEALTH_CHECK_CONCURRENCY, MAX_VERSION_BYTES, MIN_SALTED_VLLM_VERSION,
};
use super::progress;
use super::run::Upstream;
use super::tokenize::{self, TokenizeFormat};
use super::transport::Transport;
use serde::Deserialize;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The owner that vLLM gives in its list of models.
const VLLM_OWNER: &str = "vllm";

/// The software of a server, as far as it decides which sampling fields the server knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ServerKind {
    Vllm,
    Sglang,
    LlamaServer,
    Ollama,
    /// Also another Chancery, and every gateway that has a name of its own.
    #[default]
    Other,
}

impl ServerKind {
    /// By the owner that the server gives in its list of models.
    fn from_owner(owner: Option<&str>) -> Self {
        match owner {
            Some(VLLM_OWNER) => Self::Vllm,
            Some("sglang") => Self::Sglang,
            Some("llamacpp") => Self::LlamaServer,
            // The namespace of the models that Ollama itself publishes.
            Some("library") => Self::Ollama,
            _ => Self::Other,
        }
    }
}

#[derive(Default)]
pub(super) struct Capabilities {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    detected: Option<Detected>,
    /// The server did not respond since. It may be another when it does.
    is_outdated: bool,
    rejects_cache_salt: bool,
    /// Whether it sends log probabilities to jobs that ask for them. `None`: none has run yet.
    sends_logprobs: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Detected {
    owner: Option<String>,
    tokenize: Option<TokenizeFormat>,
    /// `None`: the server did not tell its version this time.
    honours_cache_salt: Option<bool>,
    /// Whether it tells how far a job has come.
    reports_progress: bool,
}

impl Capabilities {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tokenize_format(&self) -> Option<TokenizeFormat> {
        self.lock().detected.as_ref().and_then(|detected| detected.tokenize)
    }

    pub(super) fn accepts_cache_salt(&self) -> bool {
        !self.lock().rejects_cache_salt
    }

    /// The server rejected a job only because of the salt.
    pub(super) fn disable_cache_salt(&self) {
        self.lock().rejects_cache_salt = true;
    }

    /// `None` if it is not known now.
    pub(super) fn server_kind(&self) -> Option<ServerKind> {
        let state = self.lock();
        let detected = state.detected.as_ref().filter(|_| !state.is_outdated)?;
        Some(ServerKind::from_owner(detected.owner.as_deref()))
    }

    /// Whether the server tells how far a job has come (`progress`).
    pub(super) fn reports_progress(&self) -> bool {
        let state = self.lock();
        !state.is_outdated && state.detected.as_ref().is_some_and(|detected| detected.reports_progress)
    }

    /// Until the server is detected again. Returns whether that is new.
    pub(super) fn disable_progress(&self) -> bool {
        let mut state = self.lock();
        state.detected.as_mut().is_some_and(|detected| std::mem::take(&mut detected.reports_progress))
    }

    pub(super) fn has_logprobs(&self) -> bool {
        self.lock().sends_logprobs != Some(false)
    }

    pub(super) fn record_logprobs(&self) {
        self.lock().sends_logprobs = Some(true);
    }

    /// The server sent none where they were requested. It is not sent such jobs again before its capabilities are detected
    /// again: each would cost the server a prompt that is not billed. If it has sent some before, an unusual reply of one
    /// caller must not take them from the others.
    pub(super) fn disable_logprobs(&self) {
        let mut state = self.lock();
        state.sends_logprobs = state.sends_logprobs.or(Some(false));
    }

    /// Whether a salted prompt shares its cache with no other account.
    pub(super) fn isolates_cache(&self) -> bool {
        let state = self.lock();
        let is_honoured =
            state.detected.as_ref().is_some_and(|detected| detected.honours_cache_salt == Some(true));
        is_honoured && !state.is_outdated && !state.rejects_cache_salt
    }

    /// Call this when the server does not respond.
    pub(super) fn mark_outdated(&self) {
        self.lock().is_outdated = true;
    }

    fn is_known_for(&self, owner: Option<&str>) -> bool {
        let state = self.lock();
        !state.is_outdated
            && state.detected.as_ref().is_some_and(|detected| {
                detected.owner.as_deref() == owner && detected.honours_cache_salt.is_some()
            })
    }

    fn record(&self, detected: Detected) {
        let mut state = self.lock();
        // Another server may accept what this one rejected.
        if state.detected.as_ref().is_some_and(|last| last.owner != detected.owner) {
            state.rejects_cache_salt = false;
        }
        *state = State { detected: Some(detected), is_outdated: false, sends_logprobs: None, ..*state };
    }

    fn is_without_tokenize(&self) -> bool {
        self.lock().detected.as_ref().is_some_and(|detected| detected.tokenize.is_none())
    }
}

/// Asks every checked server whose capabilities are not known, many of them concurrently.
pub(super) async fn detect(upstream: &Arc<Upstream>, checks: &[HealthCheck]) {
    let permits = Arc::new(Semaphore::new(HEALTH_CHECK_CONCURRENCY));
    let mut detecting = JoinSet::new();
    for (endpoint, outcome) in checks {
        let owner = match outcome {
            Ok(list) => context::owner(list, &upstream.upstream_model),
            Err(error) if error.is_health_check_response() => None,
            Err(_) => {
                endpoint.capabilities.mark_outdated();
                continue;
            }
        };
        if endpoint.capabilities.is_known_for(owner.as_deref()) {
            continue;
        }
        let (upstream, endpoint, permits) =
            (Arc::clone(upstream), Arc::clone(endpoint), Arc::clone(&permits));
        detecting.spawn(async move {
            let _permit = permits.acquire().await;
            // A server that does not respond in time is asked again at the next health check.
            let detecting = detect_one(&upstream, &endpoint, owner);
            if let Ok(Some(detected)) = timeout(CAPABILITY_TIMEOUT, detecting).await {
                endpoint.capabilities.record(detected);
            }
        });
    }
    detecting.join_all().await;
    warn_without_token_counts(upstream);
}

async fn detect_one(upstream: &Upstream, endpoint: &Endpoint, owner: Option<String>) -> Option<Detected> {
    let transport = &upstream.transport;
    let tokenize = match upstream.counter {
        Some(_) => None,
        None => tokenize::probe(transport, endpoint, &upstream.upstream_model).await.ok()?,
    };
    let honours_cache_salt = match owner.as_deref() {
        Some(VLLM_OWNER) => has_salted_version(transport, endpoint).await,
        _ => Some(false),
    };
    let is_llama_server = ServerKind::from_owner(owner.as_deref()) == ServerKind::LlamaServer;
    let reports_progress = is_llama_server && progress::probe(transport, endpoint).await;
    Some(Detected { owner, tokenize, honours_cache_salt, reports_progress })
}

/// Older versions ignore the salt, at least for some models. A server without `/version` may be one of them. Returns
/// `None` if that is not known yet.
async fn has_salted_version(transport: &Transport, endpoint: &Endpoint) -> Option<bool> {
    #[derive(Deserialize)]
    struct Version {
        version: String,
    }
    let authorization = endpoint.authorization();
    let address = endpoint.address(authorization.as_ref());
    let body = match transport.get_from_root(address, "/version", MAX_VERSION_BYTES).await {
        Ok(body) => body,
        Err(error) => return error.is_missing_path().then_some(false),
    };
    let Version { version } = serde_json::from_slice(&body).ok()?;
    Some(major_minor(&version).is_some_and(|known| known >= MIN_SALTED_VLLM_VERSION))
}

/// Reads `(0, 11)` from `0.11.2.dev3+cu129`.
fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Warns once for each model.
fn warn_without_token_counts(upstream: &Upstream) {
    if upstream.counter.is_some() {
        return;
    }
    let endpoints = upstream.pool.serving();
    let Some(endpoint) = endpoints.iter().find(|endpoint| endpoint.capabilities.is_without_tokenize()) else {
        return;
    };
    if !upstream.has_warned_of_counts.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            model = upstream.model,
            endpoint = endpoint.url,
            "model has no `tokenizer`, and its server has no /tokenize: a reply without a usage report is billed by its \
             pieces, and its prompt is free; set `tokenizer` for this model"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detected() -> Detected {
        Detected { owner: None, tokenize: None, honours_cache_salt: Some(false), reports_progress: false }
    }

    #[test]
    fn versions_are_compared_by_number() {
        for (version, expected) in [
            ("0.11.0", Some((0, 11))),
            ("0.9.2", Some((0, 9))),
            ("0.32.0+cpu", Some((0, 32))),
            ("1.0rc1", None),
            ("1.0.0rc1", Some((1, 0))),
            ("dev", None),
            ("", None),
        ] {
            assert_eq!(major_minor(version), expected, "{version}");
        }
        assert!((0, 9) < MIN_SALTED_VLLM_VERSION && (0, 32) >= MIN_SALTED_VLLM_VERSION);
    }

    #[test]
    fn kind_of_server_is_known_by_its_owner_and_unknown_while_it_is_silent() {
        for (owner, kind) in [
            (Some("vllm"), ServerKind::Vllm),
            (Some("sglang"), ServerKind::Sglang),
            (Some("llamacpp"), ServerKind::LlamaServer),
            (Some("library"), ServerKind::Ollama),
            (Some("chancery"), ServerKind::Other),
            (None, ServerKind::Other),
        ] {
            let capabilities = Capabilities::default();
            assert_eq!(capabilities.server_kind(), None);
            let owner = owner.map(str::to_owned);
            capabilities.record(Detected { owner, ..detected() });
            assert_eq!(capabilities.server_kind(), Some(kind));
            capabilities.mark_outdated();
            assert_eq!(capabilities.server_kind(), None);
        }
    }

    #[test]
    fn server_without_logprobs_may_have_them_once_it_is_detected_again() {
        let capabilities = Capabilities::default();
        capabilities.disable_logprobs();
        assert!(!capabilities.has_logprobs());
        capabilities.record(detected());
        assert!(capabilities.has_logprobs());
    }

    #[test]
    fn one_reply_without_logprobs_does_not_disable_those_of_a_server_that_has_sent_some() {
        let capabilities = Capabilities::default();
        capabilities.record_logprobs();
        capabilities.disable_logprobs();
        assert!(capabilities.has_logprobs());
    }

    #[test]
    fn silent_server_loses_its_isolation_until_asked_again() {
        let capabilities = Capabilities::default();
        let vllm =
            Detected { owner: Some(VLLM_OWNER.to_owned()), honours_cache_salt: Some(true), ..detected() };
        assert!(!capabilities.isolates_cache());
        capabilities.record(vllm.clone());
        assert!(capabilities.isolates_cache() && capabilities.is_known_for(Some(VLLM_OWNER)));
        assert!(!capabilities.is_known_for(Some("llamacpp")), "it was replaced");
        capabilities.mark_outdated();
        assert!(!capabilities.isolates_cache() && !capabilities.is_known_for(Some(VLLM_OWNER)));
        capabilities.record(Detected { honours_cache_salt: None, ..vllm.clone() });
        assert!(!capabilities.isolates_cache() && !capabilities.is_known_for(Some(VLLM_OWNER)));
        capabilities.record(vllm.clone());
        assert!(capabilities.isolates_cache());
        capabilities.disable_cache_salt();
        capabilities.record(vllm.clone());
        assert!(!capabilities.isolates_cache(), "it rejects the salt");
        capabilities.record(Detected { owner: None, ..vllm });
        assert!(capabilities.accepts_cache_salt(), "it was replaced");
    }
}
