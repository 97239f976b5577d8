//! A generation API on a port of its own that answers drafts as a test wants, byte by byte.

use crate::drafting::api::Drafter;
use crate::drafting::limits::Patience;
use crate::drafting::settings::DraftingSettings;
use chancery_domain::SystemClock;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

pub(crate) const API_KEY: &str = "ck_aaaaaaaa_secretsecretsecretsecretsecretsecretsecret1";

pub(crate) const CONTEXT_TOKENS: usize = 2_048;

/// How a draft is answered.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// These bytes, then the connection is closed.
    Bytes(String),
    /// These bytes, then nothing.
    Stall(String),
}

pub(crate) struct FaultyApi {
    pub(crate) url: String,
    /// Told when the portal hangs up on a stalled answer.
    pub(crate) hung_up: Arc<Notify>,
    pub(crate) asked_for_models: Arc<AtomicUsize>,
    /// The bodies of the drafts that were asked for.
    pub(crate) drafts: Arc<Mutex<Vec<Value>>>,
}

/// What happens to a request.
#[derive(Clone)]
struct Desk {
    models: Answer,
    draft: Answer,
    hung_up: Arc<Notify>,
    asked_for_models: Arc<AtomicUsize>,
    drafts: Arc<Mutex<Vec<Value>>>,
}

/// Short, for the tests wait for them.
pub(super) const IMPATIENCE: Patience = Patience {
    connect: Duration::from_millis(500),
    reply: Duration::from_millis(500),
    beginning: Duration::from_millis(300),
    silence: Duration::from_millis(300),
    whole: Duration::from_secs(2),
};

impl FaultyApi {
    pub(crate) async fn start(models: Answer, draft: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (hung_up, asked_for_models) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let drafts = Arc::new(Mutex::new(Vec::new()));
        let desk = Desk {
            models,
            draft,
            hung_up: Arc::clone(&hung_up),
            asked_for_models: Arc::clone(&asked_for_models),
            drafts: Arc::clone(&drafts),
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(desk.clone().serve(stream));
            }
        });
        Self { url, hung_up, asked_for_models, drafts }
    }

    pub(crate) fn settings(&self) -> DraftingSettings {
        settings(&self.url)
    }

    /// Models are right; only drafts are not.
    pub(crate) async fn drafting(draft: Answer) -> Self {
        Self::start(Answer::Bytes(models()), draft).await
    }

    pub(super) fn drafter(&self) -> Drafter {
        drafter(&self.url)
    }
}

fn settings(url: &str) -> DraftingSettings {
    let (api_url, api_key) = (url.to_owned(), API_KEY.to_owned());
    DraftingSettings { api_url, api_key, model: Some("small".to_owned()) }
}

pub(super) fn drafter(url: &str) -> Drafter {
    Drafter::with_patience(settings(url), Arc::new(SystemClock), IMPATIENCE).unwrap()
}

impl Desk {
    async fn serve(self, mut stream: TcpStream) {
        let Some((path, body)) = request(&mut stream).await else { return };
        let answer = match path.as_str() {
            "/v1/models" => {
                self.asked_for_models.fetch_add(1, Ordering::SeqCst);
                self.models
            }
            "/v1/tokens" => Answer::Bytes(count(&body)),
            _ => {
                self.drafts.lock().unwrap().push(body);
                self.draft
            }
        };
        let (Answer::Bytes(bytes) | Answer::Stall(bytes)) = &answer;
        let _ = stream.write_all(bytes.as_bytes()).await;
        if matches!(answer, Answer::Stall(_)) {
            // Nothing more is sent; what ends this is the other side.
            while matches!(stream.read(&mut [0; 1_024]).await, Ok(1..)) {}
            self.hung_up.notify_one();
        }
    }
}

/// A token for every four bytes.
fn count(body: &Value) -> String {
    let bytes = |field: &str| body[field].as_str().map_or(0, str::len);
    let input_tokens = (bytes("instructions") + bytes("input")) / 4;
    let room = CONTEXT_TOKENS.saturating_sub(input_tokens);
    if room == 0 {
        return refusal("400 Bad Request", "", "input_too_long");
    }
    let wanted = body["max_output_tokens"].as_u64().map_or(0, |tokens| tokens as usize);
    ok_json(&json!({"input_tokens": input_tokens, "max_output_tokens": wanted.min(room)}).to_string())
}

/// Reads one whole request; gives its path and its body. It must have the key.
async fn request(stream: &mut TcpStream) -> Option<(String, Value)> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    assert!(head.contains(&format!("authorization: bearer {}", API_KEY.to_ascii_lowercase())));
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |n| n.parse().unwrap());
    while bytes.len() < end + length {
        stream.read_buf(&mut bytes).await.ok()?;
    }
    let body = serde_json::from_slice(&bytes[end..]).unwrap_or_default();
    Some((head.split(' ').nth(1)?.to_owned(), body))
}

pub(crate) fn reply(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}")
}

pub(crate) fn ok_json(body: &str) -> String {
    reply("200 OK", "content-type: application/json\r\n", body)
}

pub(crate) fn models() -> String {
    let small = json!({"id": "small", "context_tokens": CONTEXT_TOKENS, "currency": "USD",
        "input_per_million": "0.10", "output_per_million": "0.40"});
    ok_json(&json!({"object": "list", "data": [small]}).to_string())
}

pub(crate) fn refusal(status: &str, headers: &str, code: &str) -> String {
    let reason = "the reason, which stays inside";
    let body = json!({"error": {"code": code, "reason": reason, "request_id": "req_1"}}).to_string();
    reply(status, &format!("content-type: application/json\r\n{headers}"), &body)
}

/// The head of a stream whose end is the end of the connection.
pub(crate) fn stream(events: &[(&str, Value)]) -> String {
    let events: String =
        events.iter().map(|(name, data)| format!("event: {name}\ndata: {data}\n\n")).collect();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nconnection: close\r\n\r\n{events}"
    )
}
