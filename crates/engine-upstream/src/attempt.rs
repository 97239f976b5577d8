//! One job at one server, until the first text of its reply. If this side can remove the reason for a failure, the job is
//! sent to the same server again, once per reason:
//!
//! 1. Prompt and cap together are too long: the cap is reduced to what the context has room for.
//! 2. The server rejects an option or an empty turn: it is left out.
//!
//! A sampling field that a server does not support is never left out: the job goes to a server that supports it, or the
//! caller gets the reason.
//!
//! `transport` replaces a connection that the server has closed. All other failures go to another server, or to the caller.

use super::capabilities::{self, ServerKind};
use super::chat::{self, BodyOptions};
use super::endpoint::{Endpoint, Lease};
use super::error::{UpstreamError, UpstreamErrorKind};
use super::health;
use super::limits::{MIN_BYTES_PER_TOKEN, PROGRESS_INTERVAL, PROGRESS_QUERIES_PER_TIMEOUT};
use super::progress::Progress;
use super::run::RunningJob;
use super::sampling_params::{is_kind_dependent, missing_logprobs, rejected_field, unsupported};
use super::settings::Timeouts;
use super::stream::{Reply, ReplyLimits};
use super::whole_reply::WholeReply;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
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
    is_shortened: bool,
    /// What the last change left out. If the server now accepts the job, it is not sent there again.
    removed: Option<RemovedOption>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RemovedOption {
    ContinuousUsage,
    CacheSalt,
}

