//! The stylesheet.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// The path on both surfaces. It contains a hash of the content, so browsers may cache it indefinitely.
pub const STYLESHEET_PATH: &str = concat!("/assets/chancery-", env!("CHANCERY_STYLESHEET_VERSION"), ".css");

/// Without comments (`build.rs`).
const TEXT: &str = include_str!(concat!(env!("OUT_DIR"), "/chancery.css"));

pub(crate) async fn handle() -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/css; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (headers, TEXT).into_response()
}
