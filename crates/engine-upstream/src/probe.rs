//! One-token probes. A time-out or a broken stream may be the fault of the server or of the caller. The server's reply to a
//! tiny request of our own tells (`breaker` says when one is needed).

use super::breaker::{ProbeOutcome, ProbePermit};
use super::endpoint::Endpoint;
use super::error::{UpstreamError, UpstreamErrorKind};
use super::limits::{HEALTH_CHECK_INTERVAL, PROBE_TIMEOUT};
use super::run::Upstream;
use super::stream::{Reply, ReplyLimits};
use super::transport::Transport;
use chancery_domain::Clock;
use hyper::body::Bytes;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Sends the probes that breakers request, at most one at a time to each server. Ends when the engine is dropped.
pub(super) async fn run_probes(upstream: Weak<Upstream>) {
    let Some(requests) = upstream.upgrade().map(|upstream| upstream.pool.probe_requests()) else { return };
    let mut probes = JoinSet::new();
    loop {
        // The timeout is for servers that were removed with a request pending and added again, and for the engine's end.
        let _ = timeout(HEALTH_CHECK_INTERVAL, requests.notified()).await;
        let Some(upstream) = upstream.upgrade() else { return };
        while probes.try_join_next().is_some() {}
        for endpoint in upstream.pool.serving() {
            let Some(probe) = Probe::start(endpoint, &upstream.clock) else { continue };
            let limit = upstream.timeouts.first_token.min(PROBE_TIMEOUT);
            let body = body(&upstream.upstream_model);
            probes.spawn(probe.run(Arc::clone(&upstream.transport), body, limit));
        }
    }
}

/// The shortest job there is. Contains nothing of any account.
fn body(upstream_model: &str) -> Bytes {
    serde_json::json!({
        "model": upstream_model,
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 1,
        "temperature": 0,
        "stream": true,
    })
    .to_string()
    .into()
}

/// A running probe. Dropping it says nothing about the server.
struct Probe {
    endpoint: Arc<Endpoint>,
    clock: Arc<dyn Clock>,
    permit: Option<ProbePermit>,
    activity_at_start: u64,
}

impl Probe {
    fn start(endpoint: Arc<Endpoint>, clock: &Arc<dyn Clock>) -> Option<Self> {
        let permit = endpoint.start_probe()?;
        let activity_at_start = endpoint.activity();
        Some(Self { endpoint, clock: Arc::clone(clock), permit: Some(permit), activity_at_start })
    }

    async fn run(mut self, transport: Arc<Transport>, body: Bytes, limit: Duration) {
        let result = send(&transport, &self.endpoint, body, limit).await;
        let was_active = self.endpoint.activity() != self.activity_at_start;
        let outcome = outcome(&result, was_active);
        let url = &self.endpoint.url;
        let error = result.err().map(|error| format!("one-token probe failed: {}", error.detail));
        let error = error.filter(|_| outcome == ProbeOutcome::Failed);
        match &error {
            Some(error) => tracing::warn!(endpoint = url, error, "upstream server failed a probe"),
            None => tracing::info!(endpoint = url, ?outcome, "upstream server probed"),
        }
        self.record(outcome, error);
    }

    fn record(&mut self, outcome: ProbeOutcome, error: Option<String>) {
        if let Some(permit) = self.permit.take() {
            self.endpoint.record_probe(permit, outcome, error, self.clock.monotonic());
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.record(ProbeOutcome::Unknown, None);
    }
}

/// Waits for the first token.
async fn send(
    transport: &Transport,
    endpoint: &Endpoint,
    body: Bytes,
    limit: Duration,
) -> Result<(), UpstreamError> {
    let authorization = endpoint.authorization();
    let first_token = async {
        let response = transport.chat(endpoint.address(authorization.as_ref()), body).await?;
        let reply_limits = ReplyLimits {
            max_tokens: 1,
            idle: limit,
            retains_text: false,
            isolates_cache: false,
            stops_on_repetition: false,
            top_logprobs: None,
        };
        let mut reply = Reply::streamed(response, reply_limits);
        reply.wait_for_text().await?;
        Ok::<_, UpstreamError>(reply)
    };
    let timed_out = |_| {
        UpstreamError::new(UpstreamErrorKind::TimedOut, format!("no token within {} ms", limit.as_millis()))
    };
    timeout(limit, first_token).await.map_err(timed_out)??.drain().await;
    Ok(())
}

/// A server that is busy or rejects the probe works. One that is silent here while it streams to other jobs has a queue.
fn outcome(result: &Result<(), UpstreamError>, was_active: bool) -> ProbeOutcome {
    match result {
        Err(error) if error.kind == UpstreamErrorKind::TimedOut && was_active => ProbeOutcome::Unknown,
        Err(error) if error.is_server_failure() => ProbeOutcome::Failed,
        Ok(()) | Err(_) => ProbeOutcome::Passed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_fails_only_at_a_server_that_does_not_work() {
        let failed = |kind| outcome(&Err(UpstreamError::new(kind, "x")), false);
        for (kind, expected) in [
            (UpstreamErrorKind::Unreachable, ProbeOutcome::Failed),
            (UpstreamErrorKind::ConnectionClosed, ProbeOutcome::Failed),
            (UpstreamErrorKind::TimedOut, ProbeOutcome::Failed),
            (UpstreamErrorKind::ServerFailure, ProbeOutcome::Failed),
            (UpstreamErrorKind::Busy { retry_after_s: None }, ProbeOutcome::Passed),
            (UpstreamErrorKind::Rejected, ProbeOutcome::Passed),
            (UpstreamErrorKind::ContextExceeded, ProbeOutcome::Passed),
            (UpstreamErrorKind::UnsupportedFinish, ProbeOutcome::Passed),
            (UpstreamErrorKind::UnsupportedParam, ProbeOutcome::Passed),
        ] {
            assert_eq!(failed(kind), expected, "{kind:?}");
        }
        let queued = Err(UpstreamError::new(UpstreamErrorKind::TimedOut, "x"));
        assert_eq!(outcome(&queued, true), ProbeOutcome::Unknown);
        assert_eq!(outcome(&Ok(()), false), ProbeOutcome::Passed);
    }
}
