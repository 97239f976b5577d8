//! One job, from server to server until it has ended:
//!
//! 1. A server is chosen (`pool`), and the job's tokens count as its load until the job has left it.
//! 2. The job is sent, and the reply handed on as it comes (`stream`). What fails before the first text is tried at another
//!    server, a few times; whatever fails after it fails the job, because text that has left cannot be taken back.
//! 3. A caller who hangs up ends it at once: the connection is closed, which is how servers are told to stop.
//! 4. Its end says how many tokens it had: by the model's own tokenizer over the text that was handed on (and the server's
//!    word for the few tokens of a character that the cap cut off), or without one as the server counted. A reply that nobody counted fails, for it could not be billed.

use super::affinity::AffinityKey;
use super::chat::{self, Finish};
use super::counting::TokenCounter;
use super::endpoint::Endpoint;
use super::fault::{Fault, Trouble};
use super::limits::{INLINE_TEXT_BYTES, MAX_ATTEMPTS, MAX_CUT_TOKENS, REST_PATIENCE};
use super::pool::{Pool, Wanted};
use super::settings::Timeouts;
use super::sse::DataReader;
use super::stream::{Reading, Received};
use super::transport::Transport;
use crate::{Ended, EngineError, GenerationSink, Job, StopReason, Turn};
use chancery_domain::Clock;
use reqwest::Response;
use std::sync::Arc;
use tokio::time::timeout;

/// What every job of a model needs.
pub(super) struct Upstream {
    pub(super) model: String,
    pub(super) upstream_model: String,
    pub(super) pool: Pool,
    pub(super) transport: Transport,
    pub(super) counter: Option<TokenCounter>,
    pub(super) context_tokens: u32,
    pub(super) timeouts: Timeouts,
    pub(super) clock: Arc<dyn Clock>,
}

/// How one try ended that did not fail.
enum Outcome {
    Whole(Response),
    Cancelled,
}

impl Upstream {
    pub(super) async fn run(self: &Arc<Self>, turns: &[Turn], job: &Job, sink: GenerationSink) {
        let running = RunningJob::new(self, turns, job);
        let prompt_tokens = job.prompt.prompt_tokens();
        let mut received = Received::default();
        let within = timeout(self.timeouts.total, running.try_servers(&sink, &mut received)).await;
        let late = || Fault::new(Trouble::TimedOut, "the whole job took too long");
        let outcome = match within.unwrap_or_else(|_| Err(late())) {
            Ok(outcome) => running.ended(&mut received, &outcome).await.map(|ended| (ended, outcome)),
            Err(fault) => Err(fault.into_engine_error(prompt_tokens, self.context_tokens)),
        };
        match outcome {
            Ok((ended, Outcome::Whole(reply))) => {
                sink.end(ended);
                read_to_the_end(reply).await;
            }
            Ok((ended, Outcome::Cancelled)) => sink.end(ended),
            Err(error) => sink.fail(error),
        }
    }
}

impl Upstream {
    /// The tokens of a text; a long one is counted off the async threads. None are counted without a tokenizer.
    async fn count(self: &Arc<Self>, text: String) -> Result<u32, EngineError> {
        let count = |upstream: &Self, text: &str| {
            upstream.counter.as_ref().map_or(Ok(0), |counter| counter.count(text))
        };
        if text.len() <= INLINE_TEXT_BYTES {
            return count(self, &text);
        }
        let upstream = Arc::clone(self);
        let counting = tokio::task::spawn_blocking(move || count(&upstream, &text));
        counting.await.map_err(|error| EngineError::Failed(error.to_string()))?
    }
}

/// A connection whose reply was read to its end can be used again.
async fn read_to_the_end(mut reply: Response) {
    let reading = async { while let Ok(Some(_)) = reply.chunk().await {} };
    let _ = timeout(REST_PATIENCE, reading).await;
}

struct RunningJob<'a> {
    upstream: &'a Arc<Upstream>,
    turns: &'a [Turn],
    job: &'a Job,
    /// What the server is asked for: no more than the context has room for, which some refuse instead of stopping there.
    max_tokens: u32,
}

impl<'a> RunningJob<'a> {
    fn new(upstream: &'a Arc<Upstream>, turns: &'a [Turn], job: &'a Job) -> Self {
        let room = upstream.context_tokens.saturating_sub(job.prompt.prompt_tokens()).max(1);
        Self { upstream, turns, job, max_tokens: job.max_output_tokens.min(room) }
    }

    async fn try_servers(&self, sink: &GenerationSink, received: &mut Received) -> Result<Outcome, Fault> {
        let Upstream { pool, clock, model, .. } = self.upstream.as_ref();
        let tokens = u64::from(self.job.prompt.prompt_tokens()) + u64::from(self.max_tokens);
        let wanted = Wanted { affinity: AffinityKey::of(self.job.account, self.turns), tokens };
        let body = chat::body(&self.upstream.upstream_model, self.turns, self.job, self.max_tokens)?;
        let mut tried: Vec<Arc<Endpoint>> = Vec::new();
        let mut last = None;
        while tried.len() < MAX_ATTEMPTS {
            let Some(lease) = pool.lease(wanted, &tried) else { break };
            if last.is_some() {
                metrics::counter!("chancery_upstream_retries_total", "model" => model.clone()).increment(1);
            }
            tried.push(Arc::clone(lease.endpoint()));
            match self.try_at(lease.url(), body.clone(), sink, received).await {
                Ok(outcome) => {
                    match outcome {
                        Outcome::Whole(_) => lease.went_well(clock.monotonic()),
                        Outcome::Cancelled => lease.was_cancelled(clock.monotonic()),
                    }
                    return Ok(outcome);
                }
                Err(fault) => {
                    let endpoint = lease.url();
                    tracing::warn!(
                        model,
                        endpoint,
                        trouble = fault.story,
                        "a job failed at an upstream server"
                    );
                    lease.failed(&fault, clock.monotonic());
                    if received.pieces > 0 || !fault.is_worth_another_try() {
                        return Err(fault);
                    }
                    last = Some(fault);
                    *received = Received::default();
                }
            }
        }
        Err(last.unwrap_or_else(|| self.nobody()))
    }

