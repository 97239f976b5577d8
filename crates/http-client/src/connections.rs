//! Connections to one server, for requests that must cost little: HTTP/1.1 with keep-alive, straight on hyper. Used for upstream
//! servers; everything else uses `client_builder`. Deliberately has no redirects, no proxies, no cookies and no retries: a caller
//! decides whether a request may be sent twice.
//!
//! 1. A request takes the connection that was used last on its runtime, so that the others can expire, or opens one.
//! 2. A connection goes back when the body of its response has arrived completely. Dropping a response before that closes the
//!    connection at once, which tells the server to stop.
//! 3. A connection that the server has closed, or that was idle for too long, is never taken.
//! 4. Whoever waits for a response reads and writes the socket itself. A task for each connection would be woken by the request,
//!    and would wake whoever waits for each part of the response.

use crate::{OwnCertificates, error_chain};
use chancery_domain::Clock;
use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::{HeaderMap, Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use std::collections::VecDeque;
use std::error::Error;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::{self, Handle};
use tokio::task::coop::{consume_budget, unconstrained};
use tokio::time::timeout;
use tower_service::Service;

/// Of the kernel's own probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Nothing was sent.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The request may have been sent.
    #[error("{}", error_chain(.0))]
    Closed(hyper::Error),
}

/// Why the rest of a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("larger than {max_bytes} bytes")]
    TooLarge { max_bytes: usize },
    #[error("{}", error_chain(.0))]
    Failed(hyper::Error),
}

/// Opens connections. With TLS, certificates are checked against those of the machine.
#[derive(Clone)]
pub struct Connector {
    scheme: Scheme,
    connect_timeout: Duration,
}

#[derive(Clone)]
enum Scheme {
    Http(HttpConnector),
    Https(HttpsConnector<HttpConnector>),
}

impl Connector {
    pub fn http(connect_timeout: Duration) -> Self {
        Self { scheme: Scheme::Http(tcp_connector(connect_timeout)), connect_timeout }
    }

    /// Fails if the machine has no certificates of authorities.
    pub fn https(connect_timeout: Duration) -> Result<Self, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls_config = OwnCertificates::default().client_config(provider)?;
        let mut tcp = tcp_connector(connect_timeout);
        tcp.enforce_http(false);
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls_config).https_only().enable_http1();
        Ok(Self { scheme: Scheme::Https(builder.wrap_connector(tcp)), connect_timeout })
    }

    /// The time limit covers name resolution, the connection and the TLS handshake.
    async fn connect(&self, uri: Uri) -> Result<Connection, SendError> {
        let connecting = async {
            match self.scheme.clone() {
                Scheme::Http(connector) => open(connector, uri).await,
                Scheme::Https(connector) => open(connector, uri).await,
            }
        };
        match timeout(self.connect_timeout, connecting).await {
            Ok(connected) => connected.map_err(|error| SendError::Connect(error_chain(&*error))),
            Err(_) => {
                let limit_ms = self.connect_timeout.as_millis();
                Err(SendError::Connect(format!("no connection within {limit_ms} ms")))
            }
        }
    }
}

