//! A Chat Completions server that follows a test's script byte by byte, on its own port. It implements plain HTTP itself,
//! because a proper HTTP library would not let it misbehave.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// One step of the server's script for a job.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends the head of a streaming response.
    Stream,
    /// Sends a whole response: status, headers with their line endings, body.
    Answer(u16, &'static str, String),
    /// Sends one event of the stream.
    Event(String),
    /// Sends raw bytes as a chunk of the stream.
    Raw(Vec<u8>),
    /// Sends raw bytes instead of a response.
    Bytes(Vec<u8>),
    Pause(Duration),
    /// Waits until the test notifies it.
    Gate(Arc<Notify>),
    /// Sends nothing more until the peer closes.
    Hang,
    /// Ends the stream properly.
    End,
    /// Closes the connection abruptly.
    Cut,
}

pub type Script = Arc<dyn Fn(usize) -> Vec<Step> + Send + Sync>;

pub struct FaultyServer {
    pub url: String,
    state: Arc<State>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct State {
    list: String,
    /// Bodies of the received jobs.
    jobs: Mutex<Vec<String>>,
    heads: Mutex<Vec<String>>,
    hang_ups: Mutex<usize>,
    changed: Notify,
}

impl FaultyServer {
    /// The script receives the number of the job, from 0.
    pub async fn start(script: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let list = r#"{"object":"list","data":[{"id":"m","max_model_len":4096}]}"#;
        Self::start_listing(list.to_owned(), script).await
    }

    /// Starts a server with a custom model list.
    pub async fn start_listing(
        list: String,
        script: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let state = Arc::new(State { list, ..State::default() });
        let (script, shared): (Script, _) = (Arc::new(script), Arc::clone(&state));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&script), Arc::clone(&shared)));
            }
        });
        Self { url, state, task }
    }

    /// Starts a server that runs the same steps for every job.
    pub async fn always(steps: Vec<Step>) -> Self {
        Self::start(move |_| steps.clone()).await
    }

    pub fn jobs(&self) -> Vec<String> {
        self.state.jobs.lock().unwrap().clone()
    }

    pub fn heads(&self) -> Vec<String> {
        self.state.heads.lock().unwrap().clone()
    }

    /// Waits until `count` jobs have arrived.
    pub async fn until_jobs(&self, count: usize) {
        self.until(|state| state.jobs.lock().unwrap().len() >= count).await;
    }

    /// Waits until `count` peers have closed their connection during a job.
    pub async fn until_hang_ups(&self, count: usize) {
        self.until(|state| *state.hang_ups.lock().unwrap() >= count).await;
    }

    async fn until(&self, condition: impl Fn(&State) -> bool) {
        let waiting = async {
            while !condition(&self.state) {
                self.state.changed.notified().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it never came to that");
    }

    /// Stops accepting connections.
    pub fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for FaultyServer {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn serve(mut stream: TcpStream, script: Script, state: Arc<State>) {
    while let Some((head, body)) = read_request(&mut stream).await {
        let steps = if head.starts_with("GET") {
            vec![Step::Answer(200, "", state.list.clone())]
        } else {
            let mut jobs = state.jobs.lock().unwrap();
            jobs.push(body);
            state.heads.lock().unwrap().push(head);
            script(jobs.len() - 1)
        };
        state.changed.notify_waiters();
        state.changed.notify_one();
        for step in steps {
            if !run_step(&mut stream, step, &state).await {
                return;
            }
        }
    }
}

/// Runs one step and returns whether the connection stays open.
async fn run_step(stream: &mut TcpStream, step: Step, state: &State) -> bool {
    let written = match step {
        Step::Stream => {
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            stream.write_all(head.as_bytes()).await
        }
        Step::Answer(status, headers, body) => {
            let length = body.len();
            let text = format!("HTTP/1.1 {status} X\r\n{headers}content-length: {length}\r\n\r\n{body}");
            stream.write_all(text.as_bytes()).await
        }
        Step::Event(data) => chunk(stream, format!("data: {data}\n\n").as_bytes()).await,
        Step::Raw(bytes) => chunk(stream, &bytes).await,
        Step::Bytes(bytes) => stream.write_all(&bytes).await,
        Step::Pause(pause) => {
            tokio::time::sleep(pause).await;
            Ok(())
        }
        Step::Gate(gate) => {
            gate.notified().await;
            Ok(())
        }
        Step::Hang => {
            let mut rest = [0; 64];
            while !matches!(stream.read(&mut rest).await, Ok(0) | Err(_)) {}
            Err(std::io::ErrorKind::ConnectionReset.into())
        }
        Step::End => stream.write_all(b"0\r\n\r\n").await,
        Step::Cut => return false,
    };
    if written.is_err() {
        *state.hang_ups.lock().unwrap() += 1;
        state.changed.notify_waiters();
        state.changed.notify_one();
    }
    written.is_ok()
}

async fn chunk(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(format!("{:x}\r\n", bytes.len()).as_bytes()).await?;
    stream.write_all(bytes).await?;
    stream.write_all(b"\r\n").await
}

async fn read_request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            let whole = end + 4 + length.unwrap_or(0);
            if bytes.len() >= whole {
                return Some((head, String::from_utf8_lossy(&bytes[end + 4..whole]).into_owned()));
            }
        }
        let mut more = [0; 4096];
        match stream.read(&mut more).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&more[..count]),
        }
    }
}

pub fn text(text: &str) -> Step {
    let delta =
        serde_json::json!({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": null}]});
    Step::Event(delta.to_string())
}

/// A text event with the usage so far.
pub fn counted_text(text: &str, prompt_tokens: u32, completion_tokens: u32) -> Step {
    let usage = serde_json::json!({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens});
    let delta = serde_json::json!({"choices": [{"index": 0, "delta": {"content": text}}], "usage": usage});
    Step::Event(delta.to_string())
}

pub fn finish(reason: &str) -> Step {
    Step::Event(
        serde_json::json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}).to_string(),
    )
}

pub fn usage(prompt_tokens: u32, completion_tokens: u32) -> Step {
    let usage = serde_json::json!({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens});
    Step::Event(serde_json::json!({"choices": [], "usage": usage}).to_string())
}

/// The proper end of a reply.
pub fn well_ended(reason: &str, prompt_tokens: u32, completion_tokens: u32) -> [Step; 4] {
    [finish(reason), usage(prompt_tokens, completion_tokens), Step::Event("[DONE]".to_owned()), Step::End]
}

/// A complete, valid reply of these pieces.
pub fn reply(pieces: &[&str], prompt_tokens: u32) -> Vec<Step> {
    let mut steps = vec![Step::Stream];
    steps.extend(pieces.iter().map(|piece| text(piece)));
    steps.extend(well_ended("stop", prompt_tokens, u32::try_from(pieces.len()).unwrap()));
    steps
}
