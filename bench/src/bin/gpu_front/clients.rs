//! Clients that each send their next request when their last reply is complete.

use chancery_bench::Outcome;
use chancery_bench::http::{self, Events};
use chancery_domain::{Clock, SystemClock};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Longer than Chancery lets a request run.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);

const INSTRUCTIONS: &str = "You write letters for a consulting firm. Keep every figure, date and invoice number exactly as it is \
    given. State first what the client asked for, then what was agreed, then who does what and by when. Write full sentences in plain \
    English, short paragraphs, no lists and no headings. Close with the words Yours sincerely and the name of the consultant.";

/// One way to the server.
#[derive(Clone, Debug)]
pub struct Path {
    pub name: &'static str,
    pub address: SocketAddr,
    /// `None` directly to the server.
    pub key: Option<String>,
    pub is_streamed: bool,
}

/// What all clients together ask for. Numbers make prompts differ; none is sent twice in a run.
#[derive(Clone, Debug)]
pub struct Requests<'a> {
    pub model: &'a str,
    pub max_tokens: u32,
    pub numbers: Range<usize>,
}

#[derive(Clone, Debug, Default)]
pub struct Round {
    pub output_tokens: u64,
    pub seconds: f64,
    /// Times to the first text of streams.
    pub first_text: Vec<Duration>,
}

impl Round {
    pub fn tokens_per_s(&self) -> f64 {
        self.output_tokens as f64 / self.seconds.max(f64::EPSILON)
    }
}

struct Reply {
    output_tokens: u64,
    first_text: Option<Duration>,
}

pub async fn run(path: &Path, requests: &Requests<'_>, clients: usize) -> Outcome<Round> {
    let bodies: Arc<Vec<Value>> =
        Arc::new(requests.numbers.clone().map(|number| body(requests, number, path.is_streamed)).collect());
    let next = Arc::new(AtomicUsize::new(0));
    let began = SystemClock.monotonic();
    let mut crowd = JoinSet::new();
    for _ in 0..clients {
        let (path, bodies, next) = (path.clone(), Arc::clone(&bodies), Arc::clone(&next));
        crowd.spawn(async move {
            let mut replies = Vec::new();
            while let Some(body) = bodies.get(next.fetch_add(1, Ordering::Relaxed)) {
                let reply = timeout(REQUEST_TIMEOUT, ask(&path, body)).await;
                let reply = reply.map_err(|_| format!("{}: no reply in time", path.name))?;
                replies.push(reply.map_err(|error| format!("{}: {error}", path.name))?);
            }
            Outcome::Ok(replies)
        });
    }
    let mut round = Round::default();
    while let Some(client) = crowd.join_next().await {
        for reply in client?? {
            round.output_tokens += reply.output_tokens;
            round.first_text.extend(reply.first_text);
        }
    }
    round.seconds = (SystemClock.monotonic() - began).as_secs_f64();
    round.first_text.sort_unstable();
    Ok(round)
}

fn body(requests: &Requests<'_>, number: usize, is_streamed: bool) -> Value {
    let input = format!(
        "Meeting {number}: the client disputes invoice {} of EUR {}.00 and asks for an answer by Friday. Write the letter.",
        1_000 + number,
        14_000 + number
    );
    let mut body = json!({
        "model": requests.model,
        "messages": [{ "role": "system", "content": INSTRUCTIONS }, { "role": "user", "content": input }],
        "max_tokens": requests.max_tokens,
        "temperature": 0,
    });
    if is_streamed {
        body["stream"] = true.into();
        body["stream_options"] = json!({ "include_usage": true });
    }
    body
}

async fn ask(path: &Path, body: &Value) -> Outcome<Reply> {
    let began = SystemClock.monotonic();
    let response = http::post_json(path.address, "/v1/chat/completions", path.key.as_deref(), body).await?;
    if !response.status().is_success() {
        let status = response.status();
        let body = http::read_to_end(response).await?;
        return Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into());
    }
    if !path.is_streamed {
        let reply: Value = serde_json::from_slice(&http::read_to_end(response).await?)?;
        let output_tokens = completion_tokens(&reply).ok_or("the reply has no usage")?;
        return Ok(Reply { output_tokens, first_text: None });
    }
    let mut events = Events::of(response);
    let (mut output_tokens, mut first_text, mut is_done) = (None, None, false);
    while let Some(data) = events.next().await? {
        if data == b"[DONE]" {
            is_done = true;
            break;
        }
        let event: Value = serde_json::from_slice(&data)?;
        if !event["error"].is_null() {
            return Err(format!("the stream failed: {event}").into());
        }
        if first_text.is_none() && has_text(&event) {
            first_text = Some(SystemClock.monotonic() - began);
        }
        output_tokens = completion_tokens(&event).or(output_tokens);
    }
    if !is_done {
        return Err("the stream ended early".into());
    }
    Ok(Reply { output_tokens: output_tokens.ok_or("the stream has no usage")?, first_text })
}

fn completion_tokens(event: &Value) -> Option<u64> {
    event["usage"]["completion_tokens"].as_u64()
}

/// Whether an event has text, of the reply or of the reasoning before it.
fn has_text(event: &Value) -> bool {
    let delta = &event["choices"][0]["delta"];
    ["content", "reasoning_content"]
        .iter()
        .any(|field| delta[*field].as_str().is_some_and(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_of_a_run_all_differ() {
        let requests = Requests { model: "m", max_tokens: 8, numbers: 0..50 };
        let bodies: std::collections::BTreeSet<String> =
            requests.numbers.clone().map(|number| body(&requests, number, false).to_string()).collect();
        assert_eq!(bodies.len(), 50);
    }

    #[test]
    fn only_streamed_requests_ask_for_a_stream_with_usage() {
        let requests = Requests { model: "m", max_tokens: 8, numbers: 0..1 };
        assert_eq!(body(&requests, 0, true)["stream_options"]["include_usage"], true);
        assert!(body(&requests, 0, false).get("stream").is_none());
    }

    #[test]
    fn role_without_text_is_not_the_first_text() {
        let event = |delta: Value| json!({ "choices": [{ "delta": delta }] });
        assert!(!has_text(&event(json!({ "role": "assistant", "content": "" }))));
        assert!(has_text(&event(json!({ "content": "Dear" }))));
        assert!(has_text(&event(json!({ "reasoning_content": "First" }))));
        assert!(!has_text(&json!({ "choices": [], "usage": {} })));
    }
}
