//! Step 4 of the protocol: runs the engine and collects the reply, or the part generated before the caller disconnects.

use super::open_request::{Delivery, GenerationState, OpenRequest, Unbilled};
use crate::limits::GENERATION_TIMEOUT;
use crate::running::{ResponseSender, StreamStart};
use crate::{GenerateRequest, MeterError, Reply};
use chancery_engine::{EngineError, Event, Finished, Generation, Job, Sampling, StopReason};

impl OpenRequest {
    pub(super) async fn generate(&mut self, caller: &mut ResponseSender) -> Result<(), Unbilled> {
        let generation = self.start_engine()?;
        self.work = GenerationState::Running { generation, output_text: String::new() };
        caller.begin(StreamStart {
            id: self.call.request_id.clone(),
            at: self.prepared.at,
            input_tokens: self.prepared.prompt.input_tokens,
            is_counted: self.prepared.prompt.is_counted(),
            is_replay: false,
            rate_limit_status: self.rate_limit_status,
        });
        self.collect(caller).await
    }

    fn start_engine(&self) -> Result<Generation, MeterError> {
        let GenerateRequest { temperature, top_k, top_p, min_p, seed, ref stop, .. } = self.call.request;
        let seed = seed.unwrap_or_else(|| self.meter.randomness.next_u64());
        Ok(self.prepared.model.engine.start(Job {
            account: self.call.caller.account,
            prompt: self.prepared.prompt.clone(),
            max_output_tokens: self.prepared.max_output_tokens,
            sampling: Sampling { temperature, top_k, top_p, min_p, seed },
            stop: stop.clone(),
        })?)
    }

    /// Resumes after an interruption, if there was one. `Ok` means that there is something to settle.
    pub(super) async fn collect(&mut self, caller: &ResponseSender) -> Result<(), Unbilled> {
        let (generation, output_text) = match &mut self.work {
            GenerationState::Running { generation, output_text } => (generation, output_text),
            GenerationState::Finished(_) => return Ok(()),
            GenerationState::None => {
                return Err(MeterError::Internal("generation not started".to_owned()).into());
            }
        };
        let mut is_cancelled = false;
        let deadline = tokio::time::sleep(GENERATION_TIMEOUT);
        tokio::pin!(deadline);
        let ended = loop {
            tokio::select! {
                event = generation.next() => match event.map_err(MeterError::from)? {
                    Event::Text(text) => {
                        if caller.is_streaming() {
                            self.delivery = Delivery::TextDelivered;
                        }
                        caller.text(&text);
                        output_text.push_str(&text);
                    }
                    Event::Finished(ended) => break ended,
                },
                () = caller.disconnected.cancelled(), if !is_cancelled => {
                    is_cancelled = true;
                    generation.cancel();
                }
                () = self.meter.abandoned.cancelled() => return Err(MeterError::ShuttingDown.into()),
                () = &mut deadline => return Err(MeterError::from(EngineError::TimedOut).into()),
            }
        };
        let output_text = std::mem::take(output_text);
        self.finish_generation(ended, output_text)
    }

    fn finish_generation(&mut self, ended: Finished, output_text: String) -> Result<(), Unbilled> {
        let counted_tokens = self.prepared.prompt.input_tokens;
        // Whatever the engine reports, no more is billed than was reserved.
        let input_tokens = ended.input_tokens.unwrap_or(counted_tokens).min(counted_tokens);
        let reply = Reply {
            id: self.call.request_id.clone(),
            at: self.prepared.at,
            output_text,
            stop_reason: ended.reason,
            input_tokens,
            output_tokens: ended.output_tokens,
            // The engine counts the chat template's tokens, the bill does not. So cached tokens are capped at the billed input.
            cached_tokens: ended.cached_tokens.min(input_tokens),
            is_replay: false,
            rate_limit_status: None,
        };
        if reply.stop_reason == StopReason::Cancelled && reply.output_tokens == 0 {
            self.counted_tokens = Some(0);
            self.work = GenerationState::None;
            return Err(Unbilled::NothingGenerated(Box::new(reply)));
        }
        // From here on a row may be written, so the tokens count even if the outcome of the write is unknown.
        self.counted_tokens = Some(u64::from(input_tokens) + u64::from(reply.output_tokens));
        self.work = GenerationState::Finished(reply);
        Ok(())
    }
}
