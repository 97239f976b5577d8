//! One HTTP/1.1 connection that is reused, and requests that are built once: the load generator shares the machine with what it
//! measures, so it must be cheap.

use crate::Outcome;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use tokio::net::TcpStream;

/// A POST request with JSON, which can be sent many times.
#[derive(Clone, Debug)]
pub struct JsonPost {
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Bytes,
}

impl JsonPost {
    pub fn new(address: SocketAddr, path: &str, body: impl Into<Bytes>) -> Outcome<Self> {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, address.to_string().parse()?);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Self { uri: path.parse()?, headers, body: body.into() })
    }

    pub fn with_bearer(self, key: &str) -> Outcome<Self> {
        self.with_header(AUTHORIZATION, &format!("Bearer {key}"))
    }

    pub fn with_header(mut self, name: HeaderName, value: &str) -> Outcome<Self> {
        self.headers.insert(name, value.parse()?);
        Ok(self)
    }
}

pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Outcome<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    /// Sends a request and reads the whole answer, streamed or not.
    pub async fn send(&mut self, post: &JsonPost) -> Outcome<Answer> {
        let mut request = Request::new(Full::new(post.body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = post.uri.clone();
        *request.headers_mut() = post.headers.clone();
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status().as_u16();
        Ok(Answer { status, body: response.into_body().collect().await?.to_bytes() })
    }
}
