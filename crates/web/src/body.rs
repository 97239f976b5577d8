//! Takes a request's body in before anybody looks at it, within bounds: a page's forms are small, and whoever sends theirs
//! a byte at a time would hold a place that others need.

use crate::error_page::ErrorPage;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use http_body_util::{BodyExt, Limited};
use std::time::Duration;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The request with its body, and the body once more.
pub(crate) async fn take_in(request: Request, max_bytes: usize) -> Result<(Request, Bytes), ErrorPage> {
    let (parts, body) = request.into_parts();
    match tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, max_bytes).collect()).await {
        Ok(Ok(body)) => {
            let body = body.to_bytes();
            Ok((Request::from_parts(parts, Body::from(body.clone())), body))
        }
        Ok(Err(_)) => Err(too_large(max_bytes)),
        Err(_) => Err(too_slow()),
    }
}

fn too_large(max_bytes: usize) -> ErrorPage {
    let reason = format!("What was sent is larger than this page takes, which is {max_bytes} bytes.");
    ErrorPage::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", "This is too large", reason)
        .advice("Go back and send less.")
}

fn too_slow() -> ErrorPage {
    let reason = format!("What you sent did not arrive within {} seconds.", BODY_TIMEOUT.as_secs());
    ErrorPage::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", "That took too long", reason)
        .advice("Nothing was changed. Go back and send it again.")
}
