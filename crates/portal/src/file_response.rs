//! A file that is sent while it is generated. If generation fails halfway, the connection is aborted, so that a partial file
//! is not mistaken for a complete one.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use chancery_web::ErrorPage;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use std::io;

pub(crate) type Chunk = Vec<u8>;

/// `name` must be plain ASCII without quotes. `head` is generated beforehand, so that an early failure becomes an error page.
pub(crate) fn file_response(
    content_type: &'static str,
    name: &str,
    head: Chunk,
    rest: impl Stream<Item = Result<Chunk, io::Error>> + Send + 'static,
) -> Response {
    let Ok(disposition) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) else {
        return ErrorPage::internal("the file name does not fit in a header").into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (header::CONTENT_DISPOSITION, disposition),
    ];
    let chunks = stream::once(async { Ok(head) }).chain(rest);
    let chunks = chunks.inspect_err(|error| tracing::error!(%error, "file download interrupted"));
    (headers, Body::from_stream(chunks)).into_response()
}
