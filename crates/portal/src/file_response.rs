//! Files: a PDF, and a file that is sent while it is generated. If generation fails halfway, the connection is aborted, so
//! that a partial file is not mistaken for a complete one.

use crate::error::PageError;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use chancery_web::ErrorPage;
use futures_util::{Stream, StreamExt, TryStreamExt, future, stream};
use std::io;

pub(crate) type Chunk = Vec<u8>;

/// Generates a file chunk by chunk, as fast as it is taken.
pub(crate) trait ChunkSource: Sized + Send + 'static {
    /// Returns the next chunk, and the source of the rest.
    fn next_chunk(self) -> impl Future<Output = Result<(Chunk, Option<Self>), PageError>> + Send;
}

/// The chunks of a source. `None` has none.
pub(crate) fn rest_of(
    source: Option<impl ChunkSource>,
) -> impl Stream<Item = Result<Chunk, io::Error>> + Send + 'static {
    let chunks = stream::try_unfold(source, |source| async {
        match source {
            None => Ok(None),
            Some(source) => {
                source.next_chunk().await.map(Some).map_err(|error| io::Error::other(log_detail(&error)))
            }
        }
    });
    chunks.try_filter(|chunk| future::ready(!chunk.is_empty()))
}

/// For the log: the headers are sent, so no error page can be shown.
fn log_detail(error: &PageError) -> String {
    error.internal.clone().unwrap_or_else(|| error.reason.clone())
}

/// The body of a reply that is sent while it is generated. `head` is generated beforehand.
pub(crate) fn streamed_body(
    head: Chunk,
    rest: impl Stream<Item = Result<Chunk, io::Error>> + Send + 'static,
) -> Body {
    let chunks = stream::once(async { Ok(head) }).chain(rest);
    Body::from_stream(chunks.inspect_err(|error| tracing::error!(%error, "file download interrupted")))
}

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
    (headers, streamed_body(head, rest)).into_response()
}

/// Our PDFs load nothing. The browser's built-in viewer needs its own styles and images, which the policy of the pages would
/// block.
const PDF_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; object-src 'self'; \
                          frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// A PDF that the browser shows. `name` must be plain ASCII without quotes.
pub(crate) fn pdf_response(name: &str, pdf: Vec<u8>) -> Result<Response, PageError> {
    let disposition = HeaderValue::from_str(&format!("inline; filename=\"{name}\""));
    let disposition = disposition.map_err(|error| ErrorPage::internal(error.to_string()))?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/pdf")),
        (header::CONTENT_DISPOSITION, disposition),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PDF_POLICY)),
    ];
    Ok((headers, pdf).into_response())
}
