//! Runs one job, across servers if necessary:
//!
//! 1. A server is chosen (`pool`). The job's tokens count as its load until the job has left it.
//! 2. The job is sent there (`attempt`). If it fails before the first text, another server is tried, a few times.
//! 3. If hedging is configured and the first text is slow to arrive, a second server gets the job too. The first to
//!    yield text wins. The other connection is closed, and nothing of it is passed on or billed.
//! 4. From the first text on, text is passed on as it arrives. Any failure then fails the job, because text that was
//!    sent cannot be taken back. If the server goes past the cap, the job is stopped there (`cap`), and so it is where
//!    the reply loops, if the job asks for that (`repetition_watch`). Reasoning before the answer is text in all these
//!    steps.
//!    Where the caller does not need the text before the end, it is passed on at the end, and a server that tells its progress is
//!    asked for a whole reply (`whole_reply`). Its first token counts as the first text.
//! 5. If the caller disconnects, the connection is closed at once, which tells the server to stop. Only if the reply
//!    has already ended, and nothing runs any more, is its usage still awaited, briefly. The total timeout does the
//!    same. Before a caller's whole reply is given up, its server is asked how many tokens it has generated; one that
//!    reaches the total timeout fails, because nothing of it has come.
//! 6. Finally, the job's tokens are counted (`usage`).

use super::affinity::AffinityKey;
use super::attempt::StartedReply;
use super::billed_prefixes::BilledPrefixes;
use super::cache_salt::CacheSalts;
use super::cap::CapCheck;
use super::endpoint::{Endpoint, Lease};
use super::error::{UpstreamError, UpstreamErrorKind};
use super::limits::{MAX_ATTEMPTS, MIN_WHOLE_TOKENS_PER_SECOND, TYPICAL_BYTES_PER_TOKEN};
use super::pool::{LeaseRequest, Pool};
use super::progress::{Progress, ProgressTag, ProgressTags};
use super::sampling_params::is_kind_dependent;
use super::settings::Timeouts;
use super::stream::{Received, Reply};
use super::template_tokens;
use super::token_counter::TokenCounter;
use super::transport::Transport;
use chancery_domain::{Clock, Randomness};
use chancery_engine::{GenerationSink, Job, Turn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// State shared by all jobs of a model.
pub(super) struct Upstream {
    pub(super) model: String,
    pub(super) upstream_model: String,
    pub(super) pool: Pool,
    pub(super) transport: Arc<Transport>,
    pub(super) counter: Option<TokenCounter>,
    pub(super) context_tokens: u32,
    pub(super) timeouts: Timeouts,
    pub(super) hedge_after: Option<Duration>,
    pub(super) cache_salts: CacheSalts,
    pub(super) billed_prefixes: BilledPrefixes,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) randomness: Arc<dyn Randomness>,
    pub(super) progress_tags: Arc<ProgressTags>,
    /// Whether the log has said that this model's tokens may not be counted.
    pub(super) has_warned_of_counts: AtomicBool,
}

/// The outcome of a job that did not fail.
struct JobResult {
    received: Received,
    /// The cap that was sent to the server.
    max_tokens: u32,
    end: JobEnd,
    /// The reply, if it is complete.
    completed_reply: Option<Reply>,
}

/// How a job that did not fail has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobEnd {
    Completed,
    /// The caller disconnected.
    Cancelled,
    /// The total timeout passed after the first text.
    DeadlineExceeded,
    /// The server went past the cap.
    OverCap,
    /// The reply looped, and the job asked to end it then.
    Repetition,
}

impl Upstream {
    pub(super) async fn run(self: &Arc<Self>, turns: &[Turn], job: &Job, sink: GenerationSink) {
        let running = RunningJob::new(self, turns, job);
        let JobResult { received, max_tokens, end, completed_reply } = match running.work(&sink).await {
            Ok(result) => result,
            Err(error) => return sink.fail(error.into_engine_error(self.context_tokens)),
        };
        sink.end(running.finish_job(received, max_tokens, end).await);
        if let Some(reply) = completed_reply {
            reply.drain().await;
        }
    }
}

pub(super) struct RunningJob<'a> {
    pub(super) upstream: &'a Arc<Upstream>,
    pub(super) turns: &'a [Turn],
    pub(super) job: &'a Job,
    /// The cap that is sent to servers first.
    pub(super) max_tokens: u32,
    /// Whether this job has failed on a server.
    pub(super) has_failed: AtomicBool,
    /// Whether the caller is gone, so that no other server is to get the job.
    is_cancelled: AtomicBool,
    /// The account's salt for the servers' prefix caches.
    pub(super) cache_salt: Arc<str>,
    /// Chosen when a server may be asked for a whole reply; `None` if the job needs a stream.
    progress_tag: OnceLock<Option<ProgressTag>>,
    sent_to: Mutex<Option<Sent>>,
    started_at: Instant,
}