    /// No server takes the job, and none was tried.
    fn nobody(&self) -> Fault {
        match self.upstream.pool.busy_for() {
            Some(pause) => {
                let retry_after_s =
                    Some(u32::try_from(pause.as_secs()).unwrap_or(u32::MAX).saturating_add(1));
                Fault::new(Trouble::Busy { retry_after_s }, "every upstream server is busy")
            }
            None => Fault::new(Trouble::Unreachable, "no upstream server takes jobs now"),
        }
    }

    async fn try_at(
        &self,
        endpoint: &str,
        body: Vec<u8>,
        sink: &GenerationSink,
        received: &mut Received,
    ) -> Result<Outcome, Fault> {
        let Upstream { transport, timeouts, .. } = self.upstream.as_ref();
        let mut reading = Reading { sink, timeouts: *timeouts, max_tokens: self.max_tokens, received };
        let work = async {
            let mut events = DataReader::default();
            let beginning = async {
                let mut reply = transport.chat(endpoint, body).await?;
                reading.first_text(&mut reply, &mut events).await?;
                Ok(reply)
            };
            let late = |_| {
                let waited_ms = timeouts.first_token.as_millis();
                Fault::new(Trouble::TimedOut, format!("no text came within {waited_ms} ms"))
            };
            let mut reply = timeout(timeouts.first_token, beginning).await.map_err(late)??;
            reading.rest(&mut reply, &mut events).await?;
            Ok(Outcome::Whole(reply))
        };
        tokio::select! {
            biased;
            // What is dropped here is the connection.
            () = sink.cancelled() => Ok(Outcome::Cancelled),
            outcome = work => outcome,
        }
    }

    async fn ended(&self, received: &mut Received, outcome: &Outcome) -> Result<Ended, EngineError> {
        let is_cancelled = matches!(outcome, Outcome::Cancelled);
        let (input_tokens, output_tokens) = self.count(received, is_cancelled).await?;
        let reason = match received.finish {
            _ if is_cancelled => StopReason::Cancelled,
            Some(Finish::Length) => self.what_was_full(received, output_tokens),
            Some(Finish::StopSequence) => StopReason::StopSequence,
            Some(Finish::Stop) | None => StopReason::Complete,
        };
        let cached_tokens = received.usage.map_or(0, |usage| usage.cached_tokens);
        Ok(Ended { reason, output_tokens, cached_tokens, input_tokens })
    }

    /// Tokens in, where they were not known before, and out.
    async fn count(
        &self,
        received: &mut Received,
        is_cancelled: bool,
    ) -> Result<(Option<u32>, u32), EngineError> {
        let most = self.job.max_output_tokens;
        match (&self.upstream.counter, received.usage) {
            (Some(_), usage) => {
                let counted = self.upstream.count(std::mem::take(&mut received.text)).await?;
                let generated = usage.map_or(counted, |usage| usage.completion_tokens);
                let was_cut_off = received.finish == Some(Finish::Length) && generated == self.max_tokens;
                let is_part_of_a_character = (counted..=counted + MAX_CUT_TOKENS).contains(&generated);
                let output_tokens = if was_cut_off && is_part_of_a_character { generated } else { counted };
                Ok((None, output_tokens.min(most)))
            }
            (None, Some(usage)) => Ok((Some(usage.prompt_tokens), usage.completion_tokens.min(most))),
            // What is known for certain: each piece had a token. The prompt's count never came, so it is given away.
            (None, None) if is_cancelled => Ok((Some(0), received.pieces.min(most))),
            (None, None) => Err(EngineError::Failed(
                "the upstream server does not say what it counted; set `tokenizer` for this model".to_owned(),
            )),
        }
    }

    /// A reply that was cut short ran into the caller's cap, or else into the context's end.
    fn what_was_full(&self, received: &Received, output_tokens: u32) -> StopReason {
        let generated = received.usage.map_or(0, |usage| usage.completion_tokens).max(output_tokens);
        if generated >= self.job.max_output_tokens {
            return StopReason::MaxOutputTokens;
        }
        let was_cut_to_fit = self.max_tokens < self.job.max_output_tokens;
        let prompt_tokens = match (&self.upstream.counter, received.usage) {
            (None, Some(usage)) => usage.prompt_tokens,
            _ => self.job.prompt.input_tokens,
        };
        let is_full =
            u64::from(prompt_tokens) + u64::from(generated) + u64::from(super::template_tokens(self.turns))
                >= u64::from(self.upstream.context_tokens);
        match was_cut_to_fit || is_full {
            true => StopReason::ContextLength,
            false => StopReason::MaxOutputTokens,
        }
    }
}