fn tcp_connector(connect_timeout: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    // Shared between the addresses of a name, so that one that does not answer leaves time for the next.
    tcp.set_connect_timeout(Some(connect_timeout));
    // A response may take minutes without a byte, and firewalls forget connections that are silent for long.
    tcp.set_keepalive(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp
}

async fn open<C>(mut connector: C, uri: Uri) -> Result<Connection, Box<dyn Error + Send + Sync>>
where
    C: Service<Uri>,
    C::Response: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    C::Error: Into<Box<dyn Error + Send + Sync>>,
{
    poll_fn(|context| connector.poll_ready(context)).await.map_err(Into::into)?;
    let io = connector.call(uri).await.map_err(Into::into)?;
    let (sender, connection) = Builder::new().handshake(io).await?;
    let socket = Socket { driver: Some(Box::pin(connection)) };
    Ok(Connection { sender, socket, runtime: Handle::current().id() })
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    socket: Socket,
    /// The runtime that the socket belongs to. Waking a task of another one takes longer.
    runtime: runtime::Id,
}

/// Dropping it closes the socket, also in the middle of a response.
struct Socket {
    /// Reads and writes while it is polled; `None` once the socket is closed. Its result is also that of the request that runs on it.
    driver: Option<Pin<Box<dyn Future<Output = hyper::Result<()>> + Send>>>,
}

impl Socket {
    /// Completes with what `poll` waits for, which only the driver can bring about.
    async fn drive<T>(&mut self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
        // The one point where this yields to other tasks: nothing below may be pending for that reason, because it would not wake.
        consume_budget().await;
        let driving = poll_fn(|context| {
            // Both sides of the connection are here, so they need not wake each other: each is polled after the other has changed.
            // What wakes this task is the socket, and that only once there is nothing left to do.
            let mut no_wake = Context::from_waker(Waker::noop());
            self.advance(&mut no_wake);
            if let Poll::Ready(done) = poll(&mut no_wake) {
                return Poll::Ready(done);
            }
            self.advance(context);
            poll(&mut no_wake)
        });
        unconstrained(driving).await
    }

    fn advance(&mut self, context: &mut Context<'_>) {
        if let Some(driver) = &mut self.driver
            && driver.as_mut().poll(context).is_ready()
        {
            self.driver = None;
        }
    }
}

impl Connection {
    /// Notices what has happened since it was used: the last response has ended, or the server has closed the connection. From now
    /// on it wakes nobody.
    fn update_idle(&mut self) {
        self.socket.advance(&mut Context::from_waker(Waker::noop()));
    }
}

struct IdleConnection {
    connection: Connection,
    since: Instant,
}

/// The connections to one server.
pub struct Connections {
    connector: Connector,
    /// Scheme, host and port.
    uri: Uri,
    idle_timeout: Duration,
    clock: Arc<dyn Clock>,
    /// The one that was used last is at the back.
    idle: Mutex<VecDeque<IdleConnection>>,
}

impl Connections {
    pub fn new(connector: Connector, uri: Uri, idle_timeout: Duration, clock: Arc<dyn Clock>) -> Self {
        Self { connector, uri, idle_timeout, clock, idle: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<IdleConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request whose URI is a path and whose headers name the host, and returns the head of the response.
    pub async fn send(self: &Arc<Self>, request: Request<Full<Bytes>>) -> Result<ServerResponse, SendError> {
        match self.take_idle() {
            Some(connection) => self.exchange(connection, request).await,
            None => self.send_on_new_connection(request).await,
        }
    }

    /// The same on a new connection, because the idle ones may all have been closed by the server.
    pub async fn send_on_new_connection(
        self: &Arc<Self>,
        request: Request<Full<Bytes>>,
    ) -> Result<ServerResponse, SendError> {
        // Boxed, because it is rare and large.
        let connection = Box::pin(self.connector.connect(self.uri.clone())).await?;
        self.exchange(connection, request).await
    }

    async fn exchange(
        self: &Arc<Self>,
        mut connection: Connection,
        request: Request<Full<Bytes>>,
    ) -> Result<ServerResponse, SendError> {
        let mut receiving = pin!(connection.sender.send_request(request));
        let response = connection.socket.drive(|context| receiving.as_mut().poll(context)).await;
        let response = response.map_err(SendError::Closed)?;
        let (head, body) = response.into_parts();
        Ok(ServerResponse {
            status: head.status,
            headers: head.headers,
            body,
            connection: Some(connection),
            connections: Arc::clone(self),
        })
    }

    fn take_idle(&self) -> Option<Connection> {
        let now = self.clock.monotonic();
        let mut idle = self.lock();
        let is_expired =
            |idle: &IdleConnection| now.saturating_duration_since(idle.since) >= self.idle_timeout;
        while idle.front().is_some_and(is_expired) {
            idle.pop_front();
        }
        let runtime = Handle::current().id();
        for index in (0..idle.len()).rev() {
            let connection = &mut idle[index].connection;
            if connection.runtime != runtime {
                continue;
            }
            connection.update_idle();
            if connection.sender.is_closed() {
                idle.remove(index);
            } else if connection.sender.is_ready() {
                return idle.remove(index).map(|idle| idle.connection);
            }
            // Otherwise the end of its last response has not arrived yet.
        }
        None
    }

    fn put_back(&self, mut connection: Connection) {
        connection.update_idle();
        if !connection.sender.is_closed() {
            let since = self.clock.monotonic();
            self.lock().push_back(IdleConnection { connection, since });
        }
    }
}

/// A response whose head has arrived.
pub struct ServerResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    /// `None` once it has gone back.
    connection: Option<Connection>,
    connections: Arc<Connections>,
}

impl ServerResponse {
    /// Returns the next bytes of the body, or `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, hyper::Error> {
        while let Some(connection) = &mut self.connection {
            let body = &mut self.body;
            let frame = connection.socket.drive(|context| Pin::new(&mut *body).poll_frame(context)).await;
            let frame = frame.transpose()?;
            // The declared length says so before the connection is polled again.
            if frame.is_none() || self.body.is_end_stream() {
                self.put_back_connection();
            }
            // Anything without data is a trailer.
            if let Some(Ok(bytes)) = frame.map(Frame::into_data)
                && !bytes.is_empty()
            {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    fn put_back_connection(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.connections.put_back(connection);
        }
    }

    /// Fails as soon as the body declares or reaches a larger size, before that much is in memory. A body that arrives at once is
    /// not copied.
    pub async fn read_body(&mut self, max_bytes: usize) -> Result<Bytes, ReadError> {
        let too_large = ReadError::TooLarge { max_bytes };
        let declared = self.body.size_hint().lower();
        if declared > max_bytes as u64 {
            return Err(too_large);
        }
        let Some(first) = self.chunk().await.map_err(ReadError::Failed)? else { return Ok(Bytes::new()) };
        if first.len() > max_bytes {
            return Err(too_large);
        }
        let Some(second) = self.chunk().await.map_err(ReadError::Failed)? else { return Ok(first) };
        let mut body =
            Vec::with_capacity(usize::try_from(declared).unwrap_or(0).max(first.len() + second.len()));
        body.extend_from_slice(&first);
        let mut next = Some(second);
        while let Some(chunk) = next {
            if body.len() + chunk.len() > max_bytes {
                return Err(too_large);
            }
            body.extend_from_slice(&chunk);
            next = self.chunk().await.map_err(ReadError::Failed)?;
        }
        Ok(body.into())
    }
}

#[cfg(test)]
mod tests;
