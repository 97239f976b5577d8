//! A draft as it comes. Dropping it closes the connection to the API, which stops the model within one step and bills what
//! was generated until then.

use super::events::{Event, EventReader};
use super::fault::{ApiError, Fault, Trouble};
use super::limits::{MAX_DRAFT_BYTES, MAX_STREAM_BYTES, Patience};
use super::offer::Offer;
use super::receipt::Receipt;
use crate::error_chain::error_chain;
use serde::Deserialize;
use std::collections::VecDeque;
use std::pin::Pin;
use tokio::time::{Sleep, sleep};

/// What comes of a draft: any number of texts, then one of the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Text(String),
    Finished(Box<Receipt>),
    Failed(Fault),
}

pub(crate) struct DraftStream {
    reply: reqwest::Response,
    offer: Offer,
    patience: Patience,
    events: EventReader,
    steps: VecDeque<Step>,
    bytes: usize,
    text_bytes: usize,
    silence: Pin<Box<Sleep>>,
    whole: Pin<Box<Sleep>>,
    has_ended: bool,
}

#[derive(Deserialize)]
struct Delta {
    delta: String,
}

#[derive(Deserialize)]
struct Ended {
    response: Reply,
}

#[derive(Deserialize)]
struct Reply {
    stop_reason: String,
    usage: Usage,
}

#[derive(Deserialize)]
struct Usage {
    input_tokens: u32,
    output_tokens: u32,
}

#[derive(Deserialize)]
struct FailedEvent {
    response: FailedReply,
}

#[derive(Deserialize)]
struct FailedReply {
    error: ApiError,
}

impl DraftStream {
    pub(super) fn new(reply: reqwest::Response, offer: Offer, patience: Patience) -> Self {
        Self {
            reply,
            offer,
            patience,
            events: EventReader::default(),
            steps: VecDeque::new(),
            bytes: 0,
            text_bytes: 0,
            silence: Box::pin(sleep(patience.silence)),
            whole: Box::pin(sleep(patience.whole)),
            has_ended: false,
        }
    }

    /// None after the end. A caller may stop waiting at any time and ask again; nothing is lost.
    pub(crate) async fn next(&mut self) -> Option<Step> {
        loop {
            if let Some(step) = self.steps.pop_front() {
                if !matches!(step, Step::Text(_)) {
                    self.has_ended = true;
                    self.steps.clear();
                }
                return Some(step);
            }
            if self.has_ended {
                return None;
            }
            if let Err(fault) = self.read().await {
                self.steps.push_back(Step::Failed(fault));
            }
        }
    }

    async fn read(&mut self) -> Result<(), Fault> {
        let too_long = |what: &str| Fault::new(Trouble::TookTooLong, what.to_owned());
        let chunk = tokio::select! {
            chunk = self.reply.chunk() => chunk,
            () = &mut self.silence => return Err(too_long("no sign of life for too long in the middle of a draft")),
            () = &mut self.whole => return Err(too_long("a draft took too long as a whole")),
        };
        let cut_off = |story: String| Fault::new(Trouble::CutOff, story);
        let chunk = match chunk {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Err(cut_off("the stream ended without its last event".to_owned())),
            Err(error) => return Err(cut_off(error_chain(&error.without_url()))),
        };
        self.silence = Box::pin(sleep(self.patience.silence));
        self.bytes += chunk.len();
        if self.bytes > MAX_STREAM_BYTES {
            return Err(not_understood(format!("a draft came with more than {MAX_STREAM_BYTES} bytes")));
        }
        for event in self.events.take(&chunk).map_err(|fault| not_understood(fault.to_string()))? {
            let step = self.step(&event)?;
            self.steps.extend(step);
        }
        Ok(())
    }

    fn step(&mut self, Event { name, data }: &Event) -> Result<Option<Step>, Fault> {
        match name.as_str() {
            "response.output_text.delta" => {
                let Delta { delta } = parsed(name, data)?;
                self.text_bytes += delta.len();
                if self.text_bytes > MAX_DRAFT_BYTES {
                    return Err(not_understood(format!(
                        "a draft has more than {MAX_DRAFT_BYTES} bytes of text"
                    )));
                }
                Ok(Some(Step::Text(delta)))
            }
            "response.completed" | "response.incomplete" => {
                let Ended { response: Reply { stop_reason, usage } } = parsed(name, data)?;
                let receipt =
                    Receipt::new(&self.offer, &stop_reason, usage.input_tokens, usage.output_tokens);
                let receipt = receipt.map_err(|error| not_understood(error.to_string()))?;
                Ok(Some(Step::Finished(Box::new(receipt))))
            }
            "response.failed" => {
                let FailedEvent { response } = parsed(name, data)?;
                Ok(Some(Step::Failed(Fault::of_failed_stream(&response.error))))
            }
            // What repeats the text, and events that a later version adds.
            _ => Ok(None),
        }
    }
}

/// The data itself may be part of a letter, and stays out of the log.
fn parsed<T: for<'a> Deserialize<'a>>(name: &str, data: &str) -> Result<T, Fault> {
    serde_json::from_str(data)
        .map_err(|_| not_understood(format!("the event {name} has not the data that it should")))
}

fn not_understood(story: String) -> Fault {
    Fault::new(Trouble::NotUnderstood, story)
}
