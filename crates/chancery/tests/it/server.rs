//! Starts the real binary in its own directory, on ports that the system chooses, and stops it at the end.

use crate::test_backends::PostgresAndRedis;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const MODEL: &str = "smollm2-135m";

/// Loading takes about a second; the rest is headroom for a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

pub fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_chancery")
}

pub fn model_file() -> PathBuf {
    let path = std::env::var_os("CHANCERY_TEST_MODEL");
    path.expect("run `make test`, which fetches the model and sets CHANCERY_TEST_MODEL").into()
}

/// The path of schemathesis, which tests an API against its description.
pub fn schemathesis() -> PathBuf {
    let path = std::env::var_os("CHANCERY_TEST_SCHEMATHESIS");
    path.expect("run `make test`, which installs schemathesis and sets CHANCERY_TEST_SCHEMATHESIS").into()
}

/// The key of the secrets in the database, the same for all nodes.
pub const SECRETS_KEY: &str = "a2V5IG9mIHRoZSBkYXRhYmFzZXMgaW4gdGVzdHMuLi4=";

/// Writes a file that only its owner can read.
pub fn write_secret(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// A command without the developer's own settings and proxies.
pub fn clean_command(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_ascii_lowercase();
        if text.starts_with("chancery_") || text.ends_with("_proxy") {
            command.env_remove(&name);
        }
    }
    command
}

/// A data directory with its settings; commands and servers run in it.
pub struct Firm {
    pub folder: tempfile::TempDir,
    environment: Vec<(String, String)>,
    /// A program, with its first arguments, that runs every command; may be empty.
    runner: Vec<String>,
    /// The services that the settings name, kept alive as long as the firm.
    _backends: Option<PostgresAndRedis>,
}

impl Firm {
    /// Uses SQLite and memory, unless the whole test run uses something else.
    pub fn new() -> Self {
        Self::on(PostgresAndRedis::from_env())
    }

    /// Uses its own PostgreSQL database and Redis.
    pub fn on_postgres_and_redis(purpose: &str) -> Self {
        Self::on(Some(PostgresAndRedis::start(purpose)))
    }

    fn on(backends: Option<PostgresAndRedis>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = model_file().to_str().unwrap().to_owned();
        let environment = [
            ("CHANCERY_API__LISTEN", "127.0.0.1:0"),
            ("CHANCERY_PORTAL__LISTEN", "127.0.0.1:0"),
            ("CHANCERY_AUTH__LISTEN", "127.0.0.1:0"),
            ("CHANCERY_OPS__LISTEN", "127.0.0.1:0"),
            ("CHANCERY_SECRETS__KEY", SECRETS_KEY),
            ("CHANCERY_MODELS__0__NAME", MODEL),
            ("CHANCERY_MODELS__0__FILE", &model),
        ];
        let mut environment: Vec<_> =
            environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let settings = backends.iter().flat_map(PostgresAndRedis::settings);
        environment.extend(settings.map(|(name, value)| (name.to_owned(), value)));
        Self { folder, environment, runner: Vec::new(), _backends: backends }
    }

    /// A firm whose own configuration file lists its models.
    pub fn without_a_model() -> Self {
        let mut firm = Self::new();
        firm.environment.retain(|(name, _)| !name.starts_with("CHANCERY_MODELS__"));
        firm
    }

    /// Removes a variable that every firm has.
    pub fn without(mut self, name: &str) -> Self {
        self.environment.retain(|(variable, _)| variable != name);
        self
    }

    /// Sets a variable; the last value wins.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// From here on, this program runs commands and servers; it gets them as its last arguments.
    pub fn run_by(&mut self, runner: &[&str]) {
        self.runner = runner.iter().map(|&argument| argument.to_owned()).collect();
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn database_url(&self) -> String {
        let configured = self.environment.iter().rfind(|(name, _)| name == "CHANCERY_DATABASE__URL");
        match configured {
            Some((_, url)) => url.clone(),
            None => format!("sqlite:{}", self.data().join("chancery.db").display()),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut line = self.runner.iter().map(String::as_str).chain([binary()]);
        let mut command = self.program(line.next().unwrap());
        command.args(line).args(arguments);
        command
    }

    /// Any program, in the firm's directory and with its settings.
    pub fn program(&self, program: &str) -> Command {
        let mut command = clean_command(program);
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    pub fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command that must succeed; returns its standard output.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "chancery {}: {errors}", arguments.join(" "));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must fail; returns its standard error.
    pub fn fail(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "chancery {} did not fail: {text}", arguments.join(" "));
        String::from_utf8(output.stderr).unwrap()
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.run(arguments)).unwrap()
    }

