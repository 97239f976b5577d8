//! A file as a reply, sent while it is made. Where its making fails halfway, the connection breaks off, so that nobody takes
//! a part for the whole.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use chancery_web::ErrorPage;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use std::io;

pub(crate) type Chunk = Vec<u8>;

/// `name` is of plain letters; `head` was made already, so that what fails at once is refused in words.
pub(crate) fn file_reply(
    kind: &'static str,
    name: &str,
    head: Chunk,
    rest: impl Stream<Item = Result<Chunk, io::Error>> + Send + 'static,
) -> Response {
    let Ok(disposition) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) else {
        return ErrorPage::internal("a file's name cannot be put into a header").into_response();
    };
    let headers =
        [(header::CONTENT_TYPE, HeaderValue::from_static(kind)), (header::CONTENT_DISPOSITION, disposition)];
    let chunks = stream::once(async { Ok(head) }).chain(rest);
    let chunks = chunks.inspect_err(|error| tracing::error!(%error, "a file was broken off"));
    (headers, Body::from_stream(chunks)).into_response()
}
