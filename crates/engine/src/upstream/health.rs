//! Looks at every server of a pool now and then, so that one that does not answer gets no jobs before a caller finds out, and
//! one that does again gets them back.

use super::fault::{Fault, Trouble};
use super::limits::{HEALTH_PAUSE, HEALTH_TIMEOUT};
use super::run::Upstream;
use super::transport::Transport;
use chancery_domain::Randomness;
use std::sync::{Arc, Weak};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Ends when the engine is gone.
pub(super) async fn keep_looking(upstream: Weak<Upstream>, randomness: Arc<dyn Randomness>) {
    while let Some(upstream) = upstream.upgrade() {
        let mut looks = JoinSet::new();
        for endpoint in upstream.pool.serving() {
            let upstream = Arc::clone(&upstream);
            looks.spawn(async move {
                let outcome = look(&upstream.transport, &endpoint.url).await;
                endpoint.looked(outcome.as_ref().map(|_| ()));
            });
        }
        drop(upstream);
        looks.join_all().await;
        let quarters = u32::try_from(randomness.next_u64() % 256).unwrap_or(0);
        sleep(HEALTH_PAUSE - HEALTH_PAUSE * quarters / 1024).await;
    }
}

/// The server's list of models.
pub(super) async fn look(transport: &Transport, endpoint: &str) -> Result<Vec<u8>, Fault> {
    let late =
        |_| Fault::new(Trouble::TimedOut, format!("no list of models within {} s", HEALTH_TIMEOUT.as_secs()));
    timeout(HEALTH_TIMEOUT, transport.models(endpoint)).await.map_err(late)?
}
