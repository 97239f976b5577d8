//! Step 4 of the protocol: runs the engine and collects the reply, or the part generated before something ends it: the caller
//! disconnects, the deadline passes, or the process shuts down.

use super::open_request::{Delivery, GenerationState, OpenRequest, RunningGeneration, Unbilled};
use crate::limits::{CANCEL_TIMEOUT, GENERATION_TIMEOUT};
use crate::logprobs::CollectedLogprobs;
use crate::running::{ResponseSender, StreamStart};
use crate::{GenerateRequest, MeterError, Reply};
use chancery_engine::{EngineError, Event, Finished, Generation, Job, Role, Sampling, StopReason, Turn};
use std::pin::Pin;
use std::sync::Arc;
use tokio::time::Sleep;

impl OpenRequest {
    pub(super) async fn generate(&mut self, caller: &mut ResponseSender) -> Result<(), Unbilled> {
        let needs_partial_text = caller.is_streaming() || self.call.idempotency.is_some();
        let generation = self.start_engine(needs_partial_text)?;
        let top_logprobs = self.call.request.top_logprobs;
        self.work = GenerationState::Running(RunningGeneration {
            generation,
            reasoning_text: String::new(),
            output_text: String::new(),
            logprobs: CollectedLogprobs::new(top_logprobs, self.prepared.max_output_tokens),
            pieces: 0,
            deadline: Box::pin(tokio::time::sleep(GENERATION_TIMEOUT)),
        });
        caller.begin(StreamStart {
            id: self.call.request_id.clone(),
            at: self.prepared.at,
            input_tokens: self.prepared.prompt.input_tokens,
            is_counted: self.prepared.prompt.is_counted(),
            has_logprobs: top_logprobs.is_some(),
            is_replay: false,
            rate_limit_status: self.rate_limit_status,
        });
        self.collect(caller).await
    }

    /// A replay of a cancelled request returns the text so far, so it is needed wherever there may be one.
    fn start_engine(&self, needs_partial_text: bool) -> Result<Generation, MeterError> {
        let GenerateRequest {
            temperature,
            top_k,
            top_p,
            min_p,
            penalties,
            seed,
            ref stop,
            stop_on_repetition,
            top_logprobs,
            ..
        } = self.call.request;
        let is_seed_chosen = seed.is_some();
        let seed = seed.unwrap_or_else(|| self.meter.randomness.next_u64());
        Ok(self.prepared.model.engine.start(Job {
            account: self.call.caller.account,
            prompt: self.prepared.prompt.clone(),
            max_output_tokens: self.prepared.max_output_tokens,
            sampling: Sampling { temperature, top_k, top_p, min_p, seed, is_seed_chosen, penalties },
            stop: stop.clone(),
            stop_on_repetition,
            top_logprobs,
            needs_partial_text,
        })?)
    }

    /// Resumes after an interruption, if there was one. `Ok` means that there is something to settle.
    pub(super) async fn collect(&mut self, caller: &ResponseSender) -> Result<(), Unbilled> {
        if matches!(self.work, GenerationState::Finished(_)) {
            return Ok(());
        }
        let (ended, interruption) = match self.wait_for_end(caller).await {
            Ok(end) => end,
            Err(error) => {
                self.count_delivered_text().await;
                return Err(MeterError::from(error).into());
            }
        };
        // Nobody has read anything yet, so the caller can send it to another node.
        if interruption == Some(Interruption::Shutdown) && self.delivery == Delivery::NothingDelivered {
            return Err(MeterError::ShuttingDown.into());
        }
        let ended = match ended {
            Some(ended) => ended,
            None => self.count_without_engine().await,
        };
        let GenerationState::Running(running) = std::mem::take(&mut self.work) else {
            return Err(MeterError::Internal("generation not running".to_owned()).into());
        };
        self.finish_generation(ended, interruption, running)
    }

