//! Accepts connections and serves a router on them, with TCP_NODELAY. The time to receive a request's head, the time a peer may
//! stall while receiving, how slowly it may read, and the number of connections are all bounded. Shutdown lets running replies
//! finish. `connection` serves each connection.

use crate::connection::ConnectionSettings;
use crate::connection_threads::ConnectionThreads;
use crate::connections::{ConnectionSlot, Connections};
use crate::reply_io::MinReadRate;
use crate::self_wakes::poll_again_when_woken;
use axum::Router;
use chancery_web::TrustedProxies;
use rustls::ServerConfig;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

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

/// The progress of the shutdown.
#[derive(Clone, Debug, Default)]
pub struct ShutdownTokens {
    /// Replies ask their callers to close the connection. Requests are still served.
    pub leaving: CancellationToken,
    /// The listeners close.
    pub closing: CancellationToken,
}

pub struct Listener {
    tcp: TcpListener,
    address: SocketAddr,
    max_connections: usize,
    tls: Option<Arc<ServerConfig>>,
    head_timeout: Duration,
    write_stall_timeout: Duration,
    min_read_rate: MinReadRate,
    connections: Arc<Connections>,
    /// `None`: connections are tasks of the runtime.
    threads: Option<Arc<ConnectionThreads>>,
    /// Has a token for each request from its head to the end of its reply.
    running: TaskTracker,
}

impl Listener {
    /// If all of `max_connections` have a request, new ones wait in the operating system's queue.
    pub fn bind(address: SocketAddr, max_connections: usize) -> io::Result<Self> {
        let tcp = listen(address)?;
        let address = tcp.local_addr()?;
        Ok(Self {
            tcp,
            address,
            max_connections,
            tls: None,
            head_timeout: HEAD_TIMEOUT,
            write_stall_timeout: WRITE_STALL_TIMEOUT,
            min_read_rate: MIN_READ_RATE,
            connections: Connections::new(max_connections, max_connections, TrustedProxies::default()),
            threads: None,
            running: TaskTracker::new(),
        })
    }

    /// For pages, which are open to strangers: limits the connections per peer and shortens the idle timeout. `running` is
    /// shared by the listeners for pages.
    #[must_use]
    pub fn for_browsers(mut self, trusted_proxies: &TrustedProxies, running: &TaskTracker) -> Self {
        self.head_timeout = BROWSER_HEAD_TIMEOUT;
        self.running = running.clone();
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

    /// Serves connections on these threads.
    #[must_use]
    pub fn on_threads(mut self, threads: Arc<ConnectionThreads>) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Serves HTTPS; `None`: HTTP.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Arc<ServerConfig>>) -> Self {
        self.tls = tls;
        self
    }

    /// Returns the bound address; the configuration may leave the port to the system.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs until `closing`, then lets open connections finish what they are sending. Boxed, so that it is compiled here, with this
    /// package's optimization, and not again in its caller.
    pub fn serve(
        self,
        router: Router,
        shutdown_tokens: ShutdownTokens,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.accept_all(router, shutdown_tokens))
    }

    async fn accept_all(self, router: Router, shutdown_tokens: ShutdownTokens) {
        let Self {
            tcp,
            tls,
            head_timeout,
            write_stall_timeout,
            min_read_rate,
            connections,
            threads,
            max_connections,
            running,
            ..
        } = self;
        let closing = shutdown_tokens.closing.clone();
        let settings = Arc::new(ConnectionSettings {
            router,
            tls: tls.map(TlsAcceptor::from),
            head_timeout,
            write_stall_timeout,
            min_read_rate,
            extra_streams: Arc::new(Semaphore::new(max_connections)),
            running,
            shutdown_tokens,
        });
        let open = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                accepted = accept(&tcp, &connections) => accepted,
                () = closing.cancelled() => break,
            };
            let Some((stream, peer, slot)) = accepted else { continue };
            let settings = Arc::clone(&settings);
            let serve = move |stream| poll_again_when_woken(Box::pin(settings.serve(stream, peer, slot)));
            match &threads {
                Some(threads) => threads.spawn(&open, stream, serve),
                None => drop(open.spawn(serve(stream))),
            }
        }
        open.close();
        let _ = tokio::time::timeout(LAST_REPLIES_TIMEOUT, open.wait()).await;
    }
}

