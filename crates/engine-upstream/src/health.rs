//! Periodic health checks of every server in a pool. A server that stops responding gets no jobs before a caller
//! notices, and gets them back when it recovers. `probe` checks suspected servers more thoroughly.

use super::capabilities;
use super::context;
use super::endpoint::Endpoint;
use super::error::{UpstreamError, UpstreamErrorKind};
use super::limits::{HEALTH_CHECK_CONCURRENCY, HEALTH_CHECK_INTERVAL, HEALTH_CHECK_TIMEOUT};
use super::probe::run_probes;
use super::run::Upstream;
use super::transport::Transport;
use chancery_domain::Randomness;
use hyper::body::Bytes;
use std::sync::{Arc, Weak};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// The result of a health check: the server's list of models, or why there is none.
pub(super) type HealthCheck = (Arc<Endpoint>, Result<Bytes, UpstreamError>);

/// Ends when the engine is dropped.
pub(super) async fn run_health_checks(upstream: Weak<Upstream>, randomness: Arc<dyn Randomness>) {
    tokio::join!(run_probes(Weak::clone(&upstream)), run_periodic_checks(upstream, randomness));
}

async fn run_periodic_checks(weak: Weak<Upstream>, randomness: Arc<dyn Randomness>) {
    while let Some(upstream) = weak.upgrade() {
        let (transport, endpoints) = (Arc::clone(&upstream.transport), upstream.pool.serving());
        let (context_tokens, upstream_model) = (upstream.context_tokens, upstream.upstream_model.clone());
        drop(upstream);
        let checks = check_all(&transport, endpoints).await;
        for (endpoint, outcome) in &checks {
            match outcome {
                Ok(list) => {
                    endpoint.record_health_check(Ok(()));
                    if let Some(reported) = context::context_tokens(list, &upstream_model) {
                        endpoint.record_context_tokens(reported, context_tokens);
                    }
                }
                Err(error) if error.is_health_check_response() => endpoint.record_health_check(Ok(())),
                Err(error) => endpoint.record_health_check(Err(error)),
            }
        }
        let Some(upstream) = weak.upgrade() else { return };
        capabilities::detect(&upstream, &checks).await;
        drop((upstream, checks));
        // Jitter: shorten the pause by up to a quarter.
        let jitter_1024ths = u32::try_from(randomness.next_u64() % 256).unwrap_or(0);
        sleep(HEALTH_CHECK_INTERVAL - HEALTH_CHECK_INTERVAL * jitter_1024ths / 1024).await;
    }
}

/// Checks all servers, many of them concurrently.
pub(super) async fn check_all(transport: &Arc<Transport>, endpoints: Vec<Arc<Endpoint>>) -> Vec<HealthCheck> {
    let permits = Arc::new(Semaphore::new(HEALTH_CHECK_CONCURRENCY));
    let mut checks = JoinSet::new();
    for endpoint in endpoints {
        let (transport, permits) = (Arc::clone(transport), Arc::clone(&permits));
        checks.spawn(async move {
            let _permit = permits.acquire().await;
            let outcome = check(&transport, &endpoint).await;
            (endpoint, outcome)
        });
    }
    checks.join_all().await
}

async fn check(transport: &Transport, endpoint: &Endpoint) -> Result<Bytes, UpstreamError> {
    let authorization = endpoint.authorization();
    let timed_out = |_| {
        UpstreamError::new(
            UpstreamErrorKind::TimedOut,
            format!("no /models response within {} s", HEALTH_CHECK_TIMEOUT.as_secs()),
        )
    };
    let models = transport.models(endpoint.address(authorization.as_ref()));
    timeout(HEALTH_CHECK_TIMEOUT, models).await.map_err(timed_out)?
}
