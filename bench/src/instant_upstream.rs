//! An upstream engine that answers at once with a fixed reply, so that only the cost of the server in front of it remains. Its
//! reply is a stream if the request asks for one.

use crate::Outcome;
use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderName, StatusCode, header};
use axum::routing::{get, post};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::fmt::Write;
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// Tokens in a reply, each in its own event of a stream.
pub const TOKENS: usize = 16;
pub const MODEL: &str = "instant";

const HEAD: &str = r#""id":"chatcmpl-1","created":1,"model":"instant""#;
const MODELS: &str = r#"{"object":"list","data":[{"id":"instant","object":"model","created":1,"owned_by":"bench","max_model_len":8192}]}"#;

/// Starts it on a task of this process.
pub async fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener));
    address
}

/// Serves as a process of its own, which ends with the program that started it, however that ends.
pub async fn serve_for_parent(address: SocketAddr) -> Outcome<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    serve(TcpListener::bind(address).await?).await;
    Ok(())
}

async fn serve(listener: TcpListener) {
    let (stream, whole) = (Bytes::from(stream_reply()), Bytes::from(whole_reply()));
    let reply = move |request: Bytes| {
        let reply = if wants_stream(&request) {
            ([(header::CONTENT_TYPE, "text/event-stream")], stream.clone())
        } else {
            json(whole.clone())
        };
        async move { reply }
    };
    let router = Router::new()
        .route("/v1/models", get(|| async { json(Bytes::from_static(MODELS.as_bytes())) }))
        .route("/v1/chat/completions", post(reply))
        .route("/health", get(|| async { StatusCode::OK }));
    axum::serve(listener, router).await.unwrap();
}

fn json(body: Bytes) -> ([(HeaderName, &'static str); 1], Bytes) {
    ([(header::CONTENT_TYPE, "application/json")], body)
}

/// Requests come from several programs, which write JSON with and without spaces.
fn wants_stream(request: &[u8]) -> bool {
    const NAME: &[u8] = b"\"stream\"";
    let Some(at) = request.windows(NAME.len()).position(|part| part == NAME) else { return false };
    let value = request[at + NAME.len()..].trim_ascii_start();
    value.strip_prefix(b":").is_some_and(|value| value.trim_ascii_start().starts_with(b"true"))
}

fn usage() -> String {
    format!(r#"{{"prompt_tokens":40,"completion_tokens":{TOKENS},"total_tokens":{}}}"#, 40 + TOKENS)
}

fn text_of_token(token: usize) -> &'static str {
    if token == 0 { "Dear" } else { " sir" }
}

fn whole_reply() -> String {
    let text: String = (0..TOKENS).map(text_of_token).collect();
    let message = format!(r#"{{"role":"assistant","content":"{text}"}}"#);
    let choices = format!(r#"[{{"index":0,"message":{message},"finish_reason":"stop"}}]"#);
    format!(r#"{{{HEAD},"object":"chat.completion","choices":{choices},"usage":{}}}"#, usage())
}

fn stream_reply() -> String {
    let mut events = String::new();
    let head = format!(r#"{{{HEAD},"object":"chat.completion.chunk""#);
    for token in 0..TOKENS {
        let text = text_of_token(token);
        let choices = format!(r#"[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]"#);
        write!(events, "data: {head},\"choices\":{choices}}}\n\n").unwrap();
    }
    let finished = r#"[{"index":0,"delta":{},"finish_reason":"stop"}]"#;
    write!(events, "data: {head},\"choices\":{finished}}}\n\n").unwrap();
    write!(events, "data: {head},\"choices\":[],\"usage\":{}}}\n\ndata: [DONE]\n\n", usage()).unwrap();
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn whole_and_streamed_replies_have_the_same_text_and_usage() {
        let whole: Value = serde_json::from_str(&whole_reply()).unwrap();
        let stream = stream_reply();
        let events: Vec<Value> = stream
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .filter(|data| *data != "[DONE]")
            .map(|data| serde_json::from_str(data).unwrap())
            .collect();
        let streamed: String =
            events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(whole["choices"][0]["message"]["content"], streamed);
        assert_eq!(whole["usage"], events[events.len() - 1]["usage"]);
    }

    #[test]
    fn stream_is_recognised_in_json_with_and_without_spaces() {
        let cases = [
            (r#"{"model":"m","stream":true}"#, true),
            (r#"{"stream" : true, "model": "m"}"#, true),
            (r#"{"stream":false}"#, false),
            (r#"{"stream_options":{"include_usage":true},"stream":true}"#, true),
            (r#"{"model":"m"}"#, false),
        ];
        for (request, expected) in cases {
            assert_eq!(wants_stream(request.as_bytes()), expected, "{request}");
        }
    }
}
