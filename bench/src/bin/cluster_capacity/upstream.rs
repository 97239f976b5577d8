//! An upstream engine that answers at once with a fixed reply, so that only the node's cost remains.

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::{get, post};
use std::fmt::Write;
use std::net::SocketAddr;

/// Tokens in a reply, each sent as its own event.
pub const TOKENS: usize = 16;

pub async fn start() -> SocketAddr {
    let reply = Bytes::from(reply());
    let models = r#"{"object":"list","data":[{"id":"instant","object":"model","max_model_len":8192}]}"#;
    let router = Router::new()
        .route(
            "/v1/models",
            get(move || async move { ([(header::CONTENT_TYPE, "application/json")], models) }),
        )
        .route(
            "/v1/chat/completions",
            post(move || async move { ([(header::CONTENT_TYPE, "text/event-stream")], reply) }),
        );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

fn reply() -> String {
    let mut events = String::new();
    let head = r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"instant""#;
    for token in 0..TOKENS {
        let text = if token == 0 { "Dear" } else { " sir" };
        let choices = format!(r#"[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}]"#);
        write!(events, "data: {head},\"choices\":{choices}}}\n\n").unwrap();
    }
    let finished = r#"[{"index":0,"delta":{},"finish_reason":"stop"}]"#;
    write!(events, "data: {head},\"choices\":{finished}}}\n\n").unwrap();
    let usage =
        format!(r#"{{"prompt_tokens":40,"completion_tokens":{TOKENS},"total_tokens":{}}}"#, 40 + TOKENS);
    write!(events, "data: {head},\"choices\":[],\"usage\":{usage}}}\n\ndata: [DONE]\n\n").unwrap();
    events
}
