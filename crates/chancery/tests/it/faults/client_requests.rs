//! Requests of the fault tests' clients, and their outcomes. At temperature 0 the same request gives the same text,
//! whatever else runs. So each request is first answered without faults, and every later reply must equal that answer.

use super::rounds::Draw;
use crate::event_stream::EventStream;
use crate::server::{Server, request};
use serde_json::Value;
use std::sync::Arc;

const TEXTS: [&str; 4] =
    ["Say hello.", "What is a ledger?", "Name three colours.", "Write one line about the sea."];

/// Reply lengths in tokens, short enough that many replies are in progress at any moment.
const CAPS: [u64; 4] = [1, 2, 5, 12];

/// A complete reply.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplyContent {
    pub input_tokens: u32,
    pub output_tokens: u32,
    pub stop_reason: String,
    pub text: String,
}

/// A request that clients send repeatedly, and its expected answer.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub body: Value,
    pub expected: ReplyContent,
}

/// Whether to ask for a whole reply or a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyMode {
    Whole,
    Streamed,
}

impl ReplyMode {
    pub fn random(draw: &Draw) -> Self {
        *draw.one_of(&[Self::Whole, Self::Streamed])
    }
}

/// The outcome of a request.
#[derive(Debug)]
pub enum Outcome {
    Received {
        id: String,
        content: ReplyContent,
        is_replay: bool,
    },
    Rejected {
        status: u16,
        code: String,
        retry_after_s: Option<u64>,
    },
    /// The stream's last event reports the failure.
    Failed {
        code: String,
    },
    /// The connection ended before the reply did; the text says why, as far as the client knows.
    Cut(String),
}

impl Outcome {
    /// How callers see it, for the table of a case.
    pub fn status(&self) -> String {
        match self {
            Self::Received { .. } => "200".to_owned(),
            Self::Rejected { status, .. } => status.to_string(),
            Self::Failed { code } => format!("200, then {code}"),
            Self::Cut(_) => "cut off".to_owned(),
        }
    }
}

/// Sends every request once without faults. Returns the requests with their answers, and the request ids.
pub async fn baseline_replies(server: &Server, key: &str) -> (Arc<[Prompt]>, Vec<(String, ReplyContent)>) {
    let client = crate::server::client();
    let (mut prompts, mut received) = (Vec::new(), Vec::new());
    for (text, cap) in TEXTS.iter().flat_map(|text| CAPS.map(|cap| (text, cap))) {
        let body = request("", text, cap);
        let call =
            Call { api: &server.api, key, body: &body, reply_mode: ReplyMode::Whole, idempotency_key: None };
        match call.send(&client).await {
            Outcome::Received { id, content, .. } => {
                prompts.push(Prompt { body, expected: content.clone() });
                received.push((id, content));
            }
            other => panic!("nothing disturbs the server yet: {other:?}"),
        }
    }
    (prompts.into(), received)
}

/// One request to send.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    pub api: &'a str,
    pub key: &'a str,
    pub body: &'a Value,
    pub reply_mode: ReplyMode,
    pub idempotency_key: Option<&'a str>,
}

impl Call<'_> {
    pub async fn send(&self, client: &reqwest::Client) -> Outcome {
        let mut body = self.body.clone();
        if self.reply_mode == ReplyMode::Streamed {
            body["stream"] = true.into();
        }
        let mut call = client.post(format!("{}/v1/generate", self.api)).bearer_auth(self.key).json(&body);
        if let Some(idempotency_key) = self.idempotency_key {
            call = call.header("idempotency-key", idempotency_key);
        }
        let response = match call.send().await {
            Ok(response) => response,
            Err(error) => return Outcome::Cut(format!("{error:?}")),
        };
        let status = response.status().as_u16();
        let replayed = response.headers().get("idempotent-replayed");
        let is_replay = replayed.is_some_and(|value| value == "true");
        if status == 200 && self.reply_mode == ReplyMode::Streamed {
            return read_to_the_end(EventStream::of(response), is_replay).await;
        }
        let retry_after = response.headers().get("retry-after");
        let retry_after_s = retry_after.map(|value| value.to_str().unwrap().parse().unwrap());
        let text = match response.text().await {
            Ok(text) => text,
            Err(error) => return Outcome::Cut(format!("{error:?}")),
        };
        let reply: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text:?}"));
        match status {
            200 => received(&reply, is_replay),
            _ => Outcome::Rejected { status, code: code_of(&reply), retry_after_s },
        }
    }
}

/// A stream is complete when its last event has arrived.
pub async fn read_to_the_end(mut stream: EventStream, is_replay: bool) -> Outcome {
    let mut text = String::new();
    while let Some(event) = stream.next().await {
        let response = &event.data["response"];
        match event.name.as_str() {
            "response.output_text.delta" => text.push_str(event.data["delta"].as_str().unwrap()),
            "response.completed" | "response.incomplete" => {
                assert_eq!(response["output_text"], text.as_str(), "the pieces are the whole");
                assert!(stream.next().await.is_none(), "something comes after the last event");
                return received(response, is_replay);
            }
            "response.failed" => return Outcome::Failed { code: code_of(response) },
            _ => {}
        }
    }
    Outcome::Cut("the stream has no last event".to_owned())
}

fn code_of(reply: &Value) -> String {
    reply["error"]["code"].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned()
}

fn received(reply: &Value, is_replay: bool) -> Outcome {
    let text = |name: &str| reply[name].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned();
    let tokens = |name: &str| u32::try_from(reply["usage"][name].as_u64().unwrap()).unwrap();
    let content = ReplyContent {
        input_tokens: tokens("input_tokens"),
        output_tokens: tokens("output_tokens"),
        stop_reason: text("stop_reason"),
        text: text("output_text"),
    };
    Outcome::Received { id: text("id"), content, is_replay }
}
