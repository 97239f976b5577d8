//! The portal in its own process, one connection to it, and what a page costs there.

use crate::people::SignedIn;
use chancery_domain::{Clock, SystemClock};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use tokio::net::TcpStream;

pub const SECRETS_KEY: &str = "a2V5IG9mIHRoZSBkYXRhYmFzZXMgaW4gdGVzdHMuLi4=";

/// Opening a large database takes a moment.
const START_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Server {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Server {
    /// Starts the real binary with only the portal.
    pub async fn chancery(binary: &Path, database_url: &str) -> Self {
        // It runs in its own directory, which holds its data; the binary's path may be relative to ours.
        let mut command = Command::new(binary.canonicalize().unwrap());
        command.args(["serve", "--only", "portal"]).env("CHANCERY_DATABASE__URL", database_url);
        // One person sends all requests, as fast as they are answered.
        command.env("CHANCERY_PORTAL__PERSON_RPM", u32::MAX.to_string());
        Self::start(command, "CHANCERY_PORTAL__LISTEN").await
    }

    /// Starts any program that listens on the address in this variable.
    pub async fn start(mut command: Command, listen: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = free_address();
        // Logging is part of the cost of a request.
        let log = folder.path().join("log");
        command
            .env(listen, address.to_string())
            .env("CHANCERY_OPS__LISTEN", "127.0.0.1:0")
            // The same for all servers of a database.
            .env("CHANCERY_SECRETS__KEY", SECRETS_KEY)
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap());
        let child = command.spawn().unwrap();
        let server = Self { child, address, _folder: folder };
        let deadline = SystemClock.monotonic() + START_TIMEOUT;
        while TcpStream::connect(server.address).await.is_err() {
            let is_late = SystemClock.monotonic() >= deadline;
            assert!(!is_late, "the server does not start: {}", std::fs::read_to_string(&log).unwrap());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server
    }

    /// CPU time of all threads of the server.
    pub fn cpu_time(&self) -> Duration {
        crate::cpu::of_process(self.child.id()).unwrap()
    }

    pub fn address(&self) -> SocketAddr {
        self.address
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

/// A page to measure, and the session that requests it.
pub struct Page {
    pub what: &'static str,
    pub path: String,
    pub session: SignedIn,
    pub accept: &'static str,
}

pub const HTML: &str = "text/html";
pub const JSON: &str = "application/json";

/// Unmeasured requests: pools fill, statements are prepared, pages are read from disk.
const WARM_UP: u32 = 40;

pub struct Figure {
    pub median: Duration,
    /// CPU time of the server per request.
    pub cpu: Duration,
}

pub async fn figure(server: &Server, page: &Page, requests: u32) -> Figure {
    let mut connection = server.connect().await;
    for _ in 0..WARM_UP {
        let PageResponse { status, body } =
            connection.get(&page.path, &page.session.cookie, page.accept).await;
        assert_eq!(status, 200, "{}: {}", page.path, String::from_utf8_lossy(&body));
    }
    let cpu_before = server.cpu_time();
    let mut times = Vec::with_capacity(requests as usize);
    for _ in 0..requests {
        let began = SystemClock.monotonic();
        let response = connection.get(&page.path, &page.session.cookie, page.accept).await;
        times.push(SystemClock.monotonic() - began);
        assert_eq!(response.status, 200, "{}", page.path);
    }
    times.sort_unstable();
    Figure { median: times[times.len() / 2], cpu: (server.cpu_time() - cpu_before) / requests }
}

/// Something that is measured at every size.
#[derive(Clone, Copy)]
pub struct Measured {
    pub what: &'static str,
    /// How many times as expensive it may be at the largest size as at the smallest. `None`: it is known to grow.
    pub aim: Option<u32>,
}

/// Prints a row for each, with a column per size and the ratio of the last to the first. Returns messages for those that miss
/// their target.
#[must_use = "a program whose aims are not met ends with 1"]
pub fn print_figures(measured: &[Measured], sizes: &[String], figures: &[Vec<Figure>]) -> Vec<String> {
    print!("{:<24}", "");
    sizes.iter().for_each(|size| print!("{size:>24}"));
    println!("{:>18}{:>10}", "last to first", "aim");
    let mut beyond = Vec::new();
    for (index, Measured { what, aim }) in measured.iter().enumerate() {
        print!("{what:<24}");
        for figures in figures {
            let Figure { median, cpu } = &figures[index];
            print!("{:>24}", format!("{:.2} ms, CPU {:.2}", in_ms(*median), in_ms(*cpu)));
        }
        if let (Some(first), Some(last)) = (figures.first(), figures.last()) {
            let ratio = last[index].median.as_secs_f64() / first[index].median.as_secs_f64();
            let aimed = aim.map_or("none".to_owned(), |aim| format!("{aim} x"));
            print!("{:>18}{aimed:>10}", format!("{ratio:.2} x"));
            if let Some(aim) = aim.filter(|aim| ratio > f64::from(*aim)) {
                beyond.push(format!("{what}: {ratio:.2} x, and the aim is at most {aim} x"));
            }
        }
        println!();
    }
    beyond
}

/// Returns exit code 1 and prints the names if anything missed its target.
pub fn exit_code(beyond: &[String]) -> ExitCode {
    if beyond.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!();
    beyond.iter().for_each(|page| println!("BEYOND ITS AIM: {page}"));
    ExitCode::FAILURE
}

pub fn in_ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

pub struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    host: String,
}

pub struct PageResponse {
    pub status: u16,
    pub body: Bytes,
}

impl Connection {
    pub async fn get(&mut self, path: &str, cookie: &str, accept: &str) -> PageResponse {
        self.send(Request::get(path).header(header::COOKIE, cookie).header(header::ACCEPT, accept)).await
    }

    /// Posts an empty form.
    pub async fn post(&mut self, path: &str, cookie: &str) -> PageResponse {
        let form = "application/x-www-form-urlencoded";
        let request = Request::post(path).header(header::COOKIE, cookie).header(header::ACCEPT, HTML);
        self.send(request.header(header::CONTENT_TYPE, form)).await
    }

    async fn send(&mut self, request: hyper::http::request::Builder) -> PageResponse {
        let request = request.header(header::HOST, &self.host).body(Empty::new()).unwrap();
        self.sender.ready().await.unwrap();
        let response = self.sender.send_request(request).await.unwrap();
        let status = response.status().as_u16();
        PageResponse { status, body: response.into_body().collect().await.unwrap().to_bytes() }
    }
}
