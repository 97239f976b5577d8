//! A test proxy between the binary and its dependencies that can stall or cut every connection.

use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Through,
    /// Connections stay open but stall; nothing is lost when traffic resumes.
    Silent,
    /// Existing connections are closed, and new ones are closed at once.
    Gone,
}

pub struct Proxy {
    address: String,
    mode: watch::Sender<Mode>,
    server: Arc<Mutex<String>>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy in front of the URL's server.
    pub async fn before(url: &str) -> (Self, String) {
        let server = Arc::new(Mutex::new(host_and_port(url).to_owned()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (mode, modes) = watch::channel(Mode::Through);
        let task = tokio::spawn({
            let server = Arc::clone(&server);
            async move {
                while let Ok((caller, _)) = listener.accept().await {
                    let server = server.lock().unwrap().clone();
                    tokio::spawn(connect(caller, server, modes.clone()));
                }
            }
        });
        let through = url.replacen(host_and_port(url), &address, 1);
        (Self { address, mode, server, task }, through)
    }

    /// New connections lead to the server of this URL.
    pub fn lead_to(&self, url: &str) {
        *self.server.lock().unwrap() = host_and_port(url).to_owned();
    }

    /// The new mode applies to anything sent after this returns.
    pub fn set(&self, mode: Mode) {
        println!("proxy {}: {mode:?}", self.address);
        self.mode.send_replace(mode);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn host_and_port(url: &str) -> &str {
    let rest = url.split_once("://").unwrap().1;
    let authority = rest.split('/').next().unwrap();
    authority.rsplit('@').next().unwrap()
}

async fn connect(caller: TcpStream, server: String, modes: watch::Receiver<Mode>) {
    if *modes.borrow() == Mode::Gone {
        return;
    }
    let Ok(server) = TcpStream::connect(&server).await else { return };
    let _ = (caller.set_nodelay(true), server.set_nodelay(true));
    let ((from_caller, to_caller), (from_server, to_server)) = (caller.into_split(), server.into_split());
    tokio::select! {
        () = pass(from_caller, to_server, modes.clone()) => {}
        () = pass(from_server, to_caller, modes) => {}
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut modes: watch::Receiver<Mode>) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            mode = modes.wait_for(|mode| *mode == Mode::Gone) => {
                drop(mode);
                return;
            }
        };
        let Ok(length @ 1..) = read else { return };
        let Ok(mode) = modes.wait_for(|mode| *mode != Mode::Silent).await.map(|mode| *mode) else { return };
        if mode == Mode::Gone || to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