/// The last server that the job was sent to. It may have computed the prompt, even if nothing came back.
struct Sent {
    endpoint: Arc<Endpoint>,
    /// Set if it was asked for a whole reply.
    progress: Option<Progress>,
}

impl<'a> RunningJob<'a> {
    fn new(upstream: &'a Arc<Upstream>, turns: &'a [Turn], job: &'a Job) -> Self {
        let started_at = upstream.clock.monotonic();
        let mut running = Self {
            upstream,
            turns,
            job,
            max_tokens: 0,
            has_failed: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            cache_salt: upstream.cache_salts.of(job.account),
            progress_tag: OnceLock::new(),
            sent_to: Mutex::new(None),
            started_at,
        };
        running.max_tokens = running.initial_max_tokens();
        running
    }

    pub(super) fn progress_tag(&self) -> Option<u32> {
        self.progress_tag.get_or_init(|| self.new_progress_tag()).as_ref().map(|tag| tag.value)
    }

    /// Returns `None` if the job needs a stream: the caller needs text before the end, this process watches it for loops or log
    /// probabilities, or another server is to replace one whose first text is late. A long reply is streamed too, because a
    /// whole one that reaches the total timeout has no text. So is one that is sampled with a seed that the caller chose: a job
    /// of another node, or of another model on the same server, may have the same, and its tokens would be billed for this one.
    fn new_progress_tag(&self) -> Option<ProgressTag> {
        let Job { needs_partial_text, stop_on_repetition, top_logprobs, sampling, .. } = self.job;
        let is_sampled = sampling.temperature > 0.0;
        let max_whole_tokens =
            self.upstream.timeouts.total.as_secs().saturating_mul(MIN_WHOLE_TOKENS_PER_SECOND);
        let needs_stream = *needs_partial_text
            || *stop_on_repetition
            || top_logprobs.is_some()
            || self.upstream.hedge_after.is_some()
            || (is_sampled && sampling.is_seed_chosen)
            || u64::from(self.max_tokens) > max_whole_tokens;
        if needs_stream {
            return None;
        }
        let (tags, randomness) = (&self.upstream.progress_tags, self.upstream.randomness.as_ref());
        if is_sampled { tags.of_seed(sampling.seed) } else { tags.random(randomness) }
    }

    /// Never requests more than the context has room for, because some servers reject that instead of stopping there.
    /// Without a tokenizer the room is unknown: then the caller's cap is sent, unless it fills the whole context.
    fn initial_max_tokens(&self) -> u32 {
        let (cap, context_tokens) = (self.job.max_output_tokens, self.upstream.context_tokens);
        if self.upstream.counter.is_some() {
            return cap.min(context_tokens.saturating_sub(self.job.prompt.prompt_tokens())).max(1);
        }
        let leaves_room = cap.saturating_add(template_tokens(self.turns)) < context_tokens;
        let likely = self.estimated_prompt_tokens(TYPICAL_BYTES_PER_TOKEN).min(context_tokens / 2);
        if leaves_room { cap } else { cap.min(context_tokens - likely).max(1) }
    }

    /// Estimated from the bytes, including the chat template.
    pub(super) fn estimated_prompt_tokens(&self, bytes_per_token: u32) -> u32 {
        let bytes: usize = self.turns.iter().map(|turn| turn.text.len()).sum();
        let text_tokens = u32::try_from(bytes).unwrap_or(u32::MAX) / bytes_per_token;
        text_tokens.saturating_add(template_tokens(self.turns))
    }

    pub(super) fn record_sent(&self, endpoint: &Arc<Endpoint>, progress: Option<Progress>) {
        let sent = Sent { endpoint: Arc::clone(endpoint), progress };
        *self.sent_to.lock().unwrap_or_else(PoisonError::into_inner) = Some(sent);
    }

    pub(super) fn sent_to(&self) -> Option<Arc<Endpoint>> {
        let sent = self.sent_to.lock().unwrap_or_else(PoisonError::into_inner);
        sent.as_ref().map(|sent| Arc::clone(&sent.endpoint))
    }

    /// Of a whole reply.
    fn progress(&self) -> Option<Progress> {
        let sent = self.sent_to.lock().unwrap_or_else(PoisonError::into_inner);
        sent.as_ref().and_then(|sent| sent.progress.clone())
    }

    /// Remainder of the job's total timeout.
    pub(super) fn remaining_time(&self) -> Duration {
        let spent = self.upstream.clock.monotonic().saturating_duration_since(self.started_at);
        self.upstream.timeouts.total.saturating_sub(spent)
    }