    /// Creates an account with a key and with limits that only rate-limit tests reach.
    pub fn account_with_key(&self, name: &str) -> String {
        self.limited_account_with_key(name, 1_000_000, 1_000_000_000)
    }

    pub fn limited_account_with_key(&self, name: &str, rpm: u32, tpm: u32) -> String {
        self.run(&["account", "create", name, "--rpm", &rpm.to_string(), "--tpm", &tpm.to_string()]);
        self.run(&["key", "create", "--account", name]).trim().to_owned()
    }

    /// An account with ample limits, and a key with limits of its own, given as options of `chancery key create`.
    pub fn account_with_limited_key(&self, name: &str, options: &[&str]) -> String {
        self.run(&["account", "create", name, "--rpm", "100000", "--tpm", "100000000"]);
        self.run(&[&["key", "create", "--account", name], options].concat()).trim().to_owned()
    }

    pub fn start(&self) -> Server {
        self.start_with(&[])
    }

    /// A demo fetches no model: a test downloads nothing.
    pub fn start_with(&self, options: &[&str]) -> Server {
        let no_fetch: &[&str] = if options.contains(&"--demo") { &["--no-fetch"] } else { &[] };
        Server::spawn(&mut self.command(&[&["serve"], options, no_fetch].concat()))
    }

    /// A demo that fetches its model for letters. The firm's settings must keep it off the network.
    pub fn start_demo_that_fetches(&self) -> Server {
        Server::spawn(&mut self.command(&["serve", "--demo", "--minimal"]))
    }

    /// Starts a server and kills it, possibly before it serves.
    pub async fn start_and_kill_after(&self, pause: Duration) {
        let mut command = self.command(&["serve"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let _killed_at_the_end = Running(child.unwrap());
        tokio::time::sleep(pause).await;
    }

    /// Starts a server from a shell that sets limits first.
    pub fn start_limited(&self, limits: &str) -> Server {
        Server::spawn(&mut self.limited(limits))
    }

    /// The same for a start that must fail; returns its standard error.
    pub fn fail_limited(&self, limits: &str) -> String {
        let output = self.limited(limits).output().unwrap();
        assert!(!output.status.success(), "it started all the same");
        String::from_utf8(output.stderr).unwrap()
    }

    fn limited(&self, limits: &str) -> Command {
        let mut command = self.program("bash");
        command.args(["-c", &format!("{limits}; exec '{}' serve", binary())]);
        command
    }
}

/// Collects everything from a pipe, forwards each line, and closes the pipe on request.
fn follow(pipe: impl Read + Send + 'static) -> (Followed, Receiver<String>) {
    let (sender, lines) = channel();
    let (collected, is_read) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicBool::new(true)));
    let (all, go_on) = (Arc::clone(&collected), Arc::clone(&is_read));
    std::thread::spawn(move || {
        let lines = BufReader::new(pipe).lines().map_while(Result::ok);
        for line in lines.take_while(|_| go_on.load(Ordering::SeqCst)) {
            all.lock().unwrap().push_str(&format!("{line}\n"));
            let _ = sender.send(line);
        }
    });
    (Followed { collected, is_read }, lines)
}

struct Followed {
    collected: Arc<Mutex<String>>,
    is_read: Arc<AtomicBool>,
}

impl Followed {
    fn text(&self) -> String {
        self.collected.lock().unwrap().clone()
    }
}

/// A process that is killed when its test ends.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub struct Server {
    child: Running,
    /// Each is empty if that service does not run.
    pub api: String,
    pub portal: String,
    pub auth: String,
    pub ops: String,
    stderr: Followed,
    stdout: Followed,
}

impl Server {
    fn spawn(command: &mut Command) -> Self {
        let mut child = Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let (stderr, lines) = follow(child.0.stderr.take().unwrap());
        let (stdout, _) = follow(child.0.stdout.take().unwrap());
        loop {
            let Ok(line) = lines.recv_timeout(START_TIMEOUT) else {
                panic!("the server did not start: {}", stderr.text());
            };
            let Ok(entry) = serde_json::from_str::<Value>(&line) else { continue };
            if entry["message"] == "ready" {
                let address =
                    |key: &str| entry[key].as_str().map_or_else(String::new, |at| format!("http://{at}"));
                let (api, ops) = (address("api_listen"), address("ops_listen"));
                // The host names that browsers use: cookies ignore ports.
                let portal = address("portal_listen").replace("127.0.0.1", "localhost");
                let auth = address("auth_listen");
                return Self { child, api, portal, auth, ops, stderr, stdout };
            }
        }
    }

