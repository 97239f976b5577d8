//! A generation API on a port of its own that answers drafts as a test wants, byte by byte.

use crate::drafting::limits::Patience;
use crate::drafting::{Drafter, DraftingSettings};
use chancery_domain::SystemClock;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

pub(super) const API_KEY: &str = "ck_aaaaaaaa_secretsecretsecretsecretsecretsecretsecret1";

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
        let (say_hung_up, count) = (Arc::clone(&hung_up), Arc::clone(&asked_for_models));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (models, draft) = (models.clone(), draft.clone());
                tokio::spawn(serve(stream, models, draft, Arc::clone(&say_hung_up), Arc::clone(&count)));
            }
        });
        Self { url, hung_up, asked_for_models }
    }

    /// Models are right; only drafts are not.
    pub(crate) async fn drafting(draft: Answer) -> Self {
        Self::start(Answer::Bytes(models()), draft).await
    }

    pub(super) fn drafter(&self) -> Drafter {
        drafter(&self.url)
    }
}

pub(super) fn drafter(url: &str) -> Drafter {
    let settings = DraftingSettings {
        api_url: url.to_owned(),
        api_key: API_KEY.to_owned(),
        model: Some("small".to_owned()),
    };
    Drafter::with_patience(settings, Arc::new(SystemClock), IMPATIENCE).unwrap()
}

async fn serve(
    mut stream: TcpStream,
    models: Answer,
    draft: Answer,
    hung_up: Arc<Notify>,
    asked_for_models: Arc<AtomicUsize>,
) {
    let Some(path) = request(&mut stream).await else { return };
    let answer = match path.as_str() {
        "/v1/models" => {
            asked_for_models.fetch_add(1, Ordering::SeqCst);
            models
        }
        "/v1/tokens" => {
            Answer::Bytes(ok_json(&json!({"input_tokens": 12, "max_output_tokens": 600}).to_string()))
        }
        _ => draft,
    };
    let (Answer::Bytes(bytes) | Answer::Stall(bytes)) = &answer;
    let _ = stream.write_all(bytes.as_bytes()).await;
    if matches!(answer, Answer::Stall(_)) {
        // Nothing more is sent; what ends this is the other side.
        while matches!(stream.read(&mut [0; 1_024]).await, Ok(1..)) {}
        hung_up.notify_one();
    }
}

/// Reads one whole request; gives its path. It must have the key.
async fn request(stream: &mut TcpStream) -> Option<String> {
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
    Some(head.split(' ').nth(1)?.to_owned())
}

pub(crate) fn reply(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}")
}

pub(crate) fn ok_json(body: &str) -> String {
    reply("200 OK", "content-type: application/json\r\n", body)
}

pub(crate) fn models() -> String {
    let small = json!({"id": "small", "context_tokens": 2048, "currency": "USD",
        "input_per_million": "0.10", "output_per_million": "0.40"});
    ok_json(&json!({"object": "list", "data": [small]}).to_string())
}

pub(crate) fn refusal(status: &str, headers: &str, code: &str) -> String {
    let reason = "the reason, which stays inside";
    let body = json!({"error": {"code": code, "reason": reason, "request_id": "req_1"}}).to_string();
    reply(status, &format!("content-type: application/json\r\n{headers}"), &body)
}

/// The head of a stream whose end is the end of the connection.
pub(crate) fn stream(events: &[(&str, serde_json::Value)]) -> String {
    let events: String =
        events.iter().map(|(name, data)| format!("event: {name}\ndata: {data}\n\n")).collect();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nconnection: close\r\n\r\n{events}"
    )
}
