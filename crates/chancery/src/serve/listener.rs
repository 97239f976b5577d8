//! Accepts connections and serves a router on them: TCP_NODELAY everywhere, time for the request's head and for taking
//! what is sent bounded, number of connections bounded, and an end that lets replies under way finish. A peer that closes its side has hung up, and its
//! connection is dropped with the request that ran on it.

use super::peers::Peers;
use super::shutdown::Ending;
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

/// How long the head of a program's request may take to arrive; also how long its idle connection is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// The same for browsers, which open another when they need it; whoever only holds connections loses them soon.
const BROWSER_HEAD_TIMEOUT: Duration = Duration::from_secs(15);
/// One peer may have this part of a listener's places for browsers.
const PEER_SHARE: usize = 8;
/// After closing begins, how long replies under way may take to be sent.
const LAST_REPLIES_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a peer may take none of the bytes that wait for it; past it the connection is closed.
const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after an accept failed for want of resources, so that the loop does not spin.
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
    /// `key` is the setting that names the address, for the message when it cannot be had. Connections past
    /// `max_connections` wait in the operating system's queue.
    pub async fn bind(address: SocketAddr, key: &str, max_connections: usize) -> anyhow::Result<Self> {
        let variable = format!("CHANCERY_{}", key.to_uppercase().replace('.', "__"));
        let tcp = TcpListener::bind(address).await.map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => anyhow::anyhow!(
                "{key}: {address} is in use by another program; stop that one, or set {key} (or {variable}) to another address"
            ),
            _ => anyhow::anyhow!("{key}: {address} cannot be listened on ({error}); set {key} (or {variable}) to another address"),
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

    /// For pages, which strangers may open: no peer holds more than its part of the places, and none for long.
    #[must_use]
    pub fn for_browsers(mut self, trusted_proxies: &TrustedProxies) -> Self {
        self.head_timeout = BROWSER_HEAD_TIMEOUT;
        self.peers = Some(Peers::new((self.max_connections / PEER_SHARE).max(1), trusted_proxies.clone()));
        self
    }

    /// Where it really listens; the configuration may leave the port to the system.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Runs until it is closing; then lets open connections finish what they are sending. Once the node leaves, each reply is
    /// the last one on its connection, so that nobody sends another request on one that is about to be closed.
    pub async fn serve(self, router: Router, ending: Ending) {
        let connections = GracefulShutdown::new();
        let places = Arc::new(Semaphore::new(self.max_connections));
        loop {
            let accepted = tokio::select! {
                accepted = accept(&self.tcp, &places) => accepted,
                () = ending.closing.cancelled() => break,
            };
            let Some((stream, peer, place)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let peer_place = match &self.peers {
                Some(peers) => match peers.enter(peer.ip()) {
                    Some(place) => Some(place),
                    // Closed at once; a browser of an honest neighbour tries again when others have gone.
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
            let leaving = ending.leaving.clone();
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
                    // A connection that breaks is the peer's doing; the request's own log line tells what mattered.
                    _ = watched => {}
                    () = hang_up => {}
                }
                drop((place, peer_place));
            });
        }
        let _ = tokio::time::timeout(LAST_REPLIES_TIMEOUT, connections.shutdown()).await;
    }
}

async fn accept(
    tcp: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match tcp.accept().await {
        Ok((stream, peer)) => {
            // Replies are written whole; waiting for more to send only delays them.
            let _ = stream.set_nodelay(true);
            Some((stream, peer, place))
        }
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            None
        }
    }
}

/// Ends when the peer closes its side. The HTTP library notices that only while it waits for bytes; bytes that lie unread
/// behind a request, such as a stray line end, would hide it, and the work would go on for nobody.
fn hang_up(stream: &TcpStream) -> impl Future<Output = ()> + Send + use<> {
    let twin = stream.as_fd().try_clone_to_owned();
    let twin = twin.and_then(|socket| TcpStream::from_std(std::net::TcpStream::from(socket)));
    async move {
        // Without a descriptor to spare, the library's own notice has to do.
        let Ok(socket) = twin else { return std::future::pending().await };
        while let Ok(state) = socket.ready(Interest::READABLE).await {
            if state.is_read_closed() {
                return;
            }
            // Nothing is read here: this only says that the news is known, so that the next is waited for.
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

    /// Tells when it is dropped.
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
    async fn a_peer_that_takes_nothing_loses_its_connection_and_what_ran_on_it() {
        let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap(), "api.listen", 8).await.unwrap();
        listener.write_stall_timeout = Duration::from_millis(100);
        let (say_dropped, dropped) = tokio::sync::oneshot::channel();
        let say_dropped = Arc::new(std::sync::Mutex::new(Some(say_dropped)));
        let endless = async move || Body::from_stream(Endless(say_dropped.lock().unwrap().take()));
        let mut peer = TcpStream::connect(listener.address()).await.unwrap();
        tokio::spawn(listener.serve(Router::new().route("/", get(endless)), Ending::default()));
        peer.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
        tokio::time::timeout(Duration::from_secs(20), dropped).await.unwrap().unwrap();
    }
}
