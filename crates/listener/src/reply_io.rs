//! What is known about the replies that a connection sends: whether their text is still being generated, and when all of it has left.
//! `ReplyStream` closes the connection of a peer that reads a finished reply too slowly. Without that, a peer could keep a
//! connection for ever by reading a few bytes just before each stall timeout. On HTTP/2, where a peer can stop reading one reply and
//! read the others, `reply_watch` ends that reply.

use crate::connections::ConnectionSlot;
use crate::reply_watch::ReplyWatch;
use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::{Response, Version};
use std::collections::HashMap;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::Sleep;
use tokio_io_timeout::TimeoutStream;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// A reply on HTTP/2 is handed over in pieces of at most this size, so that it shows how fast it is read.
const MAX_PIECE_BYTES: usize = 16 * 1024;

/// How fast a peer must read a reply, on average over a window, while bytes are waiting for it. A peer that reads while the text
/// is still being generated may be slower.
#[derive(Clone, Copy, Debug)]
pub struct MinReadRate {
    pub window: Duration,
    pub bytes_per_window: usize,
}

/// The replies of one connection. HTTP/1.1 has one at a time, HTTP/2 several.
#[derive(Clone)]
pub struct Replies(Arc<Shared>);

struct Shared {
    slot: Arc<ConnectionSlot>,
    /// Has a token for each reply, for a drain that waits for them.
    tracker: TaskTracker,
    state: Mutex<State>,
    /// The number of running replies.
    running: watch::Sender<usize>,
}

#[derive(Default)]
struct State {
    last_number: u64,
    /// The handler runs, or its reply's body does.
    running: HashMap<u64, Running>,
    /// The HTTP library has the whole of every body, and may still have to send some of it.
    has_ended: bool,
}

struct Running {
    /// The request has its whole body. Until then, nothing has run for it, and its connection may make way for a newcomer.
    has_arrived: bool,
    /// The text of a stream has a status.
    work: Option<AbortHandle>,
}

impl Replies {
    pub fn new(slot: Arc<ConnectionSlot>, tracker: TaskTracker) -> Self {
        let shared = Shared { slot, tracker, state: Mutex::default(), running: watch::Sender::new(0) };
        Self(Arc::new(shared))
    }

    /// A request's head has arrived. `has_arrived`: and there is no body, or none that matters.
    pub fn begin(&self, version: Version, has_arrived: bool) -> Reply {
        let token = self.0.tracker.token();
        let mut state = self.lock();
        state.last_number += 1;
        let number = state.last_number;
        state.running.insert(number, Running { has_arrived: false, work: None });
        let is_alone = state.running.len() == 1;
        if !has_arrived {
            self.0.slot.request_arriving();
        }
        drop(state);
        if has_arrived {
            self.arrived(number);
        }
        self.publish();
        Reply {
            replies: self.clone(),
            number,
            version,
            is_alone,
            is_complete: false,
            permits: Vec::new(),
            _token: token,
        }
    }

    fn arrived(&self, number: u64) {
        let mut state = self.lock();
        let Some(running) = state.running.get_mut(&number).filter(|running| !running.has_arrived) else {
            return;
        };
        running.has_arrived = true;
        state.has_ended = false;
        // Within the lock: another reply may end at the same time, and must not make the slot idle after this.
        self.0.slot.request_started();
    }

    /// The state is read within the channel's lock, so that of two changes the later one stays.
    fn publish(&self) {
        self.0.running.send_modify(|running| *running = self.lock().running.len());
    }

    /// The number of running replies, and its changes.
    pub fn running(&self) -> watch::Receiver<usize> {
        self.0.running.subscribe()
    }

    /// Completes when no reply has run for this long.
    pub async fn idle_for(&self, timeout: Duration) {
        let mut running = self.running();
        loop {
            let _ = running.wait_for(|running| *running == 0).await;
            // Not the next number above zero: a short request may be over before this task sees it.
            if tokio::time::timeout(timeout, running.changed()).await.is_err() {
                return;
            }
        }
    }

