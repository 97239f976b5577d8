//! One job, from server to server until it has ended:
//!
//! 1. A server is chosen (`pool`), and the job's tokens count as its load until the job has left it.
//! 2. The job is sent there (`attempt`). What fails before the first text is tried at another server, a few times.
//! 3. Where it is so configured and the first text is long in coming, a second server is asked beside the first; whichever has
//!    text first goes on, the other's connection is closed, and nothing of it is handed on or billed.
//! 4. From the first text on it is handed on as it comes, and whatever fails fails the job, because text that has left cannot
//!    be taken back.
//! 5. A caller who hangs up ends it at once: the connection is closed, which is how servers are told to stop. Only where the
//!    reply has ended already, and nothing runs any more, is its count still waited for.
//! 6. Its end says how many tokens it had (`tally`).

use super::affinity::AffinityKey;
use super::attempt::Begun;
use super::counting::TokenCounter;
use super::endpoint::{Endpoint, Lease};
use super::fault::{Fault, Trouble};
use super::limits::{LIKELY_BYTES_PER_TOKEN, MAX_ATTEMPTS};
use super::pool::{Pool, Wanted};
use super::settings::Timeouts;
use super::stream::{Received, Reply};
use super::template_tokens;
use super::transport::Transport;
use chancery_domain::Clock;
use chancery_engine::{GenerationSink, Job, Turn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

/// What every job of a model needs.
pub(super) struct Upstream {
    pub(super) model: String,
    pub(super) upstream_model: String,
    pub(super) pool: Pool,
    pub(super) transport: Arc<Transport>,
    pub(super) counter: Option<TokenCounter>,
    pub(super) context_tokens: u32,
    pub(super) timeouts: Timeouts,
    pub(super) hedge_after: Option<Duration>,
    pub(super) clock: Arc<dyn Clock>,
}

/// A job that did not fail.
struct Done {
    received: Received,
    /// What the server was asked for.
    max_tokens: u32,
    /// The reply that is whole; None where nobody wanted the rest.
    whole: Option<Reply>,
}

impl Upstream {
    pub(super) async fn run(self: &Arc<Self>, turns: &[Turn], job: &Job, sink: GenerationSink) {
        let running = RunningJob::new(self, turns, job);
        let Done { received, max_tokens, whole } = match running.work(&sink).await {
            Ok(done) => done,
            Err(fault) => return sink.fail(fault.into_engine_error(self.context_tokens)),
        };
        match running.ended(received, max_tokens, whole.is_none()).await {
            Ok(ended) => sink.end(ended),
            Err(error) => sink.fail(error),
        }
        if let Some(reply) = whole {
            reply.read_to_the_end().await;
        }
    }
}

pub(super) struct RunningJob<'a> {
    pub(super) upstream: &'a Arc<Upstream>,
    pub(super) turns: &'a [Turn],
    pub(super) job: &'a Job,
    /// What servers are asked for first.
    pub(super) max_tokens: u32,
    /// Whether a server has failed with it.
    pub(super) has_failed: AtomicBool,
    began: Instant,
}

impl<'a> RunningJob<'a> {
    fn new(upstream: &'a Arc<Upstream>, turns: &'a [Turn], job: &'a Job) -> Self {
        let began = upstream.clock.monotonic();
        let mut running =
            Self { upstream, turns, job, max_tokens: 0, has_failed: AtomicBool::new(false), began };
        running.max_tokens = running.first_max_tokens();
        running
    }

    /// Servers are asked for no more than the context has room for, which some refuse instead of stopping there. Where the
    /// prompt was not counted here, that room is not known: then the caller's own cap goes along, unless it is the whole context's.
    fn first_max_tokens(&self) -> u32 {
        let (cap, context_tokens) = (self.job.max_output_tokens, self.upstream.context_tokens);
        if self.upstream.counter.is_some() {
            return cap.min(context_tokens.saturating_sub(self.job.prompt.prompt_tokens())).max(1);
        }
        let leaves_room = cap.saturating_add(template_tokens(self.turns)) < context_tokens;
        let likely = self.guessed_prompt_tokens(LIKELY_BYTES_PER_TOKEN).min(context_tokens / 2);
        if leaves_room { cap } else { cap.min(context_tokens - likely).max(1) }
    }

    /// By its bytes, scaffolding included.
    pub(super) fn guessed_prompt_tokens(&self, bytes_per_token: u32) -> u32 {
        let bytes: usize = self.turns.iter().map(|turn| turn.text.len()).sum();
        let text_tokens = u32::try_from(bytes).unwrap_or(u32::MAX) / bytes_per_token;
        text_tokens.saturating_add(template_tokens(self.turns))
    }

