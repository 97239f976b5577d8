//! A reply as it comes from a server: its events read within bounds, and what was said of how it ended. Text waits here until
//! somebody takes it, because until the first of it has left, another server's reply may still take this one's place.

use super::chat::{Chunk, DONE, Finish, Usage};
use super::fault::{Fault, Trouble};
use super::limits::{MAX_BYTES_PER_TOKEN, MAX_EVENT_BYTES, REST_PATIENCE, USAGE_PATIENCE};
use super::transport::of_failed_reading;
use chancery_http_client::EventReader;
use reqwest::Response;
use std::time::Duration;
use tokio::time::timeout;

/// What is expected of a reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// What the server was asked for.
    pub(super) max_tokens: u32,
    /// Between two signs of life.
    pub(super) idle: Duration,
    /// Whether the text is kept to be counted.
    pub(super) keeps_text: bool,
}

/// What has come so far.
#[derive(Debug, Default)]
pub(super) struct Received {
    /// All of it, where it is kept.
    pub(super) text: String,
    text_bytes: usize,
    /// Events with text; each has a token or more.
    pub(super) pieces: u32,
    pub(super) finish: Option<Finish>,
    /// The last that was said of it.
    pub(super) usage: Option<Usage>,
    /// Whether that was said at the end or after it, and so of the whole reply.
    is_usage_whole: bool,
    /// Whether the model has been seen at work, be it only on what it does not hand on.
    shows_life: bool,
    is_done: bool,
}

pub(super) struct Reply {
    response: Response,
    events: EventReader,
    bounds: Bounds,
    pub(super) received: Received,
    /// Text that nobody has taken yet.
    waiting: String,
}

impl Reply {
    pub(super) fn new(response: Response, bounds: Bounds) -> Self {
        Self {
            response,
            events: EventReader::new(MAX_EVENT_BYTES),
            bounds,
            received: Received::default(),
            waiting: String::new(),
        }
    }

    pub(super) fn max_tokens(&self) -> u32 {
        self.bounds.max_tokens
    }

    /// The text that has come since it was last taken.
    pub(super) fn take_text(&mut self, take: impl FnOnce(&str)) {
        if !self.waiting.is_empty() {
            take(&self.waiting);
            self.waiting.clear();
        }
    }

    /// Until the model is seen at work, or the end where it is not.
    pub(super) async fn until_life(&mut self) -> Result<(), Fault> {
        while !self.received.shows_life && self.received.finish.is_none() {
            self.more().await?;
        }
        Ok(())
    }

    /// From there on until the first text, or the end where there is none.
    pub(super) async fn until_text(&mut self) -> Result<(), Fault> {
        while self.received.pieces == 0 && self.received.finish.is_none() {
            self.more_in_time().await?;
        }
        Ok(())
    }

    /// Until more has come.
    pub(super) async fn more_in_time(&mut self) -> Result<(), Fault> {
        let idle = self.bounds.idle;
        let late = |_| {
            let story = format!("nothing came for {} ms in the middle of a reply", idle.as_millis());
            Fault::new(Trouble::TimedOut, story)
        };
        timeout(idle, self.more()).await.map_err(late)?
    }

    /// The text is whole; only the server's count is still to come, and where it does not, the caller decides.
    pub(super) async fn until_counted(&mut self) {
        let counting = async { while !self.is_counted() && self.more().await.is_ok() {} };
        let _ = timeout(USAGE_PATIENCE, counting).await;
    }

    /// A connection whose reply was read to its end can be used again.
    pub(super) async fn read_to_the_end(mut self) {
        let reading = async { while let Ok(Some(_)) = self.response.chunk().await {} };
        let _ = timeout(REST_PATIENCE, reading).await;
    }

    fn is_counted(&self) -> bool {
        self.received.is_done || self.received.is_usage_whole
    }

    async fn more(&mut self) -> Result<(), Fault> {
        let Self { response, events, bounds, received, waiting } = self;
        match response.chunk().await.map_err(of_failed_reading)? {
            Some(bytes) => events.read(&bytes, |_, data| received.event(data, *bounds, waiting)),
            // Servers that end without a last word are taken at their finish_reason.
            None if received.finish.is_some() => {
                received.is_done = true;
                Ok(())
            }
            None => Err(Fault::new(Trouble::Unreachable, "the reply ended in the middle")),
        }
    }
}

impl Received {
    fn event(&mut self, data: &str, bounds: Bounds, waiting: &mut String) -> Result<(), Fault> {
        if data == DONE {
            if self.finish.is_none() {
                return Err(Fault::broken("the reply ended without a finish_reason"));
            }
            self.is_done = true;
            return Ok(());
        }
        let chunk = Chunk::parse(data)?;
        if let Some(text) = chunk.text().filter(|_| self.finish.is_none()) {
            self.take(text, bounds)?;
            waiting.push_str(text);
        }
        self.shows_life |= self.pieces > 0 || chunk.has_reasoning();
        self.finish = self.finish.or(chunk.finish()?);
        if let Some(usage) = chunk.usage() {
            self.usage = Some(usage);
            self.is_usage_whole = self.finish.is_some();
        }
        Ok(())
    }

    fn take(&mut self, text: &str, bounds: Bounds) -> Result<(), Fault> {
        let most = (bounds.max_tokens as usize).saturating_add(1).saturating_mul(MAX_BYTES_PER_TOKEN);
        self.text_bytes = self.text_bytes.saturating_add(text.len());
        if self.text_bytes > most {
            let max_tokens = bounds.max_tokens;
            return Err(Fault::broken(format!(
                "a reply of at most {max_tokens} tokens has more than {most} bytes"
            )));
        }
        if bounds.keeps_text {
            self.text.push_str(text);
        }
        self.pieces = self.pieces.saturating_add(1);
        Ok(())
    }
}
