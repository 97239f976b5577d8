//! Serves one connection: the TLS handshake, if the listener has a certificate, then HTTP/1.1, or HTTP/2 if the peer chose it in the
//! handshake. If the peer closes its side, its connection is dropped together with the requests that ran on it. A reset stream is
//! the same for its request alone.

use crate::connections::ConnectionSlot;
use crate::listener::ShutdownTokens;
use crate::reply_io::{MinReadRate, Replies, ReplyStream, TrackedBody};
use crate::reply_watch::StreamExecutor;
use crate::{ACME_CHALLENGE, HTTP_2};
use axum::Router;
use axum::extract::ConnectInfo;
use axum::http::Uri;
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HOST, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

/// How long a TLS handshake may take. Slow networks need a second or two.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests that one HTTP/2 connection may have at a time. Browsers and most clients expect 100.
const MAX_STREAMS: u32 = 100;
/// What the HTTP library holds of one reply on HTTP/2 beyond the piece that it is about to send.
const STREAM_BUFFER_BYTES: usize = 16 * 1024;
/// A peer that is gone without a word is noticed by an unanswered ping.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a peer may take to read the end of the last replies on an HTTP/2 connection that closes: at the minimum rate, that is
/// all that the HTTP library holds.
const LINGER_TIMEOUT: Duration = Duration::from_secs(30);

/// What all connections of a listener share.
pub struct ConnectionSettings {
    pub router: Router,
    /// `None`: clear text.
    pub tls: Option<TlsAcceptor>,
    /// How long a request's head may take to arrive; also the idle timeout.
    pub head_timeout: Duration,
    pub write_stall_timeout: Duration,
    pub min_read_rate: MinReadRate,
    /// Permits for the requests of HTTP/2 connections beyond their first. They bound what a listener runs: every request may need a
    /// descriptor for a model server.
    pub extra_streams: Arc<Semaphore>,
    /// Has a token for each request from its head to the end of its reply.
    pub running: TaskTracker,
    pub shutdown_tokens: ShutdownTokens,
}

impl ConnectionSettings {
    pub async fn serve(self: Arc<Self>, stream: TcpStream, peer: SocketAddr, slot: ConnectionSlot) {
        let slot = Arc::new(slot);
        let hang_up = hang_up(&stream);
        let replies = Replies::new(Arc::clone(&slot), self.running.clone());
        let stream = ReplyStream::new(stream, self.write_stall_timeout, self.min_read_rate, replies.clone());
        tokio::select! {
            () = self.handshake_and_serve(stream, peer, replies) => {}
            () = hang_up => {}
            // It is idle, and a newcomer needs the slot.
            () = slot.must_close() => {}
        }
    }