    /// Of all that the job may take.
    pub(super) fn time_left(&self) -> Duration {
        let spent = self.upstream.clock.monotonic().saturating_duration_since(self.began);
        self.upstream.timeouts.total.saturating_sub(spent)
    }

    fn wanted(&self) -> Wanted {
        let prompt_tokens = match self.upstream.counter {
            Some(_) => self.job.prompt.prompt_tokens(),
            None => self.guessed_prompt_tokens(LIKELY_BYTES_PER_TOKEN),
        };
        let tokens = u64::from(prompt_tokens) + u64::from(self.max_tokens);
        Wanted { affinity: AffinityKey::of(self.job.account, self.turns), tokens }
    }

    async fn work(&self, sink: &GenerationSink) -> Result<Done, Fault> {
        let beginning = tokio::select! {
            biased;
            // What is dropped here is the connection, and with it the place at the server.
            () = sink.cancelled() => {
                return Ok(Done { received: Received::default(), max_tokens: self.max_tokens, whole: None });
            }
            begun = self.begin_somewhere() => begun?,
        };
        self.hand_on(beginning, sink).await
    }

    async fn begin_somewhere(&self) -> Result<Begun, Fault> {
        let wanted = self.wanted();
        let mut tried: Vec<Arc<Endpoint>> = Vec::new();
        let mut last = None;
        while tried.len() < MAX_ATTEMPTS {
            let Some(lease) = self.upstream.pool.lease(wanted, &tried) else { break };
            if last.is_some() {
                self.count_one("chancery_upstream_retries_total");
            }
            tried.push(Arc::clone(lease.endpoint()));
            match self.begin_hedged(lease, wanted, &mut tried).await {
                Ok(begun) => return Ok(begun),
                Err(fault) if !fault.is_worth_another_try() => return Err(fault),
                Err(fault) => last = Some(fault),
            }
        }
        Err(last.unwrap_or_else(|| self.nobody()))
    }

    /// Step 3 above.
    async fn begin_hedged(
        &self,
        lease: Lease,
        wanted: Wanted,
        tried: &mut Vec<Arc<Endpoint>>,
    ) -> Result<Begun, Fault> {
        let mut first = pin!(self.begin(lease));
        if let Some(hedge_after) = self.upstream.hedge_after {
            tokio::select! {
                biased;
                begun = &mut first => return begun,
                () = sleep(hedge_after) => {}
            }
            let second = (tried.len() < MAX_ATTEMPTS).then(|| self.upstream.pool.lease(wanted, tried));
            if let Some(lease) = second.flatten() {
                tried.push(Arc::clone(lease.endpoint()));
                self.count_one("chancery_upstream_hedges_total");
                let mut second = pin!(self.begin(lease));
                // Where one fails, the other is waited for; where it fails too, there may be a third.
                let (begun, other_begins) = tokio::select! {
                    biased;
                    begun = &mut first => (begun, second),
                    begun = &mut second => (begun, first),
                };
                return match begun {
                    Err(fault) if fault.is_worth_another_try() => other_begins.await,
                    begun => begun,
                };
            }
        }
        first.await
    }

    fn count_one(&self, name: &'static str) {
        metrics::counter!(name, "model" => self.upstream.model.clone()).increment(1);
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

    /// Steps 4 and 5 above.
    async fn hand_on(&self, begun: Begun, sink: &GenerationSink) -> Result<Done, Fault> {
        let Begun { lease, mut reply } = begun;
        let handing_on = async {
            reply.take_text(|text| sink.text(text));
            while reply.received.finish.is_none() {
                reply.more_in_time().await?;
                reply.take_text(|text| sink.text(text));
            }
            Ok(())
        };
        let out_of_time = |_| Err(Fault::new(Trouble::OutOfTime, "the whole job took too long"));
        let handed_on = tokio::select! {
            biased;
            () = sink.cancelled() => None,
            outcome = timeout(self.time_left(), handing_on) => Some(outcome.unwrap_or_else(out_of_time)),
        };
        let max_tokens = reply.max_tokens();
        match handed_on {
            None if reply.received.finish.is_none() => {
                Ok(Done { received: reply.received, max_tokens, whole: None })
            }
            Some(Err(fault)) => {
                self.note_failure(lease, &fault);
                Err(fault)
            }
            None | Some(Ok(())) => {
                reply.take_text(|text| sink.text(text));
                reply.until_counted().await;
                lease.went_well();
                let received = std::mem::take(&mut reply.received);
                Ok(Done { received, max_tokens, whole: Some(reply) })
            }
        }
    }
}