    /// Passes text on until the engine ends. If something ends the work first, the engine is told to stop and gets a moment to
    /// report its count; `None` means that it did not.
    async fn wait_for_end(
        &mut self,
        caller: &ResponseSender,
    ) -> Result<(Option<Finished>, Option<Interruption>), EngineError> {
        let Self { meter, delivery, work: GenerationState::Running(running), .. } = self else {
            return Err(EngineError::Failed("generation not running".to_owned()));
        };
        let RunningGeneration { generation, reasoning_text, output_text, logprobs, pieces, deadline } =
            running;
        let mut interruption = None;
        let mut grace: Option<Pin<Box<Sleep>>> = None;
        loop {
            let is_graceful = grace.is_some();
            tokio::select! {
                event = generation.next() => match event? {
                    Event::Reasoning(text) => {
                        if caller.is_streaming() {
                            *delivery = Delivery::TextDelivered;
                        }
                        caller.reasoning(&text);
                        reasoning_text.push_str(&text);
                        *pieces = pieces.saturating_add(1);
                    }
                    Event::Text(text) => {
                        if caller.is_streaming() {
                            *delivery = Delivery::TextDelivered;
                        }
                        caller.text(&text);
                        output_text.push_str(&text);
                        *pieces = pieces.saturating_add(1);
                    }
                    Event::Logprobs(more) => {
                        let more = logprobs.add(more);
                        if caller.is_streaming() && !more.is_empty() {
                            *delivery = Delivery::TextDelivered;
                        }
                        caller.logprobs(more);
                    }
                    Event::Finished(ended) => return Ok((Some(ended), interruption)),
                },
                () = caller.disconnected.cancelled(), if interruption.is_none() => {
                    interruption = Some(Interruption::Disconnected);
                    generation.cancel();
                }
                () = deadline.as_mut(), if !is_graceful => {
                    interruption.get_or_insert(Interruption::Deadline);
                    generation.cancel();
                    grace = Some(Box::pin(tokio::time::sleep(CANCEL_TIMEOUT)));
                }
                () = meter.abandoned.cancelled(), if !is_graceful => {
                    interruption.get_or_insert(Interruption::Shutdown);
                    generation.cancel();
                    if *delivery == Delivery::NothingDelivered {
                        return Ok((None, interruption));
                    }
                    grace = Some(Box::pin(tokio::time::sleep(CANCEL_TIMEOUT)));
                }
                () = elapsed(&mut grace) => return Ok((None, interruption)),
            }
        }
    }

    /// The engine did not report its count in time: what was passed on is counted instead. Without a tokenizer, only what is
    /// certain is billed: each piece of text has at least one token. The prompt then still counts against the minute.
    async fn count_without_engine(&self) -> Finished {
        let GenerationState::Running(running) = &self.work else { return NOTHING_COUNTED };
        let prompt = &self.prepared.prompt;
        let (reasoning_tokens, output_tokens) = match prompt.is_counted() {
            true => self.text_tokens(running).await.unwrap_or((0, running.pieces)),
            false => (0, running.pieces),
        };
        if output_tokens > 0 {
            let request_id = &self.call.request_id;
            tracing::warn!(%request_id, output_tokens, "engine did not stop in time, billing the text that was passed on");
        }
        Finished {
            output_tokens,
            reasoning_tokens,
            prefilled_tokens: prompt.input_tokens,
            input_tokens: (!prompt.is_counted()).then_some(0),
            ..NOTHING_COUNTED
        }
    }

    /// The work failed. That is not billed, but text that was passed on still counts against the minute: by the engine's own
    /// tokenizer, or all that was reserved if it cannot count it.
    async fn count_delivered_text(&mut self) {
        if let GenerationState::Running(running) = &self.work
            && self.delivery == Delivery::TextDelivered
        {
            let reserved = self.prepared.max_billed_output_tokens();
            let output_tokens = self.text_tokens(running).await.map_or(reserved, |(_, output)| output);
            self.counted_tokens =
                Some(u64::from(self.prepared.prompt.input_tokens) + u64::from(output_tokens));
        }
        self.work = GenerationState::None;
    }

