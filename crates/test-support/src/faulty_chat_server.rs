//! A server of Chat Completions that does what a test tells it, byte by byte, on a port of its own. It speaks plain HTTP by
//! itself, because a well-kept HTTP library would not let it misbehave.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// What the server does with a job, in order.
#[derive(Clone, Debug)]
pub enum Step {
    /// The head of a reply that is a stream.
    Stream,
    /// A whole reply: status, headers with their line ends, body.
    Answer(u16, &'static str, String),
    /// One event of the stream.
    Event(String),
    /// Bytes as they are, within the stream.
    Raw(Vec<u8>),
    /// Bytes as they are, in place of a reply.
    Bytes(Vec<u8>),
    Pause(Duration),
    /// Goes on when the test says so.
    Gate(Arc<Notify>),
    /// Says nothing more until the peer closes.
    Hang,
    /// Ends the stream as it should be.
    End,
    /// Closes the connection in the middle.
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
    /// Bodies of the jobs that came.
    jobs: Mutex<Vec<String>>,
    heads: Mutex<Vec<String>>,
    hang_ups: Mutex<usize>,
    changed: Notify,
}

impl FaultyServer {
    /// The script is given the number of the job, from 0.
    pub async fn start(script: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let list = r#"{"object":"list","data":[{"id":"m","max_model_len":4096}]}"#;
        Self::start_listing(list.to_owned(), script).await
    }

    /// With a list of models of its own.
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

    /// A server that always does the same.
    pub async fn always(steps: Vec<Step>) -> Self {
        Self::start(move |_| steps.clone()).await
    }

    pub fn jobs(&self) -> Vec<String> {
        self.state.jobs.lock().unwrap().clone()
    }

    pub fn heads(&self) -> Vec<String> {
        self.state.heads.lock().unwrap().clone()
    }

    /// Waits until so many jobs have come.
    pub async fn until_jobs(&self, count: usize) {
        self.until(|state| state.jobs.lock().unwrap().len() >= count).await;
    }

    /// Waits until so many peers have closed their connection while a job of theirs was under way.
    pub async fn until_hang_ups(&self, count: usize) {
        self.until(|state| *state.hang_ups.lock().unwrap() >= count).await;
    }

    async fn until(&self, is_so: impl Fn(&State) -> bool) {
        let waiting = async {
            while !is_so(&self.state) {
                self.state.changed.notified().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it never came to that");
    }

    /// From now on nobody listens there.
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
            if !take(&mut stream, step, &state).await {
                return;
            }
        }
    }
}

/// Whether the connection goes on.
async fn take(stream: &mut TcpStream, step: Step, state: &State) -> bool {
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

/// A piece of text with what was counted so far.
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

/// The end of a reply as it should be.
pub fn well_ended(reason: &str, prompt_tokens: u32, completion_tokens: u32) -> [Step; 4] {
    [finish(reason), usage(prompt_tokens, completion_tokens), Step::Event("[DONE]".to_owned()), Step::End]
}

/// A whole good reply of these pieces.
pub fn reply(pieces: &[&str], prompt_tokens: u32) -> Vec<Step> {
    let mut steps = vec![Step::Stream];
    steps.extend(pieces.iter().map(|piece| text(piece)));
    steps.extend(well_ended("stop", prompt_tokens, u32::try_from(pieces.len()).unwrap()));
    steps
}
