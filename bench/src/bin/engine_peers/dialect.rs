//! Sends requests to each kind of server, and reads and times the replies.

use crate::Outcome;
use crate::workload::Prompt;
use chancery_bench::http::{self, Events};
use chancery_domain::{Clock, SystemClock};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

#[derive(Clone, Debug)]
pub enum Dialect {
    /// Our own `/v1/generate`; `streams` says whether the server accepts `stream: true`.
    Chancery { model: String, key: String, streams: bool },
    /// `/v1/chat/completions` of llama-server. The end-of-text token is ignored, so that every reply has its full length.
    ChatCompletions,
}

/// One reply and its timing.
#[derive(Clone, Debug)]
pub struct Reply {
    pub text: String,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub total: Duration,
    /// Time to the first text, and between texts; `None` if the reply came in one piece.
    pub streamed: Option<Streamed>,
}

#[derive(Clone, Debug)]
pub struct Streamed {
    pub first: Duration,
    pub gaps: Vec<Duration>,
}

impl Dialect {
    pub fn streams(&self) -> bool {
        match self {
            Self::Chancery { streams, .. } => *streams,
            Self::ChatCompletions => true,
        }
    }

    pub async fn ask(&self, address: SocketAddr, prompt: &Prompt, max_tokens: u32) -> Outcome<Reply> {
        let started_at = SystemClock.monotonic();
        let response = match self {
            Self::Chancery { model, key, streams } => {
                let mut body = json!({
                    "model": model,
                    "instructions": prompt.instructions,
                    "input": prompt.input,
                    "max_output_tokens": max_tokens,
                });
                if *streams {
                    body["stream"] = true.into();
                }
                http::post_json(address, "/v1/generate", Some(key), &body).await?
            }
            Self::ChatCompletions => {
                let body = json!({
                    "messages": [
                        { "role": "system", "content": prompt.instructions },
                        { "role": "user", "content": prompt.input },
                    ],
                    "max_tokens": max_tokens,
                    "stream": true,
                    "stream_options": { "include_usage": true },
                    "temperature": 0,
                    "samplers": ["top_k"],
                    "top_k": 1,
                    "ignore_eos": true,
                    "cache_prompt": true,
                });
                http::post_json(address, "/v1/chat/completions", None, &body).await?
            }
        };
        if !response.status().is_success() {
            let status = response.status();
            let body = http::read_to_end(response).await?;
            return Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into());
        }
        if self.streams() {
            read_stream(response, started_at).await
        } else {
            read_whole(response, started_at).await
        }
    }
}

async fn read_whole(response: hyper::Response<hyper::body::Incoming>, started_at: Instant) -> Outcome<Reply> {
    let body: Value = serde_json::from_slice(&http::read_to_end(response).await?)?;
    let total = SystemClock.monotonic() - started_at;
    let usage = Usage::within(&body).ok_or("the reply has no usage")?;
    let text = body["output_text"].as_str().unwrap_or_default().to_owned();
    Ok(Reply { text, prompt_tokens: usage.input, output_tokens: usage.output, total, streamed: None })
}

async fn read_stream(
    response: hyper::Response<hyper::body::Incoming>,
    started_at: Instant,
) -> Outcome<Reply> {
    let mut events = Events::of(response);
    let (mut text, mut usage, mut first, mut last_at, mut gaps) =
        (String::new(), None, None, started_at, Vec::new());
    while let Some(data) = events.next().await? {
        if data == b"[DONE]" {
            break;
        }
        let now = SystemClock.monotonic();
        let event: Value = serde_json::from_slice(&data)?;
        if let Some(delta) = text_of(&event) {
            match first {
                None => first = Some(now - started_at),
                Some(_) => gaps.push(now - last_at),
            }
            last_at = now;
            text.push_str(delta);
        }
        if event["type"] == "response.failed" || !event["error"].is_null() {
            return Err(format!("the reply failed: {event}").into());
        }
        usage = Usage::within(&event).or(usage);
    }
    let total = SystemClock.monotonic() - started_at;
    let usage = usage.ok_or("the stream ended without usage")?;
    let first = first.ok_or("the stream had no text")?;
    let streamed = Some(Streamed { first, gaps });
    Ok(Reply { text, prompt_tokens: usage.input, output_tokens: usage.output, total, streamed })
}

/// Returns an event's text, in either dialect.
fn text_of(event: &Value) -> Option<&str> {
    if event["type"] == "response.output_text.delta" {
        return event["delta"].as_str();
    }
    event["choices"][0]["delta"]["content"].as_str()
}

struct Usage {
    input: u64,
    output: u64,
}

impl Usage {
    /// Our usage is at the top level of a whole reply, and inside `response` in the last event of a stream.
    fn within(event: &Value) -> Option<Self> {
        let usage =
            [&event["usage"], &event["response"]["usage"]].into_iter().find(|usage| usage.is_object())?;
        let count = |own: &str, openai: &str| usage[own].as_u64().or_else(|| usage[openai].as_u64());
        Some(Self {
            input: count("input_tokens", "prompt_tokens")?,
            output: count("output_tokens", "completion_tokens")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_from_events_of_both_dialects() {
        let own = json!({ "type": "response.output_text.delta", "delta": "Dear" });
        let openai = json!({ "choices": [{ "delta": { "content": "Dear" } }] });
        assert_eq!((text_of(&own), text_of(&openai)), (Some("Dear"), Some("Dear")));
        let opening = json!({ "choices": [{ "delta": { "role": "assistant", "content": null } }] });
        let closing = json!({ "type": "response.completed", "response": { "usage": {} } });
        assert_eq!((text_of(&opening), text_of(&closing)), (None, None));
    }

    #[test]
    fn usage_is_read_from_whole_replies_and_final_events() {
        let counts = |event: Value| Usage::within(&event).map(|usage| (usage.input, usage.output));
        let (own, openai) = (
            json!({ "input_tokens": 5, "output_tokens": 2 }),
            json!({ "prompt_tokens": 5, "completion_tokens": 2 }),
        );
        assert_eq!(counts(json!({ "usage": own })), Some((5, 2)));
        assert_eq!(counts(json!({ "response": { "usage": own } })), Some((5, 2)));
        assert_eq!(counts(json!({ "choices": [], "usage": openai })), Some((5, 2)));
        assert_eq!(counts(json!({ "choices": [], "usage": null })), None);
    }
}
