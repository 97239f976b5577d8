//! A client for Server-Sent Events.

use crate::server::{Server, client};
use serde_json::Value;
use std::time::Duration;

/// A reply whose events are read one by one; dropping it closes the connection.
pub struct EventStream {
    response: reqwest::Response,
    unread: String,
}

/// One event: its name, and its data if that is JSON.
#[derive(Clone, Debug)]
pub struct Event {
    pub name: String,
    pub data: Value,
}

impl EventStream {
    /// Sends a streaming request; panics unless the reply is a stream.
    pub async fn open(server: &Server, key: &str, body: &Value) -> Self {
        let mut body = body.clone();
        body["stream"] = true.into();
        let request = client().post(format!("{}/v1/generate", server.api)).bearer_auth(key).json(&body);
        Self::send(request).await
    }

    /// The same for a custom request.
    pub async fn send(request: reqwest::RequestBuilder) -> Self {
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        Self::of(response)
    }

    /// Wraps a response that must be a stream.
    pub fn of(response: reqwest::Response) -> Self {
        assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
        Self { response, unread: String::new() }
    }

    pub fn header(&self, name: &str) -> &str {
        self.response.headers().get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Returns `None` at the end, or if the connection breaks.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.unread.split_once("\n\n") {
                let event = parse(event);
                self.unread = rest.to_owned();
                match event {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            let chunk = self.response.chunk().await.ok().flatten()?;
            self.unread.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// Reads all remaining events.
    pub async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    /// Reads until the first text arrives.
    pub async fn first_text(&mut self) -> String {
        let reading = async {
            loop {
                let event = self.next().await.expect("the stream ended before its first text");
                if let Some(text) = event.data["delta"].as_str() {
                    return text.to_owned();
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), reading).await.unwrap()
    }
}

/// Returns `None` for a comment.
fn parse(text: &str) -> Option<Event> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let data = field("data: ")?;
    Some(Event {
        name: field("event: ").unwrap_or_default().to_owned(),
        data: serde_json::from_str(data).unwrap_or_else(|_| data.into()),
    })
}
