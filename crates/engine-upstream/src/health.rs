//! Looks at every server of a pool now and then, so that one that does not answer gets no jobs before a caller finds out, and
//! one that does again gets them back.

use super::context;
use super::endpoint::Endpoint;
use super::fault::{Fault, Trouble};
use super::limits::{HEALTH_PAUSE, HEALTH_TIMEOUT, LOOKS_AT_ONCE};
use super::run::Upstream;
use super::transport::Transport;
use chancery_domain::Randomness;
use std::sync::{Arc, Weak};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// What a server answered that was looked at: its list of models, or why there is none.
pub(super) type Look = (Arc<Endpoint>, Result<Vec<u8>, Fault>);

/// Ends when the engine is gone.
pub(super) async fn keep_looking(upstream: Weak<Upstream>, randomness: Arc<dyn Randomness>) {
    while let Some(upstream) = upstream.upgrade() {
        let (transport, endpoints) = (Arc::clone(&upstream.transport), upstream.pool.serving());
        let (context_tokens, upstream_model) = (upstream.context_tokens, upstream.upstream_model.clone());
        drop(upstream);
        for (endpoint, outcome) in look_at(&transport, endpoints).await {
            match outcome {
                Ok(list) => {
                    endpoint.looked(Ok(()));
                    if let Some(said) = context::context_tokens(&list, &upstream_model) {
                        endpoint.says_context(said, context_tokens);
                    }
                }
                Err(fault) if fault.is_an_answer_to_a_look() => endpoint.looked(Ok(())),
                Err(fault) => endpoint.looked(Err(&fault)),
            }
        }
        // Shorter by up to a quarter.
        let parts_of_1024 = u32::try_from(randomness.next_u64() % 256).unwrap_or(0);
        sleep(HEALTH_PAUSE - HEALTH_PAUSE * parts_of_1024 / 1024).await;
    }
}

/// Looks at all of them, at many at the same time.
pub(super) async fn look_at(transport: &Arc<Transport>, endpoints: Vec<Arc<Endpoint>>) -> Vec<Look> {
    let places = Arc::new(Semaphore::new(LOOKS_AT_ONCE));
    let mut looks = JoinSet::new();
    for endpoint in endpoints {
        let (transport, places) = (Arc::clone(transport), Arc::clone(&places));
        looks.spawn(async move {
            let _place = places.acquire().await;
            let outcome = look(&transport, &endpoint).await;
            (endpoint, outcome)
        });
    }
    looks.join_all().await
}

async fn look(transport: &Transport, endpoint: &Endpoint) -> Result<Vec<u8>, Fault> {
    let authorization = endpoint.authorization();
    let late =
        |_| Fault::new(Trouble::TimedOut, format!("no list of models within {} s", HEALTH_TIMEOUT.as_secs()));
    let models = transport.models(endpoint.addressee(authorization.as_ref()));
    timeout(HEALTH_TIMEOUT, models).await.map_err(late)?
}
