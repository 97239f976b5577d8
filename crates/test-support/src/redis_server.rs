//! A Redis server per test, which the test can kill, suspend and restart. It loses nothing when it is killed: every write is on
//! disk before its response.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub struct RedisServer {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl RedisServer {
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = spawn(port, &folder);
        let server = Self { child, port, folder };
        server.wait_until_ready();
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn start_again(&mut self) {
        self.child = spawn(self.port, &self.folder);
        self.wait_until_ready();
    }

    /// As one without persistence starts again: it has lost everything.
    pub fn start_again_empty(&mut self) {
        std::fs::remove_dir_all(self.folder.path().join("appendonlydir")).unwrap();
        self.start_again();
    }

    /// Suspends the process: connections stay open, and nothing is answered until `go_on`.
    pub fn hold(&mut self) {
        self.signal(rustix::process::Signal::STOP);
    }

    pub fn go_on(&mut self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Runs a command with `redis-cli` and returns its output.
    pub fn command(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(arguments).output();
        String::from_utf8(output.expect("redis-cli is installed by `make test`").stdout).unwrap()
    }

    fn wait_until_ready(&self) {
        for _ in 0..600 {
            if self.command(&["ping"]).trim() == "PONG" {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("Redis does not answer on port {}", self.port);
    }
}

fn spawn(port: u16, folder: &tempfile::TempDir) -> Child {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--appendonly", "yes", "--appendfsync", "always", "--dir"]).arg(folder.path());
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    spawned.expect("redis-server is installed by `make test`")
}

/// The server does not outlive its test.
impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
