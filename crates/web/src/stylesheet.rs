//! The one stylesheet.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// Where both surfaces serve it. The address changes with the text, so that a browser may keep it for ever.
pub const STYLESHEET_PATH: &str = concat!("/assets/chancery-", env!("CHANCERY_STYLESHEET_VERSION"), ".css");

const TEXT: &str = include_str!("../assets/chancery.css");

pub(crate) async fn handle() -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/css; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (headers, TEXT).into_response()
}