    pub fn log(&self) -> String {
        self.stderr.text()
    }

    /// Waits until the log contains the text. The server's own thread writes the log, so a line may come after the reply to
    /// the request that caused it.
    pub fn wait_for_log(&self, text: &str) {
        const POLL_INTERVAL: Duration = Duration::from_millis(10);
        const MAX_POLLS: u32 = 3_000;
        for _ in 0..MAX_POLLS {
            if self.log().contains(text) {
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        panic!("not in the log: {text}\n{}", self.log());
    }

    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// From the next line on, the server logs to a closed pipe.
    pub fn stop_reading_the_log(&mut self) {
        self.stderr.is_read.store(false, Ordering::SeqCst);
    }

    /// Waits until the engine has started to generate.
    pub async fn generating(&self) {
        let before = self.metric("chancery_engine_steps_total").await;
        eventually("tokens are generated", Duration::from_secs(30), async || {
            self.metric("chancery_engine_steps_total").await >= before + 3
        })
        .await;
    }

    /// Returns the log lines of requests.
    pub fn logged_requests(&self) -> Vec<Value> {
        let log = self.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["request_id"].is_string()).collect()
    }

    /// `127.0.0.1:PORT`, for tests that use raw TCP.
    pub fn api_address(&self) -> &str {
        self.api.trim_start_matches("http://")
    }

    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Ignores a process that has already exited; its pid is not reused until it is waited for.
    pub fn signal_if_running(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child.0);
        let _ = rustix::process::kill_process(pid, signal);
    }

    /// Sends SIGTERM; the server must exit with code 0.
    pub fn end(&mut self) {
        self.signal(rustix::process::Signal::TERM);
        assert_eq!(self.wait(), Some(0), "{}", self.log());
    }

    /// Waits for the process to exit; returns its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        self.child.0.wait().unwrap().code()
    }

    pub async fn post(&self, path: &str, key: &str, body: &Value) -> Reply {
        let request = client().post(format!("{}{path}", self.api)).bearer_auth(key).json(body);
        Reply::read(request.send().await.unwrap()).await
    }

    pub async fn get(&self, path: &str, key: &str) -> Reply {
        Reply::read(client().get(format!("{}{path}", self.api)).bearer_auth(key).send().await.unwrap()).await
    }

    pub async fn generate(&self, key: &str, body: &Value) -> Reply {
        self.post("/v1/generate", key, body).await
    }

    /// Returns an integer counter or gauge; 0 if it does not exist yet.
    pub async fn metric(&self, name: &str) -> u64 {
        let text = client().get(format!("{}/metrics", self.ops)).send().await.unwrap().text().await.unwrap();
        let line = text.lines().find(|line| line.starts_with(name) && !line.starts_with('#'));
        line.and_then(|line| line.rsplit(' ').next()).map_or(0, |value| value.parse().unwrap())
    }
}

/// Each client has its own connections. It trusts no certificate: to read those of the machine takes 20 ms of CPU time in a
/// debug build.
pub fn client() -> reqwest::Client {
    let builder = chancery_http_client::client_builder().redirect(reqwest::redirect::Policy::default());
    builder.tls_certs_only([]).no_proxy().timeout(Duration::from_secs(120)).build().unwrap()
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: Value,
}

impl Reply {
    pub async fn read(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}, and not JSON: {text:?}"));
        Self { status, headers, body }
    }

    pub fn code(&self) -> &str {
        self.body["error"]["code"].as_str().unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn text(&self) -> &str {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body["output_text"].as_str().unwrap()
    }

    /// Input and output tokens.
    pub fn tokens(&self) -> (u64, u64) {
        assert_eq!(self.status, 200, "{}", self.body);
        let usage = &self.body["usage"];
        (usage["input_tokens"].as_u64().unwrap(), usage["output_tokens"].as_u64().unwrap())
    }
}

pub fn request(instructions: &str, input: &str, max_output_tokens: u64) -> Value {
    json!({"model": MODEL, "instructions": instructions, "input": input, "max_output_tokens": max_output_tokens})
}

/// Polls until the condition holds.
pub async fn eventually(what: &str, timeout: Duration, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::sleep(timeout);
    tokio::pin!(deadline);
    while !is_so().await {
        tokio::select! {
            () = &mut deadline => panic!("not within {timeout:?}: {what}"),
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
    }
}

pub fn file_mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}
