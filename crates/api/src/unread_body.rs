//! A refused request may still be sending its body. Closing the connection on it would reset it before the caller has
//! read the refusal, so what is left of a dropped body is read and thrown away, within bounds.

use axum::body::{Body, BodyDataStream};
use futures_core::Stream;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// How much is thrown away at most, and for how long; past either the connection is closed.
const MAX_DISCARDED_BYTES: usize = 16 * 1024 * 1024;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);

/// The same body, read to its end even when whoever gets it drops it.
pub(crate) fn read_to_the_end(body: Body) -> Body {
    Body::from_stream(ReadToTheEnd(Some(body.into_data_stream())))
}

struct ReadToTheEnd(Option<BodyDataStream>);

impl Stream for ReadToTheEnd {
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

impl Drop for ReadToTheEnd {
    fn drop(&mut self) {
        if let Some(rest) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(tokio::time::timeout(DISCARD_TIMEOUT, discard(rest)));
        }
    }
}

async fn discard(mut rest: BodyDataStream) {
    let mut discarded_bytes = 0;
    while let Some(Ok(part)) = poll_fn(|context| Pin::new(&mut rest).poll_next(context)).await {
        discarded_bytes += part.len();
        if discarded_bytes > MAX_DISCARDED_BYTES {
            return;
        }
    }
}
