//! One job at one server, until the first text of its reply. If this side can remove the reason for a failure, the job is
//! sent to the same server again, once per reason:
//!
//! 1. The connection ended before the response head: the server may have just been closing an idle connection.
//! 2. Prompt and cap together are too long: the cap is reduced to what the context has room for.
//! 3. The server rejects an option or an empty turn: it is left out.
//!
//! All other failures go to another server, or to the caller.

use super::chat::{self, BodyOptions};
use super::endpoint::{Endpoint, Lease};
use super::error::{UpstreamError, UpstreamErrorKind};
use super::limits::MIN_BYTES_PER_TOKEN;
use super::run::RunningJob;
use super::stream::{Reply, ReplyLimits};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::timeout;

/// A reply none of which has been passed on yet.
pub(super) struct StartedReply {
    pub(super) lease: Lease,
    pub(super) reply: Reply,
}

/// How a job is sent, and what has been changed since the first attempt.
#[derive(Clone, Copy)]
struct RequestVariant {
    options: BodyOptions,
    is_repeated: bool,
    is_shortened: bool,
}

impl RunningJob<'_> {
    /// Records a failure against the server and logs it.
    pub(super) async fn start(&self, mut lease: Lease) -> Result<StartedReply, UpstreamError> {
        let deadline_exceeded =
            |_| Err(UpstreamError::new(UpstreamErrorKind::DeadlineExceeded, "total timeout exceeded"));
        match timeout(self.remaining_time(), self.send_with_fallbacks(lease.endpoint()))
            .await
            .unwrap_or_else(deadline_exceeded)
        {
            Ok(reply) => {
                lease.record_text();
                Ok(StartedReply { lease, reply })
            }
            Err(error) => {
                self.record_failure(lease, &error);
                Err(error)
            }
        }
    }

    /// A job that fails on several servers is more likely at fault than each of them, so only the first server is
    /// blamed. If the servers are at fault, other jobs will start on the others and show it.
    pub(super) fn record_failure(&self, lease: Lease, error: &UpstreamError) {
        let (model, endpoint) = (&self.upstream.model, lease.url());
        tracing::warn!(model, endpoint, error = error.detail, "upstream request failed");
        let has_failed_before =
            error.kind == UpstreamErrorKind::ServerFailure && self.has_failed.swap(true, Ordering::Relaxed);
        lease.failed(error, !has_failed_before);
    }

    async fn send_with_fallbacks(&self, endpoint: &Arc<Endpoint>) -> Result<Reply, UpstreamError> {
        let wants_continuous_usage = self.upstream.counter.is_none() && endpoint.supports_continuous_usage();
        let options = BodyOptions {
            max_tokens: self.max_tokens,
            has_continuous_usage: wants_continuous_usage,
            has_empty_turns: true,
        };
        let mut variant = RequestVariant { options, is_repeated: false, is_shortened: false };
        loop {
            match self.send(endpoint, variant.options).await {
                Ok(reply) => {
                    let is_only_change =
                        !variant.options.has_continuous_usage && variant.options.has_empty_turns;
                    if wants_continuous_usage && is_only_change {
                        endpoint.disable_continuous_usage();
                    }
                    return Ok(reply);
                }
                Err(error) => match self.next_variant(variant, &error) {
                    Some(next_variant) => variant = next_variant,
                    None => return Err(error),
                },
            }
        }
    }

    async fn send(&self, endpoint: &Arc<Endpoint>, options: BodyOptions) -> Result<Reply, UpstreamError> {
        let upstream = self.upstream.as_ref();
        let timeouts = upstream.timeouts;
        let body = chat::body(&upstream.upstream_model, self.turns, self.job, options)?;
        let reply_limits = ReplyLimits {
            max_tokens: options.max_tokens,
            idle: timeouts.idle,
            retains_text: upstream.counter.is_some(),
        };
        let authorization = endpoint.authorization();
        let first_activity = async {
            let response = upstream.transport.chat(endpoint.address(authorization.as_ref()), body).await?;
            let mut reply = Reply::new(response, reply_limits);
            reply.wait_for_activity().await?;
            endpoint.record_activity(upstream.clock.monotonic());
            Ok::<_, UpstreamError>(reply)
        };
        let timed_out = |_| {
            let waited_ms = timeouts.first_token.as_millis();
            UpstreamError::new(UpstreamErrorKind::TimedOut, format!("no token within {waited_ms} ms"))
        };
        let mut reply = timeout(timeouts.first_token, first_activity).await.map_err(timed_out)??;
        reply.wait_for_text().await?;
        Ok(reply)
    }

    /// Returns `None` if resending to this server would change nothing.
    fn next_variant(&self, last: RequestVariant, error: &UpstreamError) -> Option<RequestVariant> {
        let with_options = |options: BodyOptions| Some(RequestVariant { options, ..last });
        match error.kind {
            UpstreamErrorKind::ConnectionClosed if !last.is_repeated => {
                Some(RequestVariant { is_repeated: true, ..last })
            }
            UpstreamErrorKind::ContextExceeded if !last.is_shortened => {
                let max_tokens = self.max_tokens_after(error)?;
                (max_tokens < last.options.max_tokens).then_some(RequestVariant {
                    options: BodyOptions { max_tokens, ..last.options },
                    is_shortened: true,
                    ..last
                })
            }
            UpstreamErrorKind::Rejected => {
                let options = last.options;
                let is_named = error
                    .error_response
                    .as_ref()
                    .is_some_and(|error_response| error_response.names_continuous_usage);
                let has_empty_turns =
                    options.has_empty_turns && self.turns.iter().any(|turn| turn.text.is_empty());
                match (options.has_continuous_usage, has_empty_turns) {
                    (true, has_empty_turns) if is_named || !has_empty_turns => {
                        with_options(BodyOptions { has_continuous_usage: false, ..options })
                    }
                    (_, true) => with_options(BodyOptions { has_empty_turns: false, ..options }),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The room left in the context by the server's own count of the prompt. Without that, and without a local count,
    /// by a conservative estimate.
    fn max_tokens_after(&self, error: &UpstreamError) -> Option<u32> {
        let reported = error.error_response.as_ref().and_then(|error_response| error_response.prompt_tokens);
        let estimated = || {
            let can_estimate = self.upstream.counter.is_none();
            can_estimate.then(|| self.estimated_prompt_tokens(MIN_BYTES_PER_TOKEN))
        };
        let prompt_tokens = reported.or_else(estimated)?;
        self.upstream.context_tokens.checked_sub(prompt_tokens).filter(|room| *room > 0)
    }
}