    fn lease_request(&self) -> LeaseRequest {
        let prompt_tokens = match self.upstream.counter {
            Some(_) => self.job.prompt.prompt_tokens(),
            None => self.estimated_prompt_tokens(TYPICAL_BYTES_PER_TOKEN),
        };
        let tokens = u64::from(prompt_tokens) + u64::from(self.max_tokens);
        let account = self.job.account;
        let has_choice = self.upstream.pool.has_choice();
        let affinity = if has_choice { AffinityKey::of(account, self.turns) } else { None };
        LeaseRequest { account, affinity, tokens }
    }

    async fn work(&self, sink: &GenerationSink) -> Result<JobResult, UpstreamError> {
        let started = {
            let mut starting = pin!(self.start_with_retries());
            tokio::select! {
                biased;
                () = sink.cancelled() => self.count_cancelled_start(starting.as_mut()).await,
                started = &mut starting => Ok(started?),
            }
        };
        match started {
            Ok(started_reply) => self.forward_reply(started_reply, sink).await,
            // The connection is closed, and the lease on the server has ended.
            Err(generated_tokens) => {
                let received = Received::only_generated(generated_tokens);
                let (max_tokens, end) = (self.max_tokens, JobEnd::Cancelled);
                Ok(JobResult { received, max_tokens, end, completed_reply: None })
            }
        }
    }

    /// The caller is gone before the first text. Returns the tokens that the server of a whole reply has generated by now, or the
    /// reply if it has just started.
    async fn count_cancelled_start(
        &self,
        mut starting: Pin<&mut impl Future<Output = Result<StartedReply, UpstreamError>>>,
    ) -> Result<StartedReply, u32> {
        let Some(progress) = self.progress() else { return Err(0) };
        self.is_cancelled.store(true, Ordering::Relaxed);
        match progress.count_after_cancel(&mut starting).await {
            Ok(started) => started.map_err(|_| 0),
            Err(Some(tokens)) if tokens > 0 => {
                // Otherwise the server is suspected to hang when its lease ends.
                progress.endpoint.record_activity();
                Err(tokens)
            }
            Err(_) => Err(0),
        }
    }

    async fn start_with_retries(&self) -> Result<StartedReply, UpstreamError> {
        let request = self.lease_request();
        let mut attempted = self.unsuitable_endpoints()?;
        let max_attempted = attempted.len() + MAX_ATTEMPTS;
        let mut last = None;
        while attempted.len() < max_attempted && !self.is_cancelled.load(Ordering::Relaxed) {
            let Some(lease) = self.upstream.pool.lease(request, &attempted) else { break };
            if last.is_some() {
                self.increment_counter("chancery_upstream_retries_total");
            }
            attempted.push(Arc::clone(lease.endpoint()));
            match self.start_hedged(lease, request, &mut attempted, max_attempted).await {
                Ok(started) => return Ok(started),
                Err(error) if !error.is_retryable() => return Err(error),
                // A server that has failed may yet run the job, unlike one that does not support it.
                Err(error) if error.kind == UpstreamErrorKind::UnsupportedParam && last.is_some() => {}
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| self.no_endpoint_error()))
    }

    /// Servers that are known not to support a field of the job: they cost no attempt, and do not hide that the others are
    /// busy. Fails if there are no others.
    fn unsuitable_endpoints(&self) -> Result<Vec<Arc<Endpoint>>, UpstreamError> {
        if !is_kind_dependent(self.job) && self.job.top_logprobs.is_none() {
            return Ok(Vec::new());
        }
        let mut endpoints = self.upstream.pool.serving();
        let serving_count = endpoints.len();
        let mut reason = None;
        endpoints.retain(|endpoint| {
            let error = self.known_unsupported(endpoint);
            let is_unsupported = error.is_some();
            reason = reason.take().or(error);
            is_unsupported
        });
        match reason {
            Some(error) if endpoints.len() == serving_count => Err(error),
            _ => Ok(endpoints),
        }
    }

    /// Step 3 above.
    async fn start_hedged(
        &self,
        lease: Lease,
        request: LeaseRequest,
        attempted: &mut Vec<Arc<Endpoint>>,
        max_attempted: usize,
    ) -> Result<StartedReply, UpstreamError> {
        let mut first = pin!(self.start(lease));
        if let Some(hedge_after) = self.upstream.hedge_after {
            tokio::select! {
                biased;
                started = &mut first => return started,
                () = sleep(hedge_after) => {}
            }
            let second =
                (attempted.len() < max_attempted).then(|| self.upstream.pool.lease(request, attempted));
            if let Some(lease) = second.flatten() {
                attempted.push(Arc::clone(lease.endpoint()));
                self.increment_counter("chancery_upstream_hedges_total");
                let mut second = pin!(self.start(lease));
                // If one fails, wait for the other. If both fail, the caller may try a third.
                let (started, other) = tokio::select! {
                    biased;
                    started = &mut first => (started, second),
                    started = &mut second => (started, first),
                };
                return match started {
                    Err(error) if error.is_retryable() => other.await,
                    started => started,
                };
            }
        }
        first.await
    }

