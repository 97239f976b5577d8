//! A Chat Completions server that follows a test's script byte by byte, on its own port. It implements plain HTTP itself,
//! because a proper HTTP library would not let it misbehave.

use std::net::SocketAddr;
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

pub type Script = Arc<dyn Fn(usize, &str) -> Vec<Step> + Send + Sync>;

const MODEL_LIST: &str = r#"{"object":"list","data":[{"id":"m","max_model_len":4096}]}"#;

pub struct FaultyServer {
    pub url: String,
    state: Arc<State>,
    task: tokio::task::JoinHandle<()>,
}

/// What the server answers beside jobs.
#[derive(Clone)]
pub struct OtherRoutes {
    /// The list of models.
    pub list: String,
    /// The body of `/version`, which vLLM has.
    pub version: Option<String>,
    /// Counts words, in the format of one kind of server.
    pub tokenize: Option<TokenizeRoute>,
    /// llama-server's `/slots`: lists every job as running, each with as many tokens as this returns, or none of them.
    pub generated_tokens: Option<GeneratedTokens>,
}

pub type GeneratedTokens = Arc<dyn Fn() -> Option<u32> + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizeRoute {
    Vllm,
    LlamaServer,
    /// Accepts the probe at start, and fails from then on.
    BreaksAfterTheProbe,
}

impl Default for OtherRoutes {
    fn default() -> Self {
        Self { list: MODEL_LIST.to_owned(), version: None, tokenize: None, generated_tokens: None }
    }
}

impl OtherRoutes {
    /// The routes of a current vLLM.
    pub fn vllm() -> Self {
        let list = r#"{"data":[{"id":"m","owned_by":"vllm","max_model_len":4096}]}"#.to_owned();
        Self {
            list,
            version: Some(r#"{"version":"0.11.2"}"#.to_owned()),
            tokenize: Some(TokenizeRoute::Vllm),
            generated_tokens: None,
        }
    }

    /// A server whose models have this owner, which names the kind of server.
    pub fn owned_by(owner: &str) -> Self {
        let list = serde_json::json!({"data": [{"id": "m", "owned_by": owner, "max_model_len": 4096}]});
        Self { list: list.to_string(), ..Self::default() }
    }

    pub fn llama_server() -> Self {
        let list = r#"{"data":[{"id":"m","owned_by":"llamacpp","meta":{"n_ctx":4096}}]}"#.to_owned();
        Self { list, version: None, tokenize: Some(TokenizeRoute::LlamaServer), generated_tokens: None }
    }

    /// The same, with `/slots`.
    pub fn llama_server_with_slots(generated_tokens: impl Fn() -> u32 + Send + Sync + 'static) -> Self {
        Self { generated_tokens: Some(Arc::new(move || Some(generated_tokens()))), ..Self::llama_server() }
    }

    /// A balancer that sends `/slots` to another llama-server, which is idle.
    pub fn llama_server_balancer() -> Self {
        Self { generated_tokens: Some(Arc::new(|| None)), ..Self::llama_server() }
    }
}

#[derive(Default)]
struct State {
    routes: OtherRoutes,
    /// Bodies of the received `/tokenize` requests.
    tokenized: Mutex<Vec<String>>,
    /// Bodies of the received jobs.
    jobs: Mutex<Vec<String>>,
    heads: Mutex<Vec<String>>,
    hang_ups: Mutex<usize>,
    changed: Notify,
}

impl FaultyServer {
    /// The script receives the number of the job, from 0.
    pub async fn start(script: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::start_with(OtherRoutes::default(), script).await
    }

    /// Starts a server with a custom model list.
    pub async fn start_listing(
        list: String,
        script: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(OtherRoutes { list, ..OtherRoutes::default() }, script).await
    }

    pub async fn start_with(
        routes: OtherRoutes,
        script: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        Self::start_scripted(routes, move |number, _| script(number)).await
    }

    /// The script receives the body of the job.
    pub async fn by_body(script: impl Fn(&str) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self::start_scripted(OtherRoutes::default(), move |_, body| script(body)).await
    }

    /// Starts a server on a port that the test has chosen.
    pub async fn start_at(
        address: SocketAddr,
        routes: OtherRoutes,
        script: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        Self::accept_on(listener, routes, move |number, _| script(number))
    }

