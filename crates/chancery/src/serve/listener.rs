//! Accepts connections and serves a router on them, with TCP_NODELAY. The time to receive a request's head, the time a peer may
//! stall while receiving, how slowly it may read, and the number of connections are all bounded. Shutdown lets running replies
//! finish. If a peer closes its side, its connection is dropped together with the request that ran on it.

use super::connections::{ConnectionSlot, Connections};
use super::reply_io::{MinReadRate, ReplyState, ReplyStream};
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
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// How long an API request's head may take to arrive; also the idle timeout of API connections.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for browsers, which simply reconnect. It is short so that idle connections cannot pile up.
const BROWSER_HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// One peer may use one part in this many of a listener's browser connections.
const BROWSER_PEER_SHARE: usize = 8;
/// The same for the API. A caller's backend opens many connections from one address, so its share is large; the other half is
/// enough for everyone else, because idle connections make way.
const CALLER_PEER_SHARE: usize = 2;
/// After closing begins, how long running replies may take to be sent.
const LAST_REPLIES_TIMEOUT: Duration = Duration::from_secs(3);
/// If a peer reads nothing for this long while bytes are waiting, the connection is closed.
const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// A peer must read at least 1 KiB/s on average of a reply that is no longer being generated.
const MIN_READ_RATE: MinReadRate =
    MinReadRate { window: Duration::from_secs(30), bytes_per_window: 30 * 1024 };
/// The system's buffer for bytes that a peer has not read. It bounds what a slow reader costs. It also decides how soon reading
/// is noticed: only when a third of it is free can more be written. The default grows to megabytes.
const SEND_BUFFER_BYTES: u32 = 64 * 1024;
/// Connections that wait to be accepted.
const ACCEPT_QUEUE: u32 = 1024;
/// Pause after accept fails for lack of resources, so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub struct Listener {
    tcp: TcpListener,
    address: SocketAddr,
    max_connections: usize,
    head_timeout: Duration,
    write_stall_timeout: Duration,
    min_read_rate: MinReadRate,
    connections: Arc<Connections>,
}

impl Listener {
    /// `key` is the setting that names the address, for the error message if it cannot be bound. If all of `max_connections`
    /// have a request, new ones wait in the operating system's queue.
    pub fn bind(address: SocketAddr, key: &str, max_connections: usize) -> anyhow::Result<Self> {
        let variable = format!("CHANCERY_{}", key.to_uppercase().replace('.', "__"));
        let tcp = listen(address).map_err(|error| match error.kind() {
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
            min_read_rate: MIN_READ_RATE,
            connections: Connections::new(max_connections, max_connections, TrustedProxies::default()),
        })
    }

    /// For pages, which are open to strangers: limits the connections per peer and shortens the idle timeout.
    #[must_use]
    pub fn for_browsers(mut self, trusted_proxies: &TrustedProxies) -> Self {
        self.head_timeout = BROWSER_HEAD_TIMEOUT;
        self.with_peer_share(BROWSER_PEER_SHARE, trusted_proxies)
    }

    /// For the API: limits the connections per peer.
    #[must_use]
    pub fn for_callers(self, trusted_proxies: &TrustedProxies) -> Self {
        self.with_peer_share(CALLER_PEER_SHARE, trusted_proxies)
    }

    fn with_peer_share(mut self, share: usize, trusted_proxies: &TrustedProxies) -> Self {
        let max_per_peer = (self.max_connections / share).max(1);
        self.connections = Connections::new(self.max_connections, max_per_peer, trusted_proxies.clone());
        self
    }

    /// Returns the bound address; the configuration may leave the port to the system.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs until `closing`, then lets open connections finish what they are sending. From `leaving` on, each reply closes its
    /// connection, so that no client sends another request on one that is about to close.
    pub async fn serve(self, router: Router, shutdown_tokens: ShutdownTokens) {
        let graceful = GracefulShutdown::new();
        loop {
            let accepted = tokio::select! {
                accepted = self.accept() => accepted,
                () = shutdown_tokens.closing.cancelled() => break,
            };
            let Some((stream, peer, slot)) = accepted else { continue };
            let slot = Arc::new(slot);
            let hang_up = hang_up(&stream);
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(self.head_timeout);
            let reply_state = ReplyState::default();
            let stream = ReplyStream::new(
                stream,
                self.write_stall_timeout,
                self.min_read_rate,
                Arc::clone(&slot),
                reply_state.clone(),
            );
            let router = TowerToHyperService::new(router.clone());
            let leaving = shutdown_tokens.leaving.clone();
            let service_slot = Arc::clone(&slot);
            let service = service_fn(move |mut request: Request<Incoming>| {
                service_slot.request_started();
                reply_state.begin();
                request.extensions_mut().insert(ConnectInfo(peer));
                let (reply, leaving, reply_state) =
                    (router.call(request), leaving.clone(), reply_state.clone());
                async move {
                    let mut reply = reply.await?;
                    if leaving.is_cancelled() {
                        reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                    }
                    Ok::<_, Infallible>(reply_state.track(reply))
                }
            });
            let connection = http.serve_connection(TokioIo::new(stream), service);
            let watched = graceful.watch(connection);
            tokio::spawn(async move {
                tokio::select! {
                    // The peer broke the connection; the request's own log line has what matters.
                    _ = watched => {}
                    () = hang_up => {}
                    // It is idle, and a newcomer needs the slot.
                    () = slot.must_close() => {}
                }
            });
        }
        let _ = tokio::time::timeout(LAST_REPLIES_TIMEOUT, graceful.shutdown()).await;
    }