    async fn handshake_and_serve(&self, stream: ReplyStream, peer: SocketAddr, replies: Replies) {
        let Some(tls) = &self.tls else { return self.serve_http1(stream, peer, replies).await };
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream));
        let stream = tokio::select! {
            // Scanners and browsers that distrust the certificate end up here; there is no request to log.
            outcome = handshake => match outcome {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => {
                    tracing::debug!(%peer, %error, "TLS handshake failed");
                    return;
                }
                Err(_) => {
                    tracing::debug!(%peer, "TLS handshake timed out");
                    return;
                }
            },
            () = self.shutdown_tokens.closing.cancelled() => return,
        };
        match stream.get_ref().1.alpn_protocol() {
            Some(HTTP_2) => self.serve_http2(stream, peer, &replies).await,
            // The authority has seen the certificate, which is all it wanted.
            Some(ACME_CHALLENGE) => {}
            _ => self.serve_http1(stream, peer, replies).await,
        }
    }

    async fn serve_http1<S>(&self, stream: S, peer: SocketAddr, replies: Replies)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let service = self.service(peer, replies);
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.head_timeout);
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            // The peer broke the connection; the request's own log line has what matters.
            _ = connection.as_mut() => return,
            () = self.shutdown_tokens.closing.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }

    async fn serve_http2<S>(&self, stream: S, peer: SocketAddr, replies: &Replies)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let MinReadRate { window, bytes_per_window } = self.min_read_rate;
        // Half, because replies are counted in pieces.
        let mut http = http2::Builder::new(StreamExecutor { window, min_bytes: bytes_per_window / 2 });
        http.timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_send_buf_size(STREAM_BUFFER_BYTES)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let service = self.service(peer, replies.clone());
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            // The peer broke the connection; the requests' own log lines have what matters.
            _ = connection.as_mut() => return,
            () = self.no_more_streams(replies) => connection.as_mut().graceful_shutdown(),
        }
        tokio::select! {
            _ = connection => {}
            // A request that was on its way when the connection began to close is served too.
            () = replies.idle_for(LINGER_TIMEOUT) => {}
        }
    }

    /// Completes when an HTTP/2 connection must take no more requests: it was idle for too long, or the server closes. A server that
    /// leaves serves the first request of a new connection, because its client cannot send it elsewhere.
    async fn no_more_streams(&self, replies: &Replies) {
        let ShutdownTokens { leaving, closing } = &self.shutdown_tokens;
        let left = async {
            leaving.cancelled().await;
            let _ = replies.running().wait_for(|_| replies.has_begun()).await;
        };
        tokio::select! {
            () = replies.idle_for(self.head_timeout) => {}
            () = left => {}
            () = closing.cancelled() => {}
        }
    }

    /// From `leaving` on, each reply on HTTP/1.1 closes its connection, so that no client sends another request on one that is about
    /// to close.
    fn service(
        &self,
        peer: SocketAddr,
        replies: Replies,
    ) -> impl Service<
        Request<Incoming>,
        Response = Response<TrackedBody>,
        Error = Infallible,
        Future: Send + 'static,
    > + Send
    + use<> {
        let router = TowerToHyperService::new(self.router.clone());
        let leaving = self.shutdown_tokens.leaving.clone();
        let extra_streams = Arc::clone(&self.extra_streams);
        service_fn(move |mut request: Request<Incoming>| {
            let is_http2 = request.version() == Version::HTTP_2;
            let mut reply = replies.begin(request.version(), request.body().is_end_stream());
            request.extensions_mut().insert(ConnectInfo(peer));
            if is_http2 {
                to_origin_form(&mut request);
            }
            let request = request.map(|body| reply.arriving(body));
            let (router, leaving, extra_streams) =
                (router.clone(), leaving.clone(), Arc::clone(&extra_streams));
            async move {
                if !reply.is_alone() {
                    reply.wait_for_permits(extra_streams).await;
                }
                let mut response = router.call(request).await?;
                if leaving.is_cancelled() && !is_http2 {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(reply.track(response))
            }
        })
    }
}

/// HTTP/2 has the host in the URI. Handlers expect it where HTTP/1.1 has it, and find nothing but the path in the URI.
fn to_origin_form<B>(request: &mut Request<B>) {
    let uri = std::mem::take(request.uri_mut()).into_parts();
    let host = uri.authority.and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host);
    }
    *request.uri_mut() = uri.path_and_query.map(Uri::from).unwrap_or_default();
}

/// Completes when the peer closes its side. The HTTP library notices that only while it waits for bytes. Unread bytes behind a
/// request, such as a stray line end, would hide it, and the request would keep running for no one.
fn hang_up(stream: &TcpStream) -> impl Future<Output = ()> + Send + use<> {
    let twin = stream.as_fd().try_clone_to_owned();
    let twin = twin.and_then(|socket| TcpStream::from_std(std::net::TcpStream::from(socket)));
    async move {
        // If no descriptor is free, rely on the library's own detection.
        let Ok(socket) = twin else { return std::future::pending().await };
        while let Ok(state) = socket.ready(Interest::READABLE).await {
            if state.is_read_closed() {
                return;
            }
            // Reads nothing: this clears the readiness state, so that the next `ready` waits for a new event.
            let _ = socket.try_io(Interest::READABLE, || Err::<(), _>(ErrorKind::WouldBlock.into()));
        }
    }
}
