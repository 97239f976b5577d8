//! Reads the whole request body before any handler runs, with limits on size and time. Forms are small, and a slow sender must
//! not occupy a connection that others need.

use crate::error_page::ErrorPage;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use http_body_util::{BodyExt, Limited};
use std::time::Duration;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the request with its body, and a copy of the body.
pub(crate) async fn read_body(request: Request, max_bytes: usize) -> Result<(Request, Bytes), ErrorPage> {
    let (parts, body) = request.into_parts();
    match tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, max_bytes).collect()).await {
        Ok(Ok(body)) => {
            let body = body.to_bytes();
            Ok((Request::from_parts(parts, Body::from(body.clone())), body))
        }
        Ok(Err(_)) => Err(too_large(max_bytes)),
        Err(_) => Err(timed_out()),
    }
}

fn too_large(max_bytes: usize) -> ErrorPage {
    let reason = format!("The request is larger than {max_bytes} bytes.");
    ErrorPage::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", "Request too large", reason)
        .advice("Go back and shorten the text.")
}

fn timed_out() -> ErrorPage {
    let reason = format!("The request did not arrive within {} seconds.", BODY_TIMEOUT.as_secs());
    ErrorPage::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", "Request timed out", reason)
        .advice("Nothing was changed. Go back and try again.")
}