    /// Returns `None` if there is nothing to serve: accepting failed, or the peer is at its share.
    async fn accept(&self) -> Option<(TcpStream, SocketAddr, ConnectionSlot)> {
        match self.tcp.accept().await {
            Ok((stream, peer)) => {
                // If the peer is at its share, the stream is closed here. Its caller can connect again after others have left.
                let slot = self.connections.admit(peer.ip()).await?;
                // Replies are written whole; waiting to coalesce them only adds delay.
                let _ = stream.set_nodelay(true);
                Some((stream, peer, slot))
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                None
            }
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

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted server need not wait until the system has forgotten old connections.
    socket.set_reuseaddr(true)?;
    // Accepted connections inherit it.
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(ACCEPT_QUEUE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Extension;
    use axum::body::{Body, Bytes};
    use axum::routing::get;
    use chancery_metering::WorkStatus;
    use std::sync::Mutex;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::sync::{Notify, Semaphore, oneshot};

    const ENOUGH_TIME: Duration = Duration::from_secs(20);
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    /// No reader is this fast.
    const IMPOSSIBLE_RATE: MinReadRate =
        MinReadRate { window: Duration::from_millis(200), bytes_per_window: 1 << 40 };

    /// Sends a message when dropped.
    struct Endless(Option<oneshot::Sender<()>>);

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

    fn endless_body() -> (impl Fn() -> Body + Clone, oneshot::Receiver<()>) {
        let (say_dropped, dropped) = oneshot::channel();
        let say_dropped = Arc::new(Mutex::new(Some(say_dropped)));
        (move || Body::from_stream(Endless(say_dropped.lock().unwrap().take())), dropped)
    }

    fn listener(max_connections: usize) -> Listener {
        Listener::bind("127.0.0.1:0".parse().unwrap(), "api.listen", max_connections).unwrap()
    }

    fn serve(listener: Listener, router: Router) -> SocketAddr {
        let address = listener.address();
        tokio::spawn(listener.serve(router, ShutdownTokens::default()));
        address
    }

    async fn connect_from(peer: &str, address: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        // A small window, so that the server notices soon how fast its bytes are read.
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind(format!("{peer}:0").parse().unwrap()).unwrap();
        socket.connect(address).await.unwrap()
    }

    /// Sends a request, and returns whether it is answered with 200 and an empty body.
    async fn is_served(stream: &mut TcpStream) -> bool {
        if stream.write_all(REQUEST).await.is_err() {
            return false;
        }
        let mut reply = Vec::new();
        while !reply.ends_with(b"\r\n\r\n") {
            match tokio::time::timeout(ENOUGH_TIME, stream.read_u8()).await.expect("a reply in time") {
                Ok(byte) => reply.push(byte),
                Err(_) => return false,
            }
        }
        reply.starts_with(b"HTTP/1.1 200 ")
    }

    async fn is_closed(stream: &mut TcpStream) -> bool {
        let mut byte = [0];
        let read = tokio::time::timeout(ENOUGH_TIME, stream.read(&mut byte)).await.expect("an end in time");
        !matches!(read, Ok(1..))
    }

    /// Reads slowly to the end, and returns the number of bytes.
    async fn read_slowly(mut stream: TcpStream) -> usize {
        let (mut buffer, mut total) = (vec![0; 65_536], 0);
        while let Ok(bytes @ 1..) = stream.read(&mut buffer).await {
            total += bytes;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        total
    }

    /// A router that answers at once, but `/wait` only when it is notified.
    struct Waiting {
        router: Router,
        started: Arc<Semaphore>,
        go_on: Arc<Notify>,
    }

    impl Waiting {
        fn new() -> Self {
            let (started, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Notify::new()));
            let (say_started, wait) = (Arc::clone(&started), Arc::clone(&go_on));
            let wait = async move || {
                let go_on = wait.notified();
                say_started.add_permits(1);
                go_on.await;
            };
            let router = Router::new().route("/", get(async || ())).route("/wait", get(wait));
            Self { router, started, go_on }
        }

        /// Connects, and returns when the request runs.
        async fn start_request(&self, peer: &str, address: SocketAddr) -> TcpStream {
            let mut stream = connect_from(peer, address).await;
            stream.write_all(b"GET /wait HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
            self.started.acquire().await.unwrap().forget();
            stream
        }
    }

    async fn assert_answered(stream: &mut TcpStream) {
        let mut reply = [0; 13];
        stream.read_exact(&mut reply).await.unwrap();
        assert_eq!(&reply, b"HTTP/1.1 200 ");
    }

    #[tokio::test]
    async fn idle_connections_never_keep_a_newcomer_out() {
        let waiting = Waiting::new();
        let listener = listener(16).for_callers(&TrustedProxies::default());
        let address = serve(listener, waiting.router.clone());
        let mut running = waiting.start_request("127.0.0.1", address).await;
        let mut quiet_caller = connect_from("127.0.0.9", address).await;
        assert!(is_served(&mut quiet_caller).await);
        let mut idle = Vec::new();
        for number in 0..120 {
            // Three peers at their shares are more than the listener has.
            let mut stream = connect_from(&format!("127.0.0.{}", 1 + number % 3), address).await;
            match number % 3 {
                0 => {}
                1 => assert!(is_served(&mut stream).await, "{number}"),
                _ => stream.write_all(b"GET / HT").await.unwrap(),
            }
            idle.push(stream);
        }
        for peer in ["127.0.0.1", "127.0.0.7"] {
            assert!(is_served(&mut connect_from(peer, address).await).await, "{peer}");
        }
        assert!(is_closed(&mut idle[0]).await, "the oldest was closed first");
        assert!(is_served(&mut quiet_caller).await, "a peer with few connections does not lose them");
        waiting.go_on.notify_one();
        assert_answered(&mut running).await;
    }

    #[tokio::test]
    async fn peer_with_running_requests_stays_within_its_share() {
        let waiting = Waiting::new();
        let listener = listener(8).for_callers(&TrustedProxies::default());
        let address = serve(listener, waiting.router.clone());
        let mut running = Vec::new();
        for _ in 0..4 {
            running.push(waiting.start_request("127.0.0.1", address).await);
        }
        assert!(!is_served(&mut connect_from("127.0.0.1", address).await).await);
        assert!(is_served(&mut connect_from("127.0.0.2", address).await).await);
        waiting.go_on.notify_waiters();
        for stream in &mut running {
            assert_answered(stream).await;
        }
        assert!(is_served(&mut connect_from("127.0.0.1", address).await).await);
    }

    #[tokio::test]
    async fn stalled_peer_is_disconnected_and_its_response_dropped() {
        let mut listener = listener(8);
        listener.write_stall_timeout = Duration::from_millis(100);
        let (endless, dropped) = endless_body();
        let address = serve(listener, Router::new().route("/", get(async move || endless())));
        let mut peer = connect_from("127.0.0.1", address).await;
        peer.write_all(REQUEST).await.unwrap();
        tokio::time::timeout(ENOUGH_TIME, dropped).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn finished_reply_must_be_read_at_the_minimum_rate() {
        // Many windows long, and much more than the buffers of both sides.
        const SIZE: usize = 1 << 20;
        let router = Router::new().route("/", get(async || vec![0_u8; SIZE]));
        for (rate, is_whole) in
            [(MinReadRate { bytes_per_window: 1, ..IMPOSSIBLE_RATE }, true), (IMPOSSIBLE_RATE, false)]
        {
            let mut listener = listener(8);
            listener.min_read_rate = rate;
            let address = serve(listener, router.clone());
            let mut peer = connect_from("127.0.0.1", address).await;
            peer.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await.unwrap();
            let bytes = tokio::time::timeout(ENOUGH_TIME, read_slowly(peer)).await.unwrap();
            assert_eq!(bytes > SIZE, is_whole, "{bytes}");
        }
    }

    #[tokio::test]
    async fn slow_reader_is_cut_off_only_after_generation() {
        let mut listener = listener(8);
        listener.min_read_rate = IMPOSSIBLE_RATE;
        let (end, ended) = oneshot::channel::<()>();
        let work = tokio::spawn(ended);
        let status = WorkStatus::of(&work);
        let (endless, mut dropped) = endless_body();
        let reply = async move || (Extension(status.clone()), endless());
        let address = serve(listener, Router::new().route("/", get(reply)));
        let mut peer = connect_from("127.0.0.1", address).await;
        peer.write_all(REQUEST).await.unwrap();
        let reader = tokio::spawn(read_slowly(peer));
        let is_early = tokio::time::timeout(IMPOSSIBLE_RATE.window * 6, &mut dropped).await.is_ok();
        assert!(!is_early, "cut off during generation");
        end.send(()).unwrap();
        tokio::time::timeout(ENOUGH_TIME, dropped).await.unwrap().unwrap();
        reader.abort();
    }
}