    async fn start_scripted(
        routes: OtherRoutes,
        script: impl Fn(usize, &str) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        Self::accept_on(TcpListener::bind("127.0.0.1:0").await.unwrap(), routes, script)
    }

    fn accept_on(
        listener: TcpListener,
        routes: OtherRoutes,
        script: impl Fn(usize, &str) -> Vec<Step> + Send + Sync + 'static,
    ) -> Self {
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let state = Arc::new(State { routes, ..State::default() });
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

    /// The bodies of the `/tokenize` requests.
    pub fn tokenized(&self) -> Vec<String> {
        self.state.tokenized.lock().unwrap().clone()
    }

    pub fn heads(&self) -> Vec<String> {
        self.state.heads.lock().unwrap().clone()
    }

    /// Waits until `count` jobs have arrived.
    pub async fn until_jobs(&self, count: usize) {
        self.until(|state| state.jobs.lock().unwrap().len() >= count).await;
    }

    /// Waits until `count` jobs with this text in their body have arrived.
    pub async fn until_jobs_with(&self, text: &str, count: usize) {
        let matching =
            |state: &State| state.jobs.lock().unwrap().iter().filter(|body| body.contains(text)).count();
        self.until(|state| matching(state) >= count).await;
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
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let steps = if path == "/slots" {
            vec![state.slots()]
        } else if head.starts_with("GET") {
            vec![state.routes.get(&path)]
        } else if path == "/tokenize" {
            vec![state.tokenize(body)]
        } else {
            let mut jobs = state.jobs.lock().unwrap();
            let steps = script(jobs.len(), &body);
            jobs.push(body);
            state.heads.lock().unwrap().push(head);
            steps
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

impl OtherRoutes {
    fn get(&self, path: &str) -> Step {
        match (path, &self.version) {
            ("/v1/models", _) => Step::Answer(200, "", self.list.clone()),
            ("/version", Some(version)) => Step::Answer(200, "", version.clone()),
            _ => not_found(),
        }
    }
}

impl State {
    fn slots(&self) -> Step {
        let Some(generated_tokens) = &self.routes.generated_tokens else { return not_found() };
        let slot = |tokens: u32, job: &String| {
            let job: serde_json::Value = serde_json::from_str(job).unwrap();
            let is_streamed = job["stream"] == true;
            serde_json::json!({"id": 1, "is_processing": true, "params": {"seed": job["seed"], "stream": is_streamed},
                "next_token": [{"n_decoded": tokens}]})
        };
        let mut slots = vec![serde_json::json!({"id": 0, "is_processing": false})];
        if let Some(tokens) = generated_tokens() {
            slots.extend(self.jobs.lock().unwrap().iter().map(|job| slot(tokens, job)));
        }
        Step::Answer(200, "content-type: application/json\r\n", serde_json::Value::from(slots).to_string())
    }

    fn tokenize(&self, body: String) -> Step {
        let request: serde_json::Value = serde_json::from_str(&body).unwrap();
        let mut tokenized = self.tokenized.lock().unwrap();
        tokenized.push(body);
        let words = |text: &serde_json::Value| text.as_str().map(|text| text.split_whitespace().count());
        let ids = |count| (0..count).collect::<Vec<usize>>();
        let answer = match self.routes.tokenize {
            None => return not_found(),
            Some(TokenizeRoute::BreaksAfterTheProbe) if tokenized.len() > 1 => {
                return Step::Answer(500, "", String::new());
            }
            Some(TokenizeRoute::Vllm | TokenizeRoute::BreaksAfterTheProbe) => match words(&request["prompt"])
            {
                Some(count) => {
                    serde_json::json!({"count": count, "max_model_len": 4096, "tokens": ids(count)})
                }
                None => return Step::Answer(400, "", r#"{"error":{"message":"no prompt"}}"#.to_owned()),
            },
            // Like the real one, which finds no text in another format.
            Some(TokenizeRoute::LlamaServer) => {
                serde_json::json!({"tokens": ids(words(&request["content"]).unwrap_or(0))})
            }
        };
        Step::Answer(200, "content-type: application/json\r\n", answer.to_string())
    }
}

fn not_found() -> Step {
    Step::Answer(404, "", r#"{"detail":"Not Found"}"#.to_owned())
}

/// Runs one step and returns whether the connection stays open.
async fn run_step(stream: &mut TcpStream, step: Step, state: &State) -> bool {
    let written = match step {
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
        Step::Cut => return false,
        step => stream.write_all(&wire_bytes(step)).await,
    };
    if written.is_err() {
        *state.hang_ups.lock().unwrap() += 1;
        state.changed.notify_waiters();
        state.changed.notify_one();
    }
    written.is_ok()
}

/// What a step sends. Empty for steps that send nothing.
pub(crate) fn wire_bytes(step: Step) -> Vec<u8> {
    match step {
        Step::Stream => {
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                .to_vec()
        }
        Step::Answer(status, headers, body) => {
            let length = body.len();
            format!("HTTP/1.1 {status} X\r\n{headers}content-length: {length}\r\n\r\n{body}").into_bytes()
        }
        Step::Event(data) => chunk(format!("data: {data}\n\n").as_bytes()),
        Step::Raw(bytes) => chunk(&bytes),
        Step::Bytes(bytes) => bytes,
        Step::End => b"0\r\n\r\n".to_vec(),
        Step::Pause(_) | Step::Gate(_) | Step::Hang | Step::Cut => Vec::new(),
    }
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

pub(crate) async fn read_request(stream: &mut TcpStream) -> Option<(String, String)> {
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

/// The `logprobs` of these tokens, as OpenAI has them. Each has two alternatives, the chosen token first.
pub fn token_logprobs(tokens: &[&str]) -> serde_json::Value {
    let token = |token: &str, logprob: f64| {
        let bytes = token.as_bytes();
        serde_json::json!({"token": token, "logprob": logprob, "bytes": bytes})
    };
    let entry = |&chosen: &&str| {
        let mut entry = token(chosen, -1.5);
        entry["top_logprobs"] = serde_json::json!([token(chosen, -1.5), token("likely", -0.5)]);
        entry
    };
    serde_json::json!({"content": tokens.iter().map(entry).collect::<Vec<_>>()})
}

/// An event with this delta and these `logprobs`.
pub fn delta_with_logprobs(delta: &serde_json::Value, logprobs: &serde_json::Value) -> Step {
    let choice = serde_json::json!({"index": 0, "delta": delta, "logprobs": logprobs});
    Step::Event(serde_json::json!({"choices": [choice]}).to_string())
}

/// A text event with the log probabilities of its tokens.
pub fn text_with_logprobs(text: &str, tokens: &[&str]) -> Step {
    delta_with_logprobs(&serde_json::json!({"content": text}), &token_logprobs(tokens))
}

/// The model's reasoning before its answer.
pub fn reasoning(text: &str) -> Step {
    let delta = serde_json::json!({"choices": [{"index": 0, "delta": {"reasoning_content": text}}]});
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

/// A usage report with tokens from the prefix cache.
pub fn cached_usage(prompt_tokens: u32, completion_tokens: u32, cached_tokens: u32) -> Step {
    let usage = serde_json::json!({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens}});
    Step::Event(serde_json::json!({"choices": [], "usage": usage}).to_string())
}

/// The proper end of a reply.
pub fn well_ended(reason: &str, prompt_tokens: u32, completion_tokens: u32) -> [Step; 4] {
    [finish(reason), usage(prompt_tokens, completion_tokens), Step::Event("[DONE]".to_owned()), Step::End]
}

/// A reply that is not streamed, without usage where there is none.
pub fn whole_reply(text: &str, finish_reason: &str, usage: Option<(u32, u32)>) -> Step {
    let message = serde_json::json!({"role": "assistant", "content": text});
    let mut body = serde_json::json!({"object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]});
    if let Some((prompt_tokens, completion_tokens)) = usage {
        body["usage"] =
            serde_json::json!({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens});
    }
    Step::Answer(200, "content-type: application/json\r\n", body.to_string())
}

/// A complete reply of a server that never reports usage.
pub fn reply_without_usage(pieces: &[&str]) -> Vec<Step> {
    let mut steps = vec![Step::Stream];
    steps.extend(pieces.iter().map(|piece| text(piece)));
    steps.extend([finish("stop"), Step::Event("[DONE]".to_owned()), Step::End]);
    steps
}

/// A complete, valid reply of these pieces.
pub fn reply(pieces: &[&str], prompt_tokens: u32) -> Vec<Step> {
    let mut steps = vec![Step::Stream];
    steps.extend(pieces.iter().map(|piece| text(piece)));
    steps.extend(well_ended("stop", prompt_tokens, u32::try_from(pieces.len()).unwrap()));
    steps
}
