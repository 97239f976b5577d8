//! A fake generation API on its own port that answers drafts byte by byte as a test specifies.

use crate::drafting::api::Drafter;
use crate::drafting::limits::DraftTimeouts;
use crate::drafting::settings::DraftingSettings;
use chancery_domain::SystemClock;
use chancery_http_client::OwnCertificates;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

pub(crate) const API_KEY: &str = "ck_aaaaaaaa_secretsecretsecretsecretsecretsecretsecret1";

pub(crate) const CONTEXT_TOKENS: usize = 2_048;

/// The response to a draft.
#[derive(Clone, Debug)]
pub(crate) enum ScriptedReply {
    /// Send these bytes, then close the connection.
    Bytes(String),
    /// Send these bytes, then nothing.
    Stall(String),
}

pub(crate) struct FaultyApi {
    pub(crate) url: String,
    /// Notified when the portal disconnects from a stalled response.
    pub(crate) hung_up: Arc<Notify>,
    pub(crate) model_requests: Arc<AtomicUsize>,
    /// Bodies of the received draft requests.
    pub(crate) drafts: Arc<Mutex<Vec<Value>>>,
}

#[derive(Clone)]
struct ApiState {
    models: ScriptedReply,
    /// One for each draft, in this order. The last one also answers all later drafts.
    replies: Vec<ScriptedReply>,
    hung_up: Arc<Notify>,
    model_requests: Arc<AtomicUsize>,
    drafts: Arc<Mutex<Vec<Value>>>,
}

/// Short, because tests wait for them.
pub(super) const SHORT_TIMEOUTS: DraftTimeouts = DraftTimeouts {
    connect: Duration::from_millis(500),
    reply: Duration::from_millis(500),
    start: Duration::from_millis(300),
    idle: Duration::from_millis(300),
    total: Duration::from_secs(2),
};

impl FaultyApi {
    pub(crate) async fn start(models: ScriptedReply, draft: ScriptedReply) -> Self {
        Self::start_in_turn(models, vec![draft]).await
    }

    async fn start_in_turn(models: ScriptedReply, replies: Vec<ScriptedReply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (hung_up, model_requests) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let drafts = Arc::new(Mutex::new(Vec::new()));
        let state = ApiState {
            models,
            replies,
            hung_up: Arc::clone(&hung_up),
            model_requests: Arc::clone(&model_requests),
            drafts: Arc::clone(&drafts),
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(state.clone().serve(stream));
            }
        });
        Self { url, hung_up, model_requests, drafts }
    }

    pub(crate) fn settings(&self) -> DraftingSettings {
        settings(&self.url)
    }

    /// Serves valid models; only drafts fail.
    pub(crate) async fn drafting(draft: ScriptedReply) -> Self {
        Self::start(ScriptedReply::Bytes(models()), draft).await
    }

    /// Answers the first draft with the first reply, and so on.
    pub(crate) async fn drafting_in_turn(replies: impl Into<Vec<ScriptedReply>>) -> Self {
        Self::start_in_turn(ScriptedReply::Bytes(models()), replies.into()).await
    }

    /// Serves a model of this many parameters.
    pub(crate) async fn drafting_with_parameters(parameters: u64, draft: ScriptedReply) -> Self {
        Self::start(ScriptedReply::Bytes(models_of(Some(parameters))), draft).await
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
    let own_certificates = OwnCertificates::default();
    Drafter::with_timeouts(settings(url), &own_certificates, Arc::new(SystemClock), SHORT_TIMEOUTS).unwrap()
}

impl ApiState {
    async fn serve(self, mut stream: TcpStream) {
        let Some((path, body)) = request(&mut stream).await else { return };
        let scripted = match path.as_str() {
            "/v1/models" => {
                self.model_requests.fetch_add(1, Ordering::SeqCst);
                self.models
            }
            "/v1/tokens" => ScriptedReply::Bytes(count(&body)),
            _ => {
                let mut drafts = self.drafts.lock().unwrap();
                let index = drafts.len().min(self.replies.len() - 1);
                drafts.push(body);
                self.replies[index].clone()
            }
        };
        let (ScriptedReply::Bytes(bytes) | ScriptedReply::Stall(bytes)) = &scripted;
        let _ = stream.write_all(bytes.as_bytes()).await;
        if matches!(scripted, ScriptedReply::Stall(_)) {
            // Send nothing more; wait for the client to disconnect.
            while matches!(stream.read(&mut [0; 1_024]).await, Ok(1..)) {}
            self.hung_up.notify_one();
        }
    }
}

/// Counts one token for every four bytes.
fn count(body: &Value) -> String {
    let bytes = |field: &str| body[field].as_str().map_or(0, str::len);
    let input_tokens = (bytes("instructions") + bytes("input")) / 4;
    let room = CONTEXT_TOKENS.saturating_sub(input_tokens);
    if room == 0 {
        return rejection("400 Bad Request", "", "input_too_long");
    }
    let requested = body["max_output_tokens"].as_u64().map_or(0, |tokens| tokens as usize);
    ok_json(&json!({"input_tokens": input_tokens, "max_output_tokens": requested.min(room)}).to_string())
}

/// Reads one whole request and returns its path and body. It must carry the key.
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
    models_of(None)
}

fn models_of(parameters: Option<u64>) -> String {
    let mut small = json!({"id": "small", "context_tokens": CONTEXT_TOKENS, "currency": "USD",
        "input_per_million": "0.10", "output_per_million": "0.40"});
    if let Some(parameters) = parameters {
        small["parameters"] = parameters.into();
    }
    ok_json(&json!({"object": "list", "data": [small]}).to_string())
}

pub(crate) fn rejection(status: &str, headers: &str, code: &str) -> String {
    let reason = "the reason, which stays inside";
    let body = json!({"error": {"code": code, "reason": reason, "request_id": "req_1"}}).to_string();
    reply(status, &format!("content-type: application/json\r\n{headers}"), &body)
}

/// A stream response that ends when the connection closes.
pub(crate) fn stream(events: &[(&str, Value)]) -> String {
    let events: String =
        events.iter().map(|(name, data)| format!("event: {name}\ndata: {data}\n\n")).collect();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nconnection: close\r\n\r\n{events}"
    )
}
