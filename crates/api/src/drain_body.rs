//! A rejected request may still be sending its body. Closing the connection would reset it before the caller reads the
//! error. The rest of a dropped body is therefore read and discarded, within limits.

use axum::body::{Body, BodyDataStream};
use futures_core::Stream;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Limits on what is discarded. Beyond either, the connection is closed.
const MAX_DRAINED_BYTES: usize = 16 * 1024 * 1024;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Wraps a body so that it is read to the end even if the handler drops it.
pub(crate) fn drain_on_drop(body: Body) -> Body {
    Body::from_stream(DrainOnDrop(Some(body.into_data_stream())))
}

struct DrainOnDrop(Option<BodyDataStream>);

impl Stream for DrainOnDrop {
    type Item = <BodyDataStream as Stream>::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(rest) = &mut self.0 else { return Poll::Ready(None) };
        let polled = Pin::new(rest).poll_next(context);
        if let Poll::Ready(None | Some(Err(_))) = polled {
            self.0 = None;
        }
        polled
    }
}

impl Drop for DrainOnDrop {
    fn drop(&mut self) {
        if let Some(rest) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(tokio::time::timeout(DRAIN_TIMEOUT, drain(rest)));
        }
    }
}

async fn drain(mut rest: BodyDataStream) {
    let mut discarded_bytes = 0;
    while let Some(Ok(part)) = poll_fn(|context| Pin::new(&mut rest).poll_next(context)).await {
        discarded_bytes += part.len();
        if discarded_bytes > MAX_DRAINED_BYTES {
            return;
        }
    }
}
