//! A server in a process of its own, and one connection to it.

use chancery_domain::{Clock, SystemClock};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::net::TcpStream;

/// Opening a database of 100,000 clients takes a moment.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How `/proc` counts CPU time: Linux has had 100 ticks a second for programs since ever.
const TICK: Duration = Duration::from_millis(10);

pub struct Server {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Server {
    /// The real binary, with the portal alone.
    pub async fn chancery(binary: &Path, database_url: &str) -> Self {
        let mut command = Command::new(binary);
        command.args(["serve", "--only", "portal"]).env("CHANCERY_DATABASE__URL", database_url);
        Self::start(command, "CHANCERY_PORTAL__LISTEN").await
    }

    /// This program as the bare handler.
    pub async fn bare(database_url: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--bare", database_url]);
        Self::start(command, super::bare::LISTEN).await
    }

    async fn start(mut command: Command, listen: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = free_address();
        command
            .env(listen, address.to_string())
            .env("CHANCERY_OPS__LISTEN", "127.0.0.1:0")
            .env("CHANCERY_DATA", folder.path().join("data"))
            .env("RUST_LOG", "warn")
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let server = Self { child, address, _folder: folder };
        let deadline = SystemClock.monotonic() + START_TIMEOUT;
        while TcpStream::connect(server.address).await.is_err() {
            assert!(SystemClock.monotonic() < deadline, "the server does not start");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server
    }

    /// CPU time of the server, in all its threads.
    pub fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The name of the program, in brackets, may have blanks; what is counted comes after it.
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u32 = fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap();
        TICK * ticks
    }

    pub async fn connect(&self) -> Connection {
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Connection { sender, host: format!("localhost:{}", self.address.port()) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

pub struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    host: String,
}

pub struct Answer {
    pub status: u16,
    pub body: Bytes,
}

impl Connection {
    pub async fn get(&mut self, path: &str, cookie: &str, accept: &str) -> Answer {
        let request = Request::get(path)
            .header(header::HOST, &self.host)
            .header(header::COOKIE, cookie)
            .header(header::ACCEPT, accept)
            .body(Empty::new())
            .unwrap();
        self.sender.ready().await.unwrap();
        let response = self.sender.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        Answer { status, body: response.into_body().collect().await.unwrap().to_bytes() }
    }
}