    /// Whether a request has ever arrived.
    pub fn has_begun(&self) -> bool {
        self.lock().last_number > 0
    }

    fn is_generating(&self) -> bool {
        self.lock().running.values().flat_map(|running| &running.work).any(|work| !work.is_finished())
    }

    /// Everything that was to be sent has left.
    fn flushed(&self) {
        let mut state = self.lock();
        if std::mem::take(&mut state.has_ended) {
            self.0.slot.request_ended();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One reply, from its request's arrival to the end of its body.
pub struct Reply {
    replies: Replies,
    number: u64,
    version: Version,
    /// No other reply ran on the connection when this one began.
    is_alone: bool,
    /// The HTTP library has all of the body.
    is_complete: bool,
    /// Dropped with the reply.
    permits: Vec<OwnedSemaphorePermit>,
    /// Counts the request among those that a drain waits for.
    _token: TaskTrackerToken,
}

impl Reply {
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Waits until the peer, and then the listener, has a permit left, and keeps both to the end of the reply.
    pub async fn wait_for_permits(&mut self, of_listener: Arc<Semaphore>) {
        let of_peer = self.replies.0.slot.extra_streams();
        for semaphore in of_peer.into_iter().chain([of_listener]) {
            self.permits.extend(semaphore.acquire_owned().await.ok());
        }
    }

    /// The request's body, which says when it has arrived.
    pub fn arriving(&self, body: Incoming) -> ArrivingBody {
        let end = BodyEnd { replies: self.replies.clone(), number: self.number };
        ArrivingBody { end: (!body.is_end_stream()).then_some(end), body }
    }

    /// Follows the reply from now on to the end of its body. That of a stream has the handle of its work among its extensions.
    pub fn track(mut self, mut response: Response<Body>) -> Response<TrackedBody> {
        let work = response.extensions_mut().remove::<AbortHandle>();
        self.is_complete = response.body().is_end_stream();
        let watch = (self.version == Version::HTTP_2).then(ReplyWatch::current).flatten();
        if let Some(watch) = &watch {
            watch.begin_body(work.clone());
        }
        self.replies.arrived(self.number);
        if let Some(running) = self.replies.lock().running.get_mut(&self.number) {
            running.work = work;
        }
        response.map(|body| TrackedBody { body, rest: None, reply: self, watch })
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let mut state = self.replies.lock();
        let had_arrived = state.running.remove(&self.number).is_some_and(|running| running.has_arrived);
        if had_arrived && !state.running.values().any(|running| running.has_arrived) {
            // A reset stream has nothing more to send, and may be followed by nothing that would show it.
            let is_reset = self.version == Version::HTTP_2 && !self.is_complete;
            state.has_ended = !is_reset;
            if is_reset {
                self.replies.0.slot.request_ended();
            }
        }
        drop(state);
        self.replies.publish();
    }
}

/// A request's body on its way in. A handler that drops it does not wait for the rest.
pub struct ArrivingBody {
    body: Incoming,
    /// Set until the last of the body has arrived.
    end: Option<BodyEnd>,
}

/// Says on drop that the body has arrived.
struct BodyEnd {
    replies: Replies,
    number: u64,
}

impl Drop for BodyEnd {
    fn drop(&mut self) {
        self.replies.arrived(self.number);
    }
}

impl HttpBody for ArrivingBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            self.end = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A reply's body. The HTTP library drops it when it has taken the last of it.
pub struct TrackedBody {
    body: Body,
    /// What is left of a frame that was larger than a piece.
    rest: Option<Bytes>,
    reply: Reply,
    /// Set on HTTP/2.
    watch: Option<ReplyWatch>,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, axum::Error>>> {
        let polled = match self.rest.take() {
            Some(rest) => Poll::Ready(Some(Ok(Frame::data(rest)))),
            None => Pin::new(&mut self.body).poll_frame(context),
        };
        let Some(watch) = self.watch.clone() else { return polled };
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                let frame = match frame.into_data() {
                    Ok(mut data) => {
                        if data.len() > MAX_PIECE_BYTES {
                            self.rest = Some(data.split_off(MAX_PIECE_BYTES));
                        }
                        watch.handed_over(data.len());
                        Frame::data(data)
                    }
                    Err(frame) => frame,
                };
                self.reply.is_complete = self.is_end_stream();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                self.reply.is_complete = true;
                Poll::Ready(None)
            }
            Poll::Pending => {
                watch.waits_for_text();
                Poll::Pending
            }
            failed => failed,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.rest {
            None => self.body.size_hint(),
            Some(rest) => {
                let (rest, hint) = (rest.len() as u64, self.body.size_hint());
                let mut whole = SizeHint::new();
                if let Some(upper) = hint.upper() {
                    whole.set_upper(upper + rest);
                }
                whole.set_lower(hint.lower() + rest);
                whole
            }
        }
    }
}

/// A connection's socket. It reports the end of each reply to the connection's slot.
pub struct ReplyStream {
    stream: Pin<Box<TimeoutStream<TcpStream>>>,
    replies: Replies,
    min_read_rate: MinReadRate,
    /// Set from the first time the peer does not read fast enough until it has read everything.
    window: Option<ReadWindow>,
}

struct ReadWindow {
    end: Pin<Box<Sleep>>,
    bytes: usize,
    /// Windows that begin during generation are not judged.
    is_generating: bool,
}

impl ReplyStream {
    pub fn new(
        stream: TcpStream,
        write_stall_timeout: Duration,
        min_read_rate: MinReadRate,
        replies: Replies,
    ) -> Self {
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(write_stall_timeout));
        Self { stream: Box::pin(stream), replies, min_read_rate, window: None }
    }

    fn check_read_rate(
        &mut self,
        written: Poll<Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize>> {
        match &written {
            Poll::Ready(Ok(bytes)) => {
                if let Some(window) = &mut self.window {
                    window.bytes += bytes;
                }
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => loop {
                let new_window = || ReadWindow {
                    end: Box::pin(tokio::time::sleep(self.min_read_rate.window)),
                    bytes: 0,
                    is_generating: self.replies.is_generating(),
                };
                let window = self.window.get_or_insert_with(new_window);
                ready!(window.end.as_mut().poll(context));
                if !window.is_generating && window.bytes < self.min_read_rate.bytes_per_window {
                    return Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the peer reads too slowly")));
                }
                self.window = None;
            },
        }
        written
    }
}

impl AsyncRead for ReplyStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        self.stream.as_mut().poll_read(context, buffer)
    }
}

impl AsyncWrite for ReplyStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = self.stream.as_mut().poll_write(context, bytes);
        self.check_read_rate(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = self.stream.as_mut().poll_write_vectored(context, parts);
        self.check_read_rate(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// The HTTP library flushes only after it has written everything it has.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.stream.as_mut().poll_flush(context))?;
        self.window = None;
        self.replies.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::Connections;
    use chancery_web::TrustedProxies;
    use futures_util::FutureExt;
    use std::pin::pin;

    const IDLE_TIMEOUT: Duration = Duration::from_millis(50);
    const ENOUGH_TIME: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn connection_is_idle_only_after_a_whole_timeout_without_a_request() {
        let connections = Connections::new(1, 1, TrustedProxies::default());
        let slot = connections.admit("192.0.2.1".parse().unwrap()).await.unwrap();
        let replies = Replies::new(Arc::new(slot), TaskTracker::new());
        let mut idle = pin!(replies.idle_for(IDLE_TIMEOUT));
        assert!(idle.as_mut().now_or_never().is_none());
        let reply = replies.begin(Version::HTTP_2, true);
        tokio::time::sleep(IDLE_TIMEOUT * 2).await;
        assert!(idle.as_mut().now_or_never().is_none(), "a request runs");
        drop(reply);
        assert!(idle.as_mut().now_or_never().is_none());
        tokio::time::sleep(IDLE_TIMEOUT * 2).await;
        drop(replies.begin(Version::HTTP_2, true));
        assert!(idle.as_mut().now_or_never().is_none(), "a request has just ended");
        tokio::time::timeout(ENOUGH_TIME, idle).await.unwrap();
    }
}
