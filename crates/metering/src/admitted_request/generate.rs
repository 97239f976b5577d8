//! Step 4 of the protocol: runs the engine and gathers the reply, or what there is of it when the caller hangs up.

use super::open_request::{Delivery, OpenRequest, Unbilled, Work};
use crate::limits::GENERATION_TIMEOUT;
use crate::running::{Beginning, Reporter};
use crate::{GenerateRequest, MeterError, Reply};
use chancery_domain::HowEnded;
use chancery_engine::{Ended, EngineError, Event, Generation, Job, Sampling, StopReason};

impl OpenRequest {
    pub(super) async fn generate(&mut self, caller: &mut Reporter) -> Result<(), Unbilled> {
        let generation = self.start_engine()?;
        self.work = Work::Running { generation, output_text: String::new() };
        caller.begin(Beginning {
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

    /// Goes on where it was left, if it was; `Ok` where there is something to settle.
    pub(super) async fn collect(&mut self, caller: &Reporter) -> Result<(), Unbilled> {
        let (generation, output_text) = match &mut self.work {
            Work::Running { generation, output_text } => (generation, output_text),
            Work::Ended(_) => return Ok(()),
            Work::None => return Err(MeterError::Internal("no work has begun".to_owned()).into()),
        };
        let mut is_cancelled = false;
        let deadline = tokio::time::sleep(GENERATION_TIMEOUT);
        tokio::pin!(deadline);
        let ended = loop {
            tokio::select! {
                event = generation.next() => match event.map_err(MeterError::from)? {
                    Event::Text(text) => {
                        if caller.streams() {
                            self.delivery = Delivery::TextLeft;
                        }
                        caller.text(&text);
                        output_text.push_str(&text);
                    }
                    Event::Ended(ended) => break ended,
                },
                () = caller.hung_up.cancelled(), if !is_cancelled => {
                    is_cancelled = true;
                    generation.cancel();
                }
                () = self.meter.abandoned.cancelled() => return Err(MeterError::ShuttingDown.into()),
                () = &mut deadline => return Err(MeterError::from(EngineError::TimedOut).into()),
            }
        };
        let output_text = std::mem::take(output_text);
        self.end(ended, output_text)
    }

    fn end(&mut self, ended: Ended, output_text: String) -> Result<(), Unbilled> {
        let counted_tokens = self.prepared.prompt.input_tokens;
        // Whatever an engine says in the end, no more is billed than was reserved.
        let input_tokens = ended.input_tokens.unwrap_or(counted_tokens).min(counted_tokens);
        let reply = Reply {
            id: self.call.request_id.clone(),
            at: self.prepared.at,
            output_text,
            ended: how_ended(ended.reason),
            input_tokens,
            output_tokens: ended.output_tokens,
            // The engine counts the template's scaffolding, the bill does not: no more was cached than was counted.
            cached_tokens: ended.cached_tokens.min(input_tokens),
            is_replay: false,
            rate_limit_status: None,
        };
        if reply.ended == HowEnded::Cancelled && reply.output_tokens == 0 {
            self.counted_tokens = Some(0);
            self.work = Work::None;
            return Err(Unbilled::NothingGenerated(Box::new(reply)));
        }
        // From here on a row may be written, so that the tokens count whether or not it is known to be.
        self.counted_tokens = Some(u64::from(input_tokens) + u64::from(reply.output_tokens));
        self.work = Work::Ended(reply);
        Ok(())
    }
}

fn how_ended(reason: StopReason) -> HowEnded {
    match reason {
        StopReason::Complete => HowEnded::Complete,
        StopReason::MaxOutputTokens => HowEnded::MaxOutputTokens,
        StopReason::StopSequence => HowEnded::StopSequence,
        StopReason::ContextLength => HowEnded::ContextLength,
        StopReason::Cancelled => HowEnded::Cancelled,
    }
}
