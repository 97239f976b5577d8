//! What is known about the reply that a connection sends: whether its text is still being generated, and when all of it has left.
//! `ReplyStream` closes the connection of a peer that reads a finished reply too slowly. Without that, a peer could keep a
//! connection for ever by reading a few bytes just before each stall timeout.

use super::connections::ConnectionSlot;
use axum::body::{Body, Bytes};
use chancery_metering::WorkStatus;
use hyper::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_io_timeout::TimeoutStream;

/// How fast a peer must read a reply, on average over a window, while bytes are waiting for it. A peer that reads while the text
/// is still being generated may be slower.
#[derive(Clone, Copy, Debug)]
pub struct MinReadRate {
    pub window: Duration,
    pub bytes_per_window: usize,
}

/// The reply of one connection. HTTP/1.1 has one at a time.
#[derive(Clone, Default)]
pub struct ReplyState(Arc<Mutex<Phase>>);

#[derive(Default)]
enum Phase {
    #[default]
    None,
    /// The handler runs, or its reply's body does. The text of a stream has a status.
    Running(Option<WorkStatus>),
    /// The HTTP library has the whole body, and may still have to send some of it.
    Ended,
}

impl ReplyState {
    pub fn begin(&self) {
        *self.lock() = Phase::Running(None);
    }

    /// Follows the reply from now on to the end of its body.
    pub fn track(&self, mut reply: Response<Body>) -> Response<TrackedBody> {
        *self.lock() = Phase::Running(reply.extensions_mut().remove::<WorkStatus>());
        reply.map(|body| TrackedBody { body, state: self.clone() })
    }

    fn is_generating(&self) -> bool {
        match &*self.lock() {
            Phase::Running(Some(work)) => !work.has_ended(),
            Phase::Running(None) | Phase::None | Phase::Ended => false,
        }
    }

    /// Returns whether a reply had ended, once for each.
    fn take_ended(&self) -> bool {
        let mut phase = self.lock();
        let has_ended = matches!(*phase, Phase::Ended);
        if has_ended {
            *phase = Phase::None;
        }
        has_ended
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reply's body. The HTTP library drops it when it has taken the last of it.
pub struct TrackedBody {
    body: Body,
    state: ReplyState,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        *self.state.lock() = Phase::Ended;
    }
}

/// A connection's socket. It reports the end of each reply to the connection's slot.
pub struct ReplyStream {
    stream: Pin<Box<TimeoutStream<TcpStream>>>,
    slot: Arc<ConnectionSlot>,
    reply: ReplyState,
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
        slot: Arc<ConnectionSlot>,
        reply: ReplyState,
    ) -> Self {
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(write_stall_timeout));
        Self { stream: Box::pin(stream), slot, reply, min_read_rate, window: None }
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
                    is_generating: self.reply.is_generating(),
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
        if self.reply.take_ended() {
            self.slot.request_ended();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.stream.as_mut().poll_shutdown(context)
    }
}
