//! A Chat Completions server that replies correctly but closes its connections without announcing it, as some real
//! servers do after every streamed reply. It never closes a connection before its first reply, so every job can be served.

use crate::faulty_chat_server::{read_request, text, well_ended, wire_bytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What happens to a connection after a reply on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterReply {
    KeepOpen,
    /// Closed at once.
    Close,
    /// Closed after this pause, unless a request has arrived.
    CloseWhenIdle(Duration),
    /// Closed when the next request has arrived completely.
    CloseOnRequest,
    /// Closed when the first byte of the next request arrives. The rest is unread, so the peer gets a reset.
    ResetOnRequest,
}

pub struct ClosingServer {
    pub url: String,
    state: Arc<State>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct State {
    connections: AtomicUsize,
    unanswered: AtomicUsize,
}

type Policy = Arc<dyn Fn(usize) -> AfterReply + Send + Sync>;

impl ClosingServer {
    /// The policy receives the number of the reply, from 0.
    pub async fn start(policy: impl Fn(usize) -> AfterReply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let state = Arc::new(State::default());
        let (policy, replies, shared): (Policy, _, _) =
            (Arc::new(policy), Arc::new(AtomicUsize::new(0)), Arc::clone(&state));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(stream, Arc::clone(&policy), Arc::clone(&replies), Arc::clone(&shared)));
            }
        });
        Self { url, state, task }
    }

    /// Closes at random, in every way.
    pub async fn random() -> Self {
        Self::start(random_after_reply).await
    }

    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Relaxed)
    }

    /// Requests on used connections that were closed instead of answered.
    pub fn unanswered(&self) -> usize {
        self.state.unanswered.load(Ordering::Relaxed)
    }
}

impl Drop for ClosingServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Half of the replies are followed by an immediate close, which is what loses most races in practice.
fn random_after_reply(reply: usize) -> AfterReply {
    // A multiplicative hash: the same sequence in every run, without a pattern that clients could fall into step with.
    let random = (reply as u64).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    match random % 16 {
        0..8 => AfterReply::Close,
        8..10 => AfterReply::CloseWhenIdle(Duration::from_micros(random % 3_000)),
        10..12 => AfterReply::CloseOnRequest,
        12 => AfterReply::ResetOnRequest,
        _ => AfterReply::KeepOpen,
    }
}

async fn serve(mut stream: TcpStream, policy: Policy, replies: Arc<AtomicUsize>, state: Arc<State>) {
    let _ = stream.set_nodelay(true);
    let mut after_reply = AfterReply::KeepOpen;
    loop {
        match after_reply {
            AfterReply::KeepOpen | AfterReply::CloseOnRequest => {}
            AfterReply::Close => return,
            AfterReply::CloseWhenIdle(pause) => {
                if tokio::time::timeout(pause, stream.readable()).await.is_err() {
                    return;
                }
            }
            AfterReply::ResetOnRequest => {
                let first_byte = stream.read(&mut [0]).await;
                state.unanswered.fetch_add(first_byte.unwrap_or(0), Ordering::Relaxed);
                return;
            }
        }
        let Some((head, _)) = read_request(&mut stream).await else { return };
        if after_reply == AfterReply::CloseOnRequest {
            state.unanswered.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let reply = if head.starts_with("GET") { model_list() } else { chat_reply() };
        // Decided before the client can have the reply, so that a test knows the order.
        after_reply = policy(replies.fetch_add(1, Ordering::Relaxed));
        if stream.write_all(&reply).await.is_err() {
            return;
        }
    }
}

fn model_list() -> Vec<u8> {
    let list = r#"{"object":"list","data":[{"id":"m","max_model_len":4096}]}"#;
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{list}", list.len()).into_bytes()
}

fn chat_reply() -> Vec<u8> {
    let mut steps = vec![crate::faulty_chat_server::Step::Stream, text("fine")];
    steps.extend(well_ended("stop", 3, 1));
    steps.into_iter().flat_map(wire_bytes).collect()
}
