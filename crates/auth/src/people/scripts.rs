//! The script of the provider's pages. Only passkeys need it. Its URL contains a hash of the content, so browsers may
//! cache it indefinitely.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

pub(crate) const SCRIPT_PATH: &str = concat!("/assets/", env!("CHANCERY_AUTH_SCRIPTS_VERSION"), "/auth.js");

pub(crate) async fn show() -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/javascript; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (headers, include_str!("../../assets/auth.js")).into_response()
}
