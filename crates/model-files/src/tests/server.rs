//! An HTTP server whose replies a test chooses. It closes the connection after each reply, so that a body that is shorter
//! than declared is a broken connection.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug)]
pub struct Received {
    pub path: String,
    headers: Vec<(String, String)>,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self { status, headers: vec![("content-length", "0".to_owned())], body: Vec::new() }
    }

    pub fn redirect(to: &str) -> Self {
        Self::status(302).with("location", to)
    }

    /// The whole file.
    pub fn whole(bytes: &[u8]) -> Self {
        let headers = vec![("content-length", bytes.len().to_string())];
        Self { status: 200, headers, body: bytes.to_vec() }
    }

    /// Declares no length; the end of the connection is the end of the body.
    pub fn without_length(bytes: &[u8]) -> Self {
        Self { status: 200, headers: Vec::new(), body: bytes.to_vec() }
    }

    /// What a server that has ranges sends: the rest of the file if it still has this ETag.
    pub fn ranged(request: &Received, bytes: &[u8], etag: &str) -> Self {
        match request.header("if-range").is_none_or(|known| known == etag) {
            true => Self::ranged_always(request, bytes, etag),
            false => Self::whole(bytes).with("etag", etag),
        }
    }

    /// The same from a server that ignores `If-Range`.
    pub fn ranged_always(request: &Received, bytes: &[u8], etag: &str) -> Self {
        let start = request
            .header("range")
            .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
        let reply = match start {
            Some(start) => {
                let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
                Self { status: 206, ..Self::whole(&bytes[start..]) }.with("content-range", &range)
            }
            None => Self::whole(bytes),
        };
        reply.with("etag", etag)
    }

    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// Breaks off in the middle of the body.
    pub fn cut_to(mut self, len: usize) -> Self {
        self.body.truncate(len);
        self
    }
}

pub struct Server {
    pub url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Server {
    /// `reply` gets each request and how many came before it.
    pub fn start(reply: impl Fn(&Received, usize) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let received: Arc<Mutex<Vec<Received>>> = Arc::default();
        let requests = Arc::clone(&received);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(request) = read_request(&stream) else { continue };
                let earlier = {
                    let mut requests = requests.lock().unwrap();
                    requests.push(request.clone());
                    requests.len() - 1
                };
                send(stream, &reply(&request, earlier));
            }
        });
        Self { url, received }
    }

    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

fn read_request(stream: &TcpStream) -> Option<Received> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let headers = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    });
    Some(Received { path, headers: headers.collect() })
}

/// The client may hang up first.
fn send(mut stream: TcpStream, reply: &Reply) {
    let headers: String = reply.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("HTTP/1.1 {} Reply\r\nconnection: close\r\n{headers}\r\n", reply.status);
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&reply.body));
}
