//! A reply as it comes from a server: its events read within bounds, its text handed on at once, and what was said of how it
//! ended.

use super::chat::{Chunk, DONE, Finish, Usage};
use super::fault::{Fault, Trouble};
use super::limits::{MAX_BYTES_PER_TOKEN, USAGE_PATIENCE};
use super::settings::Timeouts;
use super::sse::DataReader;
use super::transport::of_failed_sending;
use crate::GenerationSink;
use reqwest::Response;
use tokio::time::timeout;

/// What has come so far.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// All of it has gone on to the caller.
    pub(super) text: String,
    /// Events with text; each has a token or more.
    pub(super) pieces: u32,
    pub(super) finish: Option<Finish>,
    pub(super) usage: Option<Usage>,
    is_done: bool,
}

pub(super) struct Reading<'a> {
    pub(super) sink: &'a GenerationSink,
    pub(super) timeouts: Timeouts,
    pub(super) max_tokens: u32,
    pub(super) received: &'a mut Received,
}

impl Reading<'_> {
    /// Until the first text, or the end where there is none.
    pub(super) async fn first_text(
        &mut self,
        reply: &mut Response,
        events: &mut DataReader,
    ) -> Result<(), Fault> {
        while self.received.pieces == 0 && !self.has_ended() {
            self.more(reply, events).await?;
        }
        Ok(())
    }

    /// From there on until the end.
    pub(super) async fn rest(&mut self, reply: &mut Response, events: &mut DataReader) -> Result<(), Fault> {
        while self.received.finish.is_none() {
            let idle = self.timeouts.idle;
            let late = |_| {
                let story = format!("nothing came for {} ms in the middle of a reply", idle.as_millis());
                Fault::new(Trouble::TimedOut, story)
            };
            timeout(idle, self.more(reply, events)).await.map_err(late)??;
        }
        // The text is whole; only the server's count is still to come, and where it does not, the caller decides.
        let usage = async {
            while !self.has_ended() {
                self.more(reply, events).await?;
            }
            Ok::<(), Fault>(())
        };
        let _ = timeout(USAGE_PATIENCE, usage).await;
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.received.is_done || (self.received.finish.is_some() && self.received.usage.is_some())
    }

    async fn more(&mut self, reply: &mut Response, events: &mut DataReader) -> Result<(), Fault> {
        match reply.chunk().await.map_err(of_failed_sending)? {
            Some(bytes) => events.take(&bytes, |data| self.event(data)),
            // Servers that end without a last word are taken at their finish_reason.
            None if self.received.finish.is_some() => {
                self.received.is_done = true;
                Ok(())
            }
            None => Err(Fault::new(Trouble::Unreachable, "the reply ended in the middle")),
        }
    }

    fn event(&mut self, data: &str) -> Result<(), Fault> {
        if data == DONE {
            if self.received.finish.is_none() {
                return Err(Fault::broken("the reply ended without a finish_reason"));
            }
            self.received.is_done = true;
            return Ok(());
        }
        let chunk = Chunk::parse(data)?;
        self.received.usage = chunk.usage().or(self.received.usage);
        if let Some(text) = chunk.text().filter(|_| self.received.finish.is_none()) {
            let most = (self.max_tokens as usize).saturating_add(1).saturating_mul(MAX_BYTES_PER_TOKEN);
            if self.received.text.len() + text.len() > most {
                return Err(Fault::broken(format!(
                    "a reply of at most {} tokens has more than {most} bytes",
                    self.max_tokens
                )));
            }
            self.received.text.push_str(text);
            self.received.pieces = self.received.pieces.saturating_add(1);
            self.sink.text(text);
        }
        self.received.finish = self.received.finish.or(chunk.finish()?);
        Ok(())
    }
}