    /// The tokens of the reasoning, and of reasoning and text together, by the engine's own tokenizer; never more than were
    /// reserved. `None` if it cannot count them.
    async fn text_tokens(&self, running: &RunningGeneration) -> Option<(u32, u32)> {
        let reserved = self.prepared.max_billed_output_tokens();
        let engine = Arc::clone(&self.prepared.model.engine);
        let texts = [running.reasoning_text.clone(), running.output_text.clone()];
        let counting = tokio::task::spawn_blocking(move || {
            texts.map(|text| match text.is_empty() {
                true => Some(0),
                false => {
                    engine.prepare(&[Turn { role: Role::User, text }]).ok().map(|prompt| prompt.input_tokens)
                }
            })
        });
        let [reasoning_tokens, text_tokens] = counting.await.ok()?;
        let (reasoning_tokens, text_tokens) = (reasoning_tokens?, text_tokens?);
        let output_tokens =
            reasoning_tokens.saturating_add(text_tokens).max(running.pieces.min(1)).min(reserved);
        Some((reasoning_tokens.min(output_tokens), output_tokens))
    }

    fn finish_generation(
        &mut self,
        ended: Finished,
        interruption: Option<Interruption>,
        running: RunningGeneration,
    ) -> Result<(), Unbilled> {
        let RunningGeneration { reasoning_text, output_text, logprobs, .. } = running;
        let counted_tokens = self.prepared.prompt.input_tokens;
        let stop_reason = match (ended.reason, interruption) {
            (StopReason::Cancelled, Some(Interruption::Deadline | Interruption::Shutdown)) => {
                StopReason::Deadline
            }
            (reason, _) => reason,
        };
        // Whatever the engine reports, no more is billed than was reserved.
        let input_tokens = ended.input_tokens.unwrap_or(counted_tokens).min(counted_tokens);
        let output_tokens = ended.output_tokens.min(self.prepared.max_output_tokens);
        let reply = Reply {
            id: self.call.request_id.clone(),
            at: self.prepared.at,
            reasoning_text,
            output_text,
            logprobs: logprobs.into_reply(),
            stop_reason,
            input_tokens,
            output_tokens,
            reasoning_tokens: ended.reasoning_tokens.min(output_tokens),
            cached_tokens: billed_as_cached(&ended, self.prepared.prompt.scaffolding_tokens(), input_tokens),
            account: self.call.caller.account,
            key: self.call.caller.key,
            prices: self.prepared.model.prices,
            is_replay: false,
            rate_limit_status: None,
        };
        // Prompt tokens that were computed count against the minute, even if they are not billed.
        let counted_input = input_tokens.max(ended.prefilled_tokens.min(counted_tokens));
        match (reply.stop_reason, interruption) {
            (StopReason::Cancelled, _) if reply.output_tokens == 0 => {
                self.counted_tokens = Some(ended.prefilled_tokens.min(counted_tokens).into());
                return Err(Unbilled::NothingGenerated(Box::new(reply)));
            }
            (StopReason::Deadline, _) if reply.output_tokens == 0 => {
                return Err(MeterError::from(EngineError::TimedOut).into());
            }
            _ => {}
        }
        // From here on a row may be written, so the tokens count even if the outcome of the write is unknown.
        self.counted_tokens = Some(u64::from(counted_input) + u64::from(reply.output_tokens));
        self.work = GenerationState::Finished(reply);
        Ok(())
    }
}

/// The input tokens that are billed as cached. The engine counts the chat template's tokens, the bill does not. Which
/// of the cached ones are the template's is unknown, so all of the template is taken to be cached: no new text gets the
/// discount. What an unbilled request computed is billed in full to the first one that reuses it.
fn billed_as_cached(ended: &Finished, scaffolding_tokens: u32, input_tokens: u32) -> u32 {
    let cached = ended.billed_cached_tokens.min(ended.cached_tokens);
    cached.saturating_sub(scaffolding_tokens).min(input_tokens)
}

/// The end of work that was cancelled before anything was known of it.
const NOTHING_COUNTED: Finished = Finished {
    reason: StopReason::Cancelled,
    output_tokens: 0,
    reasoning_tokens: 0,
    cached_tokens: 0,
    billed_cached_tokens: 0,
    prefilled_tokens: 0,
    input_tokens: None,
};

/// What ended the work before the engine did.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interruption {
    Disconnected,
    Deadline,
    Shutdown,
}

/// Never returns without a timer.
async fn elapsed(timer: &mut Option<Pin<Box<Sleep>>>) {
    match timer {
        Some(timer) => timer.as_mut().await,
        None => std::future::pending().await,
    }
}