/// Returns `None` if there is nothing to serve: accepting failed, or the peer is at its share.
async fn accept(
    tcp: &TcpListener,
    connections: &Arc<Connections>,
) -> Option<(TcpStream, SocketAddr, ConnectionSlot)> {
    match tcp.accept().await {
        Ok((stream, peer)) => {
            // If the peer is at its share, the stream is closed here. Its caller can connect again after others have left.
            let slot = connections.admit(peer.ip()).await?;
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

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
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
    use crate::HTTP_2;
    use axum::Extension;
    use axum::body::{Body, Bytes};
    use axum::routing::{get, post};
    use hyper::client::conn::http2;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ClientConfig, RootCertStore};
    use std::convert::Infallible;
    use std::sync::Mutex;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::sync::{Notify, oneshot};
    use tokio_rustls::TlsConnector;

    const ENOUGH_TIME: Duration = Duration::from_secs(20);
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
    /// No reader is this fast.
    const IMPOSSIBLE_RATE: MinReadRate =
        MinReadRate { window: Duration::from_millis(200), bytes_per_window: 1 << 40 };

    /// The buffered bytes of a stream that is not read.
    const STREAM_WINDOW_BYTES: u32 = 65_535;

    /// Sends a message when dropped.
    struct Endless(Option<oneshot::Sender<()>>);

    impl futures_util::Stream for Endless {
        type Item = Result<Bytes, Infallible>;

        fn poll_next(
            self: Pin<&mut Self>,
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
        Listener::bind("127.0.0.1:0".parse().unwrap(), max_connections).unwrap()
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
    async fn bodies_that_never_come_keep_nobody_out() {
        let waiting = Waiting::new();
        let (started, go_on) = (Arc::clone(&waiting.started), Arc::clone(&waiting.go_on));
        let wait_with_body = async move |_: Bytes| {
            let go_on = go_on.notified();
            started.add_permits(1);
            go_on.await;
        };
        let router = waiting.router.clone().route("/form", post(wait_with_body));
        let listener = listener(64).for_browsers(&TrustedProxies::default(), &TaskTracker::new());
        let address = serve(listener, router);
        let post_from = async |peer: usize, body: &str| {
            let mut stream = connect_from(&format!("127.0.0.{peer}"), address).await;
            let request = format!("POST /form HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n{body}");
            stream.write_all(request.as_bytes()).await.unwrap();
            stream
        };
        let mut running = post_from(16, "text").await;
        waiting.started.acquire().await.unwrap().forget();
        let mut withheld = Vec::new();
        for number in 0..128 {
            withheld.push(post_from(16 + number % 16, "te").await);
        }
        for number in 0..30 {
            let honest = format!("127.0.0.{}", 100 + number);
            assert!(is_served(&mut connect_from(&honest, address).await).await, "{number}");
        }
        assert!(is_closed(&mut withheld[0]).await, "the oldest was closed first");
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
        let status = work.abort_handle();
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

    /// A listener with TLS, and what a client needs to trust it.
    fn secured(listener: Listener) -> (Listener, TlsConnector) {
        let issued = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth();
        let mut server = server.with_single_cert(vec![issued.cert.der().clone()], key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(issued.cert.der().clone()).unwrap();
        let client =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut client = client.with_root_certificates(roots).with_no_client_auth();
        for protocols in [&mut server.alpn_protocols, &mut client.alpn_protocols] {
            *protocols = vec![HTTP_2.to_vec()];
        }
        (listener.with_tls(Some(Arc::new(server))), TlsConnector::from(Arc::new(client)))
    }

    /// Returns an HTTP/2 connection, and a task that ends when it is closed; `None` if the server closes it at once.
    async fn try_connect_http2(
        address: SocketAddr,
        connector: &TlsConnector,
    ) -> Option<(http2::SendRequest<Body>, tokio::task::JoinHandle<()>)> {
        start_http2(TcpStream::connect(address).await.unwrap(), connector).await
    }

    async fn start_http2(
        stream: TcpStream,
        connector: &TlsConnector,
    ) -> Option<(http2::SendRequest<Body>, tokio::task::JoinHandle<()>)> {
        let stream = connector.connect("localhost".try_into().unwrap(), stream).await.ok()?;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(STREAM_WINDOW_BYTES);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.ok()?;
        let connection = tokio::spawn(async move {
            let _ = connection.await;
        });
        Some((sender, connection))
    }

    async fn connect_http2(
        address: SocketAddr,
        connector: &TlsConnector,
    ) -> (http2::SendRequest<Body>, tokio::task::JoinHandle<()>) {
        try_connect_http2(address, connector).await.unwrap()
    }

    fn http2_request(path: &str) -> hyper::Request<Body> {
        hyper::Request::get(format!("https://localhost{path}")).body(Body::empty()).unwrap()
    }

    #[tokio::test]
    async fn unread_stream_is_reset_and_the_others_continue() {
        let mut listener = listener(8);
        listener.min_read_rate = IMPOSSIBLE_RATE;
        let (listener, connector) = secured(listener);
        let (endless, dropped) = endless_body();
        let router =
            Router::new().route("/", get(async move || endless())).route("/quick", get(async || "quick"));
        let address = serve(listener, router);
        let (mut sender, _connection) = connect_http2(address, &connector).await;
        let unread = sender.send_request(http2_request("/")).await.unwrap();
        tokio::time::timeout(ENOUGH_TIME, dropped).await.unwrap().unwrap();
        let quick = sender.send_request(http2_request("/quick")).await.unwrap();
        assert_eq!(quick.status(), 200);
        drop(unread);
    }

    #[tokio::test]
    async fn large_reply_arrives_whole_over_http2() {
        const SIZE: usize = (1 << 20) + 1;
        let bytes: Vec<u8> = (0..SIZE).map(|index| (index % 251) as u8).collect();
        let (listener, connector) = secured(listener(8));
        let sent = bytes.clone();
        let address = serve(listener, Router::new().route("/", get(async move || sent.clone())));
        let (mut sender, _connection) = connect_http2(address, &connector).await;
        let reply = sender.send_request(http2_request("/")).await.unwrap();
        assert_eq!(reply.headers()["content-length"], SIZE.to_string().as_str());
        let received = axum::body::to_bytes(Body::new(reply.into_body()), 2 * SIZE).await.unwrap();
        assert!(received == bytes);
    }

    #[tokio::test]
    async fn dropped_stream_is_a_hang_up_for_its_request_alone() {
        let waiting = Waiting::new();
        let (listener, connector) = secured(listener(8));
        let (endless, dropped) = endless_body();
        let router = waiting.router.clone().route("/endless", get(async move || endless()));
        let address = serve(listener, router);
        let (mut sender, _connection) = connect_http2(address, &connector).await;
        let running = tokio::spawn(sender.send_request(http2_request("/wait")));
        waiting.started.acquire().await.unwrap().forget();
        drop(sender.send_request(http2_request("/endless")).await.unwrap());
        tokio::time::timeout(ENOUGH_TIME, dropped).await.unwrap().unwrap();
        waiting.go_on.notify_one();
        assert_eq!(running.await.unwrap().unwrap().status(), 200);
    }

    #[tokio::test]
    async fn extra_streams_of_one_peer_leave_some_to_the_others() {
        let waiting = Waiting::new();
        // Each peer may have two connections, and two requests beyond the first of each.
        let (listener, connector) = secured(listener(4).for_callers(&TrustedProxies::default()));
        let address = serve(listener, waiting.router.clone());
        let (mut greedy, _connection) = connect_http2(address, &connector).await;
        let many = [(); 6].map(|()| tokio::spawn(greedy.send_request(http2_request("/wait"))));
        for _ in 0..3 {
            waiting.started.acquire().await.unwrap().forget();
        }
        let stream = connect_from("127.0.0.2", address).await;
        let (mut other, _connection) = start_http2(stream, &connector).await.unwrap();
        let first = tokio::spawn(other.send_request(http2_request("/wait")));
        waiting.started.acquire().await.unwrap().forget();
        let second = other.send_request(http2_request("/"));
        let second = tokio::time::timeout(ENOUGH_TIME, second).await.expect("a reply in time");
        assert_eq!(second.unwrap().status(), 200);
        assert_eq!(waiting.started.available_permits(), 0, "the first peer's other requests wait");
        waiting.go_on.notify_waiters();
        assert_eq!(first.await.unwrap().unwrap().status(), 200);
        many.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn running_pages_are_counted_to_the_end_of_their_replies() {
        let (pages, waiting) = (TaskTracker::new(), Waiting::new());
        let for_pages = || listener(8).for_browsers(&TrustedProxies::default(), &pages);
        let plain = serve(for_pages(), waiting.router.clone());
        let (listener, connector) = secured(for_pages());
        let address = serve(listener, waiting.router.clone());
        let mut over_http1 = waiting.start_request("127.0.0.1", plain).await;
        let (mut sender, _connection) = connect_http2(address, &connector).await;
        let over_http2 = [(); 2].map(|()| tokio::spawn(sender.send_request(http2_request("/wait"))));
        for _ in &over_http2 {
            waiting.started.acquire().await.unwrap().forget();
        }
        assert_eq!(pages.len(), 3);
        waiting.go_on.notify_waiters();
        assert_answered(&mut over_http1).await;
        for reply in over_http2 {
            assert_eq!(reply.await.unwrap().unwrap().status(), 200);
        }
        pages.close();
        tokio::time::timeout(ENOUGH_TIME, pages.wait()).await.unwrap();
    }

    #[tokio::test]
    async fn idle_http2_connection_is_closed_and_a_busy_one_is_not() {
        let waiting = Waiting::new();
        let mut listener = listener(8);
        // Long enough for the first request to come in time on a busy machine.
        listener.head_timeout = Duration::from_secs(2);
        let (listener, connector) = secured(listener);
        let head_timeout = listener.head_timeout;
        let address = serve(listener, waiting.router.clone());
        let (mut sender, connection) = connect_http2(address, &connector).await;
        let running = tokio::spawn(sender.send_request(http2_request("/wait")));
        waiting.started.acquire().await.unwrap().forget();
        tokio::time::sleep(head_timeout + Duration::from_millis(500)).await;
        let next = sender.send_request(http2_request("/")).await.unwrap();
        assert_eq!(next.status(), 200, "it still takes requests");
        waiting.go_on.notify_one();
        assert_eq!(running.await.unwrap().unwrap().status(), 200);
        tokio::time::timeout(ENOUGH_TIME, connection).await.unwrap().unwrap();
        assert!(sender.send_request(http2_request("/")).await.is_err());
    }

    #[tokio::test]
    async fn http2_connection_with_a_reset_stream_is_idle_and_makes_way() {
        let waiting = Waiting::new();
        let (listener, connector) = secured(listener(1));
        let address = serve(listener, waiting.router.clone());
        let (mut sender, connection) = connect_http2(address, &connector).await;
        let running = tokio::spawn(sender.send_request(http2_request("/wait")));
        waiting.started.acquire().await.unwrap().forget();
        running.abort();
        let connecting = async {
            loop {
                // A peer at its share is rejected until the server has seen the reset.
                if let Some(connected) = try_connect_http2(address, &connector).await {
                    return connected;
                }
            }
        };
        let (mut newcomer, _connection) = tokio::time::timeout(ENOUGH_TIME, connecting).await.unwrap();
        assert_eq!(newcomer.send_request(http2_request("/")).await.unwrap().status(), 200);
        tokio::time::timeout(ENOUGH_TIME, connection).await.unwrap().unwrap();
    }
}
