//! One HTTP exchange per connection: enough for a benchmark on loopback, and cheap, because the load generator shares the machine
//! with what it measures.

use crate::Outcome;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use tokio::net::TcpStream;

pub async fn get(address: SocketAddr, path: &str) -> Outcome<Response<Incoming>> {
    exchange(address, Request::get(path).body(Full::default())?).await
}

pub async fn post_json(
    address: SocketAddr,
    path: &str,
    bearer: Option<&str>,
    body: &serde_json::Value,
) -> Outcome<Response<Incoming>> {
    let mut request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    if let Some(key) = bearer {
        request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
    }
    exchange(address, request.body(Full::new(Bytes::from(body.to_string())))?).await
}

async fn exchange(address: SocketAddr, mut request: Request<Full<Bytes>>) -> Outcome<Response<Incoming>> {
    request.headers_mut().insert(header::HOST, address.to_string().parse()?);
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

/// Reads the whole body, for replies that do not stream.
pub async fn read_to_end(response: Response<Incoming>) -> Outcome<Bytes> {
    Ok(response.into_body().collect().await?.to_bytes())
}

/// The `data:` lines of a Server-Sent Events stream.
pub struct Events {
    body: Incoming,
    pending: Vec<u8>,
}

impl Events {
    pub fn of(response: Response<Incoming>) -> Self {
        Self { body: response.into_body(), pending: Vec::new() }
    }

    /// Returns the next event's data, or `None` at the end of the stream.
    pub async fn next(&mut self) -> Outcome<Option<Vec<u8>>> {
        loop {
            while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                if let Some(data) = line.strip_prefix(b"data:") {
                    return Ok(Some(data.trim_ascii().to_vec()));
                }
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(bytes) = frame?.into_data() {
                        self.pending.extend_from_slice(&bytes);
                    }
                }
                None => return Ok(None),
            }
        }
    }
}