    fn increment_counter(&self, name: &'static str) {
        metrics::counter!(name, "model" => self.upstream.model.clone()).increment(1);
    }

    /// No server accepts the job, and none was tried.
    fn no_endpoint_error(&self) -> UpstreamError {
        match self.upstream.pool.busy_for() {
            Some(pause) => {
                let retry_after_s =
                    Some(u32::try_from(pause.as_secs()).unwrap_or(u32::MAX).saturating_add(1));
                UpstreamError::new(UpstreamErrorKind::Busy { retry_after_s }, "all upstream servers are busy")
            }
            None => UpstreamError::new(UpstreamErrorKind::Unreachable, "no upstream server available"),
        }
    }

    /// Steps 4 and 5 above.
    async fn forward_reply(
        &self,
        started: StartedReply,
        sink: &GenerationSink,
    ) -> Result<JobResult, UpstreamError> {
        let StartedReply { lease, mut reply } = started;
        // With hedging, which has no whole replies, the job may have been sent to another server since.
        self.record_sent(lease.endpoint(), None);
        let max_tokens = reply.max_tokens();
        let mut cap_check = CapCheck::new(max_tokens);
        let forwarding = async {
            loop {
                if self.job.needs_partial_text {
                    reply.pass_on(sink);
                }
                if reply.received.finish_reason.is_some() {
                    return Ok(());
                }
                if reply.received.is_over_cap || reply.received.is_looping {
                    return Ok(());
                }
                if self.is_over_cap(&reply.received, max_tokens, &mut cap_check).await {
                    reply.received.is_over_cap = true;
                    return Ok(());
                }
                reply.read_with_idle_timeout().await?;
                lease.endpoint().record_activity();
            }
        };
        let deadline_exceeded =
            |_| Err(UpstreamError::new(UpstreamErrorKind::DeadlineExceeded, "total timeout exceeded"));
        let forwarded = tokio::select! {
            biased;
            () = sink.cancelled() => None,
            outcome = timeout(self.remaining_time(), forwarding) => Some(outcome.unwrap_or_else(deadline_exceeded)),
        };
        if forwarded.is_none() {
            reply.count_after_cancel().await;
        }
        reply.pass_on(sink);
        match forwarded {
            None if reply.received.finish_reason.is_none() => {
                let end = JobEnd::Cancelled;
                Ok(JobResult { received: reply.received, max_tokens, end, completed_reply: None })
            }
            // The text cannot be taken back, so it is billed. The deadline is the job's, and says nothing about the
            // server.
            Some(Err(error))
                if error.kind == UpstreamErrorKind::DeadlineExceeded && reply.received.text_chunks > 0 =>
            {
                lease.failed(&error, true);
                let end = JobEnd::DeadlineExceeded;
                Ok(JobResult { received: reply.received, max_tokens, end, completed_reply: None })
            }
            Some(Ok(())) if reply.received.is_over_cap => {
                let (model, endpoint) = (&self.upstream.model, lease.url());
                tracing::warn!(
                    model,
                    endpoint,
                    max_tokens,
                    "upstream server ignores max_tokens, job stopped"
                );
                lease.succeeded();
                let end = JobEnd::OverCap;
                Ok(JobResult { received: reply.received, max_tokens, end, completed_reply: None })
            }
            Some(Ok(())) if reply.received.is_looping => {
                let (model, endpoint) = (&self.upstream.model, lease.url());
                tracing::debug!(model, endpoint, "reply repeats itself, job stopped");
                lease.succeeded();
                let end = JobEnd::Repetition;
                Ok(JobResult { received: reply.received, max_tokens, end, completed_reply: None })
            }
            Some(Err(error)) => {
                if error.kind == UpstreamErrorKind::UnsupportedParam {
                    lease.endpoint().capabilities.disable_logprobs();
                }
                self.record_failure(lease, &error);
                Err(error)
            }
            None | Some(Ok(())) => {
                reply.wait_for_usage(sink).await;
                lease.succeeded();
                let received = std::mem::take(&mut reply.received);
                let end = JobEnd::Completed;
                Ok(JobResult { received, max_tokens, end, completed_reply: Some(reply) })
            }
        }
    }
}
