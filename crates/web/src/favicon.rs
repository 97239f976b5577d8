//! The favicon.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// The path on both surfaces. It contains a hash of the content, so browsers may cache it indefinitely.
pub const FAVICON_PATH: &str = concat!("/assets/favicon-", env!("CHANCERY_FAVICON_VERSION"), ".svg");

const PICTURE: &str = include_str!("../assets/favicon.svg");

pub(crate) async fn handle() -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("image/svg+xml; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (headers, PICTURE).into_response()
}