/// Often enough for the time limits of a job.
fn progress_interval(timeouts: Timeouts) -> Duration {
    PROGRESS_INTERVAL.min(timeouts.first_token.min(timeouts.idle) / PROGRESS_QUERIES_PER_TIMEOUT)
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
        let server_kind = self.server_kind(endpoint).await;
        if let Some(error) = self.known_unsupported(endpoint) {
            return Err(error);
        }
        let whole_tag = self.whole_tag_for(endpoint);
        let has_continuous_usage = whole_tag.is_none() && self.upstream.counter.is_none();
        let options = BodyOptions {
            max_tokens: self.max_tokens,
            has_continuous_usage: has_continuous_usage && endpoint.supports_continuous_usage(),
            has_empty_turns: true,
            has_cache_salt: endpoint.capabilities.accepts_cache_salt(),
            server_kind,
            whole_tag,
        };
        let mut variant = RequestVariant { options, is_shortened: false, removed: None };
        loop {
            match self.send(endpoint, variant.options).await {
                Ok(reply) => {
                    match variant.removed {
                        Some(RemovedOption::ContinuousUsage) => endpoint.disable_continuous_usage(),
                        Some(RemovedOption::CacheSalt) => endpoint.capabilities.disable_cache_salt(),
                        None => {}
                    }
                    if reply.received.has_logprobs() {
                        endpoint.capabilities.record_logprobs();
                    }
                    return Ok(reply);
                }
                Err(error) => match self.next_variant(endpoint, variant, &error) {
                    Some(next_variant) => variant = next_variant,
                    None => {
                        if error.kind == UpstreamErrorKind::UnsupportedParam {
                            endpoint.capabilities.disable_logprobs();
                        }
                        return Err(self.with_rejected_field(error));
                    }
                },
            }
        }
    }

    /// Why the server cannot run the job, as far as is known without asking it.
    pub(super) fn known_unsupported(&self, endpoint: &Endpoint) -> Option<UpstreamError> {
        let ignored = endpoint.capabilities.server_kind().and_then(|kind| unsupported(self.job, kind));
        let lacks_logprobs = self.job.top_logprobs.is_some() && !endpoint.capabilities.has_logprobs();
        ignored.or_else(|| lacks_logprobs.then(missing_logprobs))
    }

    /// A server that has just started may not have been asked what it is.
    async fn server_kind(&self, endpoint: &Arc<Endpoint>) -> ServerKind {
        if endpoint.capabilities.server_kind().is_none() && is_kind_dependent(self.job) {
            let checks = health::check_all(&self.upstream.transport, vec![Arc::clone(endpoint)]).await;
            capabilities::detect(self.upstream, &checks).await;
        }
        endpoint.capabilities.server_kind().unwrap_or_default()
    }

    /// Names the field that the server rejects, as the caller named it. The server may have another name for it.
    fn with_rejected_field(&self, mut error: UpstreamError) -> UpstreamError {
        if error.kind == UpstreamErrorKind::Rejected
            && let Some(response) = &mut error.error_response
            && let Some(field) = rejected_field(&response.named_params, self.job)
        {
            let reason = response.reason.take();
            let reason = reason.unwrap_or_else(|| "not supported; leave it out".to_owned());
            response.reason = Some(format!("`{field}`: {reason}"));
        }
        error
    }

    async fn send(&self, endpoint: &Arc<Endpoint>, options: BodyOptions) -> Result<Reply, UpstreamError> {
        let upstream = self.upstream.as_ref();
        let timeouts = upstream.timeouts;
        let body = chat::body(&upstream.upstream_model, self.turns, self.job, &self.cache_salt, options)?;
        let reply_limits = ReplyLimits {
            max_tokens: options.max_tokens,
            idle: timeouts.idle,
            retains_text: upstream.counter.is_some() || endpoint.capabilities.tokenize_format().is_some(),
            isolates_cache: options.has_cache_salt && endpoint.capabilities.isolates_cache(),
            stops_on_repetition: self.job.stop_on_repetition,
            top_logprobs: self.job.top_logprobs,
        };
        let progress = options
            .whole_tag
            .map(|tag| Progress::new(Arc::clone(&upstream.transport), Arc::clone(endpoint), tag));
        self.record_sent(endpoint, progress.clone());
        let first_text = async {
            let mut reply = match progress {
                Some(progress) => {
                    let max_text_bytes = reply_limits.max_text_bytes();
                    let interval = progress_interval(timeouts);
                    Reply::whole(WholeReply::new(progress, body, max_text_bytes, interval), reply_limits)
                }
                None => {
                    let authorization = endpoint.authorization();
                    let address = endpoint.address(authorization.as_ref());
                    Reply::streamed(upstream.transport.chat(address, body).await?, reply_limits)
                }
            };
            reply.wait_for_text().await?;
            endpoint.record_activity();
            Ok::<_, UpstreamError>(reply)
        };
        let timed_out = |_| {
            let waited_ms = timeouts.first_token.as_millis();
            UpstreamError::new(UpstreamErrorKind::TimedOut, format!("no token within {waited_ms} ms"))
        };
        timeout(timeouts.first_token, first_text).await.map_err(timed_out)?
    }

    /// The tag of the job if its reply may be whole, and the server tells how far it has come. A reply without a usage report must
    /// still be countable: a whole reply has no pieces.
    fn whole_tag_for(&self, endpoint: &Endpoint) -> Option<u32> {
        let capabilities = &endpoint.capabilities;
        let can_count = || self.upstream.counter.is_some() || capabilities.tokenize_format().is_some();
        if capabilities.reports_progress() && can_count() { self.progress_tag() } else { None }
    }

    /// Returns `None` if resending to this server would change nothing.
    fn next_variant(
        &self,
        endpoint: &Endpoint,
        last: RequestVariant,
        error: &UpstreamError,
    ) -> Option<RequestVariant> {
        match error.kind {
            UpstreamErrorKind::ContextExceeded if !last.is_shortened => {
                let max_tokens = self.max_tokens_after(error)?;
                (max_tokens < last.options.max_tokens).then_some(RequestVariant {
                    options: BodyOptions { max_tokens, ..last.options },
                    is_shortened: true,
                    removed: None,
                })
            }
            UpstreamErrorKind::Rejected => self.without_an_option(endpoint, last, error),
            _ => None,
        }
    }

    /// Leaves out what the server names. If it names nothing: first empty turns, then all that not every server knows.
    fn without_an_option(
        &self,
        endpoint: &Endpoint,
        last: RequestVariant,
        error: &UpstreamError,
    ) -> Option<RequestVariant> {
        let options = last.options;
        let changed = |options, removed| Some(RequestVariant { options, removed, ..last });
        let response = error.error_response.as_ref();
        if options.has_cache_salt && response.is_some_and(|response| response.names_cache_salt) {
            let options = BodyOptions { has_cache_salt: false, ..options };
            return changed(options, Some(RemovedOption::CacheSalt));
        }
        if options.has_continuous_usage && response.is_some_and(|response| response.names_continuous_usage) {
            let options = BodyOptions { has_continuous_usage: false, ..options };
            return changed(options, Some(RemovedOption::ContinuousUsage));
        }
        if response.is_some_and(|response| rejected_field(&response.named_params, self.job).is_some()) {
            return None;
        }
        if options.has_empty_turns && self.turns.iter().any(|turn| turn.text.is_empty()) {
            return changed(BodyOptions { has_empty_turns: false, ..options }, None);
        }
        // A server that is known to honour the salt rejected something else.
        let has_cache_salt = options.has_cache_salt && endpoint.capabilities.isolates_cache();
        let removed = match (options.has_cache_salt && !has_cache_salt, options.has_continuous_usage) {
            // If it was the other one, the next job shows it.
            (true, _) => RemovedOption::CacheSalt,
            (false, true) => RemovedOption::ContinuousUsage,
            (false, false) => return None,
        };
        changed(BodyOptions { has_continuous_usage: false, has_cache_salt, ..options }, Some(removed))
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
