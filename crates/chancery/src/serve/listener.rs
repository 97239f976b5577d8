//! Accepts connections and serves a router on them, with TCP_NODELAY. The time to receive a request's head, the time a peer may
//! stall while receiving, and the number of connections are all bounded. Shutdown lets running replies finish. If a peer closes
//! its side, its connection is dropped together with the request that ran on it.

use super::peers::Peers;
use super::shutdown::ShutdownTokens;
use anyhow::Context;
use axum::Router;
use axum::extract::ConnectInfo;
use chancery_web::TrustedProxies;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_io_timeout::TimeoutStream;

/// How long an API request's head may take to arrive; also the idle timeout of API connections.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for browsers, which simply reconnect. It is short so that idle connections cannot pile up.
const BROWSER_HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// One peer may use one part in this many of a listener's browser connections.
const PEER_SHARE: usize = 8;
/// After closing begins, how long running replies may take to be sent.
const LAST_REPLIES_TIMEOUT: Duration = Duration::from_secs(3);
/// If a peer reads nothing for this long while bytes are waiting, the connection is closed.
const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after accept fails for lack of resources, so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub struct Listener {
    tcp: TcpListener,
    address: SocketAddr,
    max_connections: usize,
    head_timeout: Duration,
    write_stall_timeout: Duration,
    peers: Option<Peers>,
}

impl Listener {
    /// `key` is the setting that names the address, for the error message if it cannot be bound. Connections past
    /// `max_connections` wait in the operating system's queue.
    pub async fn bind(address: SocketAddr, key: &str, max_connections: usize) -> anyhow::Result<Self> {
        let variable = format!("CHANCERY_{}", key.to_uppercase().replace('.', "__"));
        let tcp = TcpListener::bind(address).await.map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => anyhow::anyhow!(
                "{key}: {address} is already in use; stop the other program, or set {key} (or {variable}) to another address"
            ),
            _ => anyhow::anyhow!("{key}: cannot listen on {address} ({error}); set {key} (or {variable}) to another address"),
        })?;
        let address = tcp.local_addr().context("a bound listener has an address")?;
        Ok(Self {
            tcp,
            address,
            max_connections,
            head_timeout: HEAD_TIMEOUT,
            write_stall_timeout: WRITE_STALL_TIMEOUT,
            peers: None,
        })
    }

    /// For pages, which are open to strangers: limits the connections per peer and shortens the idle timeout.
    #[must_use]
    pub fn for_browsers(mut self, trusted_proxies: &TrustedProxies) -> Self {
        self.head_timeout = BROWSER_HEAD_TIMEOUT;
        self.peers = Some(Peers::new((self.max_connections / PEER_SHARE).max(1), trusted_proxies.clone()));
        self
    }

    /// Returns the bound address; the configuration may leave the port to the system.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs until `closing`, then lets open connections finish what they are sending. From `leaving` on, each reply closes its
    /// connection, so that no client sends another request on one that is about to close.
    pub async fn serve(self, router: Router, shutdown_tokens: ShutdownTokens) {
        let connections = GracefulShutdown::new();
        let slots = Arc::new(Semaphore::new(self.max_connections));
        loop {
            let accepted = tokio::select! {
                accepted = accept(&self.tcp, &slots) => accepted,
                () = shutdown_tokens.closing.cancelled() => break,
            };
            let Some((stream, peer, slot)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let peer_slot = match &self.peers {
                Some(peers) => match peers.try_acquire(peer.ip()) {
                    Some(slot) => Some(slot),
                    // Closed at once; a legitimate browser in the same subnet retries after others have left.
                    None => continue,
                },
                None => None,
            };
            let hang_up = hang_up(&stream);
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(self.head_timeout);
            let mut stream = TimeoutStream::new(stream);
            stream.set_write_timeout(Some(self.write_stall_timeout));
            let router = TowerToHyperService::new(router.clone());
            let leaving = shutdown_tokens.leaving.clone();
            let service = service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(ConnectInfo(peer));
                let (reply, leaving) = (router.call(request), leaving.clone());
                async move {
                    let mut reply = reply.await?;
                    if leaving.is_cancelled() {
                        reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    }
                    Ok::<_, Infallible>(reply)
                }
            });
            let connection = http.serve_connection(TokioIo::new(Box::pin(stream)), service);
            let watched = connections.watch(connection);
            tokio::spawn(async move {
                tokio::select! {
                    // The peer broke the connection; the request's own log line has what matters.
                    _ = watched => {}
                    () = hang_up => {}
                }
                drop((slot, peer_slot));
            });
        }
        let _ = tokio::time::timeout(LAST_REPLIES_TIMEOUT, connections.shutdown()).await;
    }
}

async fn accept(
    tcp: &TcpListener,
    slots: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    match tcp.accept().await {
        Ok((stream, peer)) => {
            // Replies are written whole; waiting to coalesce them only adds delay.
            let _ = stream.set_nodelay(true);
            Some((stream, peer, slot))
        }
        Err(error) => {
            tracing::warn!(%error, "accept failed");
            None
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, Bytes};
    use axum::routing::get;
    use tokio::io::AsyncWriteExt;

    /// Sends a message when dropped.
    struct Endless(Option<tokio::sync::oneshot::Sender<()>>);

    impl futures_core::Stream for Endless {
        type Item = Result<Bytes, Infallible>;

        fn poll_next(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            std::task::Poll::Ready(Some(Ok(Bytes::from_static(&[0; 65_536]))))
        }
    }

    impl Drop for Endless {
        fn drop(&mut self) {
            let _ = self.0.take().map(|dropped| dropped.send(()));
        }
    }

    #[tokio::test]
    async fn stalled_peer_is_disconnected_and_its_response_dropped() {
        let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap(), "api.listen", 8).await.unwrap();
        listener.write_stall_timeout = Duration::from_millis(100);
        let (say_dropped, dropped) = tokio::sync::oneshot::channel();
        let say_dropped = Arc::new(std::sync::Mutex::new(Some(say_dropped)));
        let endless = async move || Body::from_stream(Endless(say_dropped.lock().unwrap().take()));
        let mut peer = TcpStream::connect(listener.address()).await.unwrap();
        tokio::spawn(listener.serve(Router::new().route("/", get(endless)), ShutdownTokens::default()));
        peer.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
        tokio::time::timeout(Duration::from_secs(20), dropped).await.unwrap().unwrap();
    }
}
